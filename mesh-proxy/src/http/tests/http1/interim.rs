//! Interim responses, and clients that wait for a 100 before they send the body.

use super::*;

const EXPECTING: &str =
    "POST / HTTP/1.1\r\nhost: web\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";

#[test]
fn expected_100_is_forwarded_from_server() {
    run_with_hops(async |hops, drain| {
        let (mut client, listener) = setup(hops, &drain).await;
        for _ in 0..2 {
            send(&mut client, EXPECTING).await;
            let mut server = accept(&listener).await;
            assert_eq!(read_until(&mut server, END).await.unwrap(), EXPECTING);
            send(&mut server, "HTTP/1.1 100 Continue\r\nx: 1\r\n\r\n").await;
            let interim = read_until(&mut client, END).await.unwrap();
            assert_eq!(interim, "HTTP/1.1 100 Continue\r\nx: 1\r\n\r\n");
            send(&mut client, "hello").await;
            assert_eq!(read_until(&mut server, "hello").await.unwrap(), "hello");
            let last = OK.replace("content", "connection: close\r\ncontent");
            send(&mut server, &last).await;
            assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
        }
    });
}

#[test]
fn unexpected_100_is_forwarded() {
    run_with_hops(async |hops, drain| {
        let (mut client, listener) = setup(hops, &drain).await;
        let mut server = begin(&mut client, &listener, GET).await;
        let interim = "HTTP/1.1 100 Continue\r\n\r\n";
        send(&mut server, interim).await;
        assert_eq!(read_until(&mut client, END).await.unwrap(), interim);
        send(&mut server, OK).await;
        assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
    });
}

/// As of a client that waits for a limited time only, and of a server that sends no 100.
#[test]
fn body_that_does_not_wait_for_a_100_is_forwarded() {
    run_with_hops(async |hops, drain| {
        let (mut client, listener) = setup(hops, &drain).await;
        let mut server = begin(&mut client, &listener, EXPECTING).await;
        send(&mut client, "hel").await;
        read_until(&mut server, "hel").await.unwrap();
        // The response begins before the body is complete.
        let (head, body) = OK.split_at(OK.len() - 2);
        send(&mut server, head).await;
        assert_eq!(read_until(&mut client, END).await.unwrap(), head);
        send(&mut client, "lo").await;
        assert_eq!(read_until(&mut server, "lo").await.unwrap(), "lo");
        send(&mut server, body).await;
        assert_eq!(read_until(&mut client, body).await.unwrap(), body);
        // Both connections are kept.
        send(&mut client, GET).await;
        assert_eq!(read_until(&mut server, END).await.unwrap(), GET);
    });
}

/// It is unknown whether the client will send the body, so the connection cannot be kept.
#[test]
fn rejected_expectation_closes_connection() {
    run_with_hops(async |hops, drain| {
        let (mut client, listener) = setup(hops, &drain).await;
        let mut server = begin(&mut client, &listener, EXPECTING).await;
        let refusal = "HTTP/1.1 417 Expectation Failed\r\ncontent-length: 0\r\n\r\n";
        send(&mut server, refusal).await;
        let response = read_to_close(&mut client).await;
        assert!(response.starts_with("HTTP/1.1 417 "), "{response}");
        assert!(response.contains("connection: close\r\n"), "{response}");
    });
}

#[test]
fn interim_responses_are_forwarded() {
    run_with_hops(async |hops, drain| {
        let (mut client, listener) = setup(hops, &drain).await;
        let mut server = begin(&mut client, &listener, GET).await;
        for hints in [
            "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
            "HTTP/1.1 103 Early Hints\r\nlink: </b>\r\nlink: </c>\r\n\r\n",
        ] {
            send(&mut server, hints).await;
            assert_eq!(read_until(&mut client, END).await.unwrap(), hints);
        }
        send(&mut server, OK).await;
        assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
    });
}

#[test]
fn http10_client_gets_no_interim_response() {
    run_with_hops(async |hops, drain| {
        let (mut client, listener) = setup(hops, &drain).await;
        let mut server = begin(&mut client, &listener, HTTP10).await;
        send(
            &mut server,
            "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
        )
        .await;
        send(&mut server, OK).await;
        let response = read_until(&mut client, "ok").await.unwrap();
        assert!(
            response.starts_with("HTTP/1.0 200 "),
            "{hops} hops: {response}"
        );
    });
}

/// Such clients do not wait. The connection stays open, because the body follows.
#[test]
fn expectation_of_http10_or_without_a_body_is_ignored() {
    for (request, body, version) in [
        (
            "POST / HTTP/1.0\r\nconnection: keep-alive\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n",
            "hello",
            "HTTP/1.0",
        ),
        (
            "GET / HTTP/1.1\r\nhost: web\r\nexpect: 100-continue\r\n\r\n",
            "",
            "HTTP/1.1",
        ),
    ] {
        run_with_hops(async |hops, drain| {
            let (mut client, listener) = setup(hops, &drain).await;
            let mut server = begin(&mut client, &listener, request).await;
            send(&mut client, body).await;
            send(&mut server, OK).await;
            let response = read_until(&mut client, "ok").await.unwrap();
            let line = format!("{version} 200 OK\r\n");
            assert!(response.starts_with(&line), "{hops} hops: {response}");
            assert!(!response.contains("close"), "{hops} hops: {response}");
        });
    }
}

/// The client sends less than the declared body, which occupies a connection to the server.
#[test]
fn stalled_request_body_times_out_with_408() {
    run_with_hops(async |hops, drain| {
        let (mut client, listener) = setup(hops, &drain).await;
        let partial = "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 10\r\n\r\nhello";
        send(&mut client, partial).await;
        let mut server = accept(&listener).await;
        read_until(&mut server, "hello").await.unwrap();
        // The paused clock advances when all tasks wait.
        tokio::time::pause();
        let response = read_to_close(&mut client).await;
        assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
        read_to_close(&mut server).await;
        tokio::time::resume();
    });
}
