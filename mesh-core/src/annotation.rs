//! Keys of annotations and labels, which are Linkerd's, and the defaults of the settings that
//! annotations override.

/// `enabled`, `ingress` or `disabled`, on a namespace or a pod.
pub const INJECT: &str = "linkerd.io/inject";
/// Written by the injector: a pod that has it was injected.
pub const PROXY_VERSION: &str = "linkerd.io/proxy-version";
/// The program and version that created the object.
pub const CREATED_BY: &str = "linkerd.io/created-by";
/// The SHA-256 of the trust anchors at the pod's injection.
pub const TRUST_ROOT_SHA256: &str = "linkerd.io/trust-root-sha256";
/// Written by the injector: the families whose connections are redirected to the proxy, which are
/// those that it listens on: [`IPV4_ONLY`] or [`IPV4_AND_IPV6`], which is the default.
pub const REDIRECTED_IP_FAMILIES: &str = "linkerd.io/redirected-ip-families";
/// A value of [`REDIRECTED_IP_FAMILIES`]: IPv6 passes the proxy.
pub const IPV4_ONLY: &str = "ipv4";
/// A value of [`REDIRECTED_IP_FAMILIES`].
pub const IPV4_AND_IPV6: &str = "ipv4,ipv6";
/// Label of a ConfigMap: the machine outside Kubernetes that it admits to the mesh.
pub const MACHINE: &str = "linkerd.io/machine";
/// Label: the namespace of the control plane that the pod belongs to.
pub const CONTROL_PLANE_NS: &str = "linkerd.io/control-plane-ns";
/// Label of a namespace: the extension that is installed in it, such as `viz`.
pub const EXTENSION: &str = "linkerd.io/extension";
/// The value of [`EXTENSION`] for the viz extension.
pub const VIZ: &str = "viz";
/// The value of [`EXTENSION`] for the multicluster extension.
pub const MULTICLUSTER: &str = "multicluster";
/// The URL of the Prometheus that the viz extension uses instead of its own.
pub const EXTERNAL_PROMETHEUS: &str = "viz.linkerd.io/external-prometheus";
/// Label: the control-plane component that the pod runs.
pub const CONTROL_PLANE_COMPONENT: &str = "linkerd.io/control-plane-component";
/// Label: the namespace of the injected workload.
pub const WORKLOAD_NS: &str = "linkerd.io/workload-ns";

/// Prefix of the annotations that configure the proxy.
pub const CONFIG_PREFIX: &str = "config.linkerd.io/";
/// Ports whose inbound connections bypass the proxy.
pub const SKIP_INBOUND_PORTS: &str = "config.linkerd.io/skip-inbound-ports";
/// Ports whose outbound connections bypass the proxy.
pub const SKIP_OUTBOUND_PORTS: &str = "config.linkerd.io/skip-outbound-ports";
/// Subnets whose inbound connections bypass the proxy.
pub const SKIP_SUBNETS: &str = "config.linkerd.io/skip-subnets";
/// Maximum number of subnets in [`SKIP_SUBNETS`]: the node agent stores a kernel map entry for
/// each. The ranges of a list of ports are limited by [`crate::ports::MAX_RANGES`].
pub const MAX_SKIP_SUBNETS: usize = 128;
/// Ports whose traffic is forwarded without protocol detection.
pub const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";
/// The proxy's inbound port.
pub const INBOUND_PORT: &str = "config.linkerd.io/inbound-port";
/// The proxy's outbound port.
pub const OUTBOUND_PORT: &str = "config.linkerd.io/outbound-port";
/// The proxy's admin port.
pub const ADMIN_PORT: &str = "config.linkerd.io/admin-port";
/// The proxy's control port.
pub const CONTROL_PORT: &str = "config.linkerd.io/control-port";
/// The proxy's user id.
pub const PROXY_UID: &str = "config.linkerd.io/proxy-uid";
/// The proxy's group id.
pub const PROXY_GID: &str = "config.linkerd.io/proxy-gid";
/// The inbound policy of ports that no Server selects.
pub const DEFAULT_INBOUND_POLICY: &str = "config.linkerd.io/default-inbound-policy";
/// Inbound ports that require a client identity.
pub const REQUIRE_IDENTITY_PORTS: &str = "config.linkerd.io/proxy-require-identity-inbound-ports";

/// Ports of server-first protocols; opaque unless an annotation overrides the list.
pub const DEFAULT_OPAQUE_PORTS: &str = "25,587,3306,4444,5432,6379,9300,11211";

/// Ports that bypass the proxy in both directions unless an annotation overrides the list:
/// Galera's, whose protocol cannot be proxied.
pub const DEFAULT_SKIP_PORTS: &str = "4567,4568";

/// Default of [`INBOUND_PORT`].
pub const DEFAULT_INBOUND_PORT: u16 = 4143;
/// Default of [`OUTBOUND_PORT`].
pub const DEFAULT_OUTBOUND_PORT: u16 = 4140;
/// Default of [`CONTROL_PORT`].
pub const DEFAULT_CONTROL_PORT: u16 = 4190;
/// Default of [`ADMIN_PORT`].
pub const DEFAULT_ADMIN_PORT: u16 = 4191;
/// Default of [`PROXY_UID`].
pub const DEFAULT_PROXY_UID: u32 = 2102;

/// Time limit of a request to a Service or by a route, from its headers to the end of the response.
pub const TIMEOUT_REQUEST: &str = "timeout.linkerd.io/request";
/// Time limit of a response, from the end of the request.
pub const TIMEOUT_RESPONSE: &str = "timeout.linkerd.io/response";
/// Time limit of a stream without frames in either direction.
pub const TIMEOUT_IDLE: &str = "timeout.linkerd.io/idle";

/// Maximum number of retries of a request to a Service or by a route. Any of these annotations
/// enables retries, as in Linkerd; without this one, a request is retried once.
pub const RETRY_LIMIT: &str = "retry.linkerd.io/limit";
/// Time limit of one attempt.
pub const RETRY_TIMEOUT: &str = "retry.linkerd.io/timeout";
/// HTTP statuses that are retried.
pub const RETRY_HTTP: &str = "retry.linkerd.io/http";
/// gRPC statuses that are retried.
pub const RETRY_GRPC: &str = "retry.linkerd.io/grpc";

/// Prefix of the annotations of a route that describe faults, which its filters inject
/// ([`crate::route::fault`]). The rest of the key is the fault's name.
pub const FAULT_PREFIX: &str = "fault.linkerd.io/";

/// The failure accrual policy of the balancer, which stops using failing endpoints.
pub const FAILURE_ACCRUAL: &str = "balancer.linkerd.io/failure-accrual";
/// Consecutive failures that make an endpoint unavailable.
pub const FAILURE_ACCRUAL_MAX_FAILURES: &str =
    "balancer.linkerd.io/failure-accrual-consecutive-max-failures";
/// Minimum back-off of an unavailable endpoint.
pub const FAILURE_ACCRUAL_MIN_PENALTY: &str =
    "balancer.linkerd.io/failure-accrual-consecutive-min-penalty";
/// Maximum back-off of an unavailable endpoint.
pub const FAILURE_ACCRUAL_MAX_PENALTY: &str =
    "balancer.linkerd.io/failure-accrual-consecutive-max-penalty";
/// Random share that is added to the back-off.
pub const FAILURE_ACCRUAL_JITTER: &str =
    "balancer.linkerd.io/failure-accrual-consecutive-jitter-ratio";
/// An endpoint with a lower success rate becomes unavailable.
pub const FAILURE_ACCRUAL_THRESHOLD: &str =
    "balancer.alpha.linkerd.io/failure-accrual-success-rate-threshold";
/// Window of the success rate.
pub const FAILURE_ACCRUAL_WINDOW: &str =
    "balancer.alpha.linkerd.io/failure-accrual-success-rate-window";
/// The success rate is not used with fewer requests in the window.
pub const FAILURE_ACCRUAL_MIN_REQUESTS: &str =
    "balancer.alpha.linkerd.io/failure-accrual-success-rate-min-requests";
/// Whether a Retry-After header sets the first back-off of an unavailable endpoint.
pub const HONOR_RETRY_AFTER: &str = "balancer.alpha.linkerd.io/failure-accrual-honor-retry-after";
/// Whether failures count as slow responses in load balancing.
pub const PENALIZE_FAILURES: &str = "balancer.alpha.linkerd.io/penalize-failures";
/// The latency that a failure counts for.
pub const LOAD_BIASER_PENALTY: &str = "balancer.alpha.linkerd.io/load-biaser-penalty";
/// The longest Retry-After that is counted as latency.
pub const LOAD_BIASER_MAX_RETRY_AFTER: &str =
    "balancer.alpha.linkerd.io/load-biaser-max-retry-after";

/// The levels of locality that clients of a Service prefer, with their thresholds
/// ([`crate::locality::Failover`]).
pub const LOCALITY_FAILOVER: &str = "locality.linkerd.io/failover";

/// The domain name, in its own cluster, of the Service that an object mirrors.
pub const REMOTE_SERVICE_FQN: &str = "mirror.linkerd.io/remote-svc-fq-name";
/// The identity of the gateway of a mirrored Service's cluster.
pub const REMOTE_GATEWAY_IDENTITY: &str = "mirror.linkerd.io/remote-gateway-identity";
/// The label with the name of a mirrored Service's cluster.
pub const MIRRORED_CLUSTER: &str = "mirror.linkerd.io/cluster-name";
/// The label, `true`, of the Services that mirror one of another cluster or join several.
pub const MIRRORED_SERVICE: &str = "mirror.linkerd.io/mirrored-service";
/// The label, `true`, of the Services whose endpoints are the gateway of another cluster.
pub const MIRRORED_GATEWAY: &str = "mirror.linkerd.io/mirrored-gateway";
/// The label of the Services that other clusters mirror: `true` behind the gateway, or
/// `remote-discovery`.
pub const EXPORTED: &str = "mirror.linkerd.io/exported";
/// The label, `member`, of the Services that join Services of the same name in other clusters.
pub const FEDERATED: &str = "mirror.linkerd.io/federated";
/// The annotation of a gateway's Service with the gateway's identity.
pub const GATEWAY_IDENTITY: &str = "mirror.linkerd.io/gateway-identity";
/// The annotation of a gateway's Service with the path of probes.
pub const GATEWAY_PROBE_PATH: &str = "mirror.linkerd.io/probe-path";
/// The annotation of a gateway's Service with the time between probes: a duration, or a number of
/// seconds.
pub const GATEWAY_PROBE_PERIOD: &str = "mirror.linkerd.io/probe-period";
/// The label with the cluster whose endpoints a Service has, and the annotation with the members of
/// a federated Service in other clusters.
pub const REMOTE_DISCOVERY: &str = "multicluster.linkerd.io/remote-discovery";
/// The label with the Service of that cluster.
pub const REMOTE_SERVICE: &str = "multicluster.linkerd.io/remote-service";
/// The annotation with the member of a federated Service in its own cluster.
pub const LOCAL_DISCOVERY: &str = "multicluster.linkerd.io/local-discovery";
/// The label with the name of the cluster that a Secret has credentials for.
pub const CLUSTER_NAME: &str = "multicluster.linkerd.io/cluster-name";
/// The annotation of such a Secret with the trust domain of the cluster.
pub const TRUST_DOMAIN: &str = "multicluster.linkerd.io/trust-domain";
/// The label of a ConfigMap with the trust domain of another cluster and where its bundle is: the
/// name of the cluster.
pub const TRUST_BUNDLE_OF: &str = "multicluster.linkerd.io/trust-bundle-of";
/// The annotation of such a Secret with the DNS domain of the cluster.
pub const CLUSTER_DOMAIN: &str = "multicluster.linkerd.io/cluster-domain";
