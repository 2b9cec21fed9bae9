//! Random values of mesh-core's types, for round trips in tests.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Scheme;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use ipnet::IpNet;
use mesh_core::endpoint::{Endpoint, Http2Params, KeepAlive, ProtocolHint, TlsPeer};
use mesh_core::identity::Identity;
use mesh_core::meta::{Meta, Resource};
use mesh_core::resilience::{Backoff, Timeouts};
use mesh_core::route::filter::{Filter, HeaderModifier, PathModifier, Ratio, Redirect};
use mesh_core::route::grpc::GrpcMatch;
use mesh_core::route::http::{
    HeaderMatch, HeaderValueMatch, HttpMatch, PathMatch, QueryMatch, QueryValueMatch,
};
use mesh_core::route::{AnchoredRegex, HostMatch};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

pub(crate) fn text() -> impl Strategy<Value = Arc<str>> + Clone {
    "[a-z][a-z0-9.-]{0,8}[a-z0-9]".prop_map(Arc::from)
}

pub(crate) fn meta() -> impl Strategy<Value = Meta> {
    let port = option::of(1u16..=u16::MAX);
    let resource = (text(), text(), text(), text(), text(), port).prop_map(
        |(group, kind, namespace, name, section, port)| Resource {
            group,
            kind,
            namespace,
            name,
            section,
            port,
        },
    );
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
    (
        option::of(duration()),
        option::of(duration()),
        option::of(duration()),
    )
        .prop_map(|(request, response, idle)| Timeouts {
            request,
            response,
            idle,
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
    (header_name(), value).prop_map(|(name, value)| HeaderMatch { name, value })
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
    (
        option::of(path),
        vec(header(), 0..2),
        vec(query, 0..2),
        option::of(method()),
    )
        .prop_map(|(path, headers, query, method)| HttpMatch {
            path,
            headers,
            query,
            method,
        })
}

pub(crate) fn grpc_match() -> impl Strategy<Value = GrpcMatch> {
    (option::of(text()), option::of(text()), vec(header(), 0..2)).prop_map(
        |(service, method, headers)| GrpcMatch {
            service,
            method,
            headers,
        },
    )
}

fn header_modifier() -> impl Strategy<Value = HeaderModifier> {
    let pairs = || vec((header_name(), header_value()), 0..2);
    (pairs(), pairs(), vec(header_name(), 0..2)).prop_map(|(add, set, remove)| HeaderModifier {
        add,
        set,
        remove,
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
    (
        option::of(scheme),
        option::of(text()),
        option::of(1u16..=u16::MAX),
        option::of(path),
        option::of(status()),
    )
        .prop_map(|(scheme, host, port, path, status)| {
            Filter::Redirect(Redirect {
                scheme,
                host,
                port,
                path,
                status,
            })
        })
}

fn status() -> impl Strategy<Value = StatusCode> {
    (100u16..1000).prop_map(|status| StatusCode::from_u16(status).unwrap())
}

fn ratio() -> impl Strategy<Value = Ratio> {
    (0u32..100, 1u32..100).prop_map(|(numerator, denominator)| Ratio {
        numerator,
        denominator,
    })
}

pub(crate) fn http_failure() -> impl Strategy<Value = Filter> {
    (status(), text(), ratio()).prop_map(|(status, message, ratio)| Filter::InjectHttpFailure {
        status,
        message,
        ratio,
    })
}

pub(crate) fn grpc_failure() -> impl Strategy<Value = Filter> {
    (any::<u16>(), text(), ratio()).prop_map(|(code, message, ratio)| Filter::InjectGrpcFailure {
        code,
        message,
        ratio,
    })
}

pub(crate) fn statuses() -> impl Strategy<Value = RangeInclusive<u16>> {
    (100u16..600, 0u16..100).prop_map(|(start, more)| start..=start + more)
}

pub(crate) fn endpoint() -> impl Strategy<Value = Endpoint> {
    let tls =
        (identity(), select(&["web.ns.example", "gateway"][..])).prop_map(|(id, name)| TlsPeer {
            id,
            server_name: name.into(),
        });
    let hint = select(
        &[
            ProtocolHint::Unknown,
            ProtocolHint::Http2,
            ProtocolHint::Opaque,
        ][..],
    );
    (
        socket_addr(),
        any::<u32>(),
        labels(),
        option::of(tls),
        hint,
        option::of(1u16..u16::MAX),
        option::of(text()),
        option::of(http2_params()),
    )
        .prop_map(
            |(addr, weight, labels, tls, hint, port, authority, http2)| Endpoint {
                addr,
                weight,
                labels: labels.into_iter().collect(),
                tls,
                hint,
                opaque_transport_port: port,
                authority_override: authority,
                http2,
            },
        )
}

fn http2_params() -> impl Strategy<Value = Http2Params> {
    let number = || option::of(1u32..);
    let keep_alive =
        (duration(), duration(), any::<bool>()).prop_map(|(interval, timeout, while_idle)| {
            KeepAlive {
                interval,
                timeout,
                while_idle,
            }
        });
    (
        number(),
        number(),
        any::<bool>(),
        option::of(keep_alive),
        number(),
        number(),
        number(),
    )
        .prop_map(
            |(connection, stream, adaptive_window, keep_alive, frame, buffer, resets)| {
                Http2Params {
                    connection_window: connection,
                    stream_window: stream,
                    adaptive_window,
                    keep_alive,
                    max_frame_size: frame,
                    max_send_buf_size: buffer,
                    max_concurrent_reset_streams: resets,
                }
            },
        )
}
