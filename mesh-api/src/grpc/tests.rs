//! Fields of hostile servers and clients, as tonic's clients and servers see them.

use std::convert::Infallible;
use std::future::ready;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use proptest::prelude::*;
use tonic::{Code, Status};
use tower::service_fn;

use super::*;
use crate::proto::destination::GetDestination;
use crate::proto::destination::destination_client::DestinationClient;

fn fields(lines: &[(&str, &str)]) -> HeaderMap {
    let parse = |(name, value): &(&str, &str)| {
        let name: HeaderName = name.parse().unwrap();
        (name, HeaderValue::from_bytes(value.as_bytes()).unwrap())
    };
    lines.iter().map(parse).collect()
}

/// Calls a scripted server with tonic, and returns how the call ended.
fn call(headers: HeaderMap, trailers: HeaderMap) -> Status {
    let transport = SanitizeResponses(service_fn(move |_call: Request<TonicBody>| {
        let trailers = trailers.clone();
        let body = Full::new(Bytes::new()).with_trailers(ready(Some(Ok(trailers))));
        let mut response = Response::new(body);
        *response.headers_mut() = headers.clone();
        ready(Ok::<_, Infallible>(response))
    }));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut client = DestinationClient::new(transport);
        let mut stream = match client.get(GetDestination::default()).await {
            Ok(response) => response.into_inner(),
            Err(status) => return status,
        };
        match stream.message().await {
            Ok(_end) => Status::ok(""),
            Err(status) => status,
        }
    })
}

#[test]
fn details_that_are_not_base64_end_only_their_call() {
    let refused = fields(&[
        ("grpc-status", "7"),
        ("grpc-message", "not%20here"),
        ("grpc-status-details-bin", "%%%"),
    ]);
    for (headers, trailers) in [
        (refused.clone(), HeaderMap::new()),
        (HeaderMap::new(), refused),
    ] {
        let status = call(headers, trailers);
        let seen = (status.code(), status.message());
        assert_eq!(seen, (Code::PermissionDenied, "not here"));
    }
}

#[test]
fn only_fields_of_their_grammar_are_admitted() {
    let long = "m".repeat(MAX_STATUS_MESSAGE + 1);
    for (name, value, is_kept) in [
        ("grpc-status", "0", true),
        ("grpc-status", "16", true),
        ("grpc-status", "", false),
        ("grpc-status", "100", false),
        ("grpc-status", "-1", false),
        ("grpc-message", "a%20b", true),
        ("grpc-message", &long[1..], true),
        ("grpc-message", &long, false),
        ("grpc-message", "\u{e4}", false),
        ("grpc-timeout", "99999999H", true),
        ("grpc-timeout", "100000000S", false),
        ("grpc-timeout", "S", false),
        ("grpc-timeout", "", false),
        ("grpc-timeout", "1s", false),
        ("grpc-encoding", "gzip", true),
        ("grpc-encoding", "\u{e4}", false),
        ("grpc-status-details-bin", "AAAA", false),
        ("grpc-tags-bin", "", false),
        ("grpc-retry-pushback-ms", "1", false),
        ("trace-bin", "%", false),
        ("content-type", "application/grpc", true),
        ("l5d-client-id", "web.shop", true),
    ] {
        let mut sanitized = fields(&[(name, value)]);
        sanitize(&mut sanitized);
        assert_eq!(sanitized.len(), usize::from(is_kept), "{name}: {value}");
    }
    // The values of a name stand or fall together: tonic reads the first.
    let mut twice = fields(&[("grpc-status", "0"), ("grpc-status", "x")]);
    sanitize(&mut twice);
    assert!(twice.is_empty());
}

#[tokio::test]
async fn headers_and_trailers_of_requests_are_sanitized() {
    let seen = service_fn(async |call: Request<TonicBody>| {
        let headers = call.headers().len();
        let body = call.into_body().collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap();
        Ok::<_, Infallible>((headers, trailers))
    });
    let bad = fields(&[("grpc-status-details-bin", "%"), ("te", "trailers")]);
    let body = Full::new(Bytes::new()).with_trailers(ready(Some(Ok(bad.clone()))));
    let mut call = Request::new(TonicBody::new(body));
    *call.headers_mut() = bad;
    let (headers, trailers) = SanitizeRequests.layer(seen).call(call).await.unwrap();
    assert_eq!(headers, 1);
    assert_eq!(trailers, fields(&[("te", "trailers")]));
}

fn any_fields() -> impl Strategy<Value = HeaderMap> {
    let names = [
        "grpc-status",
        "grpc-message",
        "grpc-status-details-bin",
        "grpc-encoding",
        "content-type",
        "any-bin",
    ];
    let value = proptest::collection::vec(any::<u8>(), 0..12);
    let field = (proptest::sample::select(names.to_vec()), value);
    proptest::collection::vec(field, 0..6).prop_map(|fields| {
        let parsed = fields.into_iter().filter_map(|(name, value)| {
            let value = HeaderValue::from_bytes(&value).ok()?;
            Some((HeaderName::from_static(name), value))
        });
        parsed.collect()
    })
}

proptest! {
    #[test]
    fn no_headers_or_trailers_of_a_server_end_the_process(
        headers in any_fields(),
        trailers in any_fields(),
    ) {
        call(headers, trailers);
    }
}
