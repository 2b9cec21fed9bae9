//! HTTP/1 carried over HTTP/2 between proxies.
//!
//! The outbound proxy applies [`upgrade`] to a request and [`downgrade_response`] to its response;
//! the inbound proxy applies [`downgrade`] to the request and [`upgrade_response`] to the response.
//! The version and form travel in `l5d-orig-proto`, and so do fields of a response that HTTP/2 does
//! not allow but that inform the client. Linkerd's proxy ignores them. The header is honoured only
//! from authenticated peers of the mesh, and never reaches an application: any other sender would
//! choose how its request is parsed.

use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::{Method, StatusCode, Version};
use mesh_planted::Bug;

use super::headers::{ORIG_PROTO, strip_http2_request, strip_http2_response};
use super::message_context::MessageContext;
use super::{Request, Response, upgrade, uri};

const HTTP_10: HeaderValue = HeaderValue::from_static("HTTP/1.0");
const HTTP_11: HeaderValue = HeaderValue::from_static("HTTP/1.1");
const HTTP_10_ABSOLUTE: HeaderValue = HeaderValue::from_static("HTTP/1.0; absolute-form");
const HTTP_11_ABSOLUTE: HeaderValue = HeaderValue::from_static("HTTP/1.1; absolute-form");
const ABSOLUTE_FORM: &str = "absolute-form";

/// A response without a body, as to HEAD, has `transfer-encoding: chunked`.
const CHUNKED: &str = "chunked";

/// The protocols in the `upgrade` of a 426 follow.
const PROTOCOLS: &str = "upgrade=";

/// Whether a request can be carried over HTTP/2. Upgrades and `CONNECT` need their own connection,
/// and Linkerd's proxy and earlier versions of this one reset HTTP/2 streams with targets that are
/// no URIs ([`RawTarget`](mesh_http2::RawTarget)). An offer of TLS is not carried, and so is
/// ignored.
pub fn is_upgradable(request: &Request) -> bool {
    request.version() <= Version::HTTP_11
        && request.method() != Method::CONNECT
        && !MessageContext::of(request.extensions()).requests_upgrade
        && uri::raw_path(request).is_none()
}

/// Converts an HTTP/1 request with an absolute URI to HTTP/2. Returns its version for
/// [`downgrade_response`].
pub fn upgrade(request: &mut Request) -> Version {
    let version = request.version();
    let absolute = MessageContext::of(request.extensions()).is_absolute_form;
    let value = match (version, absolute) {
        (Version::HTTP_10, false) if Bug::VersionLost.is_planted() => HTTP_11,
        (Version::HTTP_10, false) => HTTP_10,
        (Version::HTTP_10, true) => HTTP_10_ABSOLUTE,
        (_, false) => HTTP_11,
        (_, true) => HTTP_11_ABSOLUTE,
    };
    let headers = request.headers_mut();
    strip_http2_request(headers);
    headers.insert(ORIG_PROTO, value);
    *request.version_mut() = Version::HTTP_2;
    version
}

/// Reverts [`upgrade`] on a request that was not sent.
pub(crate) fn undo_upgrade(request: &mut Request, version: Version) {
    strip(request.headers_mut());
    *request.version_mut() = version;
}

/// Restores a request from before [`upgrade`], except that its URI stays absolute. Removes the
/// header. Returns the version for [`upgrade_response`], if the request had been upgraded.
pub fn downgrade(request: &mut Request) -> Option<Version> {
    let value = request.headers_mut().remove(ORIG_PROTO);
    // `CONNECT` is never upgraded.
    if request.version() != Version::HTTP_2 || *request.method() == Method::CONNECT {
        return None;
    }
    let value = value?;
    let (version, mut parameters) = parse(&value)?;
    *request.version_mut() = version;
    // The client restores the form.
    if parameters.any(|parameter| parameter == ABSOLUTE_FORM) {
        MessageContext::of_mut(request.extensions_mut()).is_absolute_form = true;
    }
    Some(version)
}

/// Converts the response to a downgraded request to HTTP/2.
pub fn upgrade_response(response: &mut Response, version: Version) {
    let value = match version {
        Version::HTTP_10 => HTTP_10,
        _ => http11_value(response),
    };
    let headers = response.headers_mut();
    strip_http2_response(headers);
    headers.insert(ORIG_PROTO, value);
    *response.version_mut() = Version::HTTP_2;
}

fn http11_value(response: &Response) -> HeaderValue {
    let headers = response.headers();
    let is_chunked = response.body().is_empty() && headers.contains_key(TRANSFER_ENCODING);
    let protocols = upgrade::required_protocols(headers, response.status());
    let protocols = protocols.as_ref().and_then(|value| value.to_str().ok());
    let parameters = match (is_chunked, protocols) {
        (false, None) => return HTTP_11,
        (true, None) => CHUNKED.to_owned(),
        (false, Some(protocols)) => format!("{PROTOCOLS}{protocols}"),
        (true, Some(protocols)) => format!("{CHUNKED}; {PROTOCOLS}{protocols}"),
    };
    HeaderValue::try_from(format!("HTTP/1.1; {parameters}")).unwrap_or(HTTP_11)
}

/// Converts the response to an upgraded request back to HTTP/1.
pub fn downgrade_response(response: &mut Response, sent: Version) {
    let value = response.headers_mut().remove(ORIG_PROTO);
    let Some((version, parameters)) = value.as_ref().and_then(parse) else {
        *response.version_mut() = sent;
        return;
    };
    *response.version_mut() = version;
    let status = response.status();
    let headers = response.headers_mut();
    for parameter in parameters {
        if parameter == CHUNKED && sent == Version::HTTP_11 && !headers.contains_key(CONTENT_LENGTH)
        {
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        } else if let Some(protocols) = parameter.strip_prefix(PROTOCOLS)
            && status == StatusCode::UPGRADE_REQUIRED
            && let Ok(protocols) = HeaderValue::from_str(protocols)
        {
            upgrade::set_protocols(headers, protocols);
        }
    }
}

/// Removes the header where it must not be honoured.
pub(crate) fn strip(headers: &mut HeaderMap) {
    headers.remove(ORIG_PROTO);
}

/// Returns the version and the parameters after it.
fn parse(value: &HeaderValue) -> Option<(Version, impl Iterator<Item = &str>)> {
    let (version, parameters) = match value.as_bytes() {
        // The value of most messages.
        b"HTTP/1.1" => ("HTTP/1.1", ""),
        _ => {
            let text = value.to_str().ok()?;
            text.split_once(';').unwrap_or((text, ""))
        }
    };
    let version = match version.trim() {
        "HTTP/1.1" => Version::HTTP_11,
        "HTTP/1.0" => Version::HTTP_10,
        _ => return None,
    };
    let parameters = parameters.split(';').map(str::trim);
    Some((
        version,
        parameters.filter(|parameter| !parameter.is_empty()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Body;

    /// The destination application receives what the client sent.
    #[test]
    fn upgraded_and_downgraded_request_equals_original() {
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
            uri::record_form(&mut request);
            uri::unify_authority(&mut request).unwrap();
            assert!(is_upgradable(&request));
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

            assert_eq!(downgrade(&mut request), Some(version));
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

    /// The peer would reset the stream for any other value.
    #[test]
    fn upgrade_reduces_te_to_trailers() {
        for (given, expected) in [
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
            assert_eq!(te, expected, "{given}");
        }
    }

    /// `CONNECT` is never upgraded: a peer that marks one would choose how the application reads
    /// it.
    #[test]
    fn connect_and_http1_requests_are_not_downgraded() {
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
            assert_eq!(downgrade(&mut request), None);
            assert_eq!(request.version(), version);
            assert!(!request.headers().contains_key(ORIG_PROTO));
        }
    }

    #[test]
    fn unknown_orig_proto_values_are_ignored() {
        for value in ["HTTP/2", "HTTP/1.1 x", "", "http/1.1"] {
            assert!(
                parse(&HeaderValue::from_str(value).unwrap()).is_none(),
                "{value}"
            );
        }
    }

    #[test]
    fn downgraded_response_regains_original_version() {
        let mut response = http::Response::builder()
            .header("transfer-encoding", "chunked")
            .body(Body::empty())
            .unwrap();
        upgrade_response(&mut response, Version::HTTP_10);
        assert_eq!(response.version(), Version::HTTP_2);
        downgrade_response(&mut response, Version::HTTP_11);
        assert_eq!(response.version(), Version::HTTP_10);
        assert!(response.headers().is_empty());
    }

    #[test]
    fn fields_that_inform_the_client_of_a_response_are_restored() {
        let check = |status: u16, body: Body, sent: Version, expected: &[(&str, &str)]| {
            let mut response = http::Response::builder()
                .status(status)
                .header("connection", "upgrade")
                .header("upgrade", "a/1")
                .header("upgrade", "b, c")
                .header("transfer-encoding", "chunked")
                .body(body)
                .unwrap();
            upgrade_response(&mut response, sent);
            let names: Vec<_> = response.headers().keys().collect();
            assert_eq!(names, [ORIG_PROTO]);
            downgrade_response(&mut response, sent);
            let fields = response.headers().iter();
            let fields: Vec<_> = fields
                .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
                .collect();
            assert_eq!(fields, expected, "{status} {sent:?}");
        };
        let chunked = ("transfer-encoding", "chunked");
        let protocols = [("connection", "upgrade"), ("upgrade", "a/1, b, c")];
        check(200, Body::empty(), Version::HTTP_11, &[chunked]);
        check(200, Body::empty(), Version::HTTP_10, &[]);
        check(200, Body::full("a"), Version::HTTP_11, &[]);
        check(426, Body::full("a"), Version::HTTP_11, &protocols);
        let both = [chunked, protocols[0], protocols[1]];
        check(426, Body::empty(), Version::HTTP_11, &both);
    }
}
