//! Clients that send only line ends, before they are authorized: the connection ends after a
//! limited number of bytes, and other clients of the same data thread are served meanwhile
//! (docs/adr/0160).

use mesh_runtime::admin::{Admin, Readiness};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::{spawn_local, yield_now};

use super::app::{App, expect, send};
use super::world::{Proxy, WEB, World, run};

const LIVE: &str = "GET /live HTTP/1.1\r\nhost: web\r\n\r\n";

/// More than the socket buffers of both ends take, and than a server discards of a refused request.
const FLOOD: usize = 64 << 20;

/// Sends line ends until the connection is closed. Returns how many bytes were accepted.
async fn flood(mut client: TcpStream) -> usize {
    let line_ends = b"\r\n".repeat(4096);
    let mut accepted = 0;
    while accepted < FLOOD {
        match client.write(&line_ends).await {
            Ok(written) => accepted += written,
            Err(_closed) => break,
        }
        yield_now().await;
    }
    accepted
}

async fn admin(proxy: &Proxy) -> std::net::SocketAddr {
    let admin = Admin::new(proxy.registry.clone(), Readiness::new());
    proxy.admin(admin).await
}

#[test]
fn admin_client_that_sends_only_line_ends_is_closed_and_delays_no_other() {
    run(async || {
        let world = World::new().await;
        let proxy = world.proxy(WEB);
        let addr = admin(&proxy).await;
        let flooding = spawn_local(flood(TcpStream::connect(addr).await.unwrap()));
        let mut other = TcpStream::connect(addr).await.unwrap();
        for _ in 0..3 {
            send(&mut other, LIVE).await;
            expect(&mut other, 200).await;
        }
        let accepted = flooding.await.unwrap();
        assert!(accepted < FLOOD, "{accepted} bytes");
    });
}

#[test]
fn unauthorized_client_that_sends_only_line_ends_is_closed_and_delays_no_other() {
    run(async || {
        let world = World::new().await;
        let denied = ("INBOUND_DEFAULT_POLICY", Some("deny"));
        let proxy = world.proxy_with(WEB, &[denied]);
        let app = App::start().await;
        let flooding = spawn_local(flood(proxy.inbound(app.addr).await));
        let mut other = proxy.inbound(app.addr).await;
        for _ in 0..3 {
            send(&mut other, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
            expect(&mut other, 403).await;
        }
        let accepted = flooding.await.unwrap();
        assert!(accepted < FLOOD, "{accepted} bytes");
    });
}

/// The second request of a connection, which the HTTP/1 server reads without detection.
#[test]
fn empty_lines_before_a_request_are_skipped_up_to_the_limit() {
    run(async || {
        let world = World::new().await;
        let proxy = world.proxy(WEB);
        let addr = admin(&proxy).await;
        for (lines, status) in [(0, 200), (1, 200), (10, 200), (11, 400)] {
            let mut client = TcpStream::connect(addr).await.unwrap();
            send(&mut client, LIVE).await;
            expect(&mut client, 200).await;
            for _ in 0..lines {
                send(&mut client, "\r\n").await;
                yield_now().await;
            }
            send(&mut client, LIVE).await;
            expect(&mut client, status).await;
        }
    });
}

#[test]
fn line_ends_of_the_application_are_not_held_back() {
    run(async || {
        let world = World::new().await;
        let proxy = world.proxy(WEB);
        let app = App::start().await;
        let mut client = proxy.outbound(app.addr).await;
        let line_ends = "\r\n".repeat(11);
        send(&mut client, &line_ends).await;
        let mut server = app.accept().await;
        let mut received = vec![0; line_ends.len()];
        server.read_exact(&mut received).await.unwrap();
        assert_eq!(received, line_ends.as_bytes());
    });
}
