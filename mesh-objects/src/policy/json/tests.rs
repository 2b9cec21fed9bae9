//! Policies as they are printed.

use mesh_core::endpoint::Endpoint;
use mesh_core::identity::Identity;
use mesh_core::meta::Resource;
use mesh_core::policy::inbound::Suffix;
use mesh_core::policy::outbound::Backend;
use mesh_core::resilience::{PeakEwma, Queue};
use mesh_core::route::Rule;
use mesh_core::route::filter::Ratio;
use mesh_core::route::http::QueryMatch;

use super::*;

fn resource(group: &str, kind: &str, name: &str, port: Option<u16>) -> Meta {
    Meta::Resource(Resource {
        port,
        ..Resource::new(group, kind, "shop", name)
    })
}

fn to(meta: &Meta, target: BackendTarget) -> Arc<RouteBackend> {
    Arc::new(RouteBackend {
        backend: Backend {
            meta: meta.clone(),
            target,
        },
        filters: Vec::new(),
        verdict: TcpVerdict::Forward,
    })
}

#[test]
fn outbound_policy_names_objects_that_decided() {
    let network = resource("policy.linkerd.io", "EgressNetwork", "outside", Some(443));
    let service = resource("core", "Service", "web", Some(80));
    let denied = Filter::InjectHttpFailure {
        status: http::StatusCode::FORBIDDEN,
        message: "traffic not allowed".into(),
        ratio: Ratio::ALL,
    };
    let forward = Box::new(Endpoint {
        weight: 1,
        ..Endpoint::plain("203.0.113.1:443".parse().unwrap())
    });
    let rule = |filters, backends| Rule {
        matches: vec![HttpMatch {
            path: Some(PathMatch::Prefix("/a/".to_owned())),
            method: Some(http::Method::GET),
            ..HttpMatch::default()
        }],
        action: OutboundRule {
            filters,
            backends,
            timeouts: Timeouts {
                request: Some(Duration::from_millis(1500)),
                ..Timeouts::default()
            },
            retry: None,
            allow_request_headers: false,
        },
    };
    let balance = BackendTarget::Balance {
        authority: "web.shop.svc.cluster.local:80".into(),
        load: PeakEwma::default(),
        queue: Queue::LINKERD,
    };
    let http = HttpRoutes {
        routes: vec![
            Route {
                meta: resource("gateway.networking.k8s.io", "HTTPRoute", "one", None),
                hosts: vec![HostMatch::Suffix(vec!["example".into(), "a".into()])],
                rules: vec![rule(
                    Vec::new(),
                    Distribution::RandomAvailable(vec![(to(&service, balance), 9)]),
                )],
            },
            Route {
                meta: Meta::new_default("http-egress-deny"),
                hosts: Vec::new(),
                rules: vec![rule(
                    vec![denied],
                    Distribution::FirstAvailable(vec![to(
                        &network,
                        BackendTarget::Forward(forward),
                    )]),
                )],
            },
        ],
        failure_accrual: None,
    };
    let policy = OutboundPolicy {
        parent: network,
        protocol: OutboundProtocol::Detect {
            timeout: Duration::from_secs(10),
            opaque: Some(TcpRoute {
                meta: Meta::new_default("tcp-egress-deny"),
                backends: Distribution::Empty,
                verdict: TcpVerdict::Forbidden,
            }),
            http1: http.clone(),
            http2: http,
        },
    };
    let outside = json!({
        "group": "policy.linkerd.io",
        "kind": "EgressNetwork",
        "namespace": "shop",
        "name": "outside",
        "port": 443,
    });
    let expected = json!({
        "object": outside,
        "protocol": "detect",
        "detectTimeout": "10s",
        "tcpRoute": {
            "object": { "default": "tcp-egress-deny" },
            "rejects": "forbidden by policy",
        },
        "httpRoutes": [
            {
                "object": {
                    "group": "gateway.networking.k8s.io",
                    "kind": "HTTPRoute",
                    "namespace": "shop",
                    "name": "one",
                },
                "hosts": ["*.a.example"],
                "rules": [{
                    "matches": ["GET /a/*"],
                    "backends": [{
                        "object": {
                            "group": "core",
                            "kind": "Service",
                            "namespace": "shop",
                            "name": "web",
                            "port": 80,
                        },
                        "weight": 9,
                        "balances": {
                            "authority": "web.shop.svc.cluster.local:80",
                            "defaultRtt": "30ms",
                            "decay": "10s",
                            "queue": { "capacity": 100, "failFastTimeout": "3s" },
                        },
                    }],
                    "timeouts": { "request": "1.5s" },
                    "headersOverride": false,
                }],
            },
            {
                "object": { "default": "http-egress-deny" },
                "rules": [{
                    "matches": ["GET /a/*"],
                    "filters": [{ "failure": {
                        "status": 403,
                        "message": "traffic not allowed",
                        "ratio": "1/1",
                    } }],
                    "backends": [{
                        "object": outside,
                        "forwardsTo": "203.0.113.1:443",
                        "endpoint": { "weight": 1 },
                    }],
                    "timeouts": { "request": "1.5s" },
                    "headersOverride": false,
                }],
            },
        ],
    });
    assert_eq!(outbound(&policy), expected);
}

#[test]
fn tls_routes_and_invalid_backends_are_printed() {
    let failing = RouteBackend {
        verdict: TcpVerdict::Invalid("Service not found a".into()),
        ..(*to(&Meta::new_default("invalid"), BackendTarget::None)).clone()
    };
    let policy = OutboundPolicy {
        parent: Meta::new_default("test"),
        protocol: OutboundProtocol::Tls(vec![TlsRoute {
            meta: Meta::new_default("route"),
            snis: vec![HostMatch::Exact("a.example".into())],
            backends: Distribution::RandomAvailable(vec![(Arc::new(failing), 1)]),
            verdict: TcpVerdict::Forward,
        }]),
    };
    let expected = json!({
        "object": { "default": "test" },
        "protocol": "TLS",
        "tlsRoutes": [{
            "object": { "default": "route" },
            "serverNames": ["a.example"],
            "backends": [{
                "object": { "default": "invalid" },
                "weight": 1,
                "rejects": "Service not found a",
            }],
        }],
    });
    assert_eq!(outbound(&policy), expected);
}

#[test]
fn inbound_policy_names_its_authorizations() {
    let policy = ServerPolicy {
        meta: resource("policy.linkerd.io", "server", "web-http", None),
        protocol: ServerProtocol::Opaque,
        authorizations: Arc::new([Authorization {
            meta: resource("policy.linkerd.io", "authorizationpolicy", "allow", None),
            networks: vec!["10.0.0.0/8".parse::<ipnet::IpNet>().unwrap().into()],
            authentication: Authentication::TlsUnauthenticated,
        }]),
        is_terminating: true,
    };
    let expected = json!({
        "terminating": true,
        "object": {
            "group": "policy.linkerd.io",
            "kind": "server",
            "namespace": "shop",
            "name": "web-http",
        },
        "protocol": "opaque",
        "authorizations": [{
            "object": {
                "group": "policy.linkerd.io",
                "kind": "authorizationpolicy",
                "namespace": "shop",
                "name": "allow",
            },
            "networks": [{ "cidr": "10.0.0.0/8" }],
            "authentication": "TLS",
        }],
    });
    assert_eq!(inbound(&policy), expected);
}

#[test]
fn section_of_object_and_filter_without_settings_are_printed() {
    let gateway = Meta::Resource(Resource {
        section: "http".into(),
        ..Resource::new("", "Gateway", "shop", "edge")
    });
    let expected = json!({
        "group": "",
        "kind": "Gateway",
        "namespace": "shop",
        "name": "edge",
        "section": "http",
    });
    assert_eq!(without_empty(object(&gateway)), expected);
    let unchanged = Filter::UrlRewrite(UrlRewrite::default());
    assert_eq!(
        without_empty(filter(&unchanged)),
        json!({ "urlRewrite": {} })
    );
}

#[test]
fn matches_are_short_texts() {
    let header = HeaderMatch {
        name: "x-tenant".parse().unwrap(),
        value: HeaderValueMatch::Exact("a".parse().unwrap()),
    };
    let query = QueryMatch {
        name: "v".to_owned(),
        value: QueryValueMatch::Exact("2".to_owned()),
    };
    let of_path = |path: PathMatch| HttpMatch {
        path: Some(path),
        ..HttpMatch::default()
    };
    let of_all_parts = HttpMatch {
        method: Some(http::Method::GET),
        headers: vec![header.clone()],
        query: vec![query],
        ..of_path(PathMatch::Exact("/a".to_owned()))
    };
    for (entry, expected) in [
        (HttpMatch::default(), "*"),
        (of_path(PathMatch::Prefix("/".to_owned())), "/*"),
        (of_path(PathMatch::Prefix("/a".to_owned())), "/a/*"),
        (of_path(PathMatch::Exact("/a".to_owned())), "/a"),
        (of_all_parts, "GET /a x-tenant=a ?v=2"),
    ] {
        assert_eq!(http_match(&entry), expected);
    }
    let call = GrpcMatch {
        service: Some("shop.Cart".into()),
        method: None,
        headers: vec![header],
    };
    assert_eq!(grpc_match(&call), "shop.Cart/* x-tenant=a");
}

#[test]
fn identities_are_names_and_suffixes() {
    let authentication = Authentication::TlsAuthenticated {
        identities: vec![Identity::parse("web.shop").unwrap()],
        suffixes: vec![
            Suffix(Vec::new()),
            Suffix(vec!["shop".into(), "local".into()]),
        ],
    };
    let expected = ["web.shop", "*", "*.shop.local"];
    assert_eq!(identities(&authentication), expected);
    assert_eq!(identities(&Authentication::TlsUnauthenticated), [""; 0]);
}
