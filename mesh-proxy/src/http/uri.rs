//! The three forms of an HTTP/1 request target, and the authority of a request.
//!
//! Inside the proxy a request has an absolute URI, so that routes, HTTP/2 and metrics see one shape. [`AbsoluteForm`] remembers that the client sent it
//! that way, because the far application must get the form that the client used.

use std::net::SocketAddr;

use http::header::HOST;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Uri, Version};

use super::Request;

/// Marks (as an extension) a request whose request line carried an absolute URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbsoluteForm;

/// The authority that a request names: its URI's, else its `host`. `None` also when `host` is no authority.
pub fn authority(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    if let Some(authority) = uri.authority() {
        return Some(authority.clone());
    }
    Authority::try_from(headers.get(HOST)?.as_bytes()).ok()
}

/// Gives a request without an authority the one of its `host` header, else `fallback`, the address the client connected to.
///
/// Returns whether the request has an authority now; without a fallback it may have none.
pub fn set_authority(request: &mut Request, fallback: Option<SocketAddr>) -> bool {
    if request.uri().authority().is_some() {
        return true;
    }
    let authority = authority(request.uri(), request.headers()).or_else(|| {
        let text = match fallback? {
            // The default port is left out, as clients do.
            SocketAddr::V4(addr) if addr.port() == 80 => addr.ip().to_string(),
            addr => addr.to_string(),
        };
        Authority::try_from(text).ok()
    });
    match authority {
        Some(authority) => {
            set_uri_authority(request.uri_mut(), authority);
            true
        }
        None => false,
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
