//! [`Feature`]: the work of a mesh beside forwarding, and its policies and variables.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use ipnet::IpNet;
use mesh_api::outbound::ExtendedPolicy;
use mesh_api::proto::inbound::Server;
use mesh_core::endpoint::Endpoint;
use mesh_core::identity::Identity;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{
    Authentication, Authorization, DefaultPolicy, Network, RateLimit, ServerProtocol,
};
use mesh_core::policy::outbound::{
    Backend, BackendTarget, Distribution, HttpRoutes, OutboundPolicy, OutboundProtocol,
};
use mesh_core::resilience::{HttpRetry, PeakEwma, Queue, Timeouts};
use mesh_core::route::filter::{Filter, Ratio, RequestMirror};
use mesh_core::route::http::{HeaderMatch, HeaderValueMatch, HttpMatch};

use super::answers::DETECT_TIMEOUT;
use super::position::Position;

mesh_core::names! {
    /// A feature of the mesh. Client and server must not notice it, except for the rows of
    /// docs/reference/differences.md.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Feature, ALL {
        /// The route of the client's requests has two rules, two backends that lead to the server,
        /// and time limits that no script reaches.
        Route = "route",
        /// The client's requests are retried up to twice when their status is 5xx, and their bodies
        /// have at most 64 KiB.
        Retries = "retries",
        /// The client's proxy finds the server as the endpoint of a Service.
        Balancer = "balancer",
        /// Requests are copied to a host that does not respond.
        Mirror = "mirror",
        /// The server's port allows this client only: by identity, or by address outside the mesh.
        Policy = "policy",
        /// The server's port has a rate limit, which no script reaches.
        RateLimit = "rate-limit",
        /// Both proxies have an observer, which wants header fields, too.
        Tap = "tap",
        /// The server's proxy writes an access log.
        AccessLog = "access-log",
        /// Both proxies make spans of requests with a sampled trace context.
        Tracing = "tracing",
    }
}

/// The host that gets copies of requests with [`Feature::Mirror`].
pub const MIRROR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 4)), 80);
/// The Service of the server with [`Feature::Balancer`].
pub(super) const BALANCED: &str = "web.shop.svc.cluster.local:80";

/// Longer than the longest script.
const TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// More than any script sends.
const RATE: u32 = 1_000_000;
/// How often a request is retried with [`Feature::Retries`].
pub const MAX_RETRIES: u16 = 2;
/// A request is not retried with [`Feature::Retries`] after more of its body than this.
pub const MAX_REPLAY: usize = 64 * 1024;
/// A field that no script sends.
const OTHER_FIELD: HeaderName = HeaderName::from_static("x-other-rule");

impl Feature {
    /// Whether a proxy at the position has it.
    pub fn has_effect(self, position: Position) -> bool {
        match self {
            Self::Route | Self::Retries | Self::Balancer | Self::Mirror => {
                position.has_client_proxy()
            }
            Self::Policy | Self::RateLimit | Self::AccessLog => position.has_server_proxy(),
            Self::Tap | Self::Tracing => position != Position::Direct,
        }
    }

    /// Whether the control plane describes it in the policy of the destination.
    fn is_outbound(self) -> bool {
        matches!(
            self,
            Self::Route | Self::Retries | Self::Balancer | Self::Mirror
        )
    }
}

/// Returns the policy of the server's address at the client's proxy, which leads to the endpoint.
/// `None` if no feature needs one.
pub(super) fn outbound(endpoint: &Endpoint, features: &[Feature]) -> Option<ExtendedPolicy> {
    let has = |feature| features.contains(&feature);
    if !features.iter().any(|feature| feature.is_outbound()) {
        return None;
    }
    let target = if has(Feature::Balancer) {
        BackendTarget::Balance {
            authority: BALANCED.into(),
            load: PeakEwma::default(),
            queue: Queue::LINKERD,
        }
    } else {
        BackendTarget::Forward(Box::new(endpoint.clone()))
    };
    let meta = Meta::new_default("simulated");
    let mut policy = OutboundPolicy::forwarding(&meta, target, DETECT_TIMEOUT);
    if let OutboundProtocol::Detect { http1, http2, .. } = &mut policy.protocol {
        for routes in [http1, http2] {
            if has(Feature::Route) {
                divide(routes);
            }
            let rules = routes.routes.iter_mut().flat_map(|route| &mut route.rules);
            for action in rules.map(|rule| &mut rule.action) {
                if has(Feature::Retries) {
                    action.retry = Some(retries());
                }
                if has(Feature::Mirror) {
                    action.filters.push(mirror(&meta));
                }
            }
        }
    }
    Some(mesh_api::outbound::extended_to_proto(&policy))
}

/// Gives a route another rule, its backend twice, by weight, and time limits.
fn divide(routes: &mut HttpRoutes) {
    for route in &mut routes.routes {
        for action in route.rules.iter_mut().map(|rule| &mut rule.action) {
            if let Distribution::FirstAvailable(backends) = &action.backends {
                let both = backends
                    .iter()
                    .flat_map(|it| [(it.clone(), 1), (it.clone(), 2)]);
                action.backends = Distribution::RandomAvailable(both.collect());
            }
            action.timeouts = Timeouts {
                request: Some(TIMEOUT),
                response: Some(TIMEOUT),
                idle: Some(TIMEOUT),
            };
        }
        let mut other = route.rules.clone();
        for rule in &mut other {
            rule.matches = vec![HttpMatch {
                headers: vec![HeaderMatch {
                    name: OTHER_FIELD,
                    value: HeaderValueMatch::Exact(HeaderValue::from_static("1")),
                }],
                ..HttpMatch::default()
            }];
            rule.action.backends = Distribution::Empty;
        }
        route.rules.extend(other);
    }
}

fn retries() -> HttpRetry {
    HttpRetry {
        max_retries: MAX_RETRIES,
        max_request_bytes: MAX_REPLAY,
        conditions: vec![500..=599],
        ..HttpRetry::default()
    }
}

fn mirror(meta: &Meta) -> Filter {
    let backend = Backend {
        meta: meta.clone(),
        target: BackendTarget::Forward(Box::new(Endpoint::plain(MIRROR))),
    };
    Filter::RequestMirror(RequestMirror {
        backend: Arc::new(backend),
        // Every request.
        ratio: Ratio {
            numerator: 1,
            denominator: 1,
        },
    })
}

/// Returns the policy of the server's port. `client_id` is the client's identity if it is in the
/// mesh.
pub(super) fn inbound(
    client_id: Option<&Identity>,
    client: IpAddr,
    is_opaque: bool,
    features: &[Feature],
) -> Server {
    let all = DefaultPolicy::AllUnauthenticated;
    let mut policy = all.server_policy(&[], DETECT_TIMEOUT, is_opaque);
    if features.contains(&Feature::Policy) {
        let authentication = match client_id {
            Some(identity) => Authentication::TlsAuthenticated {
                identities: vec![identity.clone()],
                suffixes: Vec::new(),
            },
            None => Authentication::Unauthenticated,
        };
        let authorization = Authorization {
            meta: Meta::new_default("simulated"),
            networks: vec![Network::from(IpNet::from(client))],
            authentication,
        };
        policy.authorizations = vec![authorization].into();
    }
    if features.contains(&Feature::RateLimit)
        && let ServerProtocol::Detect { http, .. } = &mut policy.protocol
    {
        http.rate_limit = Some(RateLimit {
            meta: Meta::new_default("simulated"),
            total: Some(RATE),
            identity: Some(RATE),
            overrides: Vec::new(),
        });
    }
    mesh_api::inbound::to_proto(&policy)
}

/// Returns the environment variables of a proxy.
pub(super) fn variables(features: &[Feature]) -> impl Iterator<Item = (String, String)> {
    let of = |feature: &Feature| -> &'static [(&'static str, &'static str)] {
        match feature {
            Feature::AccessLog => &[("LINKERD2_PROXY_ACCESS_LOG", "apache")],
            Feature::Tracing => &[
                // Nothing listens: spans are dropped.
                (
                    "LINKERD2_PROXY_TRACE_COLLECTOR_SVC_ADDR",
                    "192.0.2.253:4317",
                ),
                (
                    "LINKERD2_PROXY_TRACE_COLLECTOR_SVC_NAME",
                    "collector.tracing.serviceaccount.identity.linkerd.cluster.local",
                ),
                ("LINKERD2_PROXY_TRACE_PROTOCOL", "opentelemetry"),
            ],
            _ => &[],
        }
    };
    let variables = features.iter().flat_map(of);
    variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
}
