//! Interim responses, and bodies that clients announce: they may wait for the one before they send
//! the other.

use super::*;

#[tokio::test]
async fn interim_responses_are_passed_on() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let asked = request_with("expect", "100-continue");
        let (mut answer, mut upload) = client.send_request(asked, false).unwrap();
        let (mut seen, mut respond) = called.recv().await.unwrap();
        for status in [100, 103] {
            let interim = http::Response::builder().status(status).header("of", "app");
            respond
                .send_informational(interim.body(()).unwrap())
                .unwrap();
            let interim = poll_fn(|cx| answer.poll_informational(cx)).await;
            let interim = interim.unwrap().unwrap();
            assert_eq!(interim.status(), status);
            assert_eq!(interim.headers()["of"], "app");
        }
        upload.send_data("ask".into(), true).unwrap();
        assert_eq!(read(seen.body_mut()).await.0, b"ask");
        respond.send_response(response(), true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 200);
    })
    .await;
}

/// Nobody waits for a body that was not asked for.
#[tokio::test]
async fn a_refused_expectation_ends_the_stream() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let asked = request_with("expect", "100-continue");
        let (answer, mut upload) = client.send_request(asked, false).unwrap();
        let (mut seen, mut respond) = called.recv().await.unwrap();
        let refusal = http::Response::builder().status(417).body(()).unwrap();
        respond.send_response(refusal, true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 417);
        let reset = poll_fn(|cx| upload.poll_reset(cx)).await.unwrap();
        assert_eq!(reset, Reason::NO_ERROR);
        assert!(seen.body_mut().data().await.unwrap().is_err());
    })
    .await;
}

/// With a length that the client has announced. Streams whose length nobody knows are meant to
/// last.
#[tokio::test]
async fn a_body_that_does_not_come_is_given_up() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let (lasting, mut more) = client.send_request(request(), false).unwrap();
        let (mut heard, mut tell) = called.recv().await.unwrap();
        let asked = request_with("content-length", "10");
        let (answer, mut upload) = client.send_request(asked, false).unwrap();
        upload.send_data("hello".into(), false).unwrap();
        let (mut seen, _respond) = called.recv().await.unwrap();
        assert_eq!(
            &seen.body_mut().data().await.unwrap().unwrap()[..],
            b"hello"
        );
        // From here on time passes as soon as everybody waits.
        tokio::time::pause();
        assert_eq!(answer.await.unwrap().status(), 408);
        assert!(seen.body_mut().data().await.unwrap().is_err());
        tokio::time::resume();
        more.send_data("more".into(), true).unwrap();
        assert_eq!(read(heard.body_mut()).await.0, b"more");
        tell.send_response(response(), true).unwrap();
        assert_eq!(lasting.await.unwrap().status(), 200);
    })
    .await;
}
