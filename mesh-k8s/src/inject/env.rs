//! The environment of the proxy's container, in the order of Linkerd's patch.
//!
//! The order is kept because `$(NAME)` refers to preceding variables and because users compare
//! manifests.

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::InjectError;
use super::overrides::Annotations;
use crate::pod;
use crate::values::{MeshIdentity, Protocols, Redirection, Tracing, Values, non_empty};

/// What the environment depends on.
pub(super) struct EnvInputs<'a> {
    pub(super) values: &'a Values,
    pub(super) spec: &'a PodSpec,
    /// The component of the control plane that the pod runs, if any: its proxy connects to it over
    /// loopback.
    pub(super) component: Option<&'a str>,
    pub(super) opaque_ports: Option<String>,
    /// The attributes of the proxy's spans.
    pub(super) trace_attributes: Annotations,
}

/// The directory of the proxy's key and certificate.
pub(super) const IDENTITY_DIR: &str = "/var/run/linkerd/identity/end-entity";
/// The only key of the ConfigMap with the trust anchors.
pub const TRUST_ROOTS_KEY: &str = "ca-bundle.crt";
/// The mount path of the pod's labels, and their file.
pub(super) const PODINFO_DIR: &str = "/var/run/linkerd/podinfo";
pub(super) const PODINFO_LABELS: &str = "labels";
pub(super) const TOKEN_DIR: &str = "/var/run/secrets/tokens";
pub(super) const TOKEN_FILE: &str = "linkerd-identity-token";
pub(super) const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The proxy connects to this address to check that the pod is redirected. It is in TEST-NET-1 (RFC
/// 5737), which is never routed; the agent redirects this one destination even for the proxy.
const REDIRECT_CHECK: &str = "192.0.2.1:20001";

/// TCP keep-alive interval, and the time until unacknowledged data closes a connection.
const KEEP_ALIVE: &str = "10000ms";
const USER_TIMEOUT: &str = "30s";
/// Effectively no timeout, in the longest unit that the proxy parses.
const NEVER: &str = "365d";

pub(super) fn proxy(inputs: &EnvInputs<'_>) -> Result<Vec<EnvVar>, InjectError> {
    check_networks(&inputs.values.cluster_networks)?;
    let mut env = Env(Vec::with_capacity(70));
    downward(&mut env);
    process(&mut env, inputs.values);
    discovery(&mut env, inputs);
    listeners(&mut env, inputs);
    transport(&mut env, inputs);
    identity(&mut env, inputs);
    let proxy = &inputs.values.proxy;
    env.some("ACCESS_LOG", non_empty(&proxy.access_log));
    env.some(
        "SHUTDOWN_GRACE_PERIOD",
        non_empty(&proxy.shutdown_grace_period),
    );
    mesh_variables(&mut env, inputs.values);
    let Env(mut list) = env;
    list.extend(proxy.additional_env.iter().cloned());
    list.extend(proxy.experimental_env.iter().cloned());
    Ok(list)
}

/// Collects environment variables. [`Env::put`] prefixes names with `LINKERD2_PROXY_`.
struct Env(Vec<EnvVar>);

impl Env {
    fn plain(&mut self, name: &str, value: impl Into<String>) {
        self.0.push(EnvVar {
            name: name.to_owned(),
            value: Some(value.into()),
            ..EnvVar::default()
        });
    }

    fn put(&mut self, name: &str, value: impl Into<String>) {
        self.plain(&format!("LINKERD2_PROXY_{name}"), value);
    }

    fn some(&mut self, name: &str, value: Option<impl Into<String>>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }

    fn field(&mut self, name: &str, path: &str) {
        self.0.push(EnvVar {
            name: name.to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: path.to_owned(),
                    ..ObjectFieldSelector::default()
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        });
    }
}

fn downward(env: &mut Env) {
    env.field("_pod_name", "metadata.name");
    env.field("_pod_ns", "metadata.namespace");
    env.field("_pod_uid", "metadata.uid");
    env.field("_pod_ip", "status.podIP");
    env.field("_pod_nodeName", "spec.nodeName");
    env.plain("_pod_containerName", pod::PROXY_CONTAINER);
}

fn process(env: &mut Env, values: &Values) {
    let proxy = &values.proxy;
    let workers = &proxy.runtime.workers;
    let minimum = proxy.cores.unwrap_or(workers.minimum);
    if minimum > 0 {
        env.put("CORES", minimum.to_string());
        env.put("CORES_MIN", minimum.to_string());
    }
    env.some("CORES_MAX", workers.maximum.map(|n| n.to_string()));
    env.some(
        "CORES_MAX_RATIO",
        workers.maximum_cpu_ratio.map(|r| r.to_string()),
    );
    env.some(
        "INBOUND_PORTS_REQUIRE_IDENTITY",
        non_empty(&proxy.require_identity_on_inbound_ports),
    );
    env.some(
        "INBOUND_PORTS_REQUIRE_TLS",
        non_empty(&proxy.require_tls_on_inbound_ports),
    );
    env.put(
        "SHUTDOWN_ENDPOINT_ENABLED",
        proxy.enable_shutdown_endpoint.to_string(),
    );
    let headers = match proxy.log_http_headers.as_str() {
        "insecure" => "",
        _ => ",[{headers}]=off,[{request}]=off",
    };
    env.put("LOG", format!("{}{headers}", proxy.log_level));
    env.put("LOG_FORMAT", &proxy.log_format);
}

fn discovery(env: &mut Env, inputs: &EnvInputs<'_>) {
    let values = inputs.values;
    let service = |component: &str, service: &str, port: u16| {
        if inputs.component == Some(component) {
            format!("localhost.:{port}")
        } else {
            format!(
                "{service}.{}.svc.{}.:{port}",
                values.namespace, values.cluster_domain
            )
        }
    };
    env.put(
        "DESTINATION_SVC_ADDR",
        service("destination", "linkerd-dst-headless", 8086),
    );
    env.put("DESTINATION_PROFILE_NETWORKS", &values.cluster_networks);
    env.put(
        "POLICY_SVC_ADDR",
        service("destination", "linkerd-policy", 8090),
    );
    env.put(
        "POLICY_WORKLOAD",
        "{\"ns\":\"$(_pod_ns)\", \"pod\":\"$(_pod_name)\"}\n",
    );
    env.put(
        "INBOUND_DEFAULT_POLICY",
        &values.proxy.default_inbound_policy,
    );
    env.put("POLICY_CLUSTER_NETWORKS", &values.cluster_networks);
    let streams = &values.proxy.control.streams;
    env.put("CONTROL_STREAM_INITIAL_TIMEOUT", &streams.initial_timeout);
    env.put("CONTROL_STREAM_IDLE_TIMEOUT", &streams.idle_timeout);
    env.put("CONTROL_STREAM_LIFETIME", &streams.lifetime);
}

fn listeners(env: &mut Env, inputs: &EnvInputs<'_>) {
    let values = inputs.values;
    let proxy = &values.proxy;
    env.put("INBOUND_CONNECT_TIMEOUT", &proxy.inbound_connect_timeout);
    env.put("OUTBOUND_CONNECT_TIMEOUT", &proxy.outbound_connect_timeout);
    env.put(
        "OUTBOUND_DISCOVERY_IDLE_TIMEOUT",
        &proxy.outbound_discovery_cache_unused_timeout,
    );
    env.put(
        "INBOUND_DISCOVERY_IDLE_TIMEOUT",
        &proxy.inbound_discovery_cache_unused_timeout,
    );
    let outbound_never = proxy.disable_outbound_protocol_detect_timeout;
    env.some("OUTBOUND_DETECT_TIMEOUT", outbound_never.then_some(NEVER));
    let inbound_never = proxy.disable_inbound_protocol_detect_timeout;
    env.some("INBOUND_DETECT_TIMEOUT", inbound_never.then_some(NEVER));
    let any = if values.disable_ipv6 {
        "0.0.0.0"
    } else {
        "[::]"
    };
    let ports = &proxy.ports;
    env.put("CONTROL_LISTEN_ADDR", format!("{any}:{}", ports.control));
    env.put("ADMIN_LISTEN_ADDR", format!("{any}:{}", ports.admin));
    let outbound = format!("127.0.0.1:{}", ports.outbound);
    env.put("OUTBOUND_LISTEN_ADDR", &outbound);
    let both = format!("{outbound},[::1]:{}", ports.outbound);
    let outbound = if values.disable_ipv6 { outbound } else { both };
    env.put("OUTBOUND_LISTEN_ADDRS", outbound);
    env.put("INBOUND_LISTEN_ADDR", format!("{any}:{}", ports.inbound));
    env.field("LINKERD2_PROXY_INBOUND_IPS", "status.podIPs");
    env.some("INBOUND_PORTS", non_empty(&inbound_ports(inputs.spec)));
    let suffix = format!("svc.{}.", values.cluster_domain);
    env.some(
        "INBOUND_GATEWAY_SUFFIXES",
        proxy.is_gateway.then_some(&suffix),
    );
    env.some("INGRESS_MODE", proxy.is_ingress.then_some("true"));
    let suffixes = if proxy.enable_external_profiles {
        "."
    } else {
        &suffix
    };
    env.put("DESTINATION_PROFILE_SUFFIXES", suffixes);
}

fn transport(env: &mut Env, inputs: &EnvInputs<'_>) {
    let proxy = &inputs.values.proxy;
    for name in ["INBOUND_ACCEPT_KEEPALIVE", "OUTBOUND_CONNECT_KEEPALIVE"] {
        env.put(name, KEEP_ALIVE);
    }
    for name in [
        "INBOUND_ACCEPT_USER_TIMEOUT",
        "OUTBOUND_CONNECT_USER_TIMEOUT",
    ] {
        env.put(name, USER_TIMEOUT);
    }
    env.put(
        "OUTBOUND_METRICS_HOSTNAME_LABELS",
        proxy.metrics.hostname_labels.to_string(),
    );
    if proxy.tracing.enabled {
        tracing(env, inputs);
    }
    protocols(env, "INBOUND", &proxy.inbound);
    protocols(env, "OUTBOUND", &proxy.outbound);
    env.some(
        "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION",
        inputs.opaque_ports.as_deref(),
    );
    env.put(
        "DESTINATION_CONTEXT",
        "{\"ns\":\"$(_pod_ns)\", \"nodeName\":\"$(_pod_nodeName)\", \"pod\":\"$(_pod_name)\"}\n",
    );
}

fn tracing(env: &mut Env, inputs: &EnvInputs<'_>) {
    let values = inputs.values;
    let Tracing {
        trace_service_name,
        collector,
        ..
    } = &values.proxy.tracing;
    env.put(
        "TRACE_ATTRIBUTES_PATH",
        format!("{PODINFO_DIR}/{PODINFO_LABELS}"),
    );
    env.put("TRACE_PROTOCOL", "opentelemetry");
    env.put("TRACE_SERVICE_NAME", trace_service_name);
    env.put("TRACE_COLLECTOR_SVC_ADDR", &collector.endpoint);
    let MeshIdentity {
        service_account_name,
        namespace,
    } = &collector.mesh_identity;
    let (ns, domain) = (&values.namespace, values.trust_domain());
    env.put(
        "TRACE_COLLECTOR_SVC_NAME",
        format!("{service_account_name}.{namespace}.serviceaccount.identity.{ns}.{domain}"),
    );
    let attributes = inputs.trace_attributes.iter();
    let lines: Vec<String> = attributes
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    env.some("TRACE_EXTRA_ATTRIBUTES", non_empty(&lines.join("\n")));
}

/// Writes a variable for each `scope.proto.param` of the values.
fn protocols(env: &mut Env, direction: &str, protocols: &Protocols) {
    for (scope, protos) in protocols {
        for (proto, params) in protos {
            for (param, value) in params {
                let name = [scope, proto, param]
                    .map(|part| upper_snake(part))
                    .join("_");
                let value = match value {
                    serde_json::Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                env.put(&format!("{direction}_{name}"), value);
            }
        }
    }
}

fn upper_snake(camel: &str) -> String {
    let mut name = String::with_capacity(camel.len() + 4);
    for c in camel.chars() {
        if c.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(c.to_ascii_uppercase());
    }
    name
}

fn identity(env: &mut Env, inputs: &EnvInputs<'_>) {
    let values = inputs.values;
    let (ns, domain) = (&values.namespace, values.trust_domain());
    env.field("_pod_sa", "spec.serviceAccountName");
    env.plain("_l5d_ns", ns);
    env.plain("_l5d_trustdomain", domain);
    env.put("IDENTITY_DIR", IDENTITY_DIR);
    env.put(
        "IDENTITY_TRUST_ANCHORS",
        values.identity_trust_anchors_pem.trim(),
    );
    let token = if values.identity.service_account_token_projection {
        format!("{TOKEN_DIR}/{TOKEN_FILE}")
    } else {
        format!("{SERVICE_ACCOUNT_DIR}/token")
    };
    env.put("IDENTITY_TOKEN_FILE", token);
    let address = if inputs.component == Some("identity") {
        "localhost.:8080".to_owned()
    } else {
        format!(
            "linkerd-identity-headless.{ns}.svc.{}.:8080",
            values.cluster_domain
        )
    };
    env.put("IDENTITY_SVC_ADDR", address);
    let name = |account: &str| format!("{account}.serviceaccount.identity.{ns}.{domain}");
    env.put("IDENTITY_LOCAL_NAME", name("$(_pod_sa).$(_pod_ns)"));
    env.put("IDENTITY_SVC_NAME", name(&format!("linkerd-identity.{ns}")));
    let destination = name(&format!("linkerd-destination.{ns}"));
    env.put("DESTINATION_SVC_NAME", &destination);
    env.put("POLICY_SVC_NAME", &destination);
}

/// Writes the variables that only this mesh's proxy reads.
fn mesh_variables(env: &mut Env, values: &Values) {
    if values.redirection() == Redirection::Agent {
        env.plain("MESH_PROXY_REDIRECT_CHECK", REDIRECT_CHECK);
    }
}

/// Returns the ports whose policy the proxy requests at start, in lexical order: declared ports,
/// and the ports of HTTP readiness and liveness probes.
fn inbound_ports(spec: &PodSpec) -> String {
    let mut ports: Vec<String> = Vec::new();
    for container in pod::containers(spec) {
        let declared = container.ports.iter().flatten();
        ports.extend(declared.map(|port| port.container_port.to_string()));
        let probes = [&container.readiness_probe, &container.liveness_probe];
        for action in probes
            .into_iter()
            .flatten()
            .filter_map(|p| p.http_get.as_ref())
        {
            if let IntOrString::Int(port) = &action.port {
                ports.push(port.to_string());
            }
        }
    }
    ports.sort_unstable();
    ports.dedup();
    ports.join(",")
}

fn check_networks(networks: &str) -> Result<(), InjectError> {
    match networks
        .split(',')
        .find(|block| block.trim().parse::<IpNet>().is_err())
    {
        None => Ok(()),
        Some(block) => Err(InjectError::ClusterNetworks(block.to_owned())),
    }
}
