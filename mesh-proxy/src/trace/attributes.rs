//! The name and the attributes of spans, the same as in Linkerd's proxy, by OpenTelemetry's
//! conventions for HTTP spans.

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, USER_AGENT};
use http::uri::Authority;
use http::{HeaderName, HeaderValue, Request, Uri};
use mesh_core::trace::Attributes;

use crate::header_names::ORIG_PROTO;
use crate::telemetry::labels::Direction;

/// Longer texts are cut. A span takes at most 56 KiB then.
pub(super) const MAX_TEXT: usize = 4096;

/// The attributes that a request can have, and the status of its response.
const MAX_ATTRIBUTES: usize = 14;

/// Space for the texts of most requests.
const USUAL_BYTES: usize = 256;

/// The attribute of the response's status, which is a text, as in Linkerd's proxy.
pub(super) const STATUS: &str = "http.response.status_code";

/// What OpenTelemetry writes instead of credentials.
const REDACTED: &str = "REDACTED";

const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Header fields that are reported. Others may be confidential.
static REPORTED: [(HeaderName, &str); 4] = [
    (USER_AGENT, "user_agent.original"),
    (CONTENT_LENGTH, "http.request.header.content-length"),
    (CONTENT_TYPE, "http.request.header.content-type"),
    (ORIG_PROTO, "http.request.header.l5d-orig-proto"),
];

pub(super) fn span_name(uri: &Uri) -> Box<str> {
    cut(uri.path()).into()
}

pub(super) fn of_request<B>(request: &Request<B>, direction: Direction) -> Attributes {
    let mut all = Attributes::with_capacity(MAX_ATTRIBUTES, USUAL_BYTES);
    let mut add = |name, value: &str| all.push(name, cut(value));
    let uri = request.uri();
    add("http.request.method", request.method().as_str());
    if let Some(scheme) = uri.scheme_str() {
        add("url.scheme", scheme);
    }
    add("url.path", uri.path());
    let query = uri.query().map(redacted_query);
    if let Some(query) = &query {
        add("url.query", query);
    }
    add("url.full", &redacted(uri, query.as_deref()));
    add("network.transport", "tcp");
    if let Some(server) = server(request) {
        add("server.address", server.host());
        if let Some(port) = server.port() {
            add("server.port", port.as_str());
        }
    }
    for (field, name) in &REPORTED {
        if let Some(value) = request.headers().get(field) {
            add(*name, &String::from_utf8_lossy(value.as_bytes()));
        }
    }
    let direction = match direction {
        Direction::Inbound => "inbound",
        Direction::Outbound => "outbound",
    };
    add("direction", direction);
    all
}

/// Returns the server that the client named: before its own proxies, in the URI, in `host`.
fn server<B>(request: &Request<B>) -> Option<Authority> {
    let parse = |value: &HeaderValue| Authority::try_from(value.as_bytes()).ok();
    let headers = request.headers();
    if let Some(forwarded) = headers.get(FORWARDED_HOST) {
        return parse(forwarded);
    }
    match request.uri().authority() {
        Some(authority) => Some(authority.clone()),
        None => parse(headers.get(HOST)?),
    }
}

/// Returns the query with the names of its parameters only. Signatures, access tokens, keys and
/// session ids have no common name, so that a list of names would miss some. What has no value may
/// itself be a token, such as `?eyJhbGci` or, with the padding of base64, `?eyJhbGci==`.
fn redacted_query(query: &str) -> String {
    let mut text = String::with_capacity(query.len());
    for (at, parameter) in query.split('&').enumerate() {
        if at > 0 {
            text.push('&');
        }
        if let Some((name, value)) = parameter.split_once('=')
            && !value.trim_start_matches('=').is_empty()
        {
            text.push_str(name);
            text.push('=');
        }
        if !parameter.is_empty() {
            text.push_str(REDACTED);
        }
    }
    text
}

/// Returns the URI without user name and password, with a query that is redacted already.
fn redacted(uri: &Uri, query: Option<&str>) -> String {
    let mut text = String::new();
    if let Some(scheme) = uri.scheme_str() {
        text.push_str(scheme);
        text.push_str("://");
    }
    if let Some(authority) = uri.authority() {
        let (credentials, host) = match authority.as_str().rsplit_once('@') {
            Some((credentials, host)) => (Some(credentials), host),
            None => (None, authority.as_str()),
        };
        text.push_str(match credentials {
            Some(both) if both.contains(':') => "REDACTED:REDACTED@",
            Some(_) => "REDACTED@",
            None => "",
        });
        text.push_str(host);
    }
    text.push_str(uri.path());
    if let Some(query) = query {
        text.push('?');
        text.push_str(query);
    }
    text
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn attributes(request: http::request::Builder) -> BTreeMap<&'static str, String> {
        let request = request.body(()).unwrap();
        let all = of_request(&request, Direction::Inbound);
        let count = all.iter().count();
        assert!(count < MAX_ATTRIBUTES, "and the status");
        let all: BTreeMap<_, _> = all
            .iter()
            .map(|(name, value)| (name, value.to_owned()))
            .collect();
        assert_eq!(all.len(), count, "each name once");
        all
    }

    #[test]
    fn attributes_are_those_of_linkerd() {
        let request = Request::post("http://example.com:80/foo?bar=baz")
            .header("user-agent", "curl")
            .header("content-length", "0")
            .header("content-type", "text/plain")
            .header("l5d-orig-proto", "HTTP/1.1")
            .header("host", "example.com:80")
            .header("authorization", "secret")
            .header("cookie", "secret");
        let expect = [
            ("direction", "inbound"),
            ("http.request.header.content-length", "0"),
            ("http.request.header.content-type", "text/plain"),
            ("http.request.header.l5d-orig-proto", "HTTP/1.1"),
            ("http.request.method", "POST"),
            ("network.transport", "tcp"),
            ("server.address", "example.com"),
            ("server.port", "80"),
            ("url.full", "http://example.com:80/foo?bar=REDACTED"),
            ("url.path", "/foo"),
            ("url.query", "bar=REDACTED"),
            ("url.scheme", "http"),
            ("user_agent.original", "curl"),
        ];
        let expect = expect.map(|(name, value)| (name, value.to_owned()));
        assert_eq!(attributes(request), BTreeMap::from(expect));
        let uri = "http://example.com:80/foo?bar=baz".parse().unwrap();
        assert_eq!(&*span_name(&uri), "/foo");
    }

    #[test]
    fn server_is_the_one_that_the_client_named() {
        let server = |uri: &str, fields: &[(&str, &str)]| {
            let mut request = Request::get(uri);
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            let all = attributes(request);
            let of = |name| all.get(name).cloned().unwrap_or_default();
            (of("server.address"), of("server.port"))
        };
        let named = |host: &str, port: &str| (host.to_owned(), port.to_owned());
        let (host, forwarded) = (("host", "web:80"), ("x-forwarded-host", "shop.example"));
        assert_eq!(server("/", &[host]), named("web", "80"));
        assert_eq!(server("/", &[host, forwarded]), named("shop.example", ""));
        assert_eq!(server("http://api:1/", &[host]), named("api", "1"));
        assert_eq!(server("/", &[]), named("", ""));
        assert_eq!(server("/", &[("host", "not a host")]), named("", ""));
    }

    #[test]
    fn credentials_are_redacted() {
        let full = |uri: &str| attributes(Request::get(uri))["url.full"].clone();
        assert_eq!(
            full("http://a:b@web:80/x"),
            "http://REDACTED:REDACTED@web:80/x"
        );
        assert_eq!(full("http://a@web/x?y"), "http://REDACTED@web/x?REDACTED");
        assert_eq!(full("/x"), "/x");
    }

    #[test]
    fn values_of_queries_are_redacted() {
        for (query, expected) in [
            ("access_token=secret", "access_token=REDACTED"),
            (
                "X-Amz-Signature=secret&sig=secret",
                "X-Amz-Signature=REDACTED&sig=REDACTED",
            ),
            ("a=secret;token=secret&b=secret=x", "a=REDACTED&b=REDACTED"),
            ("to%6ben=secret", "to%6ben=REDACTED"),
            ("secret", "REDACTED"),
            ("secret==", "REDACTED"),
            ("=secret", "=REDACTED"),
            ("&&", "&&"),
            ("", ""),
        ] {
            let all = attributes(Request::get(format!("http://web/?{query}")));
            assert_eq!(all["url.query"], expected, "{query}");
            assert_eq!(
                all["url.full"],
                format!("http://web/?{expected}"),
                "{query}"
            );
        }
    }

    #[test]
    fn long_texts_are_cut() {
        let long = "p".repeat(2 * MAX_TEXT);
        let request =
            Request::get(format!("http://web/{long}?{long}=x")).header("user-agent", &long);
        for (name, value) in attributes(request) {
            assert!(value.len() <= MAX_TEXT, "{name}");
        }
        assert_eq!(
            span_name(&format!("/{long}").parse().unwrap()).len(),
            MAX_TEXT
        );
        assert_eq!(
            cut(&format!("{}é", "p".repeat(MAX_TEXT - 1))).len(),
            MAX_TEXT - 1
        );
    }
}
