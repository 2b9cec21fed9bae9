//! Headers of one connection (hop-by-hop), and headers of the mesh.

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, COOKIE, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION,
    MAX_FORWARDS, PRAGMA, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RANGE, SET_COOKIE, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, WWW_AUTHENTICATE,
};

pub(crate) use crate::header_names::{
    CLIENT_ID, DST_CANONICAL, DST_OVERRIDE, ORIG_PROTO, PROXY_CONNECTION, PROXY_ERROR,
    PROXY_UNDELIVERED, REQUIRE_ID,
};

/// Hop-by-hop headers, whether or not `connection` lists them.
static CONNECTION_HEADERS: [HeaderName; 4] = [
    CONNECTION,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Whether a field describes the connection or the framing on it (RFC 9110, section 7.6.1). Few
/// messages have one, and a scan of all names costs less than a lookup of each.
pub(super) fn is_connection_field(name: &str) -> bool {
    let is = |other: &str| other.eq_ignore_ascii_case(name);
    match name.len() {
        2 => is("te"),
        7 => is("upgrade"),
        10 => is("connection") || is("keep-alive"),
        16 => is("proxy-connection"),
        17 => is("transfer-encoding"),
        _ => false,
    }
}

fn has_connection_fields(headers: &HeaderMap) -> bool {
    headers
        .keys()
        .any(|name| is_connection_field(name.as_str()))
}

/// Removes hop-by-hop headers: those that `connection` lists, and a fixed list.
///
/// Framing headers and `host` are kept even if a client lists them, because the next server would
/// otherwise read a different message than this proxy. `te: trailers` is kept, too: RFC 9110,
/// section 10.1.4 makes clients list it, and this proxy forwards the trailers that they accept.
pub fn strip_connection_headers(headers: &mut HeaderMap) {
    if !has_connection_fields(headers) {
        return;
    }
    if headers.contains_key(CONNECTION) {
        let mut options = connection_options(headers);
        if options.contains(&TE) {
            reduce_te_to_trailers(headers);
        }
        let kept = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, TE];
        options.retain(|name| !kept.contains(name) && !CONNECTION_HEADERS.contains(name));
        remove_all(headers, &options);
    }
    // They are the last fields of a message of HTTP/1.
    for name in &CONNECTION_HEADERS {
        headers.remove(name);
    }
}

/// Removes the fields that a request of HTTP/2 must not have (RFC 9113, section 8.2.2).
pub(super) fn strip_http2_request(headers: &mut HeaderMap) {
    if has_connection_fields(headers) {
        strip_connection_headers(headers);
        reduce_te_to_trailers(headers);
        headers.remove(TRANSFER_ENCODING);
    }
}

/// Removes the fields that a response of HTTP/2 must not have.
pub(super) fn strip_http2_response(headers: &mut HeaderMap) {
    if has_connection_fields(headers) {
        strip_connection_headers(headers);
        headers.remove(TE);
        headers.remove(TRANSFER_ENCODING);
    }
}

/// Reduces `te` to `trailers`, the only value that HTTP/2 allows (RFC 9113, section 8.2.2). The
/// other codings are hop-by-hop in any case.
fn reduce_te_to_trailers(headers: &mut HeaderMap) {
    let mut values = headers.get_all(TE).iter();
    let Some(first) = values.next() else { return };
    // Mostly there is nothing to change.
    if first == TRAILERS && values.next().is_none() {
        return;
    }
    let wants_trailers = headers.get_all(TE).iter().any(|value| {
        let mut codings = value.as_bytes().split(|byte| *byte == b',');
        codings.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    });
    if wants_trailers {
        headers.insert(TE, TRAILERS);
    } else {
        headers.remove(TE);
    }
}

const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");

/// Fields that must not be sent as trailers, because they affect framing, routing or authorization
/// (RFC 9110, section 6.5.1). A recipient that merges trailers into the headers would read a
/// different message than the one that was authorized.
static FORBIDDEN_TRAILERS: [HeaderName; 26] = [
    AUTHORIZATION,
    CACHE_CONTROL,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    COOKIE,
    EXPECT,
    HOST,
    HeaderName::from_static("keep-alive"),
    MAX_FORWARDS,
    PRAGMA,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    RANGE,
    HeaderName::from_static("realm"),
    SET_COOKIE,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    WWW_AUTHENTICATE,
    LOCATION,
    FORWARDED,
];

/// Whether a field may be sent as an HTTP/1 trailer. Headers of the mesh may not.
pub(crate) fn is_allowed_in_trailers(name: &HeaderName) -> bool {
    let text = name.as_str();
    !(FORBIDDEN_TRAILERS.contains(name)
        || text.starts_with("if-")
        || text.starts_with("x-forwarded-")
        || is_mesh_header(name))
}

fn is_mesh_header(name: &HeaderName) -> bool {
    name.as_str().starts_with("l5d-")
}

/// Headers that proxies of the mesh exchange, and that an application sends to its own proxy.
/// Clients must not send them to applications, which may copy headers to their own requests.
static NOT_FOR_APPLICATIONS: [HeaderName; 5] = [
    ORIG_PROTO,
    PROXY_ERROR,
    PROXY_CONNECTION,
    REQUIRE_ID,
    PROXY_UNDELIVERED,
];

/// Removes [`NOT_FOR_APPLICATIONS`] from a request to the application.
pub(crate) fn strip_for_application(headers: &mut HeaderMap) {
    if headers.keys().any(is_mesh_header) {
        remove_all(headers, &NOT_FOR_APPLICATIONS);
    }
}

/// Removes the headers of the mesh from the trailers of an HTTP/2 request, as HTTP/1 removes them
/// from all trailers. An application that merges trailers into the header section would otherwise
/// trust a client's fields as its own proxy's.
pub(super) fn strip_request_trailers(trailers: &mut HeaderMap) {
    let names = trailers.keys().filter(|name| is_mesh_header(name));
    // Without any, the list does not allocate.
    let names: Vec<HeaderName> = names.cloned().collect();
    for name in &names {
        trailers.remove(name);
    }
}

/// Removes `names`, and keeps the order of the other fields: [`HeaderMap::remove`] fills the place
/// of a field with the last one. Most messages have none of them, and one scan of all names costs
/// less than a lookup of each.
pub(crate) fn remove_all(headers: &mut HeaderMap, names: &[HeaderName]) {
    if names.is_empty() || !has_any(headers, names) {
        return;
    }
    let order: Vec<HeaderName> = headers.keys().cloned().collect();
    for name in names {
        headers.remove(name);
    }
    let mut rest = HeaderMap::with_capacity(headers.len());
    for name in &order {
        for value in headers.get_all(name) {
            rest.append(name, value.clone());
        }
    }
    *headers = rest;
}

/// Whether `headers` has any of `names`.
pub(crate) fn has_any(headers: &HeaderMap, names: &[HeaderName]) -> bool {
    headers.keys().any(|name| names.contains(name))
}

/// The connection options: the header names that `connection` lists.
fn connection_options(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect()
}

/// Whether `connection` lists `option`.
pub(crate) fn has_connection_option(headers: &HeaderMap, option: &HeaderName) -> bool {
    headers.contains_key(CONNECTION) && connection_options(headers).contains(option)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        map
    }

    #[test]
    fn hop_by_hop_headers_are_stripped() {
        let mut map = headers(&[
            ("connection", "keep-alive, X-Hop"),
            ("connection", "http2-settings"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAA"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("accept", "*/*"),
        ]);
        strip_connection_headers(&mut map);
        assert_eq!(map, headers(&[("te", "trailers"), ("accept", "*/*")]));
    }

    /// Messages are searched for these fields once, before any is looked up.
    #[test]
    fn each_hop_by_hop_header_is_stripped_without_the_others() {
        let with = |name: &HeaderName| {
            let mut map = headers(&[("accept", "*/*")]);
            map.append(name, HeaderValue::from_static("x"));
            map
        };
        let accept = headers(&[("accept", "*/*")]);
        for name in &CONNECTION_HEADERS {
            let mut map = with(name);
            strip_connection_headers(&mut map);
            assert_eq!(map, accept, "{name}");
        }
        for name in CONNECTION_HEADERS.iter().chain(&[TE, TRANSFER_ENCODING]) {
            for strip in [strip_http2_request, strip_http2_response] {
                let mut map = with(name);
                strip(&mut map);
                assert_eq!(map, accept, "{name}");
            }
        }
    }

    #[test]
    fn removal_keeps_the_order_of_other_fields() {
        let mut map = headers(&[
            ("x-hop", "1"),
            ("accept", "*/*"),
            ("cookie", "a"),
            ("cookie", "b"),
            ("l5d-proxy-error", "x"),
            ("age", "1"),
            ("connection", "x-hop"),
        ]);
        strip_connection_headers(&mut map);
        strip_for_application(&mut map);
        let left: Vec<_> = map
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        let expected: [(&str, &[u8]); 4] = [
            ("accept", b"*/*"),
            ("cookie", b"a"),
            ("cookie", b"b"),
            ("age", b"1"),
        ];
        assert_eq!(left, expected);
    }

    #[test]
    fn fields_that_affect_framing_or_authorization_are_forbidden_in_trailers() {
        for name in [
            "grpc-status",
            "digest",
            "server-timing",
            "etag",
            "x-checksum",
        ] {
            let name = HeaderName::from_static(name);
            assert!(is_allowed_in_trailers(&name), "{name}");
        }
        for name in [
            "host",
            "content-length",
            "transfer-encoding",
            "authorization",
            "set-cookie",
            "if-match",
            "x-forwarded-for",
            "l5d-client-id",
            "l5d-orig-proto",
        ] {
            let name = HeaderName::from_static(name);
            assert!(!is_allowed_in_trailers(&name), "{name}");
        }
    }

    #[test]
    fn connection_header_cannot_remove_framing_headers() {
        let pairs = [
            ("host", "a"),
            ("content-length", "3"),
            ("transfer-encoding", "chunked"),
        ];
        let mut map = headers(&pairs);
        map.append(
            CONNECTION,
            HeaderValue::from_static("host, content-length, transfer-encoding"),
        );
        strip_connection_headers(&mut map);
        assert_eq!(map, headers(&pairs));
    }

    #[test]
    fn connection_options_are_case_insensitive() {
        let map = headers(&[("connection", "keep-alive, Upgrade")]);
        assert!(has_connection_option(&map, &UPGRADE));
        assert!(!has_connection_option(&map, &HOST));
    }
}
