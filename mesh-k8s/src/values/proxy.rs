//! `proxy`: the sidecar that the injector adds to pods and that the chart renders into the pods of
//! the control plane.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, SecurityContext};
use mesh_core::annotation;

use super::common::{OpenObject, StringMap, string_or_off};
use super::{Image, Resources};

values! {
    /// The proxy of every meshed pod.
    pub struct Proxy {
        /// Image of the proxy
        pub image: Image = Image::named("mesh/proxy"),
        /// Ports of the proxy
        pub ports: Ports,
        /// User ID of the proxy; redirection recognizes the proxy's connections by it before the
        /// proxy listens, and exempts them
        pub uid: i64 = i64::from(annotation::DEFAULT_PROXY_UID),
        /// Group ID of the proxy; negative for the image's group
        pub gid: i64 = -1,
        /// Log level of the proxy
        pub log_level: String = "warn,linkerd=info,hickory=error".into(),
        /// Log format of the proxy
        #[schemars(extend("enum" = ["plain", "json"]))]
        pub log_format: String = "plain".into(),
        /// Whether the proxy may log headers of requests: `insecure` or `off`
        #[serde(rename = "logHTTPHeaders", deserialize_with = "string_or_off")]
        #[schemars(extend("type" = ["string", "boolean"], "enum" = ["", "off", false, "insecure"]))]
        pub log_http_headers: String = "off".into(),
        /// Format of the access log; empty for none
        #[schemars(extend("enum" = ["", "apache", "json"]))]
        pub access_log: String,
        /// Minimum number of data threads; overrides `runtime.workers.minimum` if set
        pub cores: Option<u32>,
        /// Threads of the proxy
        pub runtime: Runtime,
        /// Default resource requests and limits of proxies; annotations and the values of the
        /// control plane's proxies override them
        pub resources: Resources,
        /// Policy of ports that no Server selects
        #[schemars(extend("enum" = ["all-unauthenticated", "all-authenticated", "cluster-unauthenticated", "cluster-authenticated", "deny", "audit"]))]
        pub default_inbound_policy: String = "all-unauthenticated".into(),
        /// Comma-separated ports and ranges without protocol detection, for server-first protocols
        pub opaque_ports: String = annotation::DEFAULT_OPAQUE_PORTS.into(),
        /// Comma-separated ports that only accept clients with an identity
        pub require_identity_on_inbound_ports: String,
        /// Comma-separated ports that only accept TLS of the mesh
        #[serde(rename = "requireTLSOnInboundPorts")]
        pub require_tls_on_inbound_ports: String,
        /// How proxies connect to each other: `transport-header` on the inbound port of the proxy,
        /// `transparent` on the port of the application unless it is opaque
        #[schemars(extend("enum" = ["transport-header", "transparent"]))]
        pub outbound_transport_mode: String = "transport-header".into(),
        /// Let processes of the pod shut the proxy down with a POST to `/shutdown` on its admin
        /// port
        pub enable_shutdown_endpoint: bool = false,
        /// Look up profiles of names outside the cluster too
        pub enable_external_profiles: bool = false,
        /// Run the proxy as a gateway between clusters
        pub is_gateway: bool = false,
        /// Route by the `l5d-dst-override` header of requests, for ingress controllers
        pub is_ingress: bool = false,
        /// Run the proxy as a native sidecar, an init container with `restartPolicy: Always`
        pub native_sidecar: bool = true,
        /// Delay the application until the proxy is ready
        pub r#await: bool = true,
        /// Delay of SIGTERM in a proxy that is not a native sidecar, in seconds, for applications
        /// that continue to send; native sidecars terminate last in any case
        pub wait_before_exit_seconds: u32 = 0,
        /// Timeout of connecting to another pod
        pub outbound_connect_timeout: String = "1000ms".into(),
        /// Timeout of connecting to the application
        pub inbound_connect_timeout: String = "100ms".into(),
        /// How long unused outbound policies are cached
        pub outbound_discovery_cache_unused_timeout: String = "5s".into(),
        /// How long unused inbound policies are cached
        pub inbound_discovery_cache_unused_timeout: String = "90s".into(),
        /// Wait indefinitely for the first bytes of an outbound connection whose protocol is
        /// detected
        pub disable_outbound_protocol_detect_timeout: bool = false,
        /// Wait indefinitely for the first bytes of an inbound connection whose protocol is
        /// detected
        pub disable_inbound_protocol_detect_timeout: bool = false,
        /// How long the proxy waits for connections to close when it shuts down; empty for the
        /// default of the proxy
        pub shutdown_grace_period: String,
        /// Liveness probe of the proxy
        pub liveness_probe: ProbeTiming = ProbeTiming { initial_delay_seconds: 10, timeout_seconds: 1 },
        /// Readiness probe of the proxy
        pub readiness_probe: ProbeTiming = ProbeTiming { initial_delay_seconds: 2, timeout_seconds: 1 },
        /// Startup probe of a native sidecar
        pub startup_probe: StartupProbe,
        /// Connections to the control plane
        pub control: Control,
        /// Metrics of the proxy
        pub metrics: Metrics,
        /// Distributed tracing of the requests of meshed pods
        pub tracing: Tracing,
        /// Protocol settings for inbound connections; each `scope.protocol.parameter` is an
        /// environment variable of the proxy
        pub inbound: Protocols = default_protocols(),
        /// Protocol settings for outbound connections
        pub outbound: Protocols = default_protocols(),
        /// Environment variables of the proxy, in the notation of Kubernetes
        #[schemars(with = "Vec<OpenObject>")]
        pub additional_env: Vec<EnvVar>,
        /// Environment variables of the proxy for experimental settings
        #[schemars(with = "Vec<OpenObject>")]
        pub experimental_env: Vec<EnvVar>,
        /// Replaces the whole security context of the proxy's container
        #[schemars(with = "Option<OpenObject>")]
        pub security_context: Option<SecurityContext>,
    }

    /// The ports of the proxy.
    #[derive(Copy)]
    pub struct Ports {
        /// Port of inbound connections
        pub inbound: u16 = annotation::DEFAULT_INBOUND_PORT,
        /// Port of outbound connections of the application
        pub outbound: u16 = annotation::DEFAULT_OUTBOUND_PORT,
        /// Port of `/live`, `/ready` and `/metrics`
        pub admin: u16 = annotation::DEFAULT_ADMIN_PORT,
        /// Reserved for tap
        pub control: u16 = annotation::DEFAULT_CONTROL_PORT,
    }

    /// The threads of the proxy.
    pub struct Runtime {
        /// Number of data threads
        pub workers: Workers,
    }

    /// The number of data threads.
    pub struct Workers {
        /// Minimum; 0 for the default of the proxy
        pub minimum: u32 = 1,
        /// Maximum
        pub maximum: Option<u32>,
        /// Maximum as a share of the node's CPUs, between 0 and 1
        #[serde(rename = "maximumCPURatio")]
        pub maximum_cpu_ratio: Option<f64>,
    }

    /// The timing of the proxy's liveness or readiness probe.
    #[derive(Copy)]
    pub struct ProbeTiming {
        /// Seconds before the first probe
        pub initial_delay_seconds: i32,
        /// Timeout of a probe, in seconds
        pub timeout_seconds: i32,
    }

    /// The startup probe of a native sidecar.
    #[derive(Copy)]
    pub struct StartupProbe {
        /// Seconds before the first probe
        pub initial_delay_seconds: i32 = 0,
        /// Seconds between probes
        pub period_seconds: i32 = 1,
        /// Failures until the kubelet restarts the container
        pub failure_threshold: i32 = 120,
    }

    /// Connections of the proxy to the control plane.
    pub struct Control {
        /// Streams from the control plane
        pub streams: Streams,
    }

    /// The timing of streams from the control plane.
    pub struct Streams {
        /// Timeout of the first response on a stream
        pub initial_timeout: String = "3s".into(),
        /// Idle time until a stream is reopened
        pub idle_timeout: String = "5m".into(),
        /// Age of a stream until it is reopened, so that load spreads over replicas
        pub lifetime: String = "1h".into(),
    }

    /// Metrics of the proxy.
    pub struct Metrics {
        /// Label metrics with the hostnames of requests; there may be any number of hostnames
        pub hostname_labels: bool,
    }

    /// Distributed tracing.
    pub struct Tracing {
        /// Export spans of sampled requests to a collector with OTLP over gRPC
        pub enabled: bool = false,
        /// Name of the service that spans are reported for (`service.name`), unless the pod has
        /// another
        pub trace_service_name: String = "linkerd-proxy".into(),
        /// Attributes of the proxy that reports the spans; `$(NAME)` is a variable of its container
        pub labels: StringMap = default_trace_labels(),
        /// The collector
        pub collector: TraceCollector,
    }

    /// A collector of spans.
    pub struct TraceCollector {
        /// Host and port, for example collector.tracing.svc.cluster.local:4317
        pub endpoint: String,
        /// The ServiceAccount that the collector runs as, in a meshed pod
        pub mesh_identity: MeshIdentity,
    }

    /// The ServiceAccount of a meshed pod.
    pub struct MeshIdentity {
        /// Name of the ServiceAccount
        pub service_account_name: String,
        /// Namespace of the ServiceAccount
        pub namespace: String,
    }
}

/// Protocol settings by scope, protocol and parameter; each is an environment variable of the
/// proxy.
pub type Protocols = BTreeMap<String, BTreeMap<String, BTreeMap<String, serde_json::Value>>>;

/// The pod and the container of the proxy.
fn default_trace_labels() -> StringMap {
    let variables = [
        ("k8s.container.name", "$(_pod_containerName)"),
        ("k8s.pod.ip", "$(_pod_ip)"),
        ("k8s.pod.uid", "$(_pod_uid)"),
    ];
    variables
        .map(|(name, variable)| (name.to_owned(), variable.to_owned()))
        .into()
}

/// HTTP/2 keep-alives of the proxy's servers: a dead peer is detected after 13 s.
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
