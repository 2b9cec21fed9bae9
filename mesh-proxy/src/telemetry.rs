//! Metrics, with the names and labels of Linkerd's proxy.
//!
//! [`Families`] registers every family once, at start. The data threads resolve handles from it per
//! target, policy and endpoint; requests and connections use only handles. [`labels`] defines the
//! labels and their order.

pub mod authz;
pub mod balancer;
pub mod control;
pub mod detect;
pub mod http;
pub mod labels;
pub mod refused;
mod route;
mod status;
pub mod tcp;

use mesh_runtime::metrics::Registry;

pub use self::route::{RouteFamilies, RouteMetrics};

/// The metric families of the data threads, which share them.
#[derive(Debug)]
pub struct Families {
    pub tcp: tcp::TcpFamilies,
    /// `request_total` and the related families of both directions.
    pub endpoint: http::EndpointFamilies,
    pub authz: authz::AuthzFamilies,
    pub errors: authz::ErrorFamilies,
    pub detect: detect::DetectFamilies,
    pub refused: refused::RefusedFamily,
    pub inbound_route: RouteFamilies,
    pub outbound_route: RouteFamilies,
    pub outbound_backend: RouteFamilies,
    pub http_balancer: balancer::BalancerFamilies,
    pub tcp_balancer: balancer::BalancerFamilies,
    pub tls_balancer: balancer::BalancerFamilies,
    pub tcp_route: tcp::TcpRouteFamilies,
    pub tls_route: tcp::TcpRouteFamilies,
}

impl Families {
    pub fn new(registry: &Registry) -> Self {
        Self {
            tcp: tcp::TcpFamilies::new(registry),
            endpoint: http::EndpointFamilies::new(registry),
            authz: authz::AuthzFamilies::new(registry),
            errors: authz::ErrorFamilies::new(registry),
            detect: detect::DetectFamilies::new(registry),
            refused: refused::RefusedFamily::new(registry),
            inbound_route: RouteFamilies::inbound(registry),
            outbound_route: RouteFamilies::outbound_route(registry),
            outbound_backend: RouteFamilies::outbound_backend(registry),
            http_balancer: balancer::BalancerFamilies::http(registry),
            tcp_balancer: balancer::BalancerFamilies::tcp(registry),
            tls_balancer: balancer::BalancerFamilies::tls(registry),
            tcp_route: tcp::TcpRouteFamilies::tcp(registry),
            tls_route: tcp::TcpRouteFamilies::tls(registry),
        }
    }
}
