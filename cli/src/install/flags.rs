//! The flags of `install` and `upgrade`: Helm's flags for values, and Linkerd's flags for common
//! values of the control plane's chart.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::exit::Failure;

/// Helm's flags for the values of any chart.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct HelmFlags {
    /// Values file; may be repeated, later files override earlier ones
    #[arg(short = 'f', long, value_name = "FILE", help_heading = "Values")]
    pub(crate) values: Vec<PathBuf>,
    /// Set a value, as in controllerReplicas=3; may be repeated
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Values")]
    set: Vec<String>,
    /// Set a value that is always a string
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Values")]
    set_string: Vec<String>,
    /// Set a value to the content of a file, as in identityTrustAnchorsPEM=ca.crt
    #[arg(long, value_name = "KEY=FILE", help_heading = "Values")]
    set_file: Vec<String>,
}

#[derive(Debug, Default, clap::Args)]
pub(crate) struct ValueFlags {
    #[command(flatten)]
    pub(crate) helm: HelmFlags,
    /// Run three replicas of each controller on different nodes with disruption budgets, and reject
    /// pods that cannot be injected
    #[arg(long, help_heading = "Values")]
    pub(crate) ha: bool,
    #[command(flatten)]
    identity: IdentityFlags,
    #[command(flatten)]
    control_plane: ControlPlaneFlags,
    #[command(flatten)]
    proxy: ProxyFlags,
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Identity")]
struct IdentityFlags {
    /// Trust domain, the suffix of identities
    #[arg(long, value_name = "DOMAIN")]
    identity_trust_domain: Option<String>,
    /// Trust anchors, in PEM
    #[arg(long, value_name = "FILE")]
    identity_trust_anchors_file: Option<PathBuf>,
    /// Certificate of the issuer, in PEM
    #[arg(long, value_name = "FILE", requires = "identity_issuer_key_file")]
    identity_issuer_certificate_file: Option<PathBuf>,
    /// Private key of the issuer, in PEM
    #[arg(
        long,
        value_name = "FILE",
        requires = "identity_issuer_certificate_file"
    )]
    identity_issuer_key_file: Option<PathBuf>,
    /// Use a Secret linkerd-identity-issuer that another program creates, for example cert-manager
    #[arg(long)]
    identity_external_issuer: bool,
    /// Use a ConfigMap linkerd-identity-trust-roots that another program creates, for example
    /// trust-manager
    #[arg(long)]
    identity_external_ca: bool,
    /// Validity of proxy certificates
    #[arg(long, value_name = "DURATION")]
    identity_issuance_lifetime: Option<String>,
    /// Maximum clock skew between nodes
    #[arg(long, value_name = "DURATION")]
    identity_clock_skew_allowance: Option<String>,
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Control plane")]
struct ControlPlaneFlags {
    /// DNS domain of the cluster
    #[arg(long, value_name = "DOMAIN")]
    cluster_domain: Option<String>,
    /// Registry and path of the images, as in registry.example/mesh
    #[arg(long, value_name = "REGISTRY")]
    registry: Option<String>,
    /// When images are pulled: Always, IfNotPresent or Never
    #[arg(long, value_name = "POLICY")]
    image_pull_policy: Option<String>,
    /// Replicas of each controller
    #[arg(long, value_name = "N")]
    controller_replicas: Option<u32>,
    /// Log level of the controllers
    #[arg(long, value_name = "LEVEL")]
    controller_log_level: Option<String>,
    /// User ID of the controllers
    #[arg(long, value_name = "UID")]
    controller_uid: Option<i64>,
    /// Group ID of the controllers
    #[arg(long, value_name = "GID")]
    controller_gid: Option<i64>,
    /// Do not upgrade HTTP/1 between proxies to HTTP/2
    #[arg(long)]
    disable_h2_upgrade: bool,
    /// Send no reports of the installation, even if the value heartbeatUrl is set
    #[arg(long)]
    disable_heartbeat: bool,
    /// Accepted for scripts that were written for Linkerd; endpoints always come from
    /// EndpointSlices
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    enable_endpoint_slices: Option<bool>,
    /// Redirect pods by Linkerd's CNI plugin, instead of the node agent
    #[arg(long)]
    linkerd_cni_enabled: bool,
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Proxy")]
struct ProxyFlags {
    /// The proxy's image, without tag
    #[arg(long, value_name = "IMAGE")]
    proxy_image: Option<String>,
    /// Port of the proxy for connections from other pods
    #[arg(long, value_name = "PORT")]
    inbound_port: Option<u16>,
    /// Port of the proxy for connections of the application
    #[arg(long, value_name = "PORT")]
    outbound_port: Option<u16>,
    /// Port of the proxy for /live, /ready and /metrics
    #[arg(long, value_name = "PORT")]
    admin_port: Option<u16>,
    /// Port of the proxy for tap
    #[arg(long, value_name = "PORT")]
    control_port: Option<u16>,
    /// Inbound ports and ranges that bypass the proxy
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    skip_inbound_ports: Option<Vec<String>>,
    /// Outbound ports and ranges that bypass the proxy
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    skip_outbound_ports: Option<Vec<String>>,
    /// User ID of the proxy
    #[arg(long, value_name = "UID")]
    proxy_uid: Option<i64>,
    /// Group ID of the proxy
    #[arg(long, value_name = "GID")]
    proxy_gid: Option<i64>,
    /// Log filter of the proxy
    #[arg(long, value_name = "LEVEL")]
    proxy_log_level: Option<String>,
    /// CPU request of the proxy
    #[arg(long, value_name = "QUANTITY")]
    proxy_cpu_request: Option<String>,
    /// CPU limit of the proxy
    #[arg(long, value_name = "QUANTITY")]
    proxy_cpu_limit: Option<String>,
    /// Memory request of the proxy
    #[arg(long, value_name = "QUANTITY")]
    proxy_memory_request: Option<String>,
    /// Memory limit of the proxy
    #[arg(long, value_name = "QUANTITY")]
    proxy_memory_limit: Option<String>,
    /// Policy of ports that no Server selects
    #[arg(long, value_name = "POLICY")]
    default_inbound_policy: Option<String>,
    /// Look up profiles of names outside the cluster, too
    #[arg(long)]
    enable_external_profiles: bool,
}

impl HelmFlags {
    /// Returns the flags of Helm for single values, which override all files.
    pub(super) fn settings(&self) -> Vec<(&'static str, String)> {
        let lists = [
            ("--set", &self.set),
            ("--set-string", &self.set_string),
            ("--set-file", &self.set_file),
        ];
        let pairs = lists
            .into_iter()
            .flat_map(|(flag, list)| list.iter().map(move |value| (flag, value.clone())));
        pairs.collect()
    }
}

impl ValueFlags {
    /// Returns the values of Linkerd's flags.
    pub(super) fn overlay(&self) -> anyhow::Result<Value> {
        let mut overlay = Overlay::default();
        self.identity.add_to(&mut overlay)?;
        self.control_plane.add_to(&mut overlay);
        self.proxy.add_to(&mut overlay);
        Ok(Value::Object(overlay.0))
    }

    /// Reads the PEM file of the issuer, if the flags name one.
    pub(crate) fn issuer_certificate(&self) -> anyhow::Result<Option<String>> {
        let file = self.identity.identity_issuer_certificate_file.as_deref();
        file.map(read).transpose()
    }
}

impl IdentityFlags {
    fn add_to(&self, overlay: &mut Overlay) -> anyhow::Result<()> {
        overlay.set("identityTrustDomain", self.identity_trust_domain.as_deref());
        let files = [
            ("identityTrustAnchorsPEM", &self.identity_trust_anchors_file),
            (
                "identity.issuer.tls.crtPEM",
                &self.identity_issuer_certificate_file,
            ),
            ("identity.issuer.tls.keyPEM", &self.identity_issuer_key_file),
        ];
        for (path, file) in files {
            overlay.set(path, file.as_deref().map(read).transpose()?);
        }
        let scheme = self.identity_external_issuer.then_some("kubernetes.io/tls");
        overlay.set("identity.issuer.scheme", scheme);
        let external = self.identity_external_ca.then_some(true);
        overlay.set("identity.externalCA", external);
        let lifetime = self.identity_issuance_lifetime.as_deref();
        overlay.set("identity.issuer.issuanceLifetime", lifetime);
        let skew = self.identity_clock_skew_allowance.as_deref();
        overlay.set("identity.issuer.clockSkewAllowance", skew);
        Ok(())
    }
}

impl ControlPlaneFlags {
    fn add_to(&self, overlay: &mut Overlay) {
        overlay.set("clusterDomain", self.cluster_domain.as_deref());
        if let Some(registry) = &self.registry {
            let image = |name: &str| Some(format!("{}/{name}", registry.trim_end_matches('/')));
            overlay.set("controllerImage", image("controller"));
            overlay.set("proxy.image.name", image("proxy"));
            overlay.set("meshAgent.image.name", image("agent"));
            overlay.set("debugContainer.image.name", image("debug"));
        }
        overlay.set("imagePullPolicy", self.image_pull_policy.as_deref());
        overlay.set("controllerReplicas", self.controller_replicas);
        overlay.set("controllerLogLevel", self.controller_log_level.as_deref());
        overlay.set("controllerUID", self.controller_uid);
        overlay.set("controllerGID", self.controller_gid);
        overlay.set("enableH2Upgrade", self.disable_h2_upgrade.then_some(false));
        overlay.set("disableHeartBeat", self.disable_heartbeat.then_some(true));
        // It has no effect, which `render` reports.
        overlay.set("enableEndpointSlices", self.enable_endpoint_slices);
        if self.linkerd_cni_enabled {
            overlay.set("cniEnabled", Some(true));
            overlay.set("meshAgent.enabled", Some(false));
        }
    }
}

impl ProxyFlags {
    fn add_to(&self, overlay: &mut Overlay) {
        for (path, text) in [
            ("proxy.image.name", &self.proxy_image),
            ("proxy.logLevel", &self.proxy_log_level),
            ("proxy.resources.cpu.request", &self.proxy_cpu_request),
            ("proxy.resources.cpu.limit", &self.proxy_cpu_limit),
            ("proxy.resources.memory.request", &self.proxy_memory_request),
            ("proxy.resources.memory.limit", &self.proxy_memory_limit),
            ("proxy.defaultInboundPolicy", &self.default_inbound_policy),
        ] {
            overlay.set(path, text.as_deref());
        }
        overlay.set("proxy.ports.inbound", self.inbound_port);
        overlay.set("proxy.ports.outbound", self.outbound_port);
        overlay.set("proxy.ports.admin", self.admin_port);
        overlay.set("proxy.ports.control", self.control_port);
        for (path, ports) in [
            ("proxyInit.ignoreInboundPorts", &self.skip_inbound_ports),
            ("proxyInit.ignoreOutboundPorts", &self.skip_outbound_ports),
        ] {
            overlay.set(path, ports.as_ref().map(|ports| ports.join(",")));
        }
        overlay.set("proxy.uid", self.proxy_uid);
        overlay.set("proxy.gid", self.proxy_gid);
        let external = self.enable_external_profiles.then_some(true);
        overlay.set("proxy.enableExternalProfiles", external);
    }
}

/// Values that are set by dotted paths.
#[derive(Debug, Default)]
pub(crate) struct Overlay(Map<String, Value>);

impl Overlay {
    pub(crate) fn set(&mut self, path: &str, value: Option<impl Into<Value>>) {
        let Some(value) = value else {
            return;
        };
        let mut parent = &mut self.0;
        let (parents, last) = path.rsplit_once('.').unwrap_or(("", path));
        for name in parents.split('.').filter(|name| !name.is_empty()) {
            let entry = parent
                .entry(name)
                .or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(inner) = entry else {
                unreachable!("a flag sets a group of values: {path}");
            };
            parent = inner;
        }
        parent.insert(last.to_owned(), value.into());
    }

    pub(crate) fn into_value(self) -> Option<Value> {
        (!self.0.is_empty()).then_some(Value::Object(self.0))
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path);
    Ok(text.map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use mesh_k8s::values::Values;
    use mesh_k8s::values::reading::schema;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: ValueFlags,
    }

    fn overlay(args: &[&str]) -> Value {
        let args = ["meshctl"].iter().chain(args);
        Line::parse_from(args).flags.overlay().unwrap()
    }

    #[test]
    fn flags_become_values() {
        assert_eq!(overlay(&[]), json!({}));
        let overlay = overlay(&[
            "--registry=registry.example/mesh/",
            "--skip-inbound-ports=25,3000-3010",
            "--linkerd-cni-enabled",
            "--identity-external-issuer",
            "--proxy-cpu-request=100m",
        ]);
        let image = &overlay["proxy"]["image"]["name"];
        assert_eq!(image, "registry.example/mesh/proxy");
        assert_eq!(overlay["proxyInit"]["ignoreInboundPorts"], "25,3000-3010");
        assert_eq!(overlay["meshAgent"]["enabled"], false);
        assert_eq!(overlay["identity"]["issuer"]["scheme"], "kubernetes.io/tls");
        assert_eq!(overlay["proxy"]["resources"]["cpu"]["request"], "100m");
    }

    /// The chart's schema would reject an unknown value, but only when the flag is used.
    #[test]
    fn flags_set_known_values_of_the_chart() {
        fn check(path: &str, given: &Value, schema: &Value) {
            for (name, value) in given.as_object().unwrap() {
                let schema = schema["properties"]
                    .get(name)
                    .unwrap_or_else(|| panic!("unknown value {path}.{name}"));
                if value.is_object() {
                    check(&format!("{path}.{name}"), value, schema);
                }
            }
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let file = file.path().to_str().unwrap();
        let command = <Line as clap::CommandFactory>::command();
        let passed = ["values", "set", "set_string", "set_file", "ha", "help"];
        let args = command.get_arguments();
        let args: Vec<String> = args
            .filter(|arg| !passed.contains(&arg.get_id().as_str()))
            .map(|arg| match arg.get_long().unwrap() {
                long if !arg.get_action().takes_values() => format!("--{long}"),
                long if long.ends_with("-file") => format!("--{long}={file}"),
                long if long.ends_with("slices") => format!("--{long}=true"),
                long => format!("--{long}=7"),
            })
            .collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        assert!(args.len() > 30, "{args:?}");
        check("", &overlay(&args), &schema::<Values>());
    }
}
