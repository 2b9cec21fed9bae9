//! Graceful shutdown of a proxy.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::spawn_local;
use tokio::time::advance;

use super::app::{App, Client, Speaks, ask, get, http2, read, respond, rest, streams};
use super::world::{CLIENT, World, run};

#[test]
fn shutdown_closes_idle_http1_connections() {
    run(async || {
        let world = World::new().await;
        let app = App::start().await.named("web");
        let proxy = world.proxy(CLIENT);
        let mut client = Client::new(proxy.outbound(app).await, Speaks::Http1).await;
        client.get().await;
        let drained = proxy.drain();
        let Client::Http1(mut tcp, _) = client else {
            unreachable!();
        };
        assert_eq!(rest(&mut tcp).await, "");
        drained.await;
    });
}

#[test]
fn shutdown_sends_goaway_and_completes_open_streams() {
    run(async || {
        let world = World::new().await;
        let app = App::start().await;
        let proxy = world.proxy(CLIENT);
        let mut client = http2(proxy.outbound(app.addr).await).await;
        let asking = ask(&mut client, get());
        let mut calls = streams(app.accept().await).await;
        let (_, answer) = calls.recv().await.unwrap();
        let mut body = respond(answer);
        body.send_data("begun, ".into(), false).unwrap();
        let mut response = asking.await.unwrap().unwrap().into_body();

        let drained = spawn_local(proxy.drain());
        // The client opens no more streams after GOAWAY.
        while client.clone().ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(!drained.is_finished());
        body.send_data("finished".into(), true).unwrap();
        assert_eq!(read(&mut response).await, "begun, finished");
        drained.await.unwrap();
    });
}

#[test]
fn shutdown_waits_for_tunnels() {
    run(async || {
        let world = World::new().await;
        let app = App::start().await;
        let (_web, addr) = world.meshed(app.addr).await;
        let proxy = world.proxy(CLIENT);
        let mut client = proxy.outbound(addr).await;
        client.write_all(b"\0hello").await.unwrap();
        let mut app = app.accept().await;
        let mut hello = [0; 6];
        app.read_exact(&mut hello).await.unwrap();
        let drained = spawn_local(proxy.drain());
        advance(Duration::from_secs(60)).await;
        app.write_all(b"still there").await.unwrap();
        let mut answer = [0; 11];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"still there");
        assert!(!drained.is_finished());
        drop((client, app));
        drained.await.unwrap();
    });
}
