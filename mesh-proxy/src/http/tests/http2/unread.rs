//! Responses that their clients do not read.

use std::cell::Cell;

use super::*;
use crate::http::http2::READ_AHEAD_BYTES;

/// The proxy's limit for other clients than the own application and authenticated peers.
const STREAMS: usize = 200;

/// Bytes that the first windows of so many responses and the budget of their connection hold.
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

/// Opens as many streams as the proxy allows, and returns them when all have a response.
async fn open_unread(proxy: SocketAddr) -> Vec<http::Response<RecvStream>> {
    let mut client = client(proxy).await;
    let mut responses = Vec::new();
    for _ in 0..STREAMS {
        client = client.ready().await.unwrap();
        responses.push(client.send_request(request(), true).unwrap().0);
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
            unread.push(open_unread(proxy).await);
        }
        while sent.get() < CLIENTS * HELD {
            tokio::task::yield_now().await;
        }
        // What was granted meanwhile is used before further requests have completed.
        unread.push(open_unread(proxy).await);
        let most = (CLIENTS + 1) * (HELD + RECEIVED);
        assert!(sent.get() <= most, "{} of {most}", sent.get());
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
