//! The authority of a request: setting it is idempotent, and routes match the host and port that
//! `http::uri` parses.
//!
//! Input: the form of the request, then its text.

use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Uri, Version, header};
use mesh_core::route::HostMatch;
use mesh_core::route::http::RequestHead;
use mesh_proxy::fuzzing::{Body, Request, uri};

use crate::input::Input;

pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    match input.byte() % 4 {
        0 => host(input.0, Version::HTTP_11),
        1 => host(input.0, Version::HTTP_10),
        2 => target(input.0, None),
        _ => {
            let length = usize::from(input.byte());
            let target = input.take(length);
            self::target(target, HeaderValue::from_bytes(input.0).ok());
        }
    }
}

/// Checks a request with this Host header.
fn host(text: &[u8], version: Version) {
    let Ok(value) = HeaderValue::from_bytes(text) else {
        return;
    };
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, value);
    let authority = uri::authority(&Uri::from_static("/"), &headers);
    assert_eq!(authority, Authority::try_from(text).ok(), "of {text:?}");
    let mut request = Request::new(Body::empty());
    *request.headers_mut() = headers;
    *request.version_mut() = version;
    check(request);
}

/// Checks a request with this target.
fn target(text: &[u8], host: Option<HeaderValue>) {
    let Ok(target) = Uri::try_from(text) else {
        return;
    };
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = target;
    if let Some(host) = host {
        request.headers_mut().insert(header::HOST, host);
    }
    check(request);
}

fn check(mut request: Request) {
    let before = request.uri().clone();
    let sent = uri::authority(request.uri(), request.headers());
    uri::record_form(&mut request);
    let fallback = "192.0.2.1:8080".parse().expect("an address");
    assert!(uri::set_authority(&mut request, Some(fallback)));
    let Some(authority) = request.uri().authority().cloned() else {
        panic!("{before:?} has no authority after it was set");
    };
    if let Some(sent) = sent {
        assert_eq!(authority, sent);
    }
    let once = request.uri().clone();
    assert!(uri::set_authority(&mut request, None));
    assert_eq!(*request.uri(), once, "not idempotent");
    check_routes(&request, &authority);
    if !uri::is_authority_form(&before) {
        *request.uri_mut() = uri::http1_form(&request);
        let after = request.uri();
        let [target, target_before] =
            [after, &before].map(|uri| uri.path_and_query().map(PathAndQuery::as_str));
        let is_same = target == target_before.or(Some("/"));
        assert!(is_same, "the target was changed: {before} became {after}");
        let is_same = after.scheme() == before.scheme();
        assert!(is_same, "the form was changed: {before} became {after}");
    }
}

/// Checks the host and port that routes match.
fn check_routes(request: &Request, authority: &Authority) {
    let head = RequestHead::from(request);
    assert_eq!(head.host(), Some(authority.host()), "of {authority}");
    assert_eq!(head.port(), authority.port_u16(), "of {authority}");
    let host = authority.host();
    let rules = [
        HostMatch::Exact(host.into()),
        HostMatch::Exact("web.example".into()),
        HostMatch::Suffix(["example", "com"].map(Into::into).into()),
    ];
    for rule in rules {
        let is_match = rule.is_match(host);
        assert_eq!(is_match, rule.is_match(&host.to_ascii_uppercase()));
        assert_eq!(is_match, rule.is_match(&format!("{host}.")));
    }
}
