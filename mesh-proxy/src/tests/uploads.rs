//! Requests that are still being sent after their response is complete.

use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use tokio::time::advance;

use super::app::{App, http2, read, streams};
use super::world::{CLIENT, Proxy, World, run, settle};

/// How long an upload may make no progress; at most twice that.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A call that the application has answered while the client was sending.
struct Answered {
    upload: SendStream<Bytes>,
    received: RecvStream,
    _held: Box<dyn std::any::Any>,
}

async fn answered() -> Answered {
    let (world, app) = (World::new().await, App::start().await);
    let proxy: Proxy = world.proxy(CLIENT);
    let mut client = http2(proxy.outbound(app.addr).await).await;
    let request = http::Request::post("http://web/").body(()).unwrap();
    let (response, upload) = client.send_request(request, false).unwrap();
    let mut calls = streams(app.accept().await).await;
    let (request, mut respond) = calls.recv().await.unwrap();
    respond
        .send_response(http::Response::new(()), true)
        .unwrap();
    assert!(response.await.unwrap().into_body().is_end_stream());
    Answered {
        upload,
        received: request.into_body(),
        _held: Box::new((world, proxy, client, calls, respond)),
    }
}

async fn pass(time: Duration) {
    settle().await;
    advance(time).await;
    settle().await;
}

/// It occupies a stream of the server and one of the client.
#[test]
fn upload_without_progress_ends_some_time_after_the_response() {
    run(async || {
        let mut call = answered().await;
        for part in ["one", "two"] {
            pass(TIMEOUT - Duration::from_secs(1)).await;
            call.upload.send_data(part.into(), false).unwrap();
            assert_eq!(call.received.data().await.unwrap().unwrap(), part);
        }
        for _ in 0..3 {
            pass(TIMEOUT).await;
        }
        let error = call.received.data().await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Some(Reason::CANCEL));
        let reset = std::future::poll_fn(|cx| call.upload.poll_reset(cx)).await;
        assert_eq!(reset.unwrap(), Reason::NO_ERROR);
    });
}

/// As without the mesh.
#[test]
fn upload_goes_on_after_the_response_as_long_as_it_makes_progress() {
    run(async || {
        let mut call = answered().await;
        for _ in 0..20 {
            pass(TIMEOUT - Duration::from_secs(1)).await;
            call.upload.send_data("part".into(), false).unwrap();
            assert_eq!(call.received.data().await.unwrap().unwrap(), "part");
        }
        call.upload.send_data("end".into(), true).unwrap();
        assert_eq!(read(&mut call.received).await, "end");
    });
}
