//! HTTP/1 carried over HTTP/2 between proxies, and restored at the far end.
//!
//! The outbound proxy [`upgrade`]s a request and [`restore`]s its response; the inbound proxy
//! [`downgrade`]s the request and [`mark`]s the response. The version and form travel in
//! `l5d-orig-proto`. It must be honoured from authenticated peers of the mesh only, and never reach
//! an application: whoever else sends it would choose how its request is parsed.

use http::header::{HeaderMap, HeaderValue, TE, TRANSFER_ENCODING};
use http::{Method, Version};

use super::headers::{ORIG_PROTO, strip_connection_headers};
use super::uri::AbsoluteForm;
use super::{Request, Response, upgrade};

const HTTP_10: HeaderValue = HeaderValue::from_static("HTTP/1.0");
const HTTP_11: HeaderValue = HeaderValue::from_static("HTTP/1.1");
const HTTP_10_ABSOLUTE: HeaderValue = HeaderValue::from_static("HTTP/1.0; absolute-form");
const HTTP_11_ABSOLUTE: HeaderValue = HeaderValue::from_static("HTTP/1.1; absolute-form");

/// Marks (as an extension) a request that arrived over HTTP/2 and was made HTTP/1 again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Downgraded(pub Version);

/// Whether a request may be carried as HTTP/2. Upgrades and `CONNECT` need a connection of their
/// own.
pub fn may_upgrade(request: &Request) -> bool {
    request.version() <= Version::HTTP_11
        && request.method() != Method::CONNECT
        && !upgrade::is_requested(request)
}

/// Makes an HTTP/1 request with an absolute URI ready for HTTP/2. Returns its version for
/// [`restore`].
pub fn upgrade(request: &mut Request) -> Version {
    let version = request.version();
    let absolute = request.extensions().get::<AbsoluteForm>().is_some();
    let value = match (version, absolute) {
        (Version::HTTP_10, false) => HTTP_10,
        (Version::HTTP_10, true) => HTTP_10_ABSOLUTE,
        (_, false) => HTTP_11,
        (_, true) => HTTP_11_ABSOLUTE,
    };
    let headers = request.headers_mut();
    strip_connection_headers(headers);
    headers.remove(TRANSFER_ENCODING);
    keep_trailers_only(headers);
    headers.insert(ORIG_PROTO, value);
    *request.version_mut() = Version::HTTP_2;
    version
}

/// Of `te`, HTTP/2 knows `trailers` and refuses a request with anything else (RFC 9113, section
/// 8.2.2). The other codings would be this connection's in any case.
fn keep_trailers_only(headers: &mut HeaderMap) {
    if headers.contains_key(TE) {
        let wants_trailers = headers.get_all(TE).iter().any(|value| {
            let mut codings = value.as_bytes().split(|byte| *byte == b',');
            codings.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
        });
        match wants_trailers {
            true => drop(headers.insert(TE, HeaderValue::from_static("trailers"))),
            false => drop(headers.remove(TE)),
        }
    }
}

/// Takes [`upgrade`] back on a request that was not sent.
pub fn undo(request: &mut Request, version: Version) {
    strip(request.headers_mut());
    *request.version_mut() = version;
}

/// Makes an HTTP/2 request what it was before [`upgrade`], except that its URI stays absolute.
/// Returns whether it had been upgraded. The header is gone in any case.
pub fn downgrade(request: &mut Request) -> bool {
    let value = request.headers_mut().remove(ORIG_PROTO);
    // `CONNECT` is not carried.
    if request.version() != Version::HTTP_2 || *request.method() == Method::CONNECT {
        return false;
    }
    let Some((version, absolute)) = value.as_ref().and_then(parse) else {
        return false;
    };
    *request.version_mut() = version;
    request.extensions_mut().insert(Downgraded(version));
    // The URI stays absolute; the client restores the form.
    if absolute {
        request.extensions_mut().insert(AbsoluteForm);
    }
    true
}

/// Makes the response to a downgraded request ready for HTTP/2.
pub fn mark(response: &mut Response, version: Version) {
    let value = if version == Version::HTTP_10 {
        HTTP_10
    } else {
        HTTP_11
    };
    let headers = response.headers_mut();
    strip_connection_headers(headers);
    headers.remove(TRANSFER_ENCODING);
    headers.insert(ORIG_PROTO, value);
    *response.version_mut() = Version::HTTP_2;
}

/// Makes the response to an upgraded request HTTP/1 again.
pub fn restore(response: &mut Response, sent: Version) {
    *response.version_mut() = version_of(response.headers_mut()).unwrap_or(sent);
}

/// Takes the header away wherever it must not be honoured.
pub fn strip(headers: &mut HeaderMap) {
    headers.remove(ORIG_PROTO);
}

fn version_of(headers: &mut HeaderMap) -> Option<Version> {
    parse(&headers.remove(ORIG_PROTO)?).map(|(version, _)| version)
}

fn parse(value: &HeaderValue) -> Option<(Version, bool)> {
    let text = value.to_str().ok()?;
    let (version, form) = match text.split_once(';') {
        Some((version, form)) => (version.trim(), Some(form.trim())),
        None => (text.trim(), None),
    };
    let version = match version {
        "HTTP/1.1" => Version::HTTP_11,
        "HTTP/1.0" => Version::HTTP_10,
        _ => return None,
    };
    Some((version, form == Some("absolute-form")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{Body, uri};

    /// There and back again: what the far application sees is what the client sent.
    #[test]
    fn requests_survive_the_double_hop() {
        let check = |version: Version, target: &str, host: Option<&str>| {
            let mut request = http::Request::builder().version(version).uri(target);
            if let Some(host) = host {
                request = request.header("host", host);
            }
            let mut request = request
                .header("connection", "close")
                .header("transfer-encoding", "chunked")
                .body(Body::empty())
                .unwrap();
            uri::mark_form(&mut request);
            uri::unify_authority(&mut request).unwrap();
            assert!(may_upgrade(&request));
            assert!(uri::set_authority(
                &mut request,
                Some("10.0.0.1:80".parse().unwrap())
            ));
            assert_eq!(upgrade(&mut request), version);
            assert_eq!(request.version(), Version::HTTP_2);
            assert!(request.uri().authority().is_some());
            assert!(!request.headers().contains_key("connection"));
            assert!(!request.headers().contains_key("transfer-encoding"));
            request.extensions_mut().clear();

            assert!(downgrade(&mut request));
            *request.uri_mut() = uri::http1_form(&request);
            assert_eq!(request.version(), version);
            assert_eq!(request.uri().to_string(), target);
            assert_eq!(
                request.headers().get("host").map(|h| h.to_str().unwrap()),
                host
            );
            assert!(!request.headers().contains_key(ORIG_PROTO));
        };
        check(Version::HTTP_11, "/a?b=c", Some("web:8080"));
        check(Version::HTTP_10, "/a", None);
        check(Version::HTTP_10, "/a", Some("web"));
        check(Version::HTTP_11, "http://other/a", Some("other"));
        check(Version::HTTP_10, "http://other/a?q", None);
    }

    /// What is not `trailers` would have the far side reset the stream.
    #[test]
    fn codings_that_a_client_takes_are_not_carried() {
        for (given, carried) in [
            ("trailers", Some("trailers")),
            ("gzip", None),
            ("deflate;q=0.5, Trailers", Some("trailers")),
            ("", None),
        ] {
            let mut request = http::Request::builder()
                .uri("http://web/")
                .header("te", given)
                .body(Body::empty())
                .unwrap();
            upgrade(&mut request);
            let te = request.headers().get("te").map(|te| te.to_str().unwrap());
            assert_eq!(te, carried, "{given}");
        }
    }

    /// `CONNECT` is not carried: a peer that says so of one would choose how the application reads
    /// it.
    #[test]
    fn what_is_not_carried_stays_what_it_is() {
        for (method, version) in [
            (Method::CONNECT, Version::HTTP_2),
            (Method::GET, Version::HTTP_11),
        ] {
            let mut request = http::Request::builder()
                .method(method)
                .version(version)
                .uri("http://web:80/")
                .header(ORIG_PROTO, "HTTP/1.0")
                .body(Body::empty())
                .unwrap();
            assert!(!downgrade(&mut request));
            assert_eq!(request.version(), version);
            assert!(!request.headers().contains_key(ORIG_PROTO));
        }
    }

    #[test]
    fn only_what_we_wrote_is_understood() {
        for value in ["HTTP/2", "HTTP/1.1 x", "", "http/1.1"] {
            assert_eq!(parse(&HeaderValue::from_str(value).unwrap()), None);
        }
    }

    #[test]
    fn responses_regain_their_version() {
        let mut response = http::Response::builder()
            .header("transfer-encoding", "chunked")
            .body(Body::empty())
            .unwrap();
        mark(&mut response, Version::HTTP_10);
        assert_eq!(response.version(), Version::HTTP_2);
        restore(&mut response, Version::HTTP_11);
        assert_eq!(response.version(), Version::HTTP_10);
        assert!(response.headers().is_empty());
    }
}
