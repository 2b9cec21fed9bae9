//! Which of a ServiceProfile and the routes of a policy applies, as proxies decide it.

use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{OutboundPolicy, OutboundProtocol};
use mesh_core::profile::Profile;

const HTTP: &str = "HTTP requests";
const GRPC: &str = "gRPC requests";
const OPAQUE: &str = "opaque connections";

/// Describes the parts of a destination's policy that its profile replaces; `None` if the policy
/// applies.
pub(super) fn note(policy: &OutboundPolicy, profile: &Profile) -> Option<String> {
    let is_split = !profile.overrides.is_empty();
    let has = match (!profile.routes.is_empty(), is_split) {
        (true, true) => "routes and dstOverrides",
        (true, false) => "routes",
        (false, true) => "dstOverrides",
        (false, false) => return None,
    };
    let object = match &profile.source {
        Some(source) => name(source),
        None => "the ServiceProfile".to_owned(),
    };
    let (traffic, replaced) = traffic(&policy.protocol, profile)?;
    let mut replaced: Vec<String> = replaced
        .into_iter()
        .filter(|meta| matches!(meta, Meta::Resource(_)))
        .map(name)
        .collect();
    replaced.sort();
    replaced.dedup();
    let instead = match &replaced[..] {
        [] => String::new(),
        names => format!(" instead of {}", names.join(", ")),
    };
    let annotations = if traffic == OPAQUE {
        ""
    } else {
        "; timeouts, retries and failure accrual of annotations do not apply either"
    };
    Some(format!(
        "{object} has {has}, so proxies use it for {traffic}{instead}{annotations}"
    ))
}

/// Returns the traffic that the profile applies to, and the routes that would apply without it.
fn traffic<'a>(
    protocol: &'a OutboundProtocol,
    profile: &Profile,
) -> Option<(&'static str, Vec<&'a Meta>)> {
    if let Some(route) = protocol.opaque(profile) {
        // Only a split replaces the route. A connection without a route is refused.
        let route = route.filter(|route| route.is_split_by(profile))?;
        return Some((OPAQUE, vec![&route.meta]));
    }
    match protocol {
        OutboundProtocol::Detect { http1, http2, .. } => {
            let all = http1.routes.iter().chain(&http2.routes);
            Some((HTTP, all.map(|route| &route.meta).collect()))
        }
        OutboundProtocol::Http1(http) | OutboundProtocol::Http2(http) => {
            let all = http.routes.iter();
            Some((HTTP, all.map(|route| &route.meta).collect()))
        }
        OutboundProtocol::Grpc(grpc) => {
            let all = grpc.routes.iter();
            Some((GRPC, all.map(|route| &route.meta).collect()))
        }
        // TLS of the application is only forwarded.
        OutboundProtocol::Opaque(_) | OutboundProtocol::Tls(_) => None,
    }
}

fn name(meta: &Meta) -> String {
    format!("{} {}/{}", meta.kind(), meta.namespace(), meta.name())
}

#[cfg(test)]
mod tests {
    use mesh_core::meta::Resource;
    use mesh_core::policy::outbound::{Distribution, HttpRoutes, TcpRoute, TcpVerdict};
    use mesh_core::profile::{ProfileRoute, RequestMatch, WeightedAuthority};
    use mesh_core::route::Route;

    use super::*;

    fn resource(group: &str, kind: &str, name: &str) -> Meta {
        Meta::Resource(Resource::new(group, kind, "shop", name))
    }

    fn profile(routes: bool, split: bool) -> Profile {
        let route = ProfileRoute {
            condition: RequestMatch::All(Vec::new()),
            response_classes: Vec::new(),
            labels: Default::default(),
            retryable: false,
            timeout: None,
        };
        let part = WeightedAuthority {
            authority: "b:80".into(),
            weight: 1,
        };
        Profile {
            routes: vec![route; usize::from(routes)].into(),
            overrides: vec![part; usize::from(split)],
            source: Some(resource("linkerd.io", "ServiceProfile", "web")),
            ..Profile::default()
        }
    }

    fn http(metas: Vec<Meta>) -> HttpRoutes {
        let route = |meta| Route {
            meta,
            hosts: Vec::new(),
            rules: Vec::new(),
        };
        HttpRoutes {
            routes: metas.into_iter().map(route).collect(),
            failure_accrual: None,
        }
    }

    fn tcp(meta: Meta) -> TcpRoute {
        TcpRoute {
            meta,
            backends: Distribution::Empty,
            verdict: TcpVerdict::Forward,
        }
    }

    #[test]
    fn profile_with_routes_or_split_replaces_routes_of_policy() {
        let check = |protocol: OutboundProtocol, profile: Profile, expect: Option<&str>| {
            let policy = OutboundPolicy {
                parent: resource("core", "Service", "web"),
                protocol,
            };
            assert_eq!(note(&policy, &profile).as_deref(), expect);
        };
        let routes = || {
            let named = |name| resource("gateway.networking.k8s.io", "HTTPRoute", name);
            OutboundProtocol::Http1(http(vec![named("b"), named("a"), named("b")]))
        };
        let annotations =
            "timeouts, retries and failure accrual of annotations do not apply either";
        check(routes(), profile(false, false), None);
        check(
            routes(),
            profile(true, false),
            Some(&format!(
                "ServiceProfile shop/web has routes, so proxies use it for HTTP requests \
                 instead of HTTPRoute shop/a, HTTPRoute shop/b; {annotations}"
            )),
        );
        let default = OutboundProtocol::Http2(http(vec![Meta::new_default("http")]));
        check(
            default,
            profile(true, true),
            Some(&format!(
                "ServiceProfile shop/web has routes and dstOverrides, so proxies use it for HTTP requests; {annotations}"
            )),
        );
        let opaque = || OutboundProtocol::Opaque(Some(tcp(resource("g", "TCPRoute", "t"))));
        check(opaque(), profile(true, false), None);
        check(
            opaque(),
            profile(true, true),
            Some(
                "ServiceProfile shop/web has routes and dstOverrides, so proxies use it for opaque connections \
                 instead of TCPRoute shop/t",
            ),
        );
        let forbidden = TcpRoute {
            verdict: TcpVerdict::Forbidden,
            ..tcp(Meta::new_default("t"))
        };
        let forbidden = OutboundProtocol::Opaque(Some(forbidden));
        check(forbidden, profile(true, true), None);
        check(OutboundProtocol::Opaque(None), profile(true, true), None);
        check(OutboundProtocol::Tls(Vec::new()), profile(true, true), None);
    }
}
