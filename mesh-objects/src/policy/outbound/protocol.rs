//! The protocol of a parent's port, with its routes.

use mesh_core::policy::outbound::{HttpRoutes, OutboundProtocol, OutboundRule, Routes, TcpRoute};
use mesh_core::route::Route;

use super::attached::AttachedRoutes;
use super::parent::{ParentObject, RouteParent};
use super::{default_route, routes};
use crate::model::PortProtocol;
use crate::policy::inbound::DETECT_TIMEOUT;

impl RouteParent<'_> {
    pub(super) fn protocol(&self) -> OutboundProtocol {
        let attached = AttachedRoutes::find(self);
        match self.port_protocol() {
            PortProtocol::Http1 => OutboundProtocol::Http1(self.http(&attached)),
            PortProtocol::Http2 if attached.grpc.is_empty() => {
                OutboundProtocol::Http2(self.http(&attached))
            }
            PortProtocol::Http2 => self.grpc(&attached),
            PortProtocol::Opaque => OutboundProtocol::Opaque(Some(self.tcp(&attached))),
            PortProtocol::Unspecified if !attached.grpc.is_empty() => self.grpc(&attached),
            PortProtocol::Unspecified if attached.http.is_empty() && !attached.tls.is_empty() => {
                self.tls(&attached)
            }
            PortProtocol::Unspecified if attached.http.is_empty() && !attached.tcp.is_empty() => {
                OutboundProtocol::Opaque(Some(self.tcp(&attached)))
            }
            PortProtocol::Unspecified => {
                let http = self.http(&attached);
                OutboundProtocol::Detect {
                    timeout: DETECT_TIMEOUT,
                    opaque: Some(default_route::tcp(self)),
                    http1: http.clone(),
                    http2: http,
                }
            }
        }
    }

    fn port_protocol(&self) -> PortProtocol {
        let defaults = &self.settings.default_opaque_ports;
        let opaque_ports = match self.object {
            ParentObject::Service {
                service: Some(service),
                ..
            } => return service.protocol(self.port, defaults),
            ParentObject::Service { service: None, .. } => defaults,
            ParentObject::EgressNetwork { network, .. } => {
                network.opaque_ports.as_ref().unwrap_or(defaults)
            }
        };
        if opaque_ports.contains(self.port) {
            PortProtocol::Opaque
        } else {
            PortProtocol::Unspecified
        }
    }

    /// A Service has a default route only if no route is attached. An EgressNetwork always has one,
    /// after the attached routes.
    fn http(&self, attached: &AttachedRoutes<'_>) -> HttpRoutes {
        let routes = attached.http.iter();
        let mut routes: Vec<_> = routes
            .map(|route| routes::convert_http(self, route))
            .collect();
        match self.object {
            ParentObject::Service { .. } if routes.is_empty() => {
                routes.push(default_route::service_http(self));
            }
            ParentObject::Service { .. } => {}
            ParentObject::EgressNetwork { network, .. } => {
                routes.push(default_route::egress_http(self, network));
            }
        }
        self.routes(routes)
    }

    fn grpc(&self, attached: &AttachedRoutes<'_>) -> OutboundProtocol {
        let routes = attached.grpc.iter();
        let mut routes: Vec<_> = routes
            .map(|route| routes::convert_grpc(self, route))
            .collect();
        if let ParentObject::EgressNetwork { network, .. } = self.object {
            routes.push(default_route::egress_grpc(self, network));
        }
        OutboundProtocol::Grpc(self.routes(routes))
    }

    fn tls(&self, attached: &AttachedRoutes<'_>) -> OutboundProtocol {
        let routes = attached.tls.iter();
        let mut routes: Vec<_> = routes
            .map(|route| routes::convert_tls(self, route))
            .collect();
        if let ParentObject::EgressNetwork { network, .. } = self.object {
            routes.push(default_route::egress_tls(self, network));
        }
        OutboundProtocol::Tls(routes)
    }

    /// Connections have no matches, so only the oldest route applies.
    fn tcp(&self, attached: &AttachedRoutes<'_>) -> TcpRoute {
        match attached.tcp.first() {
            Some(route) => routes::convert_tcp(self, route),
            None => default_route::tcp(self),
        }
    }

    fn routes<M, T>(&self, routes: Vec<Route<M, OutboundRule<T>>>) -> Routes<M, T> {
        Routes {
            routes,
            failure_accrual: self.traffic().and_then(|traffic| traffic.failure_accrual),
        }
    }
}
