//! An inbound policy as JSON.

use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{
    Authentication, Authorization, HttpServer, InboundRule, RateLimit, ServerPolicy, ServerProtocol,
};
use mesh_core::route::Route;
use mesh_objects::policy::json::{grpc_match, host, http_match, identities};
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
        let authentication = match &authorization.authentication {
            Authentication::Unauthenticated => "none",
            Authentication::TlsUnauthenticated => "tls",
            Authentication::TlsAuthenticated { .. } => "identity",
        };
        let networks = authorization.networks.iter().map(|network| {
            let except: Vec<String> = network.except.iter().map(ToString::to_string).collect();
            json!({ "net": network.net.to_string(), "except": except })
        });
        json!({
            "policy": self.object(&authorization.meta),
            "networks": networks.collect::<Value>(),
            "authentication": authentication,
            "identities": identities(&authorization.authentication),
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

#[cfg(test)]
mod tests {
    use mesh_core::meta::Resource;
    use mesh_core::policy::inbound::Suffix;

    use super::*;

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
