//! Policies and endpoints as tests need them: short to write, complete when sent.

use std::sync::Arc;
use std::time::Duration;

use mesh_core::endpoint::{Endpoint, ProtocolHint, TlsPeer};
use mesh_core::identity::Identity;
use mesh_core::meta::{Meta, Resource};
use mesh_core::policy::inbound::{
    Authentication, Authorization, HttpServer, Network, ServerPolicy, ServerProtocol,
};
use mesh_core::policy::outbound::{
    Backend, BackendTarget, Distribution, HttpRoute, HttpRoutes, OutboundPolicy, OutboundProtocol,
    OutboundRule, RouteBackend, TcpRoute, TcpVerdict,
};
use mesh_core::resilience::{PeakEwma, Queue, Timeouts};
use mesh_core::route::Rule;

use crate::harness::Pod;

const DETECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Every client may do everything; the protocol is detected.
pub(crate) fn open_server() -> ServerPolicy {
    server(detect(), vec![every_client()])
}

/// A Server named `server` with these authorizations.
pub(crate) fn server(protocol: ServerProtocol, authorizations: Vec<Authorization>) -> ServerPolicy {
    ServerPolicy {
        meta: object("policy.linkerd.io", "server", "server", None),
        protocol,
        authorizations: authorizations.into(),
        is_terminating: false,
    }
}

pub(crate) fn detect() -> ServerProtocol {
    ServerProtocol::Detect {
        timeout: DETECT_TIMEOUT,
        http: HttpServer::default(),
    }
}

pub(crate) fn every_client() -> Authorization {
    authorization("every_client", Authentication::Unauthenticated)
}

/// Authorizes clients with exactly this identity.
pub(crate) fn only(identity: &str) -> Authorization {
    authorization(
        "only",
        Authentication::TlsAuthenticated {
            identities: vec![Identity::parse(identity).unwrap()],
            suffixes: Vec::new(),
        },
    )
}

fn authorization(name: &str, authentication: Authentication) -> Authorization {
    let all = |net: &str| Network::from(net.parse::<ipnet::IpNet>().unwrap());
    Authorization {
        meta: object("policy.linkerd.io", "authorizationpolicy", name, None),
        networks: vec![all("0.0.0.0/0"), all("::/0")],
        authentication,
    }
}

/// A Service whose protocol is detected, balanced over what the authority resolves to.
pub(crate) fn service(name: &str, port: u16) -> OutboundPolicy {
    let backends = balance(name, port);
    let http = HttpRoutes {
        routes: vec![HttpRoute {
            meta: Meta::new_default("http"),
            hosts: Vec::new(),
            rules: vec![Rule {
                matches: Vec::new(),
                action: OutboundRule {
                    filters: Vec::new(),
                    backends: backends.clone(),
                    timeouts: Timeouts::default(),
                    retry: None,
                    allow_request_headers: false,
                },
            }],
        }],
        failure_accrual: None,
    };
    OutboundPolicy {
        parent: object("core", "Service", name, Some(port)),
        protocol: OutboundProtocol::Detect {
            timeout: DETECT_TIMEOUT,
            opaque: Some(tcp_route(backends)),
            http1: http.clone(),
            http2: http,
        },
    }
}

/// A Service with an opaque port.
pub(crate) fn opaque_service(name: &str, port: u16) -> OutboundPolicy {
    OutboundPolicy {
        parent: object("core", "Service", name, Some(port)),
        protocol: OutboundProtocol::Opaque(Some(tcp_route(balance(name, port)))),
    }
}

/// The names that the policies above make proxies ask `Destination.Get` for.
pub(crate) fn authority(name: &str, port: u16) -> String {
    format!("{name}.test.svc.cluster.local:{port}")
}

/// A port of a meshed pod, as discovery describes it.
pub(crate) fn meshed(pod: &Pod, port: u16) -> Endpoint {
    let identity = pod.identity();
    Endpoint {
        tls: Some(TlsPeer {
            id: Identity::parse(&identity).unwrap(),
            server_name: identity.into(),
        }),
        hint: ProtocolHint::Http2,
        opaque_transport_port: Some(4143),
        labels: [("pod", &pod.name)].into(),
        ..Endpoint::plain(pod.addr(port))
    }
}

/// The same with a port that is opaque to the pod's proxy.
pub(crate) fn meshed_opaque(pod: &Pod, port: u16) -> Endpoint {
    Endpoint {
        hint: ProtocolHint::Opaque,
        ..meshed(pod, port)
    }
}

fn tcp_route(backends: Distribution) -> TcpRoute {
    TcpRoute {
        meta: Meta::new_default("opaque"),
        backends,
        verdict: TcpVerdict::Forward,
    }
}

fn balance(name: &str, port: u16) -> Distribution {
    let backend = RouteBackend {
        backend: Backend {
            meta: object("core", "Service", name, Some(port)),
            target: BackendTarget::Balance {
                authority: authority(name, port).into(),
                load: PeakEwma::default(),
                queue: Queue::default(),
            },
        },
        filters: Vec::new(),
        verdict: TcpVerdict::Forward,
    };
    Distribution::FirstAvailable(vec![Arc::new(backend)])
}

fn object(group: &str, kind: &str, name: &str, port: Option<u16>) -> Meta {
    Meta::Resource(Resource {
        group: group.into(),
        kind: kind.into(),
        namespace: "test".into(),
        name: name.into(),
        section: "".into(),
        port,
    })
}
