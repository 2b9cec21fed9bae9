//! An inbound policy as JSON.

use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{
    Authentication, Authorization, HttpServer, InboundRule, RateLimit, ServerPolicy,
    ServerProtocol, Suffix,
};
use mesh_core::route::grpc::GrpcMatch;
use mesh_core::route::http::{
    HeaderMatch, HeaderValueMatch, HttpMatch, PathMatch, QueryMatch, QueryValueMatch,
};
use mesh_core::route::{HostMatch, Route};
use serde_json::{Value, json};

/// The namespace of a pod and of all objects of its policies.
#[derive(Clone, Copy)]
struct Namespace<'a>(&'a str);

/// Returns the policy of a port of a pod in this namespace.
pub(super) fn policy(policy: &ServerPolicy, namespace: &str) -> Value {
    let at = Namespace(namespace);
    let http = |http: &HttpServer| {
        let limit = http.rate_limit.as_ref().map(|it| at.limit(it));
        (at.routes(&http.routes, http_match), limit)
    };
    let (protocol, (routes, rate_limit)) = match &policy.protocol {
        ServerProtocol::Detect { http: it, .. } => ("detect", http(it)),
        ServerProtocol::Http1(it) => ("HTTP/1", http(it)),
        ServerProtocol::Http2(it) => ("HTTP/2", http(it)),
        ServerProtocol::Grpc(routes) => ("gRPC", (at.routes(routes, grpc_match), None)),
        ServerProtocol::Opaque => ("opaque", (json!([]), None)),
        ServerProtocol::Tls => ("TLS", (json!([]), None)),
    };
    json!({
        "server": at.object(&policy.meta),
        "protocol": protocol,
        "authorizations": at.authorizations(&policy.authorizations),
        "routes": routes,
        "rateLimit": rate_limit,
    })
}

impl Namespace<'_> {
    /// A reference to an object; the mesh's own defaults have the kind `default` and no namespace.
    fn object(self, meta: &Meta) -> Value {
        // The API names the namespace of some objects only.
        let namespace = match meta {
            Meta::Resource(_) if meta.namespace().is_empty() => self.0,
            _ => meta.namespace(),
        };
        json!({
            "group": meta.group(),
            "kind": meta.kind(),
            "namespace": namespace,
            "name": meta.name(),
        })
    }

    fn authorizations(self, authorizations: &[Authorization]) -> Value {
        let all = authorizations.iter().map(|it| self.authorization(it));
        all.collect()
    }

    fn authorization(self, authorization: &Authorization) -> Value {
        let (authentication, identities) = match &authorization.authentication {
            Authentication::Unauthenticated => ("none", Vec::new()),
            Authentication::TlsUnauthenticated => ("tls", Vec::new()),
            Authentication::TlsAuthenticated {
                identities,
                suffixes,
            } => {
                let names = identities.iter().map(ToString::to_string);
                (
                    "identity",
                    names.chain(suffixes.iter().map(suffix)).collect(),
                )
            }
        };
        let networks = authorization.networks.iter().map(|network| {
            let except: Vec<String> = network.except.iter().map(ToString::to_string).collect();
            json!({ "net": network.net.to_string(), "except": except })
        });
        json!({
            "policy": self.object(&authorization.meta),
            "networks": networks.collect::<Value>(),
            "authentication": authentication,
            "identities": identities,
        })
    }

    fn routes<M>(self, routes: &[Route<M, InboundRule>], text: fn(&M) -> String) -> Value {
        routes.iter().map(|route| self.route(route, text)).collect()
    }

    /// The rules of a route share its authorizations.
    fn route<M>(self, route: &Route<M, InboundRule>, text: fn(&M) -> String) -> Value {
        let matches = route.rules.iter().flat_map(|rule| &rule.matches);
        let first = route.rules.first();
        let own = first.map_or(&[][..], |rule| &rule.action.authorizations);
        json!({
            "route": self.object(&route.meta),
            "hosts": route.hosts.iter().map(host).collect::<Vec<_>>(),
            "matches": matches.map(text).collect::<Vec<_>>(),
            "authorizations": self.authorizations(own),
        })
    }

    fn limit(self, limit: &RateLimit) -> Value {
        let overrides = limit.overrides.iter().map(|(clients, rate)| {
            let clients: Vec<String> = clients.iter().map(ToString::to_string).collect();
            json!({ "identities": clients, "requestsPerSecond": rate })
        });
        json!({
            "policy": self.object(&limit.meta),
            "total": limit.total,
            "identity": limit.identity,
            "overrides": overrides.collect::<Value>(),
        })
    }
}

/// `*` is every identity.
fn suffix(Suffix(labels): &Suffix) -> String {
    let mut text = "*".to_owned();
    for label in labels {
        text.push('.');
        text.push_str(label);
    }
    text
}

fn host(host: &HostMatch) -> String {
    match host {
        HostMatch::Exact(name) => name.to_string(),
        HostMatch::Suffix(labels) => {
            let labels: Vec<&str> = labels.iter().rev().map(AsRef::as_ref).collect();
            format!("*.{}", labels.join("."))
        }
    }
}

/// `GET /products/*`: a prefix ends with `/*`, a regular expression is between slashes.
fn http_match(entry: &HttpMatch) -> String {
    let path = match &entry.path {
        None => "/*".to_owned(),
        Some(PathMatch::Exact(path)) => path.clone(),
        Some(PathMatch::Prefix(path)) => format!("{}/*", path.trim_end_matches('/')),
        Some(PathMatch::Regex(regex)) => format!("{regex:?}"),
    };
    let mut text = match &entry.method {
        Some(method) => format!("{method} {path}"),
        None => path,
    };
    for query in &entry.query {
        text.push_str(&query_text(query));
    }
    text + &header_text(&entry.headers)
}

fn grpc_match(entry: &GrpcMatch) -> String {
    let part = |part: &Option<std::sync::Arc<str>>| part.as_deref().unwrap_or("*").to_owned();
    let call = format!("{}/{}", part(&entry.service), part(&entry.method));
    call + &header_text(&entry.headers)
}

fn query_text(QueryMatch { name, value }: &QueryMatch) -> String {
    match value {
        QueryValueMatch::Exact(value) => format!(" ?{name}={value}"),
        QueryValueMatch::Regex(regex) => format!(" ?{name}={regex:?}"),
    }
}

fn header_text(headers: &[HeaderMatch]) -> String {
    let texts = headers
        .iter()
        .map(|HeaderMatch { name, value }| match value {
            HeaderValueMatch::Exact(value) => {
                format!(" {name}: {}", String::from_utf8_lossy(value.as_bytes()))
            }
            HeaderValueMatch::Regex(regex) => format!(" {name}: {regex:?}"),
        });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use http::Method;
    use mesh_core::meta::Resource;

    use super::*;

    #[test]
    fn matches_are_short_texts() {
        let entry = |path| HttpMatch {
            path,
            ..HttpMatch::default()
        };
        let header = HeaderMatch {
            name: "x-tenant".parse().unwrap(),
            value: HeaderValueMatch::Exact("a".parse().unwrap()),
        };
        let query = QueryMatch {
            name: "v".to_owned(),
            value: QueryValueMatch::Exact("2".to_owned()),
        };
        let table = [
            (entry(None), "/*"),
            (entry(Some(PathMatch::Prefix("/".to_owned()))), "/*"),
            (entry(Some(PathMatch::Prefix("/a".to_owned()))), "/a/*"),
            (entry(Some(PathMatch::Exact("/a".to_owned()))), "/a"),
            (
                HttpMatch {
                    method: Some(Method::GET),
                    headers: vec![header.clone()],
                    query: vec![query],
                    ..entry(Some(PathMatch::Exact("/a".to_owned())))
                },
                "GET /a ?v=2 x-tenant: a",
            ),
        ];
        for (entry, expected) in table {
            assert_eq!(http_match(&entry), expected);
        }
        let call = GrpcMatch {
            service: Some("shop.Cart".into()),
            method: None,
            headers: vec![header],
        };
        assert_eq!(grpc_match(&call), "shop.Cart/* x-tenant: a");
    }

    #[test]
    fn authorization_states_what_it_requires() {
        let resource = Resource::new("policy.linkerd.io", "AuthorizationPolicy", "", "web");
        let accepted = Authorization {
            meta: Meta::Resource(resource),
            networks: vec!["10.0.0.0/8".parse::<ipnet::IpNet>().unwrap().into()],
            authentication: Authentication::TlsAuthenticated {
                identities: Vec::new(),
                suffixes: vec![
                    Suffix(Vec::new()),
                    Suffix(vec!["shop".into(), "local".into()]),
                ],
            },
        };
        let found = Namespace("shop").authorization(&accepted);
        assert_eq!(found["policy"]["kind"], "AuthorizationPolicy");
        assert_eq!(found["policy"]["namespace"], "shop");
        assert_eq!(found["authentication"], "identity");
        assert_eq!(found["identities"], json!(["*", "*.shop.local"]));
        assert_eq!(found["networks"][0]["net"], "10.0.0.0/8");
        let default = Authorization {
            meta: Meta::new_default("all-unauthenticated"),
            authentication: Authentication::Unauthenticated,
            ..accepted
        };
        let found = Namespace("shop").authorization(&default);
        assert_eq!(found["policy"]["kind"], "default");
        assert_eq!(found["policy"]["namespace"], "");
        assert_eq!(found["authentication"], "none");
    }
}
