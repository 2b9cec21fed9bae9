//! The services of a port by its policy. The proxy derives two decisions from this one rule: how it
//! determines the protocol of a connection, and whether a connection may become a tunnel
//! (docs/adr/0161).

use std::time::Duration;

use super::{HttpServer, ServerProtocol};
use crate::meta::Meta;

/// The protocols that a port serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Any bytes, which are not inspected.
    Opaque,
    /// TLS that the application terminates.
    Tls,
    /// HTTP, and any other bytes as a tunnel. The first bytes decide within this time.
    Detected(Duration),
    /// HTTP and nothing else: no connection becomes a tunnel without a request that the policy
    /// admits.
    Http(HttpVersions),
}

/// The versions of HTTP that a port serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersions {
    /// HTTP/1 and HTTP/2. The first bytes decide.
    Any,
    /// HTTP/1, which proxies of the mesh carry over HTTP/2.
    Http1,
    /// HTTP/2.
    Http2,
}

impl ServerProtocol {
    /// Returns what a port with this policy serves. A port whose protocol is detected serves HTTP
    /// only where users attached routes or a rate limit: otherwise a client could go round them by
    /// bytes that are not HTTP, or by silence. The routes that the mesh itself adds do not count,
    /// since they restrict nothing.
    pub fn served(&self) -> Served {
        match self {
            Self::Opaque => Served::Opaque,
            Self::Tls => Served::Tls,
            Self::Detect { http, .. } if is_restricted(http) => Served::Http(HttpVersions::Any),
            Self::Detect { timeout, .. } => Served::Detected(*timeout),
            Self::Http1(_) => Served::Http(HttpVersions::Http1),
            Self::Http2(_) | Self::Grpc(_) => Served::Http(HttpVersions::Http2),
        }
    }
}

/// Whether users attached routes or a rate limit.
fn is_restricted(http: &HttpServer) -> bool {
    let is_of_user = |meta: &Meta| matches!(meta, Meta::Resource(_));
    http.rate_limit.is_some() || http.routes.iter().any(|route| is_of_user(&route.meta))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::Resource;
    use crate::policy::inbound::{HttpRoute, PROBE_ROUTE, RateLimit, default_http_route};

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn named(meta: Meta) -> HttpRoute {
        HttpRoute {
            meta,
            ..default_http_route()
        }
    }

    fn user(kind: &str) -> Meta {
        Meta::Resource(Resource::new("policy.linkerd.io", kind, "shop", "limits"))
    }

    fn detect(routes: Vec<HttpRoute>, rate_limit: Option<RateLimit>) -> ServerProtocol {
        ServerProtocol::Detect {
            timeout: TIMEOUT,
            http: HttpServer { routes, rate_limit },
        }
    }

    #[test]
    fn policy_decides_what_a_port_serves() {
        let probe = || named(Meta::new_default(PROBE_ROUTE));
        let rate_limit = RateLimit {
            meta: user("HTTPLocalRateLimitPolicy"),
            total: Some(1),
            identity: None,
            overrides: Vec::new(),
        };
        let any = Served::Http(HttpVersions::Any);
        for (protocol, expected) in [
            (detect(vec![], None), Served::Detected(TIMEOUT)),
            (
                detect(vec![default_http_route(), probe()], None),
                Served::Detected(TIMEOUT),
            ),
            (detect(vec![probe(), named(user("HTTPRoute"))], None), any),
            (detect(vec![], Some(rate_limit)), any),
            (
                ServerProtocol::Http1(HttpServer::default()),
                Served::Http(HttpVersions::Http1),
            ),
            (
                ServerProtocol::Http2(HttpServer::default()),
                Served::Http(HttpVersions::Http2),
            ),
            (
                ServerProtocol::Grpc(vec![]),
                Served::Http(HttpVersions::Http2),
            ),
            (ServerProtocol::Opaque, Served::Opaque),
            (ServerProtocol::Tls, Served::Tls),
        ] {
            assert_eq!(protocol.served(), expected, "{protocol:?}");
        }
    }
}
