//! The facts of a request that the mesh admits, and their parts.

use std::net::SocketAddr;
use std::time::Duration;

use http::{Method, StatusCode};
use mesh_core::endpoint::{Endpoint, TlsPeer};
use mesh_core::identity::Identity;
use mesh_core::labels::Labels;
use mesh_core::meta::{Meta, Resource};
use mesh_core::node::Tier;
use mesh_core::policy::inbound::{
    Authentication, Authorization, HttpServer, ServerPolicy, ServerProtocol, all_networks,
};
use mesh_core::policy::outbound::{
    Backend, BackendTarget, Distribution, HttpRoute, HttpRoutes, OutboundPolicy, OutboundProtocol,
    OutboundRule, RouteBackend, TcpVerdict,
};
use mesh_core::ports::PortSet;
use mesh_core::profile::Profile;
use mesh_core::redirection::{Hook, RedirectionEvent};
use mesh_core::resilience::Timeouts;
use mesh_core::route::http::{HttpMatch, PathMatch};
use mesh_core::route::{Route, Rule};

use crate::commands::why::facts::*;

pub(super) const CLIENT: &str = "client.shop.serviceaccount.identity.linkerd.cluster.local";
pub(super) const WEB: &str = "web.shop.serviceaccount.identity.linkerd.cluster.local";

pub(super) fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub(super) fn workload(name: &str, ip: &str, identity: &str) -> Workload {
    Workload {
        kind: WorkloadKind::Pod,
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        service_account: name.to_owned(),
        ip: ip.parse().unwrap(),
        identity: Some(Identity::parse(identity).unwrap()),
        enrolment: Ok(Enrolment::Enrolled(Tier::Full)),
        skip_outbound: PortSet::default(),
        skip_inbound: PortSet::default(),
    }
}

pub(super) fn event(
    ns: u64,
    hook: Hook,
    verdict: &str,
    source: Option<&str>,
    destination: &str,
) -> RedirectionEvent {
    RedirectionEvent {
        monotonic_ns: ns,
        hook,
        verdict: verdict.to_owned(),
        source: source.map(addr),
        destination: addr(destination),
        redirected_to: (verdict == "outbound-redirected").then(|| addr("10.1.0.2:4140")),
    }
}

pub(super) fn authorization(name: &str, authentication: Authentication) -> Authorization {
    Authorization {
        meta: Meta::Resource(Resource::new(
            "policy.linkerd.io",
            "AuthorizationPolicy",
            "shop",
            name,
        )),
        networks: all_networks(),
        authentication,
    }
}

/// As Linkerd's API names it.
pub(super) fn server_authorization(name: &str, authentication: Authentication) -> Authorization {
    Authorization {
        meta: Meta::Resource(Resource::new(
            "policy.linkerd.io",
            "serverauthorization",
            "shop",
            name,
        )),
        ..authorization(name, authentication)
    }
}

pub(super) fn identities(names: &[&str]) -> Authentication {
    Authentication::TlsAuthenticated {
        identities: names
            .iter()
            .map(|name| Identity::parse(name).unwrap())
            .collect(),
        suffixes: Vec::new(),
    }
}

pub(super) fn server_policy(authorizations: Vec<Authorization>) -> ServerPolicy {
    ServerPolicy {
        // As Linkerd's API names it.
        meta: Meta::Resource(Resource::new("policy.linkerd.io", "server", "", "web")),
        protocol: ServerProtocol::Http1(HttpServer::default()),
        authorizations: authorizations.into(),
        is_terminating: false,
    }
    .completed()
}

pub(super) fn outbound_policy() -> OutboundPolicy {
    let backend = RouteBackend {
        backend: Backend {
            meta: Meta::Resource(Resource::new("", "Service", "shop", "web")),
            target: BackendTarget::None,
        },
        filters: Vec::new(),
        verdict: TcpVerdict::Forward,
    };
    let route: HttpRoute = Route {
        meta: Meta::new_default("http"),
        hosts: Vec::new(),
        rules: vec![Rule {
            matches: vec![HttpMatch {
                path: Some(PathMatch::Prefix("/".to_owned())),
                ..HttpMatch::default()
            }],
            action: OutboundRule {
                filters: Vec::new(),
                backends: Distribution::FirstAvailable(vec![backend.into()]),
                timeouts: Timeouts::default(),
                retry: None,
                allow_request_headers: false,
            },
        }],
    };
    let routes = HttpRoutes {
        routes: vec![route],
        failure_accrual: None,
    };
    OutboundPolicy {
        parent: Meta::Resource(Resource::new("", "Service", "shop", "web")),
        protocol: OutboundProtocol::Detect {
            timeout: Duration::from_secs(10),
            opaque: None,
            http1: routes.clone(),
            http2: routes,
        },
    }
}

pub(super) fn endpoint(address: &str, pod: &str) -> Endpoint {
    Endpoint {
        labels: Labels::from([("pod", pod), ("namespace", "shop")]),
        tls: Some(TlsPeer {
            id: Identity::parse(WEB).unwrap(),
            server_name: WEB.into(),
        }),
        ..Endpoint::plain(addr(address))
    }
}

pub(super) fn response(status: u16) -> Exchange {
    Exchange::Response(Response {
        status: StatusCode::from_u16(status).unwrap(),
        proxy_error: None,
        after: Duration::from_micros(3_100),
        body_bytes: 12,
    })
}

pub(super) fn tapped(
    source: &[(&str, &str)],
    destination: &[(&str, &str)],
    status: u16,
) -> TappedRequest {
    TappedRequest {
        source: addr("10.1.0.2:40000"),
        destination: addr("10.1.0.3:8080"),
        source_labels: source.iter().copied().collect(),
        destination_labels: destination.iter().copied().collect(),
        response: Some(TappedResponse {
            status: StatusCode::from_u16(status).unwrap(),
            after: Duration::from_micros(400),
        }),
        end: None,
    }
}

pub(super) const ADMITTED: [(&str, &str); 6] = [
    ("srv_kind", "server"),
    ("srv_name", "web"),
    ("route_kind", "default"),
    ("route_name", "default"),
    ("authz_kind", "authorizationpolicy"),
    ("authz_name", "clients"),
];

/// A request that is admitted and answered with 200, as all parts report it.
pub(super) fn admitted() -> Facts {
    Facts {
        place: Place::Cluster,
        client: workload("client", "10.1.0.2", CLIENT),
        target: Target {
            authority: "web:80".to_owned(),
            service: Some("shop/web".to_owned()),
            address: addr("10.96.0.10:80"),
            note: None,
        },
        request: Some(RequestLine {
            method: Method::GET,
            path: "/a?b=c".to_owned(),
            marker: "1".to_owned(),
        }),
        connection: Connection::Made {
            local: addr("10.1.0.2:40000"),
            exchange: response(200),
        },
        client_kernel: Ok(vec![
            event(
                1_000,
                Hook::Connect,
                "outbound-redirected",
                None,
                "10.96.0.10:80",
            ),
            event(
                61_000,
                Hook::Accept,
                "outbound-redirected",
                Some("10.1.0.2:40000"),
                "10.96.0.10:80",
            ),
            event(
                90_000,
                Hook::Connect,
                "outbound-proxy",
                None,
                "10.1.0.3:8080",
            ),
        ]),
        discovery: Discovery {
            profile: Ok(Profile {
                fqn: Some("web.shop.svc.cluster.local".into()),
                ..Profile::default()
            }),
            policy: Ok(outbound_policy()),
            endpoints: Ok(vec![
                endpoint("10.1.0.3:8080", "web-0"),
                endpoint("10.1.0.4:8080", "web-1"),
            ]),
            load: Ok(vec![EndpointLoad {
                address: addr("10.1.0.3:8080"),
                requests: 1,
                open_connections: 1,
                mean_latency: Some(Duration::from_millis(2)),
            }]),
        },
        client_tap: Ok(Some(tapped(
            &[],
            &[("tls", "true"), ("server_id", WEB)],
            200,
        ))),
        server: Ok(Server {
            pod: workload("web-0", "10.1.0.3", WEB),
            address: addr("10.1.0.3:8080"),
            chosen_by: Choice::Reported,
            kernel: Ok(vec![event(
                100_000,
                Hook::Lookup,
                "inbound-steered",
                Some("10.1.0.2:50000"),
                "10.1.0.3:8080",
            )]),
            policy: Ok(server_policy(vec![authorization(
                "clients",
                identities(&[CLIENT]),
            )])),
            tap: Ok(Some(tapped(
                &[("tls", "true"), ("client_id", CLIENT)],
                &ADMITTED,
                200,
            ))),
        }),
    }
}

/// The same request, which the server's proxy answers with `status`.
pub(super) fn refused(status: u16, authorizations: Vec<Authorization>) -> Facts {
    let mut facts = admitted();
    facts.set_exchange(response(status));
    let server = facts.server.as_mut().unwrap();
    server.policy = Ok(server_policy(authorizations));
    server.tap = Ok(None);
    facts
}

impl Facts {
    pub(super) fn set_exchange(&mut self, new: Exchange) {
        if let Connection::Made { exchange, .. } = &mut self.connection {
            *exchange = new;
        }
    }
}
