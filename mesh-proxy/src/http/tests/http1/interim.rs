//! Interim responses, and bodies that clients announce: they may wait for the one before they send
//! the other.

use super::*;

const EXPECTING: &str =
    "POST / HTTP/1.1\r\nhost: web\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";

#[tokio::test]
async fn an_expected_100_is_the_servers() {
    run(async |drain| {
        let (mut client, listener) = setup(1, &drain).await;
        for _ in 0..2 {
            send(&mut client, EXPECTING).await;
            let mut server = accept(&listener).await;
            assert_eq!(read_until(&mut server, END).await.unwrap(), EXPECTING);
            send(&mut server, "HTTP/1.1 100 Continue\r\nx: 1\r\n\r\n").await;
            let interim = read_until(&mut client, END).await.unwrap();
            assert_eq!(interim, "HTTP/1.1 100 Continue\r\nx: 1\r\n\r\n");
            send(&mut client, "hello").await;
            assert_eq!(read_until(&mut server, "hello").await.unwrap(), "hello");
            send(
                &mut server,
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
            )
            .await;
            assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
        }
    })
    .await;
}

/// Over HTTP/2 there is no waiting for the far server: the client is told to go on when its body is
/// wanted.
#[tokio::test]
async fn an_expected_100_comes_from_the_proxy_when_the_server_is_far() {
    run(async |drain| {
        let (mut client, listener) = setup(2, &drain).await;
        send(&mut client, EXPECTING).await;
        let interim = read_until(&mut client, END).await.unwrap();
        assert_eq!(interim, "HTTP/1.1 100 Continue\r\n\r\n");
        send(&mut client, "hello").await;
        let mut server = accept(&listener).await;
        read_until(&mut server, "hello").await.unwrap();
        // It is told so once.
        send(&mut server, "HTTP/1.1 100 Continue\r\n\r\n").await;
        send(&mut server, OK).await;
        assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
    })
    .await;
}

/// Nobody knows whether the body will come after that, so nothing else can.
#[tokio::test]
async fn a_refused_expectation_closes_the_connection() {
    run(async |drain| {
        let (mut client, listener) = setup(1, &drain).await;
        send(&mut client, EXPECTING).await;
        let mut server = accept(&listener).await;
        read_until(&mut server, END).await.unwrap();
        send(
            &mut server,
            "HTTP/1.1 417 Expectation Failed\r\ncontent-length: 0\r\n\r\n",
        )
        .await;
        let answer = rest(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 417 "), "{answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    })
    .await;
}

#[tokio::test]
async fn interim_responses_are_passed_on() {
    for hops in [1, 2] {
        run(async |drain| {
            let (mut client, listener) = setup(hops, &drain).await;
            send(&mut client, GET).await;
            let mut server = accept(&listener).await;
            read_until(&mut server, END).await.unwrap();
            for hints in [
                "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
                "HTTP/1.1 103 Early Hints\r\nlink: </b>\r\nlink: </c>\r\n\r\n",
            ] {
                send(&mut server, hints).await;
                assert_eq!(read_until(&mut client, END).await.unwrap(), hints);
            }
            send(&mut server, OK).await;
            assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
        })
        .await;
    }
}

/// The client has announced more than it sends, and holds a connection to the server with it.
#[tokio::test]
async fn a_body_that_does_not_come_is_given_up() {
    for hops in [1, 2] {
        run(async |drain| {
            let (mut client, listener) = setup(hops, &drain).await;
            send(
                &mut client,
                "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 10\r\n\r\nhello",
            )
            .await;
            let mut server = accept(&listener).await;
            read_until(&mut server, "hello").await.unwrap();
            // From here on time passes as soon as everybody waits.
            tokio::time::pause();
            let answer = rest(&mut client).await;
            assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
            rest(&mut server).await;
            tokio::time::resume();
        })
        .await;
    }
}
