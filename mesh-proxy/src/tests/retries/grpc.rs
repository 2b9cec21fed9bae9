//! Calls that are retried by their gRPC status.

use http::{HeaderMap, Response};
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{GrpcRoute, GrpcRoutes, OutboundProtocol};
use mesh_core::resilience::GrpcRetry;
use mesh_core::route::Rule;
use tokio::task::spawn_local;

use super::{BACKOFF, Scene, WEB, rule};
use crate::tests::app::{App, Calls, http2, read, streams};
use crate::tests::world::{run, settle, while_time_passes};

/// Retries UNAVAILABLE.
fn grpc_policy(max_retries: u16) -> OutboundProtocol {
    let retry = GrpcRetry {
        max_retries,
        max_request_bytes: 64 * 1024,
        conditions: vec![14],
        timeout: None,
        backoff: Some(BACKOFF),
    };
    OutboundProtocol::Grpc(GrpcRoutes {
        routes: vec![GrpcRoute {
            meta: Meta::new_default("grpc"),
            hosts: Vec::new(),
            rules: vec![Rule {
                matches: Vec::new(),
                action: rule(Some(retry), &[WEB]),
            }],
        }],
        failure_accrual: None,
    })
}

/// A call to an application, which the test answers.
struct GrpcCall {
    scene: Scene,
    calls: Calls,
    request: h2::SendStream<bytes::Bytes>,
    asking: tokio::task::JoinHandle<Result<Response<h2::RecvStream>, h2::Error>>,
}

impl GrpcCall {
    async fn begin(max_retries: u16) -> Self {
        let app = App::start().await;
        let scene = Scene::new(grpc_policy(max_retries), &[(WEB, vec![app.addr])]).await;
        let mut client = http2(scene.client().await).await;
        let call = http::Request::post("http://web/shop.Cart/Add")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let (response, request) = client.send_request(call, false).unwrap();
        Self {
            asking: spawn_local(response),
            calls: streams(app.accept().await).await,
            request,
            scene,
        }
    }

    /// A call with one message.
    async fn unary(max_retries: u16) -> Self {
        let mut call = Self::begin(max_retries).await;
        call.request.send_data("message".into(), true).unwrap();
        call
    }

    /// The next attempt, whose request must be complete.
    async fn next(&mut self) -> h2::server::SendResponse<bytes::Bytes> {
        let (request, respond) = while_time_passes(self.calls.recv()).await.unwrap();
        assert_eq!(read(&mut request.into_body()).await, "message");
        respond
    }

    async fn answer(self) -> (HeaderMap, String, HeaderMap) {
        let response = while_time_passes(self.asking).await.unwrap().unwrap();
        let (head, mut body) = response.into_parts();
        let data = read(&mut body).await;
        let trailers = body.trailers().await.unwrap().unwrap_or_default();
        (head.headers, data, trailers)
    }
}

fn headers(status: Option<&str>) -> Response<()> {
    let mut response = Response::builder().header("content-type", "application/grpc");
    if let Some(status) = status {
        response = response.header("grpc-status", status);
    }
    response.body(()).unwrap()
}

fn status(code: &str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", code.parse().unwrap());
    trailers
}

/// The application's response of `messages` and a status in trailers.
fn with_trailers(
    mut to: h2::server::SendResponse<bytes::Bytes>,
    messages: &[&'static str],
    code: &str,
) {
    let mut body = to.send_response(headers(None), false).unwrap();
    for message in messages {
        body.send_data((*message).into(), false).unwrap();
    }
    body.send_trailers(status(code)).unwrap();
}

fn counted(scene: &Scene, name: &str) -> u64 {
    let begins = format!("outbound_grpc_route_retry_{name}_total{{");
    scene.proxy.metric(&begins)
}

/// Answers one call: its first attempt fails, and the second one succeeds.
fn assert_retried(fail: impl Fn(h2::server::SendResponse<bytes::Bytes>) + Sync) {
    run(async || {
        let mut call = GrpcCall::unary(1).await;
        fail(call.next().await);
        with_trailers(call.next().await, &["response"], "0");
        let registry = call.scene.proxy.registry.clone();
        let (_, data, trailers) = call.answer().await;
        assert_eq!((data.as_str(), &trailers), ("response", &status("0")));
        let text = String::from_utf8(registry.encode()).unwrap();
        for counted in ["requests", "successes"] {
            let name = format!("outbound_grpc_route_retry_{counted}_total{{");
            let line = text.lines().find(|line| line.starts_with(&name));
            assert!(line.is_some_and(|line| line.ends_with(" 1")), "{text}");
        }
        // The failed attempt is counted with its status.
        let failed = text.lines().find(|line| {
            line.starts_with("outbound_grpc_route_backend_response_statuses_total{")
                && line.contains("grpc_status=\"UNAVAILABLE\",error=\"\"")
        });
        assert!(failed.is_some_and(|line| line.ends_with(" 1")), "{text}");
    });
}

#[test]
fn trailers_only_response_is_retried_by_its_status() {
    assert_retried(|mut respond| {
        respond.send_response(headers(Some("14")), true).unwrap();
    });
}

#[test]
fn response_is_retried_by_the_status_in_its_trailers() {
    assert_retried(|respond| with_trailers(respond, &[], "14"));
}

#[test]
fn response_with_one_message_is_retried_by_the_status_in_its_trailers() {
    assert_retried(|respond| with_trailers(respond, &["partial"], "14"));
}

#[test]
fn other_statuses_are_not_retried() {
    for code in ["0", "13"] {
        run(async || {
            let mut call = GrpcCall::unary(1).await;
            with_trailers(call.next().await, &["response"], code);
            settle().await;
            assert_eq!(counted(&call.scene, "successes"), 0, "none of a retry");
            let (_, data, trailers) = call.answer().await;
            assert_eq!((data.as_str(), &trailers), ("response", &status(code)));
        });
    }
}

#[test]
fn last_failure_is_forwarded_as_it_is() {
    run(async || {
        let mut call = GrpcCall::unary(1).await;
        with_trailers(call.next().await, &[], "14");
        with_trailers(call.next().await, &["partial"], "14");
        settle().await;
        assert_eq!(counted(&call.scene, "limit_exceeded"), 1);
        let (_, data, trailers) = call.answer().await;
        assert_eq!((data.as_str(), &trailers), ("partial", &status("14")));
    });
}

/// A response has begun when more than one of its messages has arrived.
#[test]
fn response_of_several_messages_is_forwarded_completely() {
    run(async || {
        let mut call = GrpcCall::unary(1).await;
        // Longer than the data that is joined into one frame.
        let one: &'static str = "one".repeat(10_000).leak();
        with_trailers(call.next().await, &[one, "two", "three"], "14");
        let (_, data, trailers) = call.answer().await;
        assert_eq!(data, format!("{one}twothree"));
        assert_eq!(trailers, status("14"));
    });
}

/// Such a client may wait for the headers before it sends its first message.
#[test]
fn headers_are_forwarded_while_the_client_is_still_sending() {
    run(async || {
        let mut call = GrpcCall::begin(1).await;
        let (request, mut respond) = call.calls.recv().await.unwrap();
        let mut answer = respond.send_response(headers(None), false).unwrap();
        let response = (&mut call.asking).await.unwrap().unwrap();
        call.request.send_data("message".into(), true).unwrap();
        assert_eq!(read(&mut request.into_body()).await, "message");
        answer.send_data("response".into(), false).unwrap();
        answer.send_trailers(status("0")).unwrap();
        let mut body = response.into_body();
        assert_eq!(read(&mut body).await, "response");
        assert_eq!(body.trailers().await.unwrap().unwrap(), status("0"));
    });
}
