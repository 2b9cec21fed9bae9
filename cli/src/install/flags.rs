//! The flags of `install` and `upgrade`: Helm's own for values, and Linkerd's for those that people
//! set most. Each of the latter is one value of the chart.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::exit::Failure;

#[derive(Debug, Default, clap::Args)]
pub(crate) struct ValueFlags {
    /// A file of values; may be repeated, the later wins
    #[arg(short = 'f', long, value_name = "FILE", help_heading = "Values")]
    pub(crate) values: Vec<PathBuf>,
    /// A value, as in controllerReplicas=3; may be repeated
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Values")]
    set: Vec<String>,
    /// A value that is text whatever it looks like
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Values")]
    set_string: Vec<String>,
    /// A value from a file, as in identityTrustAnchorsPEM=ca.crt
    #[arg(long, value_name = "KEY=FILE", help_heading = "Values")]
    set_file: Vec<String>,
    /// Three of each controller on different nodes, disruption budgets, and no pod without the
    /// proxy it asks for
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
    /// The domain that identities end in
    #[arg(long, value_name = "DOMAIN")]
    identity_trust_domain: Option<String>,
    /// The trust anchors, in PEM
    #[arg(long, value_name = "FILE")]
    identity_trust_anchors_file: Option<PathBuf>,
    /// The issuer's certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "identity_issuer_key_file")]
    identity_issuer_certificate_file: Option<PathBuf>,
    /// The issuer's key, in PEM
    #[arg(
        long,
        value_name = "FILE",
        requires = "identity_issuer_certificate_file"
    )]
    identity_issuer_key_file: Option<PathBuf>,
    /// Somebody else makes the Secret linkerd-identity-issuer, cert-manager for example
    #[arg(long)]
    identity_external_issuer: bool,
    /// Somebody else makes the ConfigMap linkerd-identity-trust-roots, trust-manager for example
    #[arg(long)]
    identity_external_ca: bool,
    /// How long the proxies' certificates live
    #[arg(long, value_name = "DURATION")]
    identity_issuance_lifetime: Option<String>,
    /// How far the clocks of two nodes may be apart
    #[arg(long, value_name = "DURATION")]
    identity_clock_skew_allowance: Option<String>,
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Control plane")]
struct ControlPlaneFlags {
    /// The domain of the cluster's names
    #[arg(long, value_name = "DOMAIN")]
    cluster_domain: Option<String>,
    /// Registry and path of the images, as in registry.example/mesh
    #[arg(long, value_name = "REGISTRY")]
    registry: Option<String>,
    /// When images are pulled: Always, IfNotPresent or Never
    #[arg(long, value_name = "POLICY")]
    image_pull_policy: Option<String>,
    /// Pods of each controller
    #[arg(long, value_name = "N")]
    controller_replicas: Option<u32>,
    /// What the controllers log
    #[arg(long, value_name = "LEVEL")]
    controller_log_level: Option<String>,
    /// User of the controllers
    #[arg(long, value_name = "UID")]
    controller_uid: Option<i64>,
    /// Group of the controllers
    #[arg(long, value_name = "GID")]
    controller_gid: Option<i64>,
    /// Carry HTTP/1 between proxies as it is
    #[arg(long)]
    disable_h2_upgrade: bool,
    /// Accepted for Linkerd's scripts: nothing is reported to anybody
    #[arg(long, hide = true)]
    disable_heartbeat: bool,
    /// Accepted for Linkerd's scripts: endpoints always come from EndpointSlices
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    enable_endpoint_slices: Option<bool>,
    /// Another CNI plugin redirects pods, instead of our node agent
    #[arg(long)]
    linkerd_cni_enabled: bool,
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Proxy")]
struct ProxyFlags {
    /// The proxy's image, without tag
    #[arg(long, value_name = "IMAGE")]
    proxy_image: Option<String>,
    /// Where connections from other pods arrive
    #[arg(long, value_name = "PORT")]
    inbound_port: Option<u16>,
    /// Where connections of the application arrive
    #[arg(long, value_name = "PORT")]
    outbound_port: Option<u16>,
    /// The proxy's port of /live, /ready and /metrics
    #[arg(long, value_name = "PORT")]
    admin_port: Option<u16>,
    /// The proxy's port of tap
    #[arg(long, value_name = "PORT")]
    control_port: Option<u16>,
    /// Ports and ranges that are left alone on the way into a pod
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    skip_inbound_ports: Option<Vec<String>>,
    /// Ports and ranges that are left alone on the way out of a pod
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    skip_outbound_ports: Option<Vec<String>>,
    /// User of the proxy
    #[arg(long, value_name = "UID")]
    proxy_uid: Option<i64>,
    /// Group of the proxy
    #[arg(long, value_name = "GID")]
    proxy_gid: Option<i64>,
    /// What the proxy logs
    #[arg(long, value_name = "LEVEL")]
    proxy_log_level: Option<String>,
    /// Processor time reserved for a proxy
    #[arg(long, value_name = "QUANTITY")]
    proxy_cpu_request: Option<String>,
    /// Processor time a proxy may use
    #[arg(long, value_name = "QUANTITY")]
    proxy_cpu_limit: Option<String>,
    /// Memory reserved for a proxy
    #[arg(long, value_name = "QUANTITY")]
    proxy_memory_request: Option<String>,
    /// Memory a proxy may use
    #[arg(long, value_name = "QUANTITY")]
    proxy_memory_limit: Option<String>,
    /// Who may connect to ports that no Server selects
    #[arg(long, value_name = "POLICY")]
    default_inbound_policy: Option<String>,
    /// Ask for profiles of names outside the cluster too
    #[arg(long)]
    enable_external_profiles: bool,
}

impl ValueFlags {
    /// Values that go over every file, by Helm's own flags.
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

    /// The values that Linkerd's flags stand for.
    pub(super) fn overlay(&self) -> anyhow::Result<Value> {
        let mut overlay = Overlay::default();
        self.identity.put(&mut overlay)?;
        self.control_plane.put(&mut overlay);
        self.proxy.put(&mut overlay);
        Ok(Value::Object(overlay.0))
    }

    /// The PEM text of an issuer that these flags name in a file.
    pub(crate) fn issuer_certificate(&self) -> anyhow::Result<Option<String>> {
        let file = self.identity.identity_issuer_certificate_file.as_deref();
        file.map(read).transpose()
    }
}

impl IdentityFlags {
    fn put(&self, overlay: &mut Overlay) -> anyhow::Result<()> {
        overlay.some("identityTrustDomain", self.identity_trust_domain.as_deref());
        let files = [
            ("identityTrustAnchorsPEM", &self.identity_trust_anchors_file),
            (
                "identity.issuer.tls.crtPEM",
                &self.identity_issuer_certificate_file,
            ),
            ("identity.issuer.tls.keyPEM", &self.identity_issuer_key_file),
        ];
        for (path, file) in files {
            overlay.some(path, file.as_deref().map(read).transpose()?);
        }
        let scheme = self.identity_external_issuer.then_some("kubernetes.io/tls");
        overlay.some("identity.issuer.scheme", scheme);
        overlay.some(
            "identity.externalCA",
            self.identity_external_ca.then_some(true),
        );
        let lifetime = self.identity_issuance_lifetime.as_deref();
        overlay.some("identity.issuer.issuanceLifetime", lifetime);
        let skew = self.identity_clock_skew_allowance.as_deref();
        overlay.some("identity.issuer.clockSkewAllowance", skew);
        Ok(())
    }
}

impl ControlPlaneFlags {
    fn put(&self, overlay: &mut Overlay) {
        overlay.some("clusterDomain", self.cluster_domain.as_deref());
        if let Some(registry) = &self.registry {
            let image = |name: &str| Some(format!("{}/{name}", registry.trim_end_matches('/')));
            overlay.some("controllerImage", image("controller"));
            overlay.some("proxy.image.name", image("proxy"));
            overlay.some("meshAgent.image.name", image("agent"));
            overlay.some("debugContainer.image.name", image("debug"));
        }
        overlay.some("imagePullPolicy", self.image_pull_policy.as_deref());
        overlay.some("controllerReplicas", self.controller_replicas);
        overlay.some("controllerLogLevel", self.controller_log_level.as_deref());
        overlay.some("controllerUID", self.controller_uid);
        overlay.some("controllerGID", self.controller_gid);
        overlay.some("enableH2Upgrade", self.disable_h2_upgrade.then_some(false));
        // Without effect, which is said when the chart is rendered.
        overlay.some("disableHeartBeat", self.disable_heartbeat.then_some(true));
        overlay.some("enableEndpointSlices", self.enable_endpoint_slices);
        if self.linkerd_cni_enabled {
            overlay.some("cniEnabled", Some(true));
            overlay.some("meshAgent.enabled", Some(false));
        }
    }
}

impl ProxyFlags {
    fn put(&self, overlay: &mut Overlay) {
        overlay.some("proxy.image.name", self.proxy_image.as_deref());
        overlay.some("proxy.ports.inbound", self.inbound_port);
        overlay.some("proxy.ports.outbound", self.outbound_port);
        overlay.some("proxy.ports.admin", self.admin_port);
        overlay.some("proxy.ports.control", self.control_port);
        let list = |ports: &Option<Vec<String>>| ports.as_ref().map(|ports| ports.join(","));
        overlay.some(
            "proxyInit.ignoreInboundPorts",
            list(&self.skip_inbound_ports),
        );
        overlay.some(
            "proxyInit.ignoreOutboundPorts",
            list(&self.skip_outbound_ports),
        );
        overlay.some("proxy.uid", self.proxy_uid);
        overlay.some("proxy.gid", self.proxy_gid);
        overlay.some("proxy.logLevel", self.proxy_log_level.as_deref());
        overlay.some(
            "proxy.resources.cpu.request",
            self.proxy_cpu_request.as_deref(),
        );
        overlay.some("proxy.resources.cpu.limit", self.proxy_cpu_limit.as_deref());
        overlay.some(
            "proxy.resources.memory.request",
            self.proxy_memory_request.as_deref(),
        );
        overlay.some(
            "proxy.resources.memory.limit",
            self.proxy_memory_limit.as_deref(),
        );
        overlay.some(
            "proxy.defaultInboundPolicy",
            self.default_inbound_policy.as_deref(),
        );
        let external = self.enable_external_profiles.then_some(true);
        overlay.some("proxy.enableExternalProfiles", external);
    }
}

/// Values by dotted path.
#[derive(Debug, Default)]
pub(super) struct Overlay(Map<String, Value>);

impl Overlay {
    pub(super) fn some(&mut self, path: &str, value: Option<impl Into<Value>>) {
        let Some(value) = value else {
            return;
        };
        let mut place = &mut self.0;
        let (parents, last) = path.rsplit_once('.').unwrap_or(("", path));
        for name in parents.split('.').filter(|name| !name.is_empty()) {
            let entry = place
                .entry(name)
                .or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(inner) = entry else {
                unreachable!("no flag is both a value and a group of values: {path}");
            };
            place = inner;
        }
        place.insert(last.to_owned(), value.into());
    }

    pub(super) fn into_value(self) -> Option<Value> {
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
        assert_eq!(
            overlay["proxy"]["image"]["name"],
            "registry.example/mesh/proxy"
        );
        assert_eq!(overlay["proxyInit"]["ignoreInboundPorts"], "25,3000-3010");
        assert_eq!(overlay["meshAgent"]["enabled"], false);
        assert_eq!(overlay["identity"]["issuer"]["scheme"], "kubernetes.io/tls");
        assert_eq!(overlay["proxy"]["resources"]["cpu"]["request"], "100m");
    }

    /// A flag that sets a value which is none would be refused by the schema, but only by who uses
    /// it.
    #[test]
    fn every_flag_sets_a_value_of_the_chart() {
        fn check(path: &str, given: &Value, known: &Value) {
            for (name, value) in given.as_object().unwrap() {
                let known = known["properties"]
                    .get(name)
                    .unwrap_or_else(|| panic!("no value {path}.{name}"));
                if value.is_object() {
                    check(&format!("{path}.{name}"), value, known);
                }
            }
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let file = file.path().to_str().unwrap();
        let command = <Line as clap::CommandFactory>::command();
        let passed = ["values", "set", "set_string", "set_file", "ha", "help"];
        let args: Vec<String> = command
            .get_arguments()
            .filter(|arg| !passed.contains(&arg.get_id().as_str()))
            .map(|arg| {
                let long = arg.get_long().unwrap();
                let takes = arg.get_action().takes_values();
                let value = match long {
                    long if long.ends_with("-file") => file,
                    long if long.ends_with("slices") => "true",
                    _ => "7",
                };
                if takes {
                    format!("--{long}={value}")
                } else {
                    format!("--{long}")
                }
            })
            .collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        assert!(args.len() > 30, "{args:?}");
        check("", &overlay(&args), &schema());
    }
}
