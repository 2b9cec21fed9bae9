//! The three forms of an HTTP/1 request target, and the authority of a request.
//!
//! Inside the proxy a request has an absolute URI, so that routes, HTTP/2 and metrics see one
//! shape. [`AbsoluteForm`] remembers that the client sent it that way, because the far application
//! must get the form that the client used.

use std::net::SocketAddr;

use http::header::HOST;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Uri, Version};

use super::Request;
use super::http1::Refused;

/// Marks (as an extension) a request whose request line carried an absolute URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbsoluteForm;

/// The authority that a request names: its URI's, else its `host`. `None` also when `host` is no
/// authority.
pub fn authority(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    if let Some(authority) = uri.authority() {
        return Some(authority.clone());
    }
    Authority::try_from(headers.get(HOST)?.as_bytes()).ok()
}

/// Leaves a request one authority, so that what is judged and routed by is what the application
/// reads: that of its target, where it has one, replaces `host` (RFC 9112, section 3.2.2; RFC 9113,
/// section 8.3.1). Several `host` fields, one that names no authority, and user information are
/// refused.
pub(super) fn unify_authority(request: &mut Request) -> Result<(), Refused> {
    let Some(authority) = request.uri().authority() else {
        // What HTTP/1 says of `host` was checked when it was read.
        return match request.version() {
            Version::HTTP_2 => check_host(request.headers()),
            _ => Ok(()),
        };
    };
    if authority.as_str().contains('@') {
        return Err(Refused::Target);
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let Some(host) = hosts.next() else {
        return Ok(());
    };
    if hosts.next().is_some() {
        return Err(Refused::SeveralHosts);
    }
    // HTTP/1 without a name that is carried as HTTP/2; see `replace_untold_authority`.
    let is_unnamed = host.is_empty() && request.version() == Version::HTTP_2;
    if !is_unnamed && host.as_bytes() != authority.as_str().as_bytes() {
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_invalid| Refused::Target)?;
        request.headers_mut().insert(HOST, host);
    }
    Ok(())
}

/// A request without another authority may have no host, or an empty one: then it is for the
/// address that was dialled.
fn check_host(headers: &HeaderMap) -> Result<(), Refused> {
    let mut hosts = headers.get_all(HOST).iter();
    let Some(host) = hosts.next() else {
        return Ok(());
    };
    if hosts.next().is_some() {
        return Err(Refused::SeveralHosts);
    }
    let is_authority = || Authority::try_from(host.as_bytes()).is_ok();
    match host.as_bytes() {
        b"" => Ok(()),
        text if !text.contains(&b'@') && is_authority() => Ok(()),
        _ => Err(Refused::Host),
    }
}

/// Gives a request without an authority the one of its `host` header, else `fallback`, the address
/// that the client connected to.
///
/// Returns whether the request has an authority now; without a fallback it may have none.
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

/// Replaces an authority that the application would not be told by `addr`, which is all that it can
/// know: of an HTTP/1 request without `host` that was carried as HTTP/2 only the path is passed on.
pub fn replace_untold_authority(request: &mut Request, addr: SocketAddr) {
    let is_told = request.version() == Version::HTTP_2
        || request.method() == Method::CONNECT
        || request.uri().authority().is_none()
        || request
            .headers()
            .get(HOST)
            .is_some_and(|host| !host.is_empty())
        || request.extensions().get::<AbsoluteForm>().is_some();
    if !is_told && let Ok(authority) = Authority::try_from(as_authority(addr)) {
        set_uri_authority(request.uri_mut(), authority);
    }
}

/// The default port is left out, as clients do.
fn as_authority(addr: SocketAddr) -> String {
    match addr {
        SocketAddr::V4(addr) if addr.port() == 80 => addr.ip().to_string(),
        addr => addr.to_string(),
    }
}

/// Makes `uri` absolute with this authority; the scheme stays, or becomes `http`.
pub fn set_uri_authority(uri: &mut Uri, authority: Authority) {
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

/// The target in the form that an HTTP/1 server expects: as the client sent it.
pub fn http1_form(request: &Request) -> Uri {
    if request.method() == Method::CONNECT || request.extensions().get::<AbsoluteForm>().is_some() {
        return request.uri().clone();
    }
    let path = match request.uri().path_and_query() {
        Some(path) => path.clone(),
        None => PathAndQuery::from_static("/"),
    };
    Uri::from(path)
}

/// Remembers the form of the request line.
pub fn mark_form(request: &mut Request) {
    if request.version() <= Version::HTTP_11
        && request.uri().scheme().is_some()
        && request.method() != Method::CONNECT
    {
        request.extensions_mut().insert(AbsoluteForm);
    }
}

/// Whether the request line held only an authority, as `CONNECT` has it.
pub fn is_authority_form(uri: &Uri) -> bool {
    uri.authority().is_some() && uri.scheme().is_none() && uri.path_and_query().is_none()
}
