//! Metrics, with the names and labels of Linkerd's proxy.
//!
//! [`Families`] registers every family once, at start. The data threads resolve handles from it per
//! target, policy and endpoint; requests and connections use only handles. [`labels`] defines the
//! labels and their order.

pub(crate) mod authz;
pub(crate) mod balancer;
pub(crate) mod breaker;
pub(crate) mod control;
pub(crate) mod detect;
pub(crate) mod http;
pub(crate) mod labels;
pub(crate) mod mirror;
pub(crate) mod profile;
pub(crate) mod refused;
pub(crate) mod retry;
mod route;
mod status;
pub(crate) mod tcp;

use mesh_runtime::metrics::{Exemplars, Registry};

pub(crate) use self::route::{RouteFamilies, RouteMetrics};

/// The metric families of the data threads, which share them.
#[derive(Debug)]
pub(crate) struct Families {
    pub(crate) tcp: tcp::TcpFamilies,
    /// `request_total` and the related families of both directions.
    pub(crate) endpoint: http::EndpointFamilies,
    pub(crate) authz: authz::AuthzFamilies,
    pub(crate) errors: authz::ErrorFamilies,
    pub(crate) detect: detect::DetectFamilies,
    pub(crate) refused: refused::RefusedFamily,
    pub(crate) inbound_route: RouteFamilies,
    pub(crate) outbound_route: RouteFamilies,
    pub(crate) outbound_backend: RouteFamilies,
    /// `route_request_total` and the related families of both directions.
    pub(crate) profile: profile::ProfileFamilies,
    pub(crate) outbound_retry: retry::RetryFamilies,
    pub(crate) http_balancer: balancer::BalancerFamilies,
    pub(crate) tcp_balancer: balancer::BalancerFamilies,
    pub(crate) tls_balancer: balancer::BalancerFamilies,
    pub(crate) breaker: breaker::BreakerFamily,
    pub(crate) mirror: mirror::MirrorFamily,
    pub(crate) tcp_route: tcp::TcpRouteFamilies,
    pub(crate) tls_route: tcp::TcpRouteFamilies,
}

impl Families {
    /// The latencies of requests keep `exemplars`, which are worth their memory only where requests
    /// have spans. `durations` adds the times to the ends of responses.
    pub(crate) fn new(
        registry: &Registry,
        exemplars: Exemplars,
        durations: http::ResponseDurations,
    ) -> Self {
        Self {
            tcp: tcp::TcpFamilies::new(registry),
            endpoint: http::EndpointFamilies::new(registry, exemplars, durations),
            authz: authz::AuthzFamilies::new(registry),
            errors: authz::ErrorFamilies::new(registry),
            detect: detect::DetectFamilies::new(registry),
            refused: refused::RefusedFamily::new(registry),
            inbound_route: RouteFamilies::inbound(registry, exemplars),
            outbound_route: RouteFamilies::outbound_route(registry, exemplars),
            outbound_backend: RouteFamilies::outbound_backend(registry, exemplars),
            profile: profile::ProfileFamilies::new(registry, exemplars, durations),
            outbound_retry: retry::RetryFamilies::new(registry),
            http_balancer: balancer::BalancerFamilies::http(registry),
            tcp_balancer: balancer::BalancerFamilies::tcp(registry),
            tls_balancer: balancer::BalancerFamilies::tls(registry),
            breaker: breaker::BreakerFamily::new(registry),
            mirror: mirror::MirrorFamily::new(registry),
            tcp_route: tcp::TcpRouteFamilies::tcp(registry),
            tls_route: tcp::TcpRouteFamilies::tls(registry),
        }
    }
}
