//! Protects users of the dashboard from pages of other origins.
//!
//! The Host header must match a pattern: a page whose name is made to resolve to this address (DNS
//! rebinding) sends its own name. Requests to the API must come from the dashboard's own pages, or
//! from programs, which send neither `Sec-Fetch-Site` nor `Origin`.

use http::header::{
    CONTENT_SECURITY_POLICY, HOST, HeaderName, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Uri};
use regex::Regex;

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("expected one Host header, and the same host in the URL")]
    NoHost,
    #[error(
        "the host {host:?} does not match {pattern}: denied as protection from DNS rebinding; set --enforced-host (value dashboard.enforcedHostRegexp) to allow it"
    )]
    Host { host: String, pattern: String },
    #[error("requests of pages of other origins are denied")]
    CrossOrigin,
}

/// The headers of all responses. Pages load nothing from other origins and run no inline code;
/// other pages cannot embed them.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=()",
    ),
];

/// Longer names are cut in messages.
const MAX_SHOWN: usize = 100;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

pub(crate) fn add_headers(headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// Returns the host of a request if it is one of this service.
pub(crate) fn check_host<'a>(
    uri: &'a Uri,
    headers: &'a HeaderMap,
    pattern: &Regex,
) -> Result<&'a str, Refusal> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().map_err(|_error| Refusal::NoHost)?,
        _ => return Err(Refusal::NoHost),
    };
    if uri.authority().is_some_and(|named| named.as_str() != host) {
        return Err(Refusal::NoHost);
    }
    if !pattern.is_match(host) {
        return Err(Refusal::Host {
            host: host.chars().take(MAX_SHOWN).collect(),
            pattern: pattern.as_str().to_owned(),
        });
    }
    Ok(host)
}

/// Checks that a request does not come from a page of another origin. Browsers send
/// `Sec-Fetch-Site`, which pages cannot set; older ones send `Origin` with a WebSocket and with
/// requests of other origins.
pub(crate) fn check_origin(headers: &HeaderMap, host: &str) -> Result<(), Refusal> {
    if let Some(site) = headers.get(SEC_FETCH_SITE) {
        // "none" is a request of the user, such as a bookmark.
        return match site.as_bytes() {
            b"same-origin" | b"none" => Ok(()),
            _ => Err(Refusal::CrossOrigin),
        };
    }
    let Some(origin) = headers.get(ORIGIN) else {
        return Ok(());
    };
    let origin = origin.to_str().ok().and_then(|it| it.split_once("://"));
    match origin {
        Some((_, from)) if from.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(Refusal::CrossOrigin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn foreign_and_ambiguous_hosts_are_refused() {
        let pattern = Regex::new(r"^localhost(:\d+)?$").unwrap();
        let check = |uri: &str, pairs: &[(&str, &str)]| {
            let uri: Uri = uri.parse().unwrap();
            check_host(&uri, &headers(pairs), &pattern).map(ToOwned::to_owned)
        };
        assert_eq!(
            check("/", &[("host", "localhost:8084")]).as_deref(),
            Ok("localhost:8084")
        );
        assert_eq!(
            check("http://localhost/", &[("host", "localhost")]).as_deref(),
            Ok("localhost")
        );
        assert_eq!(check("/", &[]), Err(Refusal::NoHost));
        assert_eq!(
            check("/", &[("host", "localhost"), ("host", "evil.example")]),
            Err(Refusal::NoHost)
        );
        assert_eq!(
            check("http://evil.example/", &[("host", "localhost")]),
            Err(Refusal::NoHost)
        );
        let long = "e".repeat(1_000);
        let Err(Refusal::Host { host, .. }) = check("/", &[("host", &long)]) else {
            panic!();
        };
        assert_eq!(host.len(), MAX_SHOWN);
    }

    #[test]
    fn requests_of_other_origins_are_refused() {
        let table: [(&[(&str, &str)], bool); 9] = [
            (&[], true),
            (&[("sec-fetch-site", "same-origin")], true),
            (&[("sec-fetch-site", "none")], true),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("sec-fetch-site", "cross-site")], false),
            (&[("origin", "http://localhost:8084")], true),
            (&[("origin", "http://localhost:9999")], false),
            (&[("origin", "null")], false),
            // An ingress may change the Host header; the browser knows the origin.
            (
                &[
                    ("sec-fetch-site", "same-origin"),
                    ("origin", "https://mesh.example.com"),
                ],
                true,
            ),
        ];
        for (pairs, allowed) in table {
            let result = check_origin(&headers(pairs), "localhost:8084");
            assert_eq!(result.is_ok(), allowed, "{pairs:?}");
        }
    }

    #[test]
    fn policy_allows_no_inline_code() {
        let mut headers = HeaderMap::new();
        add_headers(&mut headers);
        let policy = headers[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'"));
        assert!(!policy.contains("unsafe"));
        assert!(policy.contains("frame-ancestors 'none'"));
    }
}
