//! Random values of mesh-core's types, for round trips in tests.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Scheme;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use ipnet::IpNet;
use mesh_core::backend::Backend;
use mesh_core::endpoint::{Endpoint, Http2Params, KeepAlive, ProtocolHint, TlsPeer};
use mesh_core::identity::Identity;
use mesh_core::meta::{Meta, Resource};
use mesh_core::resilience::{Backoff, Timeouts};
use mesh_core::route::cors::{Cors, CorsSettings};
use mesh_core::route::filter::{
    Filter, HeaderModifier, PathModifier, Ratio, Redirect, RequestMirror, UrlRewrite,
};
use mesh_core::route::grpc::GrpcMatch;
use mesh_core::route::http::{
    HeaderMatch, HeaderValueMatch, HttpMatch, PathMatch, QueryMatch, QueryValueMatch,
};
use mesh_core::route::{AnchoredRegex, HostMatch};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// The strategy of a struct or variant whose fields have the given strategies.
macro_rules! record {
    ($($path:ident)::+ { $($field:ident $(: $strategy:expr)?),* $(,)? }) => {
        ($(record!(@strategy $field $($strategy)?),)*)
            .prop_map(|($($field,)*)| $($path)::+ { $($field),* })
    };
    (@strategy $field:ident) => { $field };
    (@strategy $field:ident $strategy:expr) => { $strategy };
}

pub(crate) use record;

pub(crate) fn text() -> impl Strategy<Value = Arc<str>> + Clone {
    "[a-z][a-z0-9.-]{0,8}[a-z0-9]".prop_map(Arc::from)
}

pub(crate) fn meta() -> impl Strategy<Value = Meta> {
    let resource = record!(Resource {
        group: text(),
        kind: text(),
        namespace: text(),
        name: text(),
        section: text(),
        port: option::of(1u16..=u16::MAX),
    });
    prop_oneof![
        text().prop_map(Meta::Default),
        resource.prop_map(Meta::Resource),
    ]
}

pub(crate) fn identity() -> impl Strategy<Value = Identity> {
    select(&["web.ns.example", "a.b", "spiffe://example/web"][..])
        .prop_map(|name| Identity::parse(name).unwrap())
}

pub(crate) fn network() -> impl Strategy<Value = IpNet> {
    (any::<IpAddr>(), 0u8..=32).prop_map(|(ip, length)| IpNet::new(ip, length).unwrap())
}

pub(crate) fn socket_addr() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), 1u16..=u16::MAX).prop_map(SocketAddr::from)
}

/// Up to a day, with nanoseconds.
pub(crate) fn duration() -> impl Strategy<Value = Duration> {
    (0u64..86_400_000_000_000).prop_map(Duration::from_nanos)
}

pub(crate) fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[a-z]{1,4}", "[a-z]{0,4}", 0..3)
}

pub(crate) fn backoff() -> impl Strategy<Value = Backoff> {
    (duration(), duration(), 0u8..=100).prop_map(|(a, b, jitter)| Backoff {
        min: a.min(b),
        max: a.max(b).max(Duration::from_millis(1)),
        jitter: f64::from(jitter) / 4.0,
    })
}

pub(crate) fn timeouts() -> impl Strategy<Value = Timeouts> {
    record!(Timeouts {
        request: option::of(duration()),
        response: option::of(duration()),
        idle: option::of(duration()),
    })
}

pub(crate) fn host() -> impl Strategy<Value = HostMatch> {
    prop_oneof![
        text().prop_map(HostMatch::Exact),
        vec(text(), 0..3).prop_map(HostMatch::Suffix),
    ]
}

fn regex() -> impl Strategy<Value = AnchoredRegex> {
    select(&[".*", "/a[0-9]+", "x|y"][..]).prop_map(|source| AnchoredRegex::new(source).unwrap())
}

fn header_name() -> impl Strategy<Value = HeaderName> {
    select(&["accept", "x-one", "x-two"][..]).prop_map(HeaderName::from_static)
}

fn header_value() -> impl Strategy<Value = HeaderValue> {
    vec(prop_oneof![0x20u8..0x7f, 0x80u8..=0xff], 0..4)
        .prop_map(|bytes| HeaderValue::from_bytes(&bytes).unwrap())
}

fn header() -> impl Strategy<Value = HeaderMatch> {
    let value = prop_oneof![
        header_value().prop_map(HeaderValueMatch::Exact),
        regex().prop_map(HeaderValueMatch::Regex),
    ];
    record!(HeaderMatch {
        name: header_name(),
        value,
    })
}

pub(crate) fn method() -> impl Strategy<Value = Method> {
    select(&["GET", "POST", "CONNECT", "TRACE", "PURGE", "get"][..])
        .prop_map(|method| method.parse().unwrap())
}

pub(crate) fn http_match() -> impl Strategy<Value = HttpMatch> {
    let path = prop_oneof![
        "/[a-z/%]{0,6}".prop_map(PathMatch::Exact),
        "/[a-z/%]{0,6}".prop_map(PathMatch::Prefix),
        regex().prop_map(PathMatch::Regex),
    ];
    let value = prop_oneof![
        "[a-z ]{0,4}".prop_map(QueryValueMatch::Exact),
        regex().prop_map(QueryValueMatch::Regex),
    ];
    let query = ("[a-z]{1,3}", value).prop_map(|(name, value)| QueryMatch { name, value });
    record!(HttpMatch {
        path: option::of(path),
        headers: vec(header(), 0..2),
        query: vec(query, 0..2),
        method: option::of(method()),
    })
}

pub(crate) fn grpc_match() -> impl Strategy<Value = GrpcMatch> {
    record!(GrpcMatch {
        service: option::of(text()),
        method: option::of(text()),
        headers: vec(header(), 0..2),
    })
}

fn header_modifier() -> impl Strategy<Value = HeaderModifier> {
    let pairs = || vec((header_name(), header_value()), 0..2);
    record!(HeaderModifier {
        add: pairs(),
        set: pairs(),
        remove: vec(header_name(), 0..2),
    })
}

pub(crate) fn request_headers() -> impl Strategy<Value = Filter> {
    header_modifier().prop_map(Filter::RequestHeaders)
}

pub(crate) fn response_headers() -> impl Strategy<Value = Filter> {
    header_modifier().prop_map(Filter::ResponseHeaders)
}

pub(crate) fn redirect() -> impl Strategy<Value = Filter> {
    let path = prop_oneof![
        text().prop_map(PathModifier::Full),
        text().prop_map(PathModifier::Prefix),
    ];
    let scheme = select(&["http", "https", "ws"][..]).prop_map(|s| s.parse::<Scheme>().unwrap());
    record!(Redirect {
        scheme: option::of(scheme),
        host: option::of(text()),
        port: option::of(1u16..=u16::MAX),
        path: option::of(path),
        status: option::of(status()),
    })
    .prop_map(Filter::Redirect)
}

pub(crate) fn url_rewrite() -> impl Strategy<Value = Filter> {
    let path = prop_oneof![
        text().prop_map(PathModifier::Full),
        text().prop_map(PathModifier::Prefix),
    ];
    record!(UrlRewrite {
        host: option::of(text()),
        path: option::of(path),
    })
    .prop_map(Filter::UrlRewrite)
}

pub(crate) fn cors() -> impl Strategy<Value = Filter> {
    let origins = select(&["https://a.example", "http://*.b.example:8080"][..]);
    let names = || vec(select(&["A", "b-C"][..]).prop_map(str::to_owned), 0..3);
    record!(CorsSettings {
        allow_origins: vec(origins.prop_map(str::to_owned), 0..3),
        allow_credentials: any::<bool>(),
        allow_methods: names(),
        allow_headers: names(),
        expose_headers: names(),
        max_age: any::<u32>(),
    })
    .prop_map(|settings| Filter::Cors(Arc::new(Cors::new(settings).unwrap())))
}

/// A mirror to one of these backends.
pub(crate) fn request_mirror(
    backend: impl Strategy<Value = Backend>,
) -> impl Strategy<Value = Filter> {
    record!(RequestMirror {
        backend: backend.prop_map(Arc::new),
        ratio: ratio(),
    })
    .prop_map(Filter::RequestMirror)
}

fn status() -> impl Strategy<Value = StatusCode> {
    (100u16..1000).prop_map(|status| StatusCode::from_u16(status).unwrap())
}

fn ratio() -> impl Strategy<Value = Ratio> {
    record!(Ratio {
        numerator: 0u32..100,
        denominator: 1u32..100,
    })
}

pub(crate) fn http_failure() -> impl Strategy<Value = Filter> {
    record!(Filter::InjectHttpFailure {
        status: status(),
        message: text(),
        ratio: ratio(),
    })
}

pub(crate) fn grpc_failure() -> impl Strategy<Value = Filter> {
    record!(Filter::InjectGrpcFailure {
        code: any::<u16>(),
        message: text(),
        ratio: ratio(),
    })
}

pub(crate) fn delay() -> impl Strategy<Value = Filter> {
    record!(Filter::Delay {
        duration: (1u64..=300_000).prop_map(Duration::from_millis),
        ratio: ratio(),
    })
}

pub(crate) fn statuses() -> impl Strategy<Value = RangeInclusive<u16>> {
    (100u16..600, 0u16..100).prop_map(|(start, more)| start..=start + more)
}

pub(crate) fn endpoint() -> impl Strategy<Value = Endpoint> {
    let server_name = select(&["web.ns.example", "gateway"][..]).prop_map(Arc::from);
    let tls = record!(TlsPeer {
        id: identity(),
        server_name,
    });
    let hint = select(
        &[
            ProtocolHint::Unknown,
            ProtocolHint::Http2,
            ProtocolHint::Opaque,
        ][..],
    );
    record!(Endpoint {
        addr: socket_addr(),
        weight: any::<u32>(),
        labels: labels().prop_map(|labels| labels.into_iter().collect()),
        tls: option::of(tls),
        hint,
        opaque_transport_port: option::of(1u16..u16::MAX),
        authority_override: option::of(text()),
        http2: option::of(http2_params()),
    })
}

fn http2_params() -> impl Strategy<Value = Http2Params> {
    let number = || option::of(1u32..);
    let keep_alive = record!(KeepAlive {
        interval: duration(),
        timeout: duration(),
        while_idle: any::<bool>(),
    });
    record!(Http2Params {
        connection_window: number(),
        stream_window: number(),
        adaptive_window: any::<bool>(),
        keep_alive: option::of(keep_alive),
        max_frame_size: number(),
        max_send_buf_size: number(),
        max_concurrent_reset_streams: number(),
    })
}
