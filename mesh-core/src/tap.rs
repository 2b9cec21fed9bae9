//! Tap: which requests an observer asks a proxy for, and what the proxy reports of them.
//!
//! The fields have the same meaning as in Linkerd's proxy. A request is matched once, when it is
//! sent to its destination; its response and its end are reported to the observers that it matched.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use ipnet::IpNet;

use crate::labels::Labels;

/// A subscription to the requests of one proxy.
#[derive(Clone, Debug, PartialEq)]
pub struct TapRequest {
    /// The number of requests that are reported, at least 1. The subscription ends with the last of
    /// their responses.
    pub limit: u32,
    /// Which requests are reported.
    pub filter: TapFilter,
    /// Whether header fields and trailers are reported.
    pub with_headers: bool,
}

/// A condition on a request.
#[derive(Clone, Debug, PartialEq)]
pub enum TapFilter {
    /// Each of these holds; none of them always holds.
    All(Vec<TapFilter>),
    /// At least one of these holds; none of them never holds.
    Any(Vec<TapFilter>),
    /// This does not hold.
    Not(Box<TapFilter>),
    /// The address of the client.
    Source(AddrFilter),
    /// The address of the server.
    Destination(AddrFilter),
    /// A label of the destination has this value.
    DestinationLabel {
        /// The name of the label.
        name: String,
        /// Its value, compared as it is.
        value: String,
    },
    /// A label of the route has this value.
    RouteLabel {
        /// The name of the label.
        name: String,
        /// Its value, compared as it is.
        value: String,
    },
    /// The scheme of the request's URI, `http` or `https`.
    Scheme(String),
    /// The method, case-sensitive.
    Method(Method),
    /// The authority, as the client sent it.
    Authority(TextFilter),
    /// The path and query.
    Path(TextFilter),
}

/// A condition on an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddrFilter {
    /// The address is in this network.
    Network(IpNet),
    /// The port is in this range. Both ends are included.
    Ports {
        /// The lowest port.
        min: u16,
        /// The highest port.
        max: u16,
    },
}

/// A condition on a text, which is case-sensitive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextFilter {
    /// The text is this.
    Exact(String),
    /// The text begins with this.
    Prefix(String),
}

/// What a filter decides by.
#[derive(Clone, Copy, Debug)]
pub struct TapSubject<'a> {
    /// The connection, its labels and its route.
    pub context: &'a TapContext,
    /// The scheme, empty if the request has none.
    pub scheme: &'a str,
    /// The method.
    pub method: &'a Method,
    /// The authority, empty if the request has none.
    pub authority: &'a str,
    /// The path and query.
    pub path: &'a str,
}

/// The part that all events of a request share.
#[derive(Clone, Debug, PartialEq)]
pub struct TapContext {
    /// The direction, as the proxy sees it.
    pub direction: TapDirection,
    /// The client.
    pub source: SocketAddr,
    /// `tls`: `true`, `opaque`, or why there is none; and `client_id`, if there is one.
    pub source_labels: Labels,
    /// The server.
    pub destination: SocketAddr,
    /// The labels of the endpoint from discovery, or the policy objects that admitted the request.
    pub destination_labels: Labels,
    /// The labels of the route.
    pub route_labels: Labels,
}

/// The labels of pods by address. An address of several pods has none.
#[derive(Debug, Default)]
pub struct AddressTable(HashMap<IpAddr, Option<Labels>>);

crate::names! {
    /// The direction of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TapDirection {
        /// To the application of the pod.
        Inbound = "inbound",
        /// From the application of the pod.
        Outbound = "outbound",
    }
}

/// The number of a request. It is unique among the requests of all proxies with high probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TapStreamId {
    /// Random, one for each process.
    pub base: u32,
    /// Unique in the process.
    pub stream: u64,
}

/// What a proxy reports of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct TapEvent {
    /// The connection, its labels and its route.
    pub context: Arc<TapContext>,
    /// The request.
    pub id: TapStreamId,
    /// What happened.
    pub kind: TapEventKind,
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum TapEventKind {
    /// The request is sent to its destination.
    Request {
        /// The method.
        method: Method,
        /// The scheme, empty if the request has none.
        scheme: String,
        /// The authority, empty if the request has none.
        authority: String,
        /// The path and query.
        path: String,
        /// The header fields, if the subscription asks for them.
        headers: Option<TapHeaders>,
    },
    /// The header section of the response has arrived.
    Response {
        /// Since the request was sent.
        since_request: Duration,
        /// The status.
        status: StatusCode,
        /// The header fields, if the subscription asks for them.
        headers: Option<TapHeaders>,
    },
    /// The response has ended, or failed.
    End {
        /// Since the request was sent.
        since_request: Duration,
        /// Since the header section of the response; zero if there was none.
        since_response: Duration,
        /// The bytes of the response's body.
        response_bytes: u64,
        /// How it ended.
        end: TapStreamEnd,
        /// The trailers, if the subscription asks for them and there were any.
        trailers: Option<TapHeaders>,
    },
}

/// How a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapStreamEnd {
    /// Completely, and it is not of gRPC.
    Complete,
    /// With a gRPC status.
    GrpcStatus(u16),
    /// With an error code of HTTP/2. HTTP/1 and failed connections have the code that stands for
    /// them: CANCEL if the client went away, otherwise INTERNAL_ERROR.
    Reset(u32),
}

/// Header fields in the order of arrival, pseudo-header fields first. Values are arbitrary bytes.
pub type TapHeaders = Vec<(String, Vec<u8>)>;

impl TapEvent {
    /// Adds the labels of addresses: the source's, and the destination's at the server's proxy,
    /// which does not know how its own pod is deployed.
    #[must_use]
    pub fn described(self, addresses: &AddressTable) -> Self {
        Self {
            context: Arc::new(self.context.described(addresses)),
            ..self
        }
    }
}

impl TapContext {
    fn described(&self, addresses: &AddressTable) -> Self {
        let describe = |labels: &Labels, addr: SocketAddr| {
            let of_address = addresses.labels(addr.ip()).into_iter();
            labels
                .iter()
                .chain(of_address.flat_map(Labels::iter))
                .collect()
        };
        let mut described = self.clone();
        described.source_labels = describe(&self.source_labels, self.source);
        if self.direction == TapDirection::Inbound {
            described.destination_labels = describe(&self.destination_labels, self.destination);
        }
        described
    }
}

impl AddressTable {
    /// Returns the labels of the pod that has the address; `None` if none or several have it.
    pub fn labels(&self, ip: IpAddr) -> Option<&Labels> {
        self.0.get(&ip.to_canonical())?.as_ref()
    }
}

/// Pods by their addresses; one with several addresses has an item for each.
impl FromIterator<(IpAddr, Labels)> for AddressTable {
    fn from_iter<I: IntoIterator<Item = (IpAddr, Labels)>>(pods: I) -> Self {
        let mut table = HashMap::new();
        for (ip, labels) in pods {
            table
                .entry(ip.to_canonical())
                .and_modify(|labels| *labels = None)
                .or_insert(Some(labels));
        }
        Self(table)
    }
}

impl TapFilter {
    /// Whether the filter holds for a request.
    pub fn matches(&self, subject: &TapSubject<'_>) -> bool {
        let context = subject.context;
        match self {
            Self::All(filters) => filters.iter().all(|filter| filter.matches(subject)),
            Self::Any(filters) => filters.iter().any(|filter| filter.matches(subject)),
            Self::Not(filter) => !filter.matches(subject),
            Self::Source(filter) => filter.matches(context.source),
            Self::Destination(filter) => filter.matches(context.destination),
            Self::DestinationLabel { name, value } => {
                context.destination_labels.get(name) == Some(value)
            }
            Self::RouteLabel { name, value } => context.route_labels.get(name) == Some(value),
            Self::Scheme(scheme) => subject.scheme == scheme,
            Self::Method(method) => subject.method == method,
            Self::Authority(filter) => filter.matches(subject.authority),
            Self::Path(filter) => filter.matches(subject.path),
        }
    }
}

impl AddrFilter {
    fn matches(self, addr: SocketAddr) -> bool {
        match self {
            Self::Network(network) => network.contains(&addr.ip().to_canonical()),
            Self::Ports { min, max } => (min..=max).contains(&addr.port()),
        }
    }

    /// The filter for one address.
    pub fn address(ip: IpAddr) -> Self {
        Self::Network(ip.into())
    }
}

impl TextFilter {
    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => text == exact,
            Self::Prefix(prefix) => text.starts_with(prefix.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(direction: TapDirection) -> TapContext {
        TapContext {
            direction,
            source: "10.0.0.1:40000".parse().unwrap(),
            source_labels: Labels::default(),
            destination: "[::ffff:10.0.1.2]:8080".parse().unwrap(),
            destination_labels: Labels::from([("deployment", "web")]),
            route_labels: Labels::from([("route", "GET /books")]),
        }
    }

    fn matches(filter: &TapFilter) -> bool {
        let context = context(TapDirection::Outbound);
        filter.matches(&TapSubject {
            context: &context,
            scheme: "http",
            method: &Method::GET,
            authority: "web.shop:80",
            path: "/books/1?x=y",
        })
    }

    fn label(name: &str, value: &str) -> TapFilter {
        TapFilter::DestinationLabel {
            name: name.to_owned(),
            value: value.to_owned(),
        }
    }

    #[test]
    fn addresses_are_described_where_the_proxy_does_not_know_them() {
        // Pods that are named after their address.
        let addresses = ["10.0.0.1", "10.0.1.2"]
            .map(|ip| (ip.parse().unwrap(), [("pod", ip)].into()))
            .into_iter()
            .collect();
        for (direction, destination) in [
            (TapDirection::Inbound, Some("10.0.1.2")),
            (TapDirection::Outbound, None),
        ] {
            let described = context(direction).described(&addresses);
            assert_eq!(described.source_labels.get("pod"), Some("10.0.0.1"));
            assert_eq!(described.destination_labels.get("pod"), destination);
            let deployment = described.destination_labels.get("deployment");
            assert_eq!(deployment, Some("web"));
        }
    }

    #[test]
    fn conditions_on_request() {
        let exact = |text: &str| TextFilter::Exact(text.to_owned());
        let prefix = |text: &str| TextFilter::Prefix(text.to_owned());
        let network = |text: &str| AddrFilter::Network(text.parse().unwrap());
        let ports = |min, max| AddrFilter::Ports { min, max };
        let route = |value: &str| TapFilter::RouteLabel {
            name: "route".to_owned(),
            value: value.to_owned(),
        };
        let table = [
            (TapFilter::Source(network("10.0.0.0/24")), true),
            (TapFilter::Source(network("10.0.1.0/24")), false),
            // The network of IPv4 contains the mapped address.
            (TapFilter::Destination(network("10.0.1.2/32")), true),
            (TapFilter::Destination(ports(8080, 8080)), true),
            (TapFilter::Destination(ports(1, 8079)), false),
            (label("deployment", "web"), true),
            (label("deployment", "db"), false),
            (label("pod", "web"), false),
            (route("GET /books"), true),
            (route("GET"), false),
            (TapFilter::Scheme("http".to_owned()), true),
            (TapFilter::Scheme("https".to_owned()), false),
            (TapFilter::Method(Method::GET), true),
            (TapFilter::Method(Method::POST), false),
            (TapFilter::Authority(exact("web.shop:80")), true),
            (TapFilter::Authority(exact("web.shop")), false),
            (TapFilter::Authority(prefix("web.")), true),
            (TapFilter::Path(prefix("/books")), true),
            (TapFilter::Path(exact("/books/1")), false),
        ];
        for (filter, expected) in table {
            assert_eq!(matches(&filter), expected, "{filter:?}");
            let not = TapFilter::Not(Box::new(filter));
            assert_eq!(matches(&not), !expected, "{not:?}");
        }
    }

    #[test]
    fn conditions_on_conditions() {
        let (yes, no) = (label("deployment", "web"), label("deployment", "db"));
        let table = [
            (TapFilter::All(vec![]), true),
            (TapFilter::All(vec![yes.clone(), yes.clone()]), true),
            (TapFilter::All(vec![yes.clone(), no.clone()]), false),
            (TapFilter::Any(vec![]), false),
            (TapFilter::Any(vec![no.clone(), yes]), true),
            (TapFilter::Any(vec![no]), false),
        ];
        for (filter, expected) in table {
            assert_eq!(matches(&filter), expected, "{filter:?}");
        }
    }
}
