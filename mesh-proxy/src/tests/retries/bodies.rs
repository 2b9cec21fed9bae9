//! The kept part of requests with bodies, and its limits.

use std::time::Duration;

use http::HeaderMap;
use mesh_core::resilience::{Backoff, HttpRetry};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::spawn_local;

use super::{Answer, Scene, ScriptedApp, WEB, http_policy, retry, rule, status_of};
use crate::tests::app::{self, App, Calls, Speaks, http2, read, send, streams};
use crate::tests::world::{run, settle, while_time_passes};

const KIB: usize = 1024;

const LONG_BACKOFF: Backoff = Backoff {
    min: Duration::from_secs(10),
    max: Duration::from_secs(10),
    jitter: 0.0,
};

fn with_length(length: usize) -> String {
    let body = "b".repeat(length);
    format!("POST / HTTP/1.1\r\nhost: web\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// In chunks of 1,000 bytes, with a trailer.
fn chunked(length: usize) -> String {
    let mut text = "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    let mut left = length;
    while left > 0 {
        let chunk = left.min(1_000);
        text += &format!("{chunk:x}\r\n{}\r\n", "c".repeat(chunk));
        left -= chunk;
    }
    text + "0\r\n\r\n"
}

fn body_of(request: &str) -> String {
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    if head.contains("content-length") {
        return body.to_owned();
    }
    let mut lines = body.split("\r\n");
    let mut decoded = String::new();
    while let Some(length) = lines.next()
        && length != "0"
    {
        let chunk = lines.next().unwrap();
        assert_eq!(chunk.len(), usize::from_str_radix(length, 16).unwrap());
        decoded += chunk;
    }
    decoded
}

#[test]
fn body_is_sent_again_completely() {
    for request in [
        with_length(1),
        with_length(64 * KIB),
        chunked(1),
        chunked(64 * KIB),
    ] {
        run(async || {
            let answers = [
                Answer::Status(503),
                Answer::Status(503),
                Answer::Status(200),
            ];
            let app = ScriptedApp::start(&answers).await;
            let scene = Scene::simple(rule(Some(retry(2)), &[WEB]), &app).await;
            assert_eq!(status_of(&scene.ask(&request).await), 200);
            let received = app.requests();
            assert_eq!(received.len(), 3);
            for attempt in &received {
                assert_eq!(body_of(attempt), body_of(&request));
                let framing = |text: &str| text.contains("content-length");
                assert_eq!(framing(attempt), framing(&request), "the framing is kept");
            }
            assert_eq!(scene.proxy.context.shared.limits.replay_memory.used(), 0);
        });
    }
}

#[test]
fn body_beyond_the_limit_is_neither_retried_nor_failed() {
    for request in [with_length(64 * KIB + 1), chunked(64 * KIB + 1)] {
        run(async || {
            let answers = [Answer::Status(503), Answer::Status(200)];
            let app = ScriptedApp::start(&answers).await;
            let mut retry = retry(2);
            // It does not apply either, because no attempt would follow.
            retry.timeout = Some(Duration::from_millis(1));
            let scene = Scene::simple(rule(Some(retry), &[WEB]), &app).await;
            assert_eq!(status_of(&scene.ask(&request).await), 503);
            assert_eq!(scene.counted("overflow"), 1);
            assert_eq!(scene.counted("requests"), 0);
            assert_eq!(status_of(&scene.ask(&request).await), 200);
            for attempt in app.requests() {
                assert_eq!(body_of(&attempt), body_of(&request));
            }
            assert_eq!(scene.proxy.context.shared.limits.replay_memory.used(), 0);
        });
    }
}

#[test]
fn bodies_of_all_requests_stay_within_the_memory_of_the_process() {
    run(async || {
        let app = ScriptedApp::start(&[Answer::Status(503)]).await;
        let policy = http_policy(rule(Some(retry(1)), &[WEB]));
        let limit = ("MESH_PROXY_MAX_REPLAY_BYTES", Some("10000"));
        let scene = Scene::with(policy, &[(WEB, vec![app.addr])], &[limit]).await;
        let memory = &scene.proxy.context.shared.limits.replay_memory;
        // Three requests that have sent 4,000 of 4,001 bytes each: the third one gets no memory.
        let mut clients = Vec::new();
        for n in 1..=3 {
            let request = with_length(4_001);
            let mut client = scene.client().await;
            send(&mut client, &request[..request.len() - 1]).await;
            settle().await;
            clients.push(client);
            let used = memory.used();
            assert!((4_000 * n.min(2)..=10_000).contains(&used), "{used}");
        }
        for client in &mut clients {
            let response = while_time_passes(async {
                send(client, "b").await;
                app::message(client).await
            });
            assert_eq!(status_of(&response.await), 503);
        }
        assert_eq!(app.count(), 5);
        assert_eq!(scene.counted("requests"), 2);
        assert_eq!(scene.counted("overflow"), 1);
        assert_eq!(memory.used(), 0);
        // A request without a body needs none.
        scene.get(Speaks::Http1).await;
        assert_eq!(app.count(), 7);
    });
}

#[test]
fn memory_of_a_request_is_released_when_its_client_leaves() {
    run(async || {
        let app = ScriptedApp::start(&[Answer::Status(503)]).await;
        let scene = Scene::simple(rule(Some(retry(1)), &[WEB]), &app).await;
        let request = with_length(1_000);
        let mut client = scene.client().await;
        send(&mut client, &request[..request.len() - 1]).await;
        settle().await;
        let memory = &scene.proxy.context.shared.limits.replay_memory;
        assert!(memory.used() >= 999);
        drop(client);
        settle().await;
        assert_eq!(memory.used(), 0);
        assert_eq!(app.count(), 0);
    });
}

/// A call of an HTTP/2 client, and the application's streams.
struct Upload {
    body: h2::SendStream<bytes::Bytes>,
    asking: tokio::task::JoinHandle<Result<http::Response<h2::RecvStream>, h2::Error>>,
    calls: Calls,
    scene: Scene,
}

impl Upload {
    async fn begin(retry: HttpRetry) -> Self {
        let app = App::start().await;
        let policy = http_policy(rule(Some(retry), &[WEB]));
        let scene = Scene::new(policy, &[(WEB, vec![app.addr])]).await;
        let mut client = http2(scene.client().await).await;
        let request = http::Request::post("http://web/").body(()).unwrap();
        let (response, body) = client.send_request(request, false).unwrap();
        Self {
            body,
            asking: spawn_local(response),
            calls: streams(app.accept().await).await,
            scene,
        }
    }

    async fn next(&mut self) -> app::Call {
        while_time_passes(self.calls.recv()).await.unwrap()
    }
}

fn fail(mut to: h2::server::SendResponse<bytes::Bytes>) {
    let response = http::Response::builder().status(503).body(()).unwrap();
    to.send_response(response, true).unwrap();
}

async fn trailers(body: &mut h2::RecvStream) -> HeaderMap {
    body.trailers().await.unwrap().unwrap()
}

#[test]
fn trailers_of_the_request_are_sent_again() {
    run(async || {
        let mut upload = Upload::begin(retry(1)).await;
        upload.body.send_data("hello".into(), false).unwrap();
        let mut fields = HeaderMap::new();
        fields.insert("x-checksum", "1234".parse().unwrap());
        upload.body.send_trailers(fields.clone()).unwrap();
        let (request, respond) = upload.next().await;
        let mut received = request.into_body();
        assert_eq!(read(&mut received).await, "hello");
        assert_eq!(trailers(&mut received).await, fields);
        fail(respond);
        let (request, mut respond) = upload.next().await;
        let mut received = request.into_body();
        assert_eq!(read(&mut received).await, "hello");
        assert_eq!(trailers(&mut received).await, fields);
        respond
            .send_response(http::Response::new(()), true)
            .unwrap();
        assert_eq!(upload.asking.await.unwrap().unwrap().status(), 200);
    });
}

/// The application responds before it has received the request.
#[test]
fn rest_of_the_body_is_sent_to_the_next_attempt() {
    run(async || {
        let mut upload = Upload::begin(retry(1)).await;
        upload.body.send_data("one, ".into(), false).unwrap();
        let (request, respond) = upload.next().await;
        let mut first = request.into_body();
        assert_eq!(first.data().await.unwrap().unwrap(), "one, ");
        fail(respond);
        let (request, mut respond) = upload.next().await;
        upload.body.send_data("two".into(), true).unwrap();
        assert_eq!(read(&mut request.into_body()).await, "one, two");
        respond
            .send_response(http::Response::new(()), true)
            .unwrap();
        assert_eq!(upload.asking.await.unwrap().unwrap().status(), 200);
        // The first attempt never looked complete.
        let rest = first.data().await;
        assert!(!matches!(rest, Some(Ok(_))) && !first.is_end_stream());
        assert_eq!(upload.scene.counted("successes"), 1);
    });
}

/// The application answers the first attempt while the client is still sending, and the body
/// outgrows the limit on kept bytes before the next attempt begins.
#[test]
fn body_that_arrives_during_the_back_off_is_sent_to_the_next_attempt() {
    run(async || {
        let mut retry = retry(1);
        retry.backoff = Some(LONG_BACKOFF);
        let mut upload = Upload::begin(retry).await;
        upload.body.send_data("one, ".into(), false).unwrap();
        let (request, respond) = upload.next().await;
        let mut first = request.into_body();
        assert_eq!(first.data().await.unwrap().unwrap(), "one, ");
        fail(respond);
        settle().await;
        // The attempt has ended before the back-off has.
        let ended = first.data().await.unwrap().unwrap_err();
        assert_eq!(ended.reason(), Some(h2::Reason::CANCEL), "{ended}");
        let rest = "r".repeat(200 * KIB);
        upload.body.send_data(rest.clone().into(), true).unwrap();
        settle().await;
        let (request, mut respond) = upload.next().await;
        let received = read(&mut request.into_body()).await;
        assert!(received == format!("one, {rest}"), "{}", received.len());
        respond
            .send_response(http::Response::new(()), true)
            .unwrap();
        assert_eq!(upload.asking.await.unwrap().unwrap().status(), 200);
        assert_eq!(
            upload
                .scene
                .proxy
                .context
                .shared
                .limits
                .replay_memory
                .used(),
            0
        );
    });
}

/// The same with an application that speaks HTTP/1.
#[test]
fn body_that_arrives_during_the_back_off_is_sent_on_the_next_connection() {
    run(async || {
        let app = App::start().await;
        let mut retry = retry(1);
        retry.backoff = Some(LONG_BACKOFF);
        let policy = http_policy(rule(Some(retry), &[WEB]));
        let scene = Scene::new(policy, &[(WEB, vec![app.addr])]).await;
        let mut client = scene.client().await;
        // Without a length, which would exceed the limit on kept bytes.
        let request = chunked(200 * KIB);
        let (begin, rest) = request.split_at(1_000);
        send(&mut client, begin).await;
        let (mut served, head) = app.receive().await;
        let refusal = "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n";
        send(&mut served, refusal).await;
        settle().await;
        let (mut reader, mut writer) = client.split();
        let sending = async { writer.write_all(rest.as_bytes()).await.unwrap() };
        let answering = async {
            let first = app::rest(&mut served).await;
            assert!(first.len() < 200 * KIB, "the first attempt looks complete");
            let mut served = while_time_passes(app.accept()).await;
            let received = app::message(&mut served).await;
            assert!(received.starts_with(&head), "{head}");
            assert!(body_of(&received) == body_of(&request));
            send(&mut served, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        };
        let receiving = async {
            let mut line = [0; 12];
            reader.read_exact(&mut line).await.unwrap();
            assert_eq!(&line, b"HTTP/1.1 200");
        };
        tokio::join!(sending, answering, receiving);
    });
}

/// Linkerd's proxy had a defect here (linkerd2 issue 15649).
#[test]
fn attempt_refused_before_it_read_the_body_loses_and_repeats_nothing() {
    run(async || {
        let mut upload = Upload::begin(retry(2)).await;
        for _ in 0..2 {
            let (_, mut respond) = upload.next().await;
            respond.send_reset(h2::Reason::REFUSED_STREAM);
            settle().await;
        }
        let (request, mut respond) = upload.next().await;
        upload.body.send_data("hello".into(), true).unwrap();
        assert_eq!(read(&mut request.into_body()).await, "hello");
        respond
            .send_response(http::Response::new(()), true)
            .unwrap();
        assert_eq!(upload.asking.await.unwrap().unwrap().status(), 200);
    });
}

/// The responses that are not forwarded must not use up the window of the connection.
#[test]
fn failed_attempts_release_the_window_of_the_connection() {
    run(async || {
        let mut upload = Upload::begin(retry(300)).await;
        upload.body.send_data("hello".into(), true).unwrap();
        let content: &'static str = "f".repeat(16_000).leak();
        let answer = |mut to: h2::server::SendResponse<bytes::Bytes>, status| {
            let response = http::Response::builder().status(status).body(());
            let mut body = to.send_response(response.unwrap(), false).unwrap();
            body.send_data(content.into(), true).unwrap();
        };
        for _ in 0..300 {
            let (_, respond) = upload.next().await;
            answer(respond, 503);
        }
        let (_, respond) = upload.next().await;
        answer(respond, 200);
        let response = upload.asking.await.unwrap().unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(read(&mut response.into_body()).await, content);
    });
}
