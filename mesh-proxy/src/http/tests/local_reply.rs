//! The responses that filters' replies become, for HTTP and gRPC.

use http::{HeaderMap, HeaderValue, StatusCode, Version};

use super::*;
use crate::local_reply::LocalReply;

/// Returns the status and the sorted headers of the response to a request.
fn response(reply: &LocalReply, is_grpc: bool, informational: bool) -> (u16, Vec<String>) {
    let mut request = Request::new(Body::empty());
    *request.version_mut() = Version::HTTP_2;
    if is_grpc {
        let headers = request.headers_mut();
        headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    }
    let request_context = RequestContext::new(&request, None);
    let detail = ErrorDetail { informational };
    let response = synthetic_response::reply(request_context, reply, detail);
    assert_eq!(response.version(), Version::HTTP_2);
    let headers = response.headers().iter();
    let mut headers: Vec<String> = headers
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .filter(|header| header != "content-length: 0")
        .collect();
    headers.sort();
    (response.status().as_u16(), headers)
}

#[test]
fn replies_of_filters_become_responses_in_the_protocol_of_the_request() {
    let location = HeaderValue::from_static("http://a/");
    let redirect = LocalReply::redirect(StatusCode::FOUND, location, "redirected".to_owned());
    let preflight = LocalReply::cors_preflight(HeaderMap::new());
    let http = LocalReply::http_failure(StatusCode::IM_A_TEAPOT, "injected");
    let grpc = LocalReply::grpc_failure(14, "injected").within("route a");
    let call = |code: u16| {
        let code = format!("grpc-status: {code}");
        vec!["content-type: application/grpc".to_owned(), code]
    };
    let told = |code: u16, message: &str, more: &[&str]| {
        let message = format!("grpc-message: {message}");
        let more = more.iter().map(|header| (*header).to_owned());
        let mut headers: Vec<_> = call(code)
            .into_iter()
            .chain([message])
            .chain(more)
            .collect();
        headers.sort();
        headers
    };
    let texts = |texts: &[&str]| -> Vec<String> { texts.iter().map(ToString::to_string).collect() };
    for (reply, is_grpc, informational, expected) in [
        (
            &redirect,
            false,
            true,
            (302, texts(&["location: http://a/"])),
        ),
        (
            &redirect,
            true,
            true,
            (200, told(5, "redirected", &["location: http://a/"])),
        ),
        (&preflight, false, true, (200, texts(&[]))),
        (&preflight, true, false, (200, call(5))),
        (
            &http,
            false,
            true,
            (418, texts(&["l5d-proxy-error: injected"])),
        ),
        (&http, false, false, (418, texts(&[]))),
        (&http, true, false, (200, call(9))),
        (&grpc, false, false, (200, texts(&[]))),
        (
            &grpc,
            true,
            true,
            (
                200,
                told(
                    14,
                    "route a: injected",
                    &["l5d-proxy-error: route a: injected"],
                ),
            ),
        ),
    ] {
        let found = response(reply, is_grpc, informational);
        assert_eq!(found, expected, "{reply} {is_grpc} {informational}");
    }
}
