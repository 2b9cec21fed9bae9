//! Policies of ports whose connections bypass a proxy, ports that deny every client by default, and
//! proxies that the kubelet kills before they end.

use mesh_core::annotation::{DEFAULT_INBOUND_POLICY, SKIP_INBOUND_PORTS, SKIP_OUTBOUND_PORTS};
use mesh_core::identity;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{
    Authentication, Authorization, DefaultPolicy, InboundRule, ServerPolicy, ServerProtocol,
};
use mesh_core::ports::PortSet;
use mesh_core::route::Route;
use mesh_k8s::values::Values;
use mesh_objects::policy::inbound::policy_of_pod;
use mesh_objects::policy::settings::PolicySettings;
use serde_json::Value;

use super::finding::Finding;
use super::meshed::{Meshed, meshed};
use super::objects::{Object, Objects, POLICY, is_tcp};
use super::services;

/// The default of Kubernetes.
const DEFAULT_GRACE_PERIOD: i64 = 30;

pub(super) fn analyze(objects: &Objects, findings: &mut Vec<Finding>) {
    let default = Values::default();
    let values = objects.values().unwrap_or(&default);
    let meshed = meshed(objects, values);
    for pods in &meshed {
        grace_period(pods, findings);
    }
    for server in objects.of(POLICY, "Server") {
        skipped_server(server, &meshed, findings);
    }
    let settings = settings(values);
    for service in objects.of("", "Service") {
        let Some(selector) = services::selector(service) else {
            continue;
        };
        let selected = meshed.iter().filter(|pods| {
            let namespace = &pods.workload.object.namespace;
            *namespace == service.namespace && pods.workload.is_selected_by(&selector)
        });
        let selected: Vec<_> = selected.collect();
        for (at, port) in service.list("ports").iter().enumerate() {
            if !is_tcp(port) {
                continue;
            }
            let targets = selected.iter();
            let targets = targets.flat_map(|pods| targets_of(objects, &settings, pods, port));
            let targets: Vec<_> = targets.collect();
            denied(service, at, &targets, findings);
            let leads_to = Leads {
                service,
                at,
                port,
                targets,
            };
            for client in &meshed {
                skipped_service(&settings, client, &leads_to, findings);
            }
            skipped_by_chart(&settings, &meshed, &leads_to, findings);
        }
    }
}

/// A port of a pod that a port of a Service leads to.
struct Target<'a> {
    pods: &'a Meshed<'a>,
    port: u16,
    policy: ServerPolicy,
}

/// A port of a Service with the ports of pods that it leads to.
struct Leads<'a> {
    service: &'a Object,
    /// Its place in the list of ports.
    at: usize,
    port: &'a Value,
    targets: Vec<Target<'a>>,
}

/// Reports a proxy that only begins to end when its time is over.
fn grace_period(pods: &Meshed<'_>, findings: &mut Vec<Finding>) {
    let (workload, wait) = (pods.workload, pods.wait_before_exit_seconds);
    let spec = &workload.template["spec"];
    let grace = spec["terminationGracePeriodSeconds"].as_i64();
    let grace = grace.unwrap_or(DEFAULT_GRACE_PERIOD);
    // The pods of a workload have its template.
    if wait == 0 || i64::from(wait) < grace || workload.object.is_of_workload() {
        return;
    }
    findings.push(Finding::new(
        workload.object,
        format!("{}spec.terminationGracePeriodSeconds", workload.path),
        "grace-period",
        format!(
            "is {grace}, but the proxy waits {wait} s before it ends (config.alpha.linkerd.io/proxy-wait-before-exit-seconds), so the kubelet kills it with its open connections"
        ),
        pods.edit(&format!(
            "set terminationGracePeriodSeconds to more than {wait}, or shorten the wait,"
        )),
    ));
}

/// Reports a Server for a port where every client is allowed, because its connections bypass the
/// proxy.
fn skipped_server(object: &Object, meshed: &[Meshed<'_>], findings: &mut Vec<Finding>) {
    let Some(server) = object.server() else {
        return;
    };
    let skipped = meshed.iter().find_map(|pods| {
        let mut ports = server.ports_of((&pods.record).into()).into_iter();
        Some((pods, ports.find(|port| pods.skip_inbound.contains(*port))?))
    });
    let Some((pods, port)) = skipped else {
        return;
    };
    let edit = pods.edit(&format!(
        "set {SKIP_INBOUND_PORTS} to a list without {port}"
    ));
    findings.push(Finding::new(
        object,
        "spec.port",
        "skipped-port",
        format!(
            "port {port} of {} bypasses the proxy ({SKIP_INBOUND_PORTS}, by default proxyInit.ignoreInboundPorts), so the Server has no effect there and every client is allowed",
            pods.title()
        ),
        format!("{edit}, or delete the Server"),
    ));
}

/// Reports a port of a Service whose clients are denied, because no Server selects it.
fn denied(service: &Object, at: usize, targets: &[Target<'_>], findings: &mut Vec<Finding>) {
    let is_denied = |target: &&Target<'_>| target.policy.meta == DefaultPolicy::Deny.meta();
    let Some(Target { pods, port, .. }) = targets.iter().find(is_denied) else {
        return;
    };
    findings.push(Finding::new(
        service,
        format!("spec.ports[{at}]"),
        "default-deny",
        format!(
            "leads to port {port} of {}, whose default policy is deny, and no Server selects the port: every client is denied",
            pods.title()
        ),
        format!(
            "create a Server for port {port} and an AuthorizationPolicy for its clients (meshctl check explain policy-default-deny has both), or {}",
            pods.edit(&format!("set {DEFAULT_INBOUND_POLICY} to another policy"))
        ),
    ));
}

/// Reports a workload whose own list of ports keeps connections to a Service from the identity that
/// the Service's policy requires.
fn skipped_service(
    settings: &PolicySettings,
    client: &Meshed<'_>,
    to: &Leads<'_>,
    findings: &mut Vec<Finding>,
) {
    if !client.has_own_skip_outbound {
        return;
    }
    let Some(Refused { port, policy }) = refused(settings, client, to) else {
        return;
    };
    findings.push(Finding::new(
        client.workload.object,
        format!(
            "{}metadata.annotations[{SKIP_OUTBOUND_PORTS}]",
            client.workload.path
        ),
        "skipped-port",
        format!(
            "connections to port {port} of Service {} bypass the proxy and have no identity, but {policy} requires one, so they are denied",
            to.service.full_name()
        ),
        client.edit(&format!("set {SKIP_OUTBOUND_PORTS} to a list without {port}")),
    ));
}

/// Reports a port of a Service that no client with the chart's list of ports reaches for the same
/// reason. There is one finding, because the list applies to all of them.
fn skipped_by_chart(
    settings: &PolicySettings,
    meshed: &[Meshed<'_>],
    to: &Leads<'_>,
    findings: &mut Vec<Finding>,
) {
    let mut clients = meshed.iter().filter(|client| !client.has_own_skip_outbound);
    let found = clients.find_map(|client| Some((client, refused(settings, client, to)?)));
    let Some((client, Refused { port, policy })) = found else {
        return;
    };
    findings.push(Finding::new(
        to.service,
        format!("spec.ports[{}]", to.at),
        "skipped-port",
        format!(
            "connections to port {port} bypass the proxy of {} and of other clients (proxyInit.ignoreOutboundPorts) and have no identity, but {policy} requires one, so they are denied",
            client.title()
        ),
        format!(
            "remove {port} from proxyInit.ignoreOutboundPorts of the installation, or {}",
            client.edit(&format!("set {SKIP_OUTBOUND_PORTS} to a list without {port}"))
        ),
    ));
}

/// A connection that is denied because it has no identity.
struct Refused {
    /// The port that the client connects to.
    port: u16,
    /// What requires the identity.
    policy: String,
}

/// Returns the connection of a client to a port of a Service that bypasses the client's proxy, so
/// that it is denied. Which Services a workload uses is not known. It probably uses the one of its
/// own namespace with that port, and the one whose policy names it.
fn refused(settings: &PolicySettings, client: &Meshed<'_>, to: &Leads<'_>) -> Option<Refused> {
    let object = client.workload.object;
    // The pods of a workload have its list, and seldom connect to themselves.
    let is_own = |target: &Target<'_>| std::ptr::eq(target.pods, client);
    if object.is_of_workload() || to.targets.iter().any(is_own) {
        return None;
    }
    let account = identity::service_account(
        &client.record.service_account,
        &object.namespace,
        &settings.control_namespace,
        &settings.identity_domain,
    );
    let is_near = object.namespace == to.service.namespace;
    let is_headless = to.service.spec()["clusterIP"] == "None";
    let number = |target: &Target<'_>| {
        let number = to.port["port"].as_u64().filter(|_| !is_headless);
        number.map_or(Some(target.port), |number| u16::try_from(number).ok())
    };
    to.targets.iter().find_map(|target| {
        let port = number(target).filter(|number| client.skip_outbound.contains(*number))?;
        requires_identity(&target.policy, &account, is_near).then(|| Refused {
            port,
            policy: match &target.policy.meta {
                Meta::Default(name) => format!("the default policy {name}"),
                Meta::Resource(server) => format!("Server {}/{}", server.namespace, server.name),
            },
        })
    })
}

/// Returns whether a policy admits only clients with TLS, among them `account` by its name or, if
/// `is_near`, any.
fn requires_identity(policy: &ServerPolicy, account: &str, is_near: bool) -> bool {
    let all = authorizations(policy);
    let names_account = |authorization: &&Authorization| {
        matches!(&authorization.authentication, Authentication::TlsAuthenticated { identities, .. }
            if identities.iter().any(|identity| identity.as_str() == account))
    };
    let is_plain = |authorization: &&Authorization| {
        authorization.authentication == Authentication::Unauthenticated
    };
    !all.is_empty() && !all.iter().any(is_plain) && (is_near || all.iter().any(names_account))
}

/// Returns the authorizations of a policy and of the routes that users attached.
fn authorizations(policy: &ServerPolicy) -> Vec<&Authorization> {
    fn of_routes<M>(routes: &[Route<M, InboundRule>]) -> Vec<&Authorization> {
        let is_attached = |route: &&Route<M, InboundRule>| matches!(route.meta, Meta::Resource(_));
        let rules = routes.iter().filter(is_attached).flat_map(|it| &it.rules);
        rules
            .flat_map(|rule| &*rule.action.authorizations)
            .collect()
    }
    let of_routes = match &policy.protocol {
        ServerProtocol::Detect { http, .. }
        | ServerProtocol::Http1(http)
        | ServerProtocol::Http2(http) => of_routes(&http.routes),
        ServerProtocol::Grpc(routes) => of_routes(routes),
        ServerProtocol::Opaque | ServerProtocol::Tls => Vec::new(),
    };
    policy.authorizations.iter().chain(of_routes).collect()
}

/// Returns the ports that a port of a Service leads to, without those that bypass the proxy.
fn targets_of<'a>(
    objects: &Objects,
    settings: &PolicySettings,
    pods: &'a Meshed<'a>,
    port: &Value,
) -> Vec<Target<'a>> {
    let numbers = pods.workload.ports(services::target(port)).into_iter();
    let numbers = numbers.filter_map(|number| u16::try_from(number).ok());
    let redirected = numbers.filter(|port| !pods.skip_inbound.contains(*port));
    let target = |port| Target {
        pods,
        port,
        policy: policy_of_pod(objects.store(), settings, &pods.record, port),
    };
    redirected.map(target).collect()
}

/// Returns the settings of the policy controller. Which networks a policy admits is not evaluated.
fn settings(values: &Values) -> PolicySettings {
    PolicySettings {
        cluster_domain: values.cluster_domain.as_str().into(),
        control_namespace: values.namespace.as_str().into(),
        identity_domain: values.trust_domain().into(),
        cluster_networks: Vec::new(),
        global_egress_namespace: "".into(),
        // The records have the value of the chart.
        default_policy: DefaultPolicy::AllUnauthenticated,
        probe_networks: Vec::new(),
        node_probe_sources: Vec::new(),
        default_opaque_ports: PortSet::default(),
        allow_request_headers: false,
    }
}
