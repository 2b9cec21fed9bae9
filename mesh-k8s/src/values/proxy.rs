//! `proxy`: the sidecar, as the injector adds it and as the chart renders it into the pods of the
//! control plane.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, SecurityContext};
use mesh_core::annotation;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Image, Resources,
    common::{Open, off_or_word},
};

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Proxy {
    /// The proxy's image
    pub image: Image,
    /// The proxy's ports
    pub ports: Ports,
    /// User of the proxy; the redirection knows the proxy's first listeners by it
    pub uid: i64,
    /// Group of the proxy; negative for the image's own
    pub gid: i64,
    /// What the proxy logs
    pub log_level: String,
    /// Format of the proxy's log
    #[schemars(extend("enum" = ["plain", "json"]))]
    pub log_format: String,
    /// Whether headers of requests may be logged: `insecure` or `off`
    #[serde(rename = "logHTTPHeaders", deserialize_with = "off_or_word")]
    #[schemars(extend("type" = ["string", "boolean"], "enum" = ["", "off", false, "insecure"]))]
    pub log_http_headers: String,
    /// Format of the access log; empty for none
    #[schemars(extend("enum" = ["", "apache", "json"]))]
    pub access_log: String,
    /// Both bounds of the number of data threads; `runtime.workers` replaces it
    pub cores: Option<u32>,
    /// Threads of the proxy
    pub runtime: Runtime,
    /// Requests and limits of every proxy that no annotation and no other value says otherwise for
    pub resources: Resources,
    /// Who may connect to ports that no Server selects
    #[schemars(extend("enum" = ["all-unauthenticated", "all-authenticated", "cluster-unauthenticated", "cluster-authenticated", "deny", "audit"]))]
    pub default_inbound_policy: String,
    /// Comma list of ports and ranges whose bytes nobody looks into: protocols where the server
    /// speaks first
    pub opaque_ports: String,
    /// Comma list of ports that only clients with an identity may use
    pub require_identity_on_inbound_ports: String,
    /// Comma list of ports that accept nothing but TLS of the mesh
    #[serde(rename = "requireTLSOnInboundPorts")]
    pub require_tls_on_inbound_ports: String,
    /// How proxies reach each other: `transport-header` on the proxy's own port, `transparent` on
    /// the target's port unless it is opaque
    #[schemars(extend("enum" = ["transport-header", "transparent"]))]
    pub outbound_transport_mode: String,
    /// Let a POST to `/shutdown` on the proxy's admin port, from inside the pod, end the proxy
    pub enable_shutdown_endpoint: bool,
    /// Ask for profiles of names outside the cluster too
    pub enable_external_profiles: bool,
    /// Act as a gateway between clusters
    pub is_gateway: bool,
    /// Take the target from the request's `l5d-dst-override` header, as ingress controllers want it
    pub is_ingress: bool,
    /// Run the proxy as a native sidecar: an init container that stays
    pub native_sidecar: bool,
    /// Hold the application back until the proxy is ready
    pub r#await: bool,
    /// Seconds an ordinary sidecar waits after SIGTERM, for applications that go on sending; native
    /// sidecars end last by themselves
    pub wait_before_exit_seconds: u32,
    /// Time limit of a connection to another pod
    pub outbound_connect_timeout: String,
    /// Time limit of a connection to the application
    pub inbound_connect_timeout: String,
    /// How long unused outbound policy is kept
    pub outbound_discovery_cache_unused_timeout: String,
    /// How long unused inbound policy is kept
    pub inbound_discovery_cache_unused_timeout: String,
    /// Wait for ever for the first bytes of an outbound connection when its protocol is to be
    /// detected
    pub disable_outbound_protocol_detect_timeout: bool,
    /// The same for inbound connections
    pub disable_inbound_protocol_detect_timeout: bool,
    /// How long the proxy waits for connections to end; empty for its own default
    pub shutdown_grace_period: String,
    /// When the proxy counts as hung
    pub liveness_probe: ProbeTiming,
    /// When the proxy counts as ready
    pub readiness_probe: ProbeTiming,
    /// How long a native sidecar may take to start
    pub startup_probe: StartupProbe,
    /// Connections to the control plane
    pub control: Control,
    /// Metrics of the proxy
    pub metrics: Metrics,
    /// Protocol settings of the inbound side; each `scope.protocol.parameter` is an environment
    /// variable of the proxy
    pub inbound: Protocols,
    /// The same for the outbound side
    pub outbound: Protocols,
    /// Environment variables for the proxy, as Kubernetes writes them
    #[schemars(with = "Vec<Open>")]
    pub additional_env: Vec<EnvVar>,
    /// Further environment variables, for what is not decided yet
    #[schemars(with = "Vec<Open>")]
    pub experimental_env: Vec<EnvVar>,
    /// Replaces the whole security context of the proxy's container
    #[schemars(with = "Option<Open>")]
    pub security_context: Option<SecurityContext>,
}

/// `scope.proto.param`, each entry an environment variable of the proxy.
pub type Protocols = BTreeMap<String, BTreeMap<String, BTreeMap<String, serde_json::Value>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Ports {
    /// Where connections from other pods arrive
    pub inbound: u16,
    /// Where connections of the application arrive
    pub outbound: u16,
    /// `/live`, `/ready` and `/metrics`
    pub admin: u16,
    /// Reserved for tap
    pub control: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Runtime {
    /// Number of data threads
    pub workers: Workers,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Workers {
    /// At least so many; 0 lets the proxy decide
    pub minimum: u32,
    /// At most so many
    pub maximum: Option<u32>,
    /// At most this share of the node's processors, between 0 and 1
    #[serde(rename = "maximumCPURatio")]
    pub maximum_cpu_ratio: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProbeTiming {
    /// Seconds before the first probe
    pub initial_delay_seconds: i32,
    /// Seconds after which an unanswered probe has failed
    pub timeout_seconds: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StartupProbe {
    /// Seconds before the first probe
    pub initial_delay_seconds: i32,
    /// Seconds between two probes
    pub period_seconds: i32,
    /// So many failures end the container
    pub failure_threshold: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Control {
    /// Streams from the control plane
    pub streams: Streams,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Streams {
    /// Time limit of the first answer on a stream
    pub initial_timeout: String,
    /// A stream that is silent for so long is opened anew
    pub idle_timeout: String,
    /// A stream is opened anew after so long, so that load spreads over replicas
    pub lifetime: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Metrics {
    /// Label metrics with the hostnames of requests; their number is not bounded
    pub hostname_labels: bool,
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
            outbound_transport_mode: "transport-header".into(),
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

/// HTTP/2 keep-alives of the proxy's servers: a peer that vanished without a word is noticed after
/// 13 s.
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
