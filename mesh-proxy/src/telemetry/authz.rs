//! Authorization metrics of inbound policy, and error metrics of both directions.

use mesh_runtime::metrics::{CounterFamily, Labels, Registry};

use super::labels::{self, Direction, TargetAddr};

/// `inbound_http_authz_*`, `inbound_tcp_authz_*`, `inbound_http_route_not_found_total`,
/// `inbound_http_local_ratelimit_total`.
#[derive(Clone, Debug)]
pub(crate) struct AuthzFamilies {
    pub(crate) http_allow: CounterFamily,
    pub(crate) http_deny: CounterFamily,
    pub(crate) http_route_not_found: CounterFamily,
    pub(crate) http_rate_limit: CounterFamily,
    pub(crate) tcp_allow: CounterFamily,
    pub(crate) tcp_deny: CounterFamily,
    pub(crate) tcp_terminate: CounterFamily,
    pub(crate) http_terminate: CounterFamily,
    unanswered: CounterFamily,
}

/// `inbound_` and `outbound_{http,tcp}_errors_total`.
#[derive(Clone, Debug)]
pub(crate) struct ErrorFamilies {
    inbound_http: CounterFamily,
    inbound_tcp: CounterFamily,
    outbound_http: CounterFamily,
    outbound_tcp: CounterFamily,
}

impl AuthzFamilies {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            http_allow: registry.counter_family(
                "inbound_http_authz_allow_total",
                "The total number of inbound HTTP requests that were authorized",
            ),
            http_deny: registry.counter_family(
                "inbound_http_authz_deny_total",
                "The total number of inbound HTTP requests that could not be processed due to being unauthorized",
            ),
            http_route_not_found: registry.counter_family(
                "inbound_http_route_not_found_total",
                "The total number of inbound HTTP requests that could not be associated with a route",
            ),
            http_rate_limit: registry.counter_family(
                "inbound_http_local_ratelimit_total",
                "The total number of inbound HTTP requests that were rejected by a rate limit",
            ),
            tcp_allow: registry.counter_family(
                "inbound_tcp_authz_allow_total",
                "The total number of inbound TCP connections that were authorized",
            ),
            tcp_deny: registry.counter_family(
                "inbound_tcp_authz_deny_total",
                "The total number of inbound TCP connections that were denied",
            ),
            tcp_terminate: registry.counter_family(
                "inbound_tcp_authz_terminate_total",
                "The total number of inbound TCP connections that were terminated because a policy change forbade them",
            ),
            http_terminate: registry.counter_family(
                "mesh_proxy_inbound_terminated_total",
                "The total number of inbound HTTP requests and tunnels that were ended because a policy change forbade them",
            ),
            unanswered: registry.counter_family(
                "mesh_proxy_inbound_unanswered_total",
                "The total number of inbound connections to ports without a response from the policy service, by the policy that applied instead",
            ),
        }
    }

    /// Counts a connection to a port without a response from the policy service; `policy` is the
    /// one in force instead. Looks up the series each time, because this is rare.
    pub(crate) fn unanswered(&self, policy: &'static str) {
        let labels = Labels::new().with("policy", policy);
        self.unanswered.with(&labels).inc();
    }
}

impl ErrorFamilies {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            inbound_http: registry.counter_family(
                "inbound_http_errors_total",
                "The total number of inbound HTTP requests that could not be processed due to a proxy error",
            ),
            inbound_tcp: registry.counter_family(
                "inbound_tcp_errors_total",
                "The total number of inbound TCP connections that could not be processed due to a proxy error",
            ),
            outbound_http: registry.counter_family(
                "outbound_http_errors_total",
                "The total number of outbound HTTP requests that could not be processed due to a proxy error",
            ),
            outbound_tcp: registry.counter_family(
                "outbound_tcp_errors_total",
                "The total number of outbound TCP connections that could not be processed due to a proxy error",
            ),
        }
    }

    /// Counts a failed connection; `reason` is a value of Linkerd's `error` label.
    pub(crate) fn tcp(&self, direction: Direction, target: TargetAddr, reason: &'static str) {
        let mut labels = Labels::new().with("error", reason);
        labels::push_target(&mut labels, target);
        match direction {
            Direction::Inbound => self.inbound_tcp.with(&labels).inc(),
            Direction::Outbound => self.outbound_tcp.with(&labels).inc(),
        }
    }

    /// Counts a failed request to the application.
    pub(crate) fn inbound_http(&self, target: TargetAddr, server: &Labels, reason: &'static str) {
        let mut labels = Labels::new().with("error", reason);
        labels::push_target(&mut labels, target);
        labels.extend(server);
        self.inbound_http.with(&labels).inc();
    }

    /// Counts a failed request of the application.
    pub(crate) fn outbound_http(&self, reason: &'static str) {
        self.outbound_http
            .with(&Labels::new().with("error", reason))
            .inc();
    }
}
