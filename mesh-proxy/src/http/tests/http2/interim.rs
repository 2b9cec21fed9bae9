//! Interim responses, and clients that wait for a 100 before they send the body.

use super::*;

#[test]
fn interim_responses_are_forwarded() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let request = request_with("expect", "100-continue");
        let (mut response_future, mut upload) = client.send_request(request, false).unwrap();
        let (mut seen, mut respond) = called.recv().await.unwrap();
        for status in [100, 103] {
            let interim = http::Response::builder().status(status).header("of", "app");
            let interim = interim.body(()).unwrap();
            respond.send_informational(interim).unwrap();
            let interim = poll_fn(|cx| response_future.poll_informational(cx)).await;
            let interim = interim.unwrap().unwrap();
            assert_eq!(interim.status(), status);
            assert_eq!(interim.headers()["of"], "app");
        }
        upload.send_data("ask".into(), true).unwrap();
        assert_eq!(read(seen.body_mut()).await.0, b"ask");
        complete((response_future, respond)).await;
    });
}

/// The server sends no 100, and responds before the body is complete.
#[test]
fn body_that_does_not_wait_for_a_100_is_forwarded() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let request = request_with("expect", "100-continue");
        let (response_future, mut upload) = client.send_request(request, false).unwrap();
        let (mut seen, mut respond) = called.recv().await.unwrap();
        upload.send_data("hel".into(), false).unwrap();
        let data = seen.body_mut().data().await.unwrap().unwrap();
        assert_eq!(data, "hel");
        let mut body = respond.send_response(response(), false).unwrap();
        let mut received = response_future.await.unwrap();
        upload.send_data("lo".into(), true).unwrap();
        assert_eq!(read(seen.body_mut()).await.0, b"lo");
        body.send_data("ok".into(), true).unwrap();
        assert_eq!(read(received.body_mut()).await.0, b"ok");
    });
}

/// The proxy does not wait for a body that the server does not want.
#[test]
fn rejected_expectation_resets_stream() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let request = request_with("expect", "100-continue");
        let (response_future, mut upload) = client.send_request(request, false).unwrap();
        let (mut seen, mut respond) = called.recv().await.unwrap();
        let refusal = http::Response::builder().status(417).body(()).unwrap();
        respond.send_response(refusal, true).unwrap();
        assert_eq!(response_future.await.unwrap().status(), 417);
        let reset = poll_fn(|cx| upload.poll_reset(cx)).await.unwrap();
        assert_eq!(reset, Reason::NO_ERROR);
        assert!(seen.body_mut().data().await.unwrap().is_err());
    });
}

/// Applies to bodies with a content-length. Bodies of unknown length may last indefinitely.
#[test]
fn stalled_request_body_times_out_with_408() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let (long_response, mut long_upload) = client.send_request(request(), false).unwrap();
        let (mut long_request, mut long_respond) = called.recv().await.unwrap();
        let request = request_with("content-length", "10");
        let (response_future, mut upload) = client.send_request(request, false).unwrap();
        upload.send_data("hello".into(), false).unwrap();
        let (mut seen, _respond) = called.recv().await.unwrap();
        let data = seen.body_mut().data().await.unwrap().unwrap();
        assert_eq!(data, "hello");
        // The paused clock advances when all tasks wait.
        tokio::time::pause();
        assert_eq!(response_future.await.unwrap().status(), 408);
        assert!(seen.body_mut().data().await.unwrap().is_err());
        tokio::time::resume();
        long_upload.send_data("more".into(), true).unwrap();
        assert_eq!(read(long_request.body_mut()).await.0, b"more");
        long_respond.send_response(response(), true).unwrap();
        assert_eq!(long_response.await.unwrap().status(), 200);
    });
}
