//! The settings of the patch: the chart's values, by the chart's names and with its defaults.
//!
//! On a cluster they are read from the ConfigMap that the chart writes; `meshctl inject` reads a values file; the local node makes them itself. Only what
//! the patch uses is here, and unknown keys are ignored, so a complete Linkerd values file can be read.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, SecurityContext};
use mesh_core::annotation;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Values {
    /// The namespace of the control plane. The chart does not hold it among its values; whoever reads the values adds it.
    pub namespace: String,
    pub linkerd_version: String,
    pub cluster_domain: String,
    /// Comma list of the blocks that pods, Services and nodes have addresses from.
    pub cluster_networks: String,
    pub identity_trust_domain: String,
    #[serde(rename = "identityTrustAnchorsPEM")]
    pub identity_trust_anchors_pem: String,
    #[serde(rename = "disableIPv6")]
    pub disable_ipv6: bool,
    pub image_pull_policy: String,
    /// The node's agent redirects the pod's traffic and holds the pod back until it does: no init container is added.
    pub cni_enabled: bool,
    pub identity: Identity,
    pub proxy: Proxy,
    pub proxy_init: ProxyInit,
    pub debug_container: DebugContainer,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Identity {
    /// A token of its own for the proxy, for this audience only. Without it the service account's token serves.
    pub service_account_token_projection: bool,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Proxy {
    pub image: Image,
    pub ports: Ports,
    pub uid: i64,
    /// Negative: the image's own group.
    pub gid: i64,
    pub log_level: String,
    pub log_format: String,
    #[serde(rename = "logHTTPHeaders")]
    pub log_http_headers: String,
    pub access_log: String,
    /// Sets both bounds of the number of workers; replaced by `runtime.workers`.
    pub cores: Option<u32>,
    pub runtime: Runtime,
    pub resources: Resources,
    pub default_inbound_policy: String,
    /// Comma list of ports and ranges.
    pub opaque_ports: String,
    pub require_identity_on_inbound_ports: String,
    #[serde(rename = "requireTLSOnInboundPorts")]
    pub require_tls_on_inbound_ports: String,
    pub enable_shutdown_endpoint: bool,
    pub enable_external_profiles: bool,
    pub is_gateway: bool,
    pub is_ingress: bool,
    pub native_sidecar: bool,
    /// Hold the application back until the proxy is ready.
    pub r#await: bool,
    pub wait_before_exit_seconds: u32,
    pub outbound_connect_timeout: String,
    pub inbound_connect_timeout: String,
    pub outbound_discovery_cache_unused_timeout: String,
    pub inbound_discovery_cache_unused_timeout: String,
    pub disable_outbound_protocol_detect_timeout: bool,
    pub disable_inbound_protocol_detect_timeout: bool,
    /// Empty: the proxy's own default.
    pub shutdown_grace_period: String,
    pub liveness_probe: ProbeTiming,
    pub readiness_probe: ProbeTiming,
    pub startup_probe: StartupProbe,
    pub control: Control,
    pub metrics: Metrics,
    pub inbound: Protocols,
    pub outbound: Protocols,
    pub additional_env: Vec<EnvVar>,
    pub experimental_env: Vec<EnvVar>,
    /// Replaces the whole security context of the proxy's container.
    pub security_context: Option<SecurityContext>,
}

/// `scope.proto.param`, each entry an environment variable of the proxy.
pub type Protocols = BTreeMap<String, BTreeMap<String, BTreeMap<String, serde_json::Value>>>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Image {
    pub name: String,
    /// Empty: the version of the mesh.
    pub version: String,
    /// Empty: `imagePullPolicy`.
    pub pull_policy: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ports {
    pub inbound: u16,
    pub outbound: u16,
    pub admin: u16,
    pub control: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Runtime {
    pub workers: Workers,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Workers {
    /// 0: the proxy decides.
    pub minimum: u32,
    pub maximum: Option<u32>,
    /// Of the node's processors, between 0 and 1.
    #[serde(rename = "maximumCPURatio")]
    pub maximum_cpu_ratio: Option<f64>,
}

/// Requests and limits; an empty one is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Resources {
    pub cpu: Bounds,
    pub memory: Bounds,
    #[serde(rename = "ephemeral-storage")]
    pub ephemeral_storage: Bounds,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bounds {
    pub request: String,
    pub limit: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProbeTiming {
    pub initial_delay_seconds: i32,
    pub timeout_seconds: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StartupProbe {
    pub initial_delay_seconds: i32,
    pub period_seconds: i32,
    pub failure_threshold: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Control {
    pub streams: Streams,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Streams {
    pub initial_timeout: String,
    pub idle_timeout: String,
    pub lifetime: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metrics {
    pub hostname_labels: bool,
}

/// The init container that redirects by firewall rules where no agent does it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyInit {
    /// `nft`, `legacy` or `plain`.
    pub iptables_mode: String,
    pub ignore_inbound_ports: String,
    pub ignore_outbound_ports: String,
    /// Instead of `ignoreOutboundPorts` in the pods of the control plane, which must reach the API server before they have a certificate.
    #[serde(rename = "kubeAPIServerPorts")]
    pub kube_api_server_ports: String,
    pub skip_subnets: String,
    pub close_wait_timeout_secs: u64,
    pub privileged: bool,
    pub run_as_root: bool,
    pub run_as_user: i64,
    pub run_as_group: i64,
    pub log_level: String,
    pub log_format: String,
    pub xt_mount_path: MountPath,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MountPath {
    pub name: String,
    pub mount_path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DebugContainer {
    pub image: Image,
}

impl Default for Values {
    fn default() -> Self {
        Self {
            namespace: "linkerd".into(),
            linkerd_version: env!("CARGO_PKG_VERSION").into(),
            cluster_domain: "cluster.local".into(),
            // The private blocks that clusters take their addresses from, as in Linkerd's chart.
            cluster_networks: "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8"
                .into(),
            identity_trust_domain: "cluster.local".into(),
            identity_trust_anchors_pem: String::new(),
            disable_ipv6: true,
            image_pull_policy: "IfNotPresent".into(),
            cni_enabled: false,
            identity: Identity::default(),
            proxy: Proxy::default(),
            proxy_init: ProxyInit::default(),
            debug_container: DebugContainer::default(),
        }
    }
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            service_account_token_projection: true,
        }
    }
}

impl Default for Proxy {
    fn default() -> Self {
        Self {
            image: Image {
                name: "mesh/proxy".into(),
                ..Image::default()
            },
            ports: Ports::default(),
            uid: i64::from(annotation::DEFAULT_PROXY_UID),
            gid: -1,
            log_level: "warn,linkerd=info,hickory=error".into(),
            log_format: "plain".into(),
            log_http_headers: "off".into(),
            access_log: String::new(),
            cores: None,
            runtime: Runtime::default(),
            resources: Resources::default(),
            default_inbound_policy: "all-unauthenticated".into(),
            opaque_ports: annotation::DEFAULT_OPAQUE_PORTS.into(),
            require_identity_on_inbound_ports: String::new(),
            require_tls_on_inbound_ports: String::new(),
            enable_shutdown_endpoint: false,
            enable_external_profiles: false,
            is_gateway: false,
            is_ingress: false,
            native_sidecar: true,
            r#await: true,
            wait_before_exit_seconds: 0,
            outbound_connect_timeout: "1000ms".into(),
            inbound_connect_timeout: "100ms".into(),
            outbound_discovery_cache_unused_timeout: "5s".into(),
            inbound_discovery_cache_unused_timeout: "90s".into(),
            disable_outbound_protocol_detect_timeout: false,
            disable_inbound_protocol_detect_timeout: false,
            shutdown_grace_period: String::new(),
            liveness_probe: ProbeTiming {
                initial_delay_seconds: 10,
                timeout_seconds: 1,
            },
            readiness_probe: ProbeTiming {
                initial_delay_seconds: 2,
                timeout_seconds: 1,
            },
            startup_probe: StartupProbe::default(),
            control: Control::default(),
            metrics: Metrics::default(),
            inbound: default_protocols(),
            outbound: default_protocols(),
            additional_env: Vec::new(),
            experimental_env: Vec::new(),
            security_context: None,
        }
    }
}

/// HTTP/2 keep-alives of the proxy's servers: a peer that vanished without a word is noticed after 13 s.
fn default_protocols() -> Protocols {
    let http2 = BTreeMap::from([
        ("keepAliveInterval".to_owned(), "10s".into()),
        ("keepAliveTimeout".to_owned(), "3s".into()),
    ]);
    BTreeMap::from([(
        "server".to_owned(),
        BTreeMap::from([("http2".to_owned(), http2)]),
    )])
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            inbound: annotation::DEFAULT_INBOUND_PORT,
            outbound: annotation::DEFAULT_OUTBOUND_PORT,
            admin: annotation::DEFAULT_ADMIN_PORT,
            control: annotation::DEFAULT_CONTROL_PORT,
        }
    }
}

impl Default for Workers {
    fn default() -> Self {
        Self {
            minimum: 1,
            maximum: None,
            maximum_cpu_ratio: None,
        }
    }
}

impl Default for StartupProbe {
    fn default() -> Self {
        Self {
            initial_delay_seconds: 0,
            period_seconds: 1,
            failure_threshold: 120,
        }
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            initial_timeout: "3s".into(),
            idle_timeout: "5m".into(),
            lifetime: "1h".into(),
        }
    }
}

impl Default for ProxyInit {
    fn default() -> Self {
        Self {
            iptables_mode: "nft".into(),
            // Galera's replication ports, as in Linkerd's chart.
            ignore_inbound_ports: "4567,4568".into(),
            ignore_outbound_ports: "4567,4568".into(),
            kube_api_server_ports: "443,6443".into(),
            skip_subnets: String::new(),
            close_wait_timeout_secs: 0,
            privileged: false,
            run_as_root: false,
            run_as_user: NOBODY,
            run_as_group: NOBODY,
            log_level: String::new(),
            log_format: String::new(),
            xt_mount_path: MountPath::default(),
        }
    }
}

/// The user and group of the init container when it does not run as root.
pub(super) const NOBODY: i64 = 65534;

impl Default for MountPath {
    fn default() -> Self {
        Self {
            name: "linkerd-proxy-init-xtables-lock".into(),
            mount_path: "/run".into(),
        }
    }
}

impl Default for DebugContainer {
    fn default() -> Self {
        Self {
            image: Image {
                name: "cr.l5d.io/linkerd/debug".into(),
                ..Image::default()
            },
        }
    }
}

impl Values {
    /// `name:tag` of an image of the mesh.
    pub fn image(&self, image: &Image) -> String {
        let version = non_empty(&image.version).unwrap_or(&self.linkerd_version);
        format!("{}:{version}", image.name)
    }

    pub fn pull_policy(&self, image: &Image) -> String {
        non_empty(&image.pull_policy)
            .unwrap_or(&self.image_pull_policy)
            .to_owned()
    }

    /// The version that is written on injected pods.
    pub fn proxy_version(&self) -> &str {
        non_empty(&self.proxy.image.version).unwrap_or(&self.linkerd_version)
    }
}

pub(super) fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
