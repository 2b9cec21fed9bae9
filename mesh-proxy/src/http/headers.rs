//! Headers that concern one connection only, and those of the mesh itself.

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, COOKIE, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, LOCATION, MAX_FORWARDS,
    PRAGMA, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RANGE, SET_COOKIE, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, WWW_AUTHENTICATE,
};

/// Says which HTTP/1 version a request or response had before it was carried over HTTP/2.
pub const ORIG_PROTO: HeaderName = HeaderName::from_static("l5d-orig-proto");
/// Message of an error that the proxy made up.
pub const PROXY_ERROR: HeaderName = HeaderName::from_static("l5d-proxy-error");
/// `close`: the other proxy asks that the application's connection be closed.
pub const PROXY_CONNECTION: HeaderName = HeaderName::from_static("l5d-proxy-connection");
/// Identity of the client, set by the inbound proxy.
pub const CLIENT_ID: HeaderName = HeaderName::from_static("l5d-client-id");
/// Canonical name of the destination, set for ServiceProfiles.
pub const DST_CANONICAL: HeaderName = HeaderName::from_static("l5d-dst-canonical");
/// The identity that the client demands of the endpoint.
pub const REQUIRE_ID: HeaderName = HeaderName::from_static("l5d-require-id");

/// What concerns one connection only, whether or not `connection` names it.
static OF_CONNECTION: [HeaderName; 4] = [
    CONNECTION,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Removes everything that only concerned the connection a message arrived on: what `connection`
/// names, and the fixed list.
///
/// Framing headers and `host` stay even when a client names them: the message would be read
/// differently behind the proxy than by it.
pub fn strip_connection_headers(headers: &mut HeaderMap) {
    if !has_any(headers, &OF_CONNECTION) {
        return;
    }
    if headers.contains_key(CONNECTION) {
        for name in nominated(headers) {
            if ![HOST, CONTENT_LENGTH, TRANSFER_ENCODING].contains(&name) {
                headers.remove(name);
            }
        }
    }
    for name in &OF_CONNECTION {
        headers.remove(name);
    }
}

/// Fields without a meaning behind a body, because they say how a message is framed, sent on, or
/// let through (RFC 9110, section 6.5.1). A recipient that merges trailers into the headers would
/// read another message than the one that was judged.
static NEVER_TRAILERS: [HeaderName; 26] = [
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

/// Whether a field may stand behind a body in HTTP/1. The mesh's own never do.
pub fn may_be_trailer(name: &HeaderName) -> bool {
    let text = name.as_str();
    !(NEVER_TRAILERS.contains(name)
        || text.starts_with("if-")
        || text.starts_with("x-forwarded-")
        || is_of_mesh(name))
}

/// Whether a field is one of the mesh's.
fn is_of_mesh(name: &HeaderName) -> bool {
    name.as_str().starts_with("l5d-")
}

/// What one proxy of the mesh says to another, or an application to its own proxy. Clients must
/// not say it to applications, which may pass headers on with requests of their own.
static NOT_FOR_APPLICATIONS: [HeaderName; 5] = [
    ORIG_PROTO,
    PROXY_ERROR,
    PROXY_CONNECTION,
    REQUIRE_ID,
    super::undelivered::UNDELIVERED,
];

/// Removes from a request to the application what is not for applications.
pub fn strip_for_application(headers: &mut HeaderMap) {
    if headers.keys().any(is_of_mesh) {
        for name in &NOT_FOR_APPLICATIONS {
            headers.remove(name);
        }
    }
}

/// Removes `names`. Most messages have none of them, and one look at all names costs less than to
/// hash and find each of these.
pub fn remove_all(headers: &mut HeaderMap, names: &[HeaderName]) {
    if has_any(headers, names) {
        for name in names {
            headers.remove(name);
        }
    }
}

/// Whether any of `names` is there.
pub fn has_any(headers: &HeaderMap, names: &[HeaderName]) -> bool {
    headers.keys().any(|name| names.contains(name))
}

/// The header names that `connection` lists.
fn nominated(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect()
}

/// Whether `connection` lists `token`.
pub fn connection_lists(headers: &HeaderMap, token: &HeaderName) -> bool {
    headers.contains_key(CONNECTION) && nominated(headers).contains(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(
                HeaderName::from_static(name),
                http::HeaderValue::from_static(value),
            );
        }
        map
    }

    #[test]
    fn connection_headers_go() {
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

    #[test]
    fn what_a_message_means_stands_in_front_of_its_body() {
        for name in [
            "grpc-status",
            "digest",
            "server-timing",
            "etag",
            "x-checksum",
        ] {
            let name = HeaderName::from_static(name);
            assert!(may_be_trailer(&name), "{name}");
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
            assert!(!may_be_trailer(&name), "{name}");
        }
    }

    #[test]
    fn framing_cannot_be_nominated_away() {
        let pairs = [
            ("host", "a"),
            ("content-length", "3"),
            ("transfer-encoding", "chunked"),
        ];
        let mut map = headers(&pairs);
        map.append(
            CONNECTION,
            http::HeaderValue::from_static("host, content-length, transfer-encoding"),
        );
        strip_connection_headers(&mut map);
        assert_eq!(map, headers(&pairs));
    }

    #[test]
    fn lists_tokens_in_any_case() {
        let map = headers(&[("connection", "keep-alive, Upgrade")]);
        assert!(connection_lists(&map, &UPGRADE));
        assert!(!connection_lists(&map, &HOST));
    }
}
