//! The forms of an HTTP/1 request target, and the authority of a request.
//!
//! Inside the proxy every request has an absolute URI, so that routes, HTTP/2 and metrics need only
//! one form. [`MessageContext::is_absolute_form`] records that the client used it, because the
//! destination application must receive the client's form.

use std::net::SocketAddr;

use bytes::Bytes;
use http::header::HOST;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Uri, Version};
use memchr::{memchr, memchr3};
use mesh_planted::Bug;

use super::Request;
use super::message_context::MessageContext;
use super::message_error::MessageError;

/// Returns the authority of a request: its URI's, else `host`'s. `None` also if `host` is not an
/// authority.
pub fn authority(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    if let Some(authority) = uri.authority() {
        return Some(authority.clone());
    }
    Authority::try_from(headers.get(HOST)?.as_bytes()).ok()
}

/// Makes the authority of a request unique, so that the request is authorized and routed by the
/// authority that the application reads: the target's, if there is one, replaces `host` (RFC 9112,
/// section 3.2.2; RFC 9113, section 8.3.1). Rejects several `host` fields, an invalid one, user
/// information, and a URI without a host.
pub(super) fn unify_authority(request: &mut Request) -> Result<(), MessageError> {
    let Some(authority) = request.uri().authority() else {
        // For HTTP/1 the parser has checked `host`.
        return match request.version() {
            Version::HTTP_2 => check_host(request.headers()),
            _ => Ok(()),
        };
    };
    let text = authority.as_str().as_bytes();
    let is_valid = match request.version() {
        Version::HTTP_2 => names_host(text),
        _ => is_host_and_port(text),
    };
    if !is_valid {
        return Err(MessageError::InvalidTarget);
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let Some(host) = hosts.next() else {
        return Ok(());
    };
    if hosts.next().is_some() {
        return Err(MessageError::MultipleHosts);
    }
    // HTTP/1 without a host carried over HTTP/2; see `replace_unsent_authority`.
    let is_unnamed = host.is_empty() && request.version() == Version::HTTP_2;
    if !is_unnamed && host.as_bytes() != authority.as_str().as_bytes() {
        let host = HeaderValue::from_str(authority.as_str())
            .map_err(|_invalid| MessageError::InvalidTarget)?;
        request.headers_mut().insert(HOST, host);
    }
    Ok(())
}

/// Checks `host`. It may be missing or empty: the request is then for the dialled address.
fn check_host(headers: &HeaderMap) -> Result<(), MessageError> {
    let mut hosts = headers.get_all(HOST).iter();
    let Some(host) = hosts.next() else {
        return Ok(());
    };
    if hosts.next().is_some() {
        return Err(MessageError::MultipleHosts);
    }
    let is_authority = || Authority::try_from(host.as_bytes()).is_ok();
    match host.as_bytes() {
        b"" => Ok(()),
        text if names_host(text) && is_authority() => Ok(()),
        _ => Err(MessageError::InvalidHost),
    }
}

/// Whether an authority has a host and no user information. HTTP/2 has no other rule, and clients
/// of gRPC may send the name of a port.
fn names_host(authority: &[u8]) -> bool {
    !authority.starts_with(b":") && !authority.contains(&b'@')
}

/// Whether an authority is a host and an optional port, as HTTP/1 requires of `host` and targets
/// (RFC 9110, section 7.2). [`Authority`] also accepts a port that is not a number and brackets
/// anywhere; recipients would read different hosts from them.
pub(super) fn is_host_and_port(authority: &[u8]) -> bool {
    let (host, rest) = match authority {
        [b'[', inside @ ..] => match memchr(b']', inside) {
            Some(end) => inside.split_at(end),
            None => return false,
        },
        _ => authority.split_at(memchr(b':', authority).unwrap_or(authority.len())),
    };
    let is_port = match rest.strip_prefix(b"]").unwrap_or(rest) {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    is_port && !host.is_empty() && memchr3(b'@', b'[', b']', host).is_none()
}

/// Makes `host`, which the proxy has changed, the authority of a request. Returns whether it is
/// exactly one valid host.
pub(crate) fn follow_host(request: &mut Request) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return false;
    };
    match Authority::try_from(host.as_bytes()) {
        Ok(authority) if !host.as_bytes().contains(&b'@') => {
            set_uri_authority(request.uri_mut(), authority);
            true
        }
        _ => false,
    }
}

/// Gives a request without an authority the one of its `host` header, else `fallback`, the address
/// that the client connected to.
///
/// Returns whether the request now has an authority.
pub fn set_authority(request: &mut Request, fallback: Option<SocketAddr>) -> bool {
    if request.uri().authority().is_some() {
        return true;
    }
    let authority = authority(request.uri(), request.headers())
        .or_else(|| Authority::try_from(fallback.map(as_authority)?).ok());
    match authority {
        Some(authority) => {
            set_uri_authority(request.uri_mut(), authority);
            true
        }
        None => false,
    }
}

/// Replaces an authority that would not be sent to the application by `addr`. Of an HTTP/1 request
/// without `host` that was carried over HTTP/2, only the path is forwarded.
pub(crate) fn replace_unsent_authority(request: &mut Request, addr: SocketAddr) {
    let is_told = request.version() == Version::HTTP_2
        || request.method() == Method::CONNECT
        || request.uri().authority().is_none()
        || request
            .headers()
            .get(HOST)
            .is_some_and(|host| !host.is_empty())
        || MessageContext::of(request.extensions()).is_absolute_form;
    if !is_told && let Ok(authority) = Authority::try_from(as_authority(addr)) {
        set_uri_authority(request.uri_mut(), authority);
    }
}

/// Omits the default port, as clients do.
fn as_authority(addr: SocketAddr) -> String {
    match addr {
        SocketAddr::V4(addr) if addr.port() == 80 => addr.ip().to_string(),
        addr => addr.to_string(),
    }
}

/// Makes `uri` absolute with this authority. The scheme stays, or becomes `http`.
pub(crate) fn set_uri_authority(uri: &mut Uri, authority: Authority) {
    let mut parts = std::mem::take(uri).into_parts();
    parts.authority = Some(authority);
    parts.scheme.get_or_insert(Scheme::HTTP);
    parts
        .path_and_query
        .get_or_insert(PathAndQuery::from_static("/"));
    if let Ok(absolute) = Uri::from_parts(parts) {
        *uri = absolute;
    }
}

/// Returns the target in the form that the client used.
pub fn http1_form(request: &Request) -> Uri {
    if request.method() == Method::CONNECT
        || MessageContext::of(request.extensions()).is_absolute_form
    {
        return request.uri().clone();
    }
    let path = match request.uri().path_and_query() {
        Some(path) => path.clone(),
        None => PathAndQuery::from_static("/"),
    };
    Uri::from(path)
}

/// Returns the path and query as the client has sent them, if the URI cannot represent them.
pub(crate) fn raw_path(request: &Request) -> Option<&Bytes> {
    if Bug::RawTargetLost.is_planted() {
        return None;
    }
    let target = MessageContext::of(request.extensions())
        .raw_target
        .as_deref();
    target?.of_uri(request.uri())
}

/// Records the form of the request line.
pub fn record_form(request: &mut Request) {
    if request.version() <= Version::HTTP_11
        && request.uri().scheme().is_some()
        && request.method() != Method::CONNECT
    {
        MessageContext::of_mut(request.extensions_mut()).is_absolute_form = true;
    }
}

/// Whether the request target was in authority-form, as for `CONNECT`.
pub fn is_authority_form(uri: &Uri) -> bool {
    uri.authority().is_some() && uri.scheme().is_none() && uri.path_and_query().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_of_http1_are_a_host_and_an_optional_port() {
        for valid in [
            "web",
            "web:",
            "web:80",
            "web.shop.",
            "10.0.0.1:8080",
            "[::1]",
            "[::1]:80",
        ] {
            assert!(is_host_and_port(valid.as_bytes()), "{valid}");
        }
        for invalid in [
            "",
            ":80",
            "web:http",
            "web:80:80",
            "web:-1",
            "a@web",
            "a:b@web:80",
            "[::1",
            "[]:80",
            "[::1]80",
            "[::1]]",
            "web]",
            "w[e]b",
            "a@[::1]:80",
            "[a@b]",
            "web:80]",
        ] {
            assert!(!is_host_and_port(invalid.as_bytes()), "{invalid}");
        }
    }
}
