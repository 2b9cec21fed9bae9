//! Responses that their clients do not read.

use std::cell::Cell;
use std::fs;

use super::*;
use crate::http::http2::READ_AHEAD_BYTES;

/// The proxy's limit for other clients than the own application and authenticated peers.
const STREAMS: usize = 200;

/// Bytes that the first windows of this number of responses and the budget of their connection
/// hold.
const HELD: u64 = STREAMS as u64 * 16 * 1024 + READ_AHEAD_BYTES as u64;

/// What a client receives without reading: its connection's window.
const RECEIVED: u64 = 65_535;

/// Starts a server that sends endless responses, and counts their bytes.
async fn endless_server() -> (SocketAddr, Rc<Cell<u64>>) {
    let sent = Rc::new(Cell::new(0));
    let (addr, mut called) = server(1000).await;
    let count = sent.clone();
    tokio::task::spawn_local(async move {
        while let Some((_, mut respond)) = called.recv().await {
            let mut body = respond.send_response(response(), false).unwrap();
            let count = count.clone();
            tokio::task::spawn_local(async move {
                body.reserve_capacity(1 << 20);
                while let Some(Ok(capacity)) = poll_fn(|cx| body.poll_capacity(cx)).await {
                    let data = vec![b'x'; capacity].into();
                    if body.send_data(data, false).is_err() {
                        return;
                    }
                    count.set(count.get() + capacity as u64);
                    body.reserve_capacity(1 << 20);
                }
            });
        }
    });
    (addr, sent)
}

/// Sends the request on all streams that the proxy allows, and returns them when all have a
/// response.
async fn open_unread(
    proxy: SocketAddr,
    request: http::Request<()>,
) -> Vec<http::Response<RecvStream>> {
    let mut client = client(proxy).await;
    let mut responses = Vec::new();
    for _ in 0..STREAMS {
        client = client.ready().await.unwrap();
        let sent = client.send_request(request.clone(), true);
        responses.push(sent.unwrap().0);
    }
    futures_util::future::try_join_all(responses).await.unwrap()
}

#[test]
fn unread_responses_of_sixteen_clients_occupy_their_first_windows_and_budgets() {
    const CLIENTS: u64 = 16;
    run(async |drain| {
        let (server, sent) = endless_server().await;
        let proxy = hop(server, Role::Only, Protocol::Http2, &drain).await;
        let mut unread = Vec::new();
        for _ in 0..CLIENTS {
            unread.push(open_unread(proxy, request()).await);
        }
        while sent.get() < CLIENTS * HELD {
            tokio::task::yield_now().await;
        }
        // The bytes granted meanwhile are used before further requests have completed.
        unread.push(open_unread(proxy, request()).await);
        let most = (CLIENTS + 1) * (HELD + RECEIVED);
        assert!(sent.get() <= most, "{} of {most}", sent.get());
    });
}

/// The bytes of a response's body, which the kernel takes from the server at once.
const BODY: u64 = 128 * 1024;

/// Starts a server that begins responses over HTTP/1, sends [`BODY`] of each when `are_due` says
/// so, and counts the bytes.
async fn http1_server(are_due: watch::Receiver<bool>) -> (SocketAddr, Rc<Cell<u64>>) {
    let sent = Rc::new(Cell::new(0));
    let (listener, addr) = listen().await;
    let count = sent.clone();
    tokio::task::spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let (count, mut are_due) = (count.clone(), are_due.clone());
            tokio::task::spawn_local(async move {
                let mut request = [0; 1024];
                let _request = tcp.read(&mut request).await;
                tcp.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                are_due.wait_for(|are_due| *are_due).await.unwrap();
                tcp.write_all(&[b'x'; BODY as usize]).await.unwrap();
                count.set(count.get() + BODY);
                let _closed = tcp.read(&mut request).await;
            });
        }
    });
    (addr, sent)
}

/// How many bytes of the server at `addr` are not acknowledged, and how many of those that have
/// arrived are not read, as of `/proc/net/tcp`.
fn queued(addr: SocketAddr) -> (u64, u64) {
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{:04X}", addr.port());
    let hex = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
    let (mut unacknowledged, mut unread) = (0, 0);
    for line in sockets.lines().skip(1) {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, local, remote, _, queues, ..] = columns[..] else {
            panic!("{line}");
        };
        let (sending, receiving) = queues.split_once(':').unwrap();
        if local.ends_with(&port) {
            unacknowledged += hex(sending);
        } else if remote.ends_with(&port) {
            unread += hex(receiving);
        }
    }
    (unacknowledged, unread)
}

#[test]
fn unread_responses_of_an_http1_application_occupy_their_first_reads_and_the_budget() {
    run(async |drain| {
        let (bodies, are_due) = watch::channel(false);
        let (server, sent) = http1_server(are_due).await;
        let proxy = hop(server, Role::Second, Protocol::Http2, &drain).await;
        let mut carried = request();
        let protocol = HeaderValue::from_static("HTTP/1.1");
        carried.headers_mut().insert("l5d-orig-proto", protocol);
        let _unread = open_unread(proxy, carried).await;
        bodies.send_replace(true);
        let all = STREAMS as u64 * BODY;
        let (mut turns, mut before) = (0, 0);
        let taken = loop {
            tokio::task::yield_now().await;
            let (unacknowledged, unread) = queued(server);
            let is_changed = sent.get() < all || unacknowledged > 0 || unread != before;
            turns = if is_changed { 0 } else { turns + 1 };
            before = unread;
            if turns == 100 {
                break all - unread;
            }
        };
        let least = STREAMS as u64 * 16 * 1024;
        assert!((least..=HELD + RECEIVED).contains(&taken), "{taken}");
    });
}

#[test]
fn budget_is_returned_when_unread_responses_are_dropped() {
    run(async |drain| {
        let (server, sent) = endless_server().await;
        let proxy = hop(server, Role::Only, Protocol::Http2, &drain).await;
        let mut client = client(proxy).await;
        let mut before = 0;
        for _ in 0..3 {
            let mut responses = Vec::new();
            for _ in 0..STREAMS {
                client = client.ready().await.unwrap();
                responses.push(client.send_request(request(), true).unwrap().0);
            }
            let unread = futures_util::future::try_join_all(responses).await.unwrap();
            while sent.get() < before + HELD {
                tokio::task::yield_now().await;
            }
            drop(unread);
            before = sent.get();
        }
    });
}

/// The window is what the server may send before the proxy has received the header section.
#[test]
fn window_is_widened_with_the_request_after_a_long_response() {
    const FIRST: usize = 16 * 1024;
    const GRANTED: usize = 64 * 1024;
    const LONG: usize = 60 * 1024;
    run(async |drain| {
        let (mut client, mut called) = setup(10, &drain).await;
        for (length, expected) in [(LONG, FIRST), (LONG, GRANTED), (9, GRANTED), (9, FIRST)] {
            let (response_future, mut respond) = open(&mut client, &mut called).await;
            let mut head = response();
            head.headers_mut().insert("content-length", length.into());
            let mut body = respond.send_response(head, false).unwrap();
            body.reserve_capacity(1 << 20);
            assert_eq!(body.capacity(), expected, "{length}");
            body.send_data(vec![b'x'; length].into(), true).unwrap();
            let mut received = response_future.await.unwrap().into_body();
            let mut missing = length;
            while missing > 0 {
                let data = received.data().await.unwrap().unwrap();
                let released = received.flow_control().release_capacity(data.len());
                released.unwrap();
                missing -= data.len();
            }
        }
    });
}
