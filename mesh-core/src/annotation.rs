//! The annotation and label keys that users write and the mesh writes, all Linkerd's.

/// `enabled`, `ingress` or `disabled`, on a namespace or a pod.
pub const INJECT: &str = "linkerd.io/inject";
/// Written by the injector; its presence says that the pod was injected.
pub const PROXY_VERSION: &str = "linkerd.io/proxy-version";
pub const CREATED_BY: &str = "linkerd.io/created-by";
pub const TRUST_ROOT_SHA256: &str = "linkerd.io/trust-root-sha256";
/// Label: the namespace of the control plane that the pod belongs to.
pub const CONTROL_PLANE_NS: &str = "linkerd.io/control-plane-ns";
/// Label: which control-plane component the pod is.
pub const CONTROL_PLANE_COMPONENT: &str = "linkerd.io/control-plane-component";
pub const WORKLOAD_NS: &str = "linkerd.io/workload-ns";

/// Prefix of the annotations that configure the proxy.
pub const CONFIG_PREFIX: &str = "config.linkerd.io/";
pub const SKIP_INBOUND_PORTS: &str = "config.linkerd.io/skip-inbound-ports";
pub const SKIP_OUTBOUND_PORTS: &str = "config.linkerd.io/skip-outbound-ports";
pub const SKIP_SUBNETS: &str = "config.linkerd.io/skip-subnets";
/// Most subnets that [`SKIP_SUBNETS`] may list: the node agent keeps an entry in the kernel for
/// each. How many ranges a list of ports may have is [`crate::ports::MAX_RANGES`].
pub const MAX_SKIP_SUBNETS: usize = 128;
pub const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";
pub const INBOUND_PORT: &str = "config.linkerd.io/inbound-port";
pub const OUTBOUND_PORT: &str = "config.linkerd.io/outbound-port";
pub const ADMIN_PORT: &str = "config.linkerd.io/admin-port";
pub const CONTROL_PORT: &str = "config.linkerd.io/control-port";
pub const PROXY_UID: &str = "config.linkerd.io/proxy-uid";
pub const PROXY_GID: &str = "config.linkerd.io/proxy-gid";
pub const DEFAULT_INBOUND_POLICY: &str = "config.linkerd.io/default-inbound-policy";
pub const REQUIRE_IDENTITY_PORTS: &str = "config.linkerd.io/proxy-require-identity-inbound-ports";

/// Ports whose protocols let the server speak first; opaque unless an annotation says otherwise.
pub const DEFAULT_OPAQUE_PORTS: &str = "25,587,3306,4444,5432,6379,9300,11211";

/// Ports left alone in both directions unless an annotation says otherwise: Galera's, whose
/// protocol survives no proxy.
pub const DEFAULT_SKIP_PORTS: &str = "4567,4568";

/// The proxy's ports and user, as the injector sets them when nothing else is said.
pub const DEFAULT_INBOUND_PORT: u16 = 4143;
pub const DEFAULT_OUTBOUND_PORT: u16 = 4140;
pub const DEFAULT_CONTROL_PORT: u16 = 4190;
pub const DEFAULT_ADMIN_PORT: u16 = 4191;
pub const DEFAULT_PROXY_UID: u32 = 2102;

/// Time limits of requests to a Service or by a route.
pub const TIMEOUT_REQUEST: &str = "timeout.linkerd.io/request";
pub const TIMEOUT_RESPONSE: &str = "timeout.linkerd.io/response";
pub const TIMEOUT_IDLE: &str = "timeout.linkerd.io/idle";

/// Retries of requests to a Service or by a route; any of them but the limit of a try turns retries
/// on.
pub const RETRY_LIMIT: &str = "retry.linkerd.io/limit";
pub const RETRY_TIMEOUT: &str = "retry.linkerd.io/timeout";
pub const RETRY_HTTP: &str = "retry.linkerd.io/http";
pub const RETRY_GRPC: &str = "retry.linkerd.io/grpc";

/// When a balancer stops using an endpoint that fails, and how failures weigh.
pub const FAILURE_ACCRUAL: &str = "balancer.linkerd.io/failure-accrual";
pub const FAILURE_ACCRUAL_MAX_FAILURES: &str =
    "balancer.linkerd.io/failure-accrual-consecutive-max-failures";
pub const FAILURE_ACCRUAL_MIN_PENALTY: &str =
    "balancer.linkerd.io/failure-accrual-consecutive-min-penalty";
pub const FAILURE_ACCRUAL_MAX_PENALTY: &str =
    "balancer.linkerd.io/failure-accrual-consecutive-max-penalty";
pub const FAILURE_ACCRUAL_JITTER: &str =
    "balancer.linkerd.io/failure-accrual-consecutive-jitter-ratio";
pub const FAILURE_ACCRUAL_THRESHOLD: &str =
    "balancer.alpha.linkerd.io/failure-accrual-success-rate-threshold";
pub const FAILURE_ACCRUAL_WINDOW: &str =
    "balancer.alpha.linkerd.io/failure-accrual-success-rate-window";
pub const FAILURE_ACCRUAL_MIN_REQUESTS: &str =
    "balancer.alpha.linkerd.io/failure-accrual-success-rate-min-requests";
pub const PENALIZE_FAILURES: &str = "balancer.alpha.linkerd.io/penalize-failures";
pub const LOAD_BIASER_PENALTY: &str = "balancer.alpha.linkerd.io/load-biaser-penalty";
pub const LOAD_BIASER_MAX_RETRY_AFTER: &str =
    "balancer.alpha.linkerd.io/load-biaser-max-retry-after";
