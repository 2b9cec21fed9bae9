//! Limits of the admin interface.

use mesh_runtime::admin::{Admin, Readiness};
use tokio::net::{TcpSocket, TcpStream};

use super::app::{expect, head, rest, send};
use super::world::{Proxy, WEB, World, run};
use crate::admin::MAX_CONNECTIONS;

const LIVE: &str = "GET /live HTTP/1.1\r\nhost: web\r\n\r\n";
const METRICS: &str = "GET /metrics HTTP/1.1\r\nhost: web\r\n\r\n";

fn admin(proxy: &Proxy) -> Admin {
    Admin::new(proxy.registry.clone(), Readiness::new())
}

#[test]
fn newest_connection_replaces_oldest_at_limit() {
    run(async || {
        let world = World::new().await;
        let proxy = world.proxy(WEB);
        let addr = proxy.admin(admin(&proxy)).await;
        let mut held = Vec::new();
        for _ in 0..MAX_CONNECTIONS + 2 {
            let mut client = TcpStream::connect(addr).await.unwrap();
            send(&mut client, LIVE).await;
            expect(&mut client, 200).await;
            held.push(client);
        }
        for client in &mut held[..2] {
            assert_eq!(rest(client).await, "");
        }
        for client in &mut held[2..] {
            send(client, LIVE).await;
            expect(client, 200).await;
        }
        let closed = proxy.metric(
            "mesh_proxy_refused_total{direction=\"inbound\",protocol=\"tcp\",reason=\"admin_connections\"",
        );
        assert_eq!(closed, 2);
    });
}

#[test]
fn only_probes_are_served_while_memory_is_short() {
    run(async || {
        let world = World::new().await;
        // Less than the test itself uses.
        let little = ("MESH_PROXY_MAX_MEMORY", Some("8388608"));
        let proxy = world.proxy_with(WEB, &[little]);
        let addr = proxy.admin(admin(&proxy)).await;
        let mut client = TcpStream::connect(addr).await.unwrap();
        send(&mut client, METRICS).await;
        expect(&mut client, 503).await;
        send(&mut client, LIVE).await;
        expect(&mut client, 200).await;
    });
}

/// `kubectl port-forward` connects from loopback, to read the memory metrics.
#[test]
fn loopback_client_is_served_while_memory_is_short() {
    run(async || {
        let world = World::new().await;
        let little = ("MESH_PROXY_MAX_MEMORY", Some("8388608"));
        let proxy = world.proxy_with(WEB, &[little]);
        let addr = proxy.admin(admin(&proxy)).await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let mut client = socket.connect(addr).await.unwrap();
        send(&mut client, METRICS).await;
        let answer = head(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    });
}
