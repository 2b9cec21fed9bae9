//! Connections that one peer ends: after a message with `connection: close`, or within a request.

use tokio::net::TcpSocket;

use super::*;

/// The server keeps its connection. A pipelined request is not processed.
#[test]
fn request_with_close_is_the_last_of_its_connection() {
    run_with_hops(async |hops, drain| {
        let (server, mut requests) = scripted(END, OK, false).await;
        let mut client = connect(hops, server, &drain).await;
        let closing = GET.replace(END, "\r\nconnection: close\r\n\r\n");
        send(&mut client, &format!("{closing}{GET}")).await;
        let response = read_to_close(&mut client).await;
        let expected = OK.replace(END, "\r\nconnection: close\r\n\r\n");
        assert_eq!(response, expected, "{hops} hops");
        assert_eq!(requests.recv().await.unwrap(), GET, "{hops} hops");
        assert!(requests.try_recv().is_err(), "{hops} hops");
    });
}

/// The server announces a close and leaves it to the proxy.
#[test]
fn connection_of_a_response_with_close_is_not_used_again() {
    run(async |drain| {
        let (mut client, listener) = setup(1, &drain).await;
        let mut server = begin(&mut client, &listener, GET).await;
        let last = OK.replace(END, "\r\nconnection: close\r\n\r\n");
        send(&mut server, &last).await;
        assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
        let mut next = begin(&mut client, &listener, GET).await;
        assert_eq!(read_to_close(&mut server).await, "");
        send(&mut next, OK).await;
        assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
    });
}

/// The server must not take the beginning of a request for all of it.
#[test]
fn incomplete_request_body_ends_without_its_end_at_the_server() {
    let length = "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 9\r\n\r\n";
    for (request, part) in [(length, "hello"), (CHUNKED, "5\r\nhello\r\n")] {
        run_with_hops(async |hops, drain| {
            let (mut client, listener) = setup(hops, &drain).await;
            send(&mut client, request).await;
            send(&mut client, part).await;
            let mut server = accept(&listener).await;
            read_until(&mut server, "hello").await.unwrap();
            drop(client);
            let rest = read_to_close(&mut server).await;
            assert_eq!(rest.trim_end(), "", "{hops} hops: {request:?}");
        });
    }
}

/// The next request may arrive after the proxy has decided to close.
#[test]
fn response_of_a_proxy_that_drains_is_not_cut_by_the_next_request() {
    const BODY: usize = 1 << 20;
    const REST: usize = 80 * 1024;
    let (drain, watch) = drain::channel();
    let test = async move {
        let (listener, server) = listen().await;
        let proxy = hop(server, Role::Only, Protocol::Http1, &watch).await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(32 * 1024).unwrap();
        let mut client = socket.connect(proxy).await.unwrap();
        send(&mut client, GET).await;
        let mut server = accept(&listener).await;
        read_until(&mut server, END).await;
        tokio::task::spawn_local(drain.drain(Duration::from_secs(60)));
        let serve = async move {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY}\r\n\r\n");
            send(&mut server, &head).await;
            server.write_all(&vec![b'x'; BODY]).await.unwrap();
            server
        };
        let _server = tokio::task::spawn_local(serve);
        let head = read_until(&mut client, END).await.unwrap();
        assert!(head.contains("connection: close"), "{head}");
        let mut buffer = vec![0; BODY - REST];
        client.read_exact(&mut buffer).await.unwrap();
        // The proxy has written the rest.
        send(&mut client, GET).await;
        client.read_exact(&mut buffer[..REST]).await.unwrap();
        assert_eq!(client.read(&mut buffer).await.unwrap(), 0);
    };
    run_local(test);
}
