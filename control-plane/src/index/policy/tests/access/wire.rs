//! The message of a policy as text, a line for each element, with every field.

use std::fmt::Write as _;
use std::net::IpAddr;

use mesh_api::inbound::to_proto;
use mesh_api::proto::http_route::{HttpRouteMatch, path_match};
use mesh_api::proto::http_types::{HttpMethod, http_method};
use mesh_api::proto::inbound::authn::permit_mesh_tls::Clients;
use mesh_api::proto::inbound::authn::{Permit, PermitMeshTls, permit_mesh_tls};
use mesh_api::proto::inbound::http_local_rate_limit::Limit;
use mesh_api::proto::inbound::proxy_protocol::{Detect, Grpc, Http1, Http2, Kind};
use mesh_api::proto::inbound::{
    Authz, GrpcRoute, HttpLocalRateLimit, HttpRoute, Identity, Network, grpc_route, http_route,
};
use mesh_api::proto::meta::{Metadata, Resource, metadata};
use mesh_api::proto::net::IpNetwork;
use mesh_core::policy::inbound::ServerPolicy;

pub(super) fn text(policy: &ServerPolicy) -> String {
    let message = to_proto(policy);
    assert!(message.server_ips.is_empty());
    let label = |key: &str| &message.labels[key];
    assert_eq!(message.labels.len(), 3);
    let mut text = match (label("kind").as_str(), label("group").as_str()) {
        ("default", "") => format!("server default/{}\n", label("name")),
        (kind, group) => format!("server {kind}.{group} {}\n", label("name")),
    };
    let (http_routes, grpc_routes, limit) = match message.protocol.unwrap().kind.unwrap() {
        Kind::Detect(Detect {
            timeout,
            http_routes,
            http_local_rate_limit,
        }) => {
            text += &format!("detect {} s\n", timeout.unwrap().seconds);
            (http_routes, Vec::new(), http_local_rate_limit)
        }
        Kind::Http1(Http1 {
            routes,
            local_rate_limit,
        }) => {
            text += "http1\n";
            (routes, Vec::new(), local_rate_limit)
        }
        Kind::Http2(Http2 {
            routes,
            local_rate_limit,
        }) => {
            text += "http2\n";
            (routes, Vec::new(), local_rate_limit)
        }
        Kind::Grpc(Grpc { routes }) => {
            text += "grpc\n";
            (Vec::new(), routes, None)
        }
        Kind::Opaque(_) => {
            text += "opaque\n";
            (Vec::new(), Vec::new(), None)
        }
        Kind::Tls(_) => {
            text += "tls\n";
            (Vec::new(), Vec::new(), None)
        }
    };
    http_routes.iter().for_each(|it| http_route(&mut text, it));
    grpc_routes.iter().for_each(|it| grpc_route(&mut text, it));
    if let Some(limit) = limit {
        text += &rate_limit(&limit);
    }
    for authorization in &message.authorizations {
        text += &format!("authz {}\n", authz(authorization));
    }
    text
}

fn http_route(text: &mut String, route: &HttpRoute) {
    writeln!(text, "route {}", meta(route.metadata.as_ref())).unwrap();
    hosts(text, &route.hosts);
    for rule in &route.rules {
        let matches: Vec<String> = rule.matches.iter().map(http_match).collect();
        writeln!(text, "rule {}", matches.join(" | ")).unwrap();
        for filter in &rule.filters {
            let shown = match filter.kind.as_ref().unwrap() {
                http_route::filter::Kind::RequestHeaderModifier(it) => request_headers(it),
                http_route::filter::Kind::Redirect(it) => {
                    format!("redirect {} {} {}", it.host, it.port, it.status)
                }
                http_route::filter::Kind::FailureInjector(it) => format!("fail {}", it.status),
            };
            writeln!(text, "filter {shown}").unwrap();
        }
    }
    for authorization in &route.authorizations {
        writeln!(text, "route-authz {}", authz(authorization)).unwrap();
    }
}

fn grpc_route(text: &mut String, route: &GrpcRoute) {
    writeln!(text, "route {}", meta(route.metadata.as_ref())).unwrap();
    hosts(text, &route.hosts);
    for rule in &route.rules {
        let matches = rule.matches.iter().map(|entry| {
            assert!(entry.headers.is_empty());
            let rpc = entry.rpc.as_ref();
            rpc.map_or("any".to_owned(), |rpc| {
                format!("{}/{}", rpc.service, rpc.method)
            })
        });
        let matches: Vec<String> = matches.collect();
        writeln!(text, "rule {}", matches.join(" | ")).unwrap();
        for filter in &rule.filters {
            let shown = match filter.kind.as_ref().unwrap() {
                grpc_route::filter::Kind::RequestHeaderModifier(it) => request_headers(it),
                grpc_route::filter::Kind::FailureInjector(it) => format!("fail {}", it.code),
            };
            writeln!(text, "filter {shown}").unwrap();
        }
    }
    for authorization in &route.authorizations {
        writeln!(text, "route-authz {}", authz(authorization)).unwrap();
    }
}

fn hosts(text: &mut String, hosts: &[mesh_api::proto::http_route::HostMatch]) {
    for host in hosts {
        writeln!(text, "host {:?}", host.r#match.as_ref().unwrap()).unwrap();
    }
}

fn request_headers(filter: &mesh_api::proto::http_route::RequestHeaderModifier) -> String {
    let names = |headers: &Option<mesh_api::proto::http_types::Headers>| {
        let headers = headers.iter().flat_map(|headers| &headers.headers);
        let named = headers
            .map(|header| format!("{}={}", header.name, String::from_utf8_lossy(&header.value)));
        named.collect::<Vec<_>>().join(",")
    };
    format!(
        "add[{}] set[{}] remove[{}]",
        names(&filter.add),
        names(&filter.set),
        filter.remove.join(",")
    )
}

fn http_match(entry: &HttpRouteMatch) -> String {
    assert!(entry.query_params.is_empty() && entry.headers.is_empty());
    let path = entry.path.as_ref().and_then(|path| path.kind.as_ref());
    let path = match path.unwrap() {
        path_match::Kind::Exact(path) => format!("exact:{path}"),
        path_match::Kind::Prefix(path) => format!("prefix:{path}"),
        path_match::Kind::Regex(path) => format!("regex:{path}"),
    };
    match entry.method.as_ref() {
        Some(HttpMethod {
            r#type: Some(http_method::Type::Registered(number)),
        }) => {
            let method = http_method::Registered::try_from(*number).unwrap();
            format!("{} {path}", method.as_str_name())
        }
        Some(other) => panic!("{other:?}"),
        None => path,
    }
}

fn rate_limit(limit: &HttpLocalRateLimit) -> String {
    let rate = |limit: &Option<Limit>| limit.map_or(0, |limit| limit.requests_per_second);
    let mut text = format!(
        "limit {} total={} identity={}\n",
        meta(limit.metadata.as_ref()),
        rate(&limit.total),
        rate(&limit.identity)
    );
    for entry in &limit.overrides {
        let clients = names(&entry.clients.as_ref().unwrap().identities);
        writeln!(text, "override {} for {clients}", rate(&entry.limit)).unwrap();
    }
    text
}

/// The deprecated labels must agree with the metadata.
fn authz(authorization: &Authz) -> String {
    let label = |key: &str| authorization.labels[key].as_str();
    match authorization.metadata.as_ref().unwrap().kind.as_ref() {
        Some(metadata::Kind::Default(name)) => {
            assert_eq!((label("group"), label("kind")), ("", "default"));
            assert_eq!(label("name"), name);
        }
        Some(metadata::Kind::Resource(it)) => {
            assert_eq!((label("group"), label("kind")), (&*it.group, &*it.kind));
            assert_eq!(label("name"), it.name);
        }
        None => panic!("{authorization:?}"),
    }
    let networks: Vec<String> = authorization.networks.iter().map(network).collect();
    let permit = authorization.authentication.as_ref().unwrap();
    let clients = match permit.permit.as_ref().unwrap() {
        Permit::Unauthenticated(_) => "unauthenticated".to_owned(),
        Permit::MeshTls(tls) => mesh_tls(tls),
    };
    format!(
        "{} from {}: {clients}",
        meta(authorization.metadata.as_ref()),
        networks.join(", ")
    )
}

fn mesh_tls(tls: &PermitMeshTls) -> String {
    match tls.clients.as_ref().unwrap() {
        Clients::Unauthenticated(_) => "tls".to_owned(),
        Clients::Identities(permit_mesh_tls::PermitClientIdentities {
            identities,
            suffixes,
        }) => {
            let suffixes = suffixes.iter().map(|suffix| match &suffix.parts[..] {
                [] => "*".to_owned(),
                parts => format!("*.{}", parts.join(".")),
            });
            let exact = identities.iter().map(|identity| identity.name.clone());
            exact.chain(suffixes).collect::<Vec<_>>().join(", ")
        }
    }
}

fn names(identities: &[Identity]) -> String {
    let names: Vec<&str> = identities.iter().map(|it| it.name.as_str()).collect();
    names.join(", ")
}

fn network(network: &Network) -> String {
    let net = cidr(network.net.as_ref().unwrap());
    let except: Vec<String> = network.except.iter().map(cidr).collect();
    if except.is_empty() {
        return net;
    }
    format!("{net} except {}", except.join(" "))
}

fn cidr(net: &IpNetwork) -> String {
    let ip = IpAddr::try_from(net.ip.unwrap()).unwrap();
    format!("{ip}/{}", net.prefix_len)
}

fn meta(meta: Option<&Metadata>) -> String {
    match meta.unwrap().kind.as_ref().unwrap() {
        metadata::Kind::Default(name) => format!("default/{name}"),
        metadata::Kind::Resource(Resource {
            group,
            kind,
            name,
            namespace,
            section,
            port,
        }) => {
            assert!(section.is_empty() && *port == 0);
            format!("{kind}.{group} {namespace}/{name}")
        }
    }
}
