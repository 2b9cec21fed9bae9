//! The probe with ordinary listeners at the check address. `tests/it/redirection.rs` covers the
//! kernel's redirection.

use std::sync::Arc;

use mesh_runtime::admin::Readiness;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::tls::Credentials;
use crate::tls::tests::TestCa;
use crate::watch;

struct Running {
    probe_listener: ProbeListener,
    readiness: Readiness,
    registry: Registry,
    publish: watch::Sender<Option<Arc<Credentials>>>,
}

fn start(addr: SocketAddr) -> Running {
    let readiness = Readiness::new();
    let registry = Registry::new();
    let (probe, probe_listener) = new(addr, readiness.condition(CONDITION), &registry);
    let (publish, credentials) = watch::channel(None);
    tokio::spawn(probe.run(credentials));
    Running {
        probe_listener,
        readiness,
        registry,
        publish,
    }
}

impl Running {
    fn certify(&self) {
        let own = TestCa::new().credentials("web.test");
        self.publish.send_replace(Some(own));
    }

    fn is_verified(&self) -> bool {
        let text = String::from_utf8(self.registry.encode()).unwrap();
        match text.lines().find(|line| line.starts_with("mesh_proxy_")) {
            Some("mesh_proxy_redirection_verified 1") => true,
            Some("mesh_proxy_redirection_verified 0") => false,
            other => panic!("{other:?}"),
        }
    }
}

async fn accept(listener: &TcpListener, original_dst: SocketAddr) -> AcceptedConnection {
    let (tcp, peer) = listener.accept().await.unwrap();
    let local = tcp.local_addr().unwrap();
    AcceptedConnection::new(tcp, peer, local, original_dst)
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

#[tokio::test]
async fn proxy_is_ready_when_its_first_connection_arrives() {
    let (listener, addr) = listen().await;
    let running = start(addr);
    running.certify();
    // An application's connection to the address is not forwarded and verifies nothing.
    let application = TcpStream::connect(addr).await.unwrap();
    let first = accept(&listener, addr).await;
    let second = accept(&listener, addr).await;
    let (other, own) = if first.peer == application.local_addr().unwrap() {
        (first, second)
    } else {
        (second, first)
    };
    assert!(running.probe_listener.is_probe(&other));
    // The probe connects again, so it has ignored the application's connection.
    let next = accept(&listener, addr).await;
    assert_eq!(running.readiness.missing(), [CONDITION]);
    assert!(!running.is_verified());
    // An arrival counts even when the probe has connected again.
    assert!(running.probe_listener.is_probe(&own));
    while !running.readiness.is_ready() {
        tokio::task::yield_now().await;
    }
    assert!(running.is_verified());
    // Afterwards, connections to the address are still recognised.
    assert!(running.probe_listener.is_probe(&next));
    assert!(running.probe_listener.is_probe(&other));
}

#[tokio::test]
async fn connection_to_another_destination_is_not_a_probe() {
    let (listener, addr) = listen().await;
    let running = start(addr);
    let _client = TcpStream::connect(addr).await.unwrap();
    let mut other = addr;
    other.set_port(addr.port() ^ 1);
    let accepted = accept(&listener, other).await;
    assert!(!running.probe_listener.is_probe(&accepted));
}

#[tokio::test]
async fn probe_waits_for_the_first_certificate() {
    let (listener, addr) = listen().await;
    let running = start(addr);
    let client = TcpStream::connect(addr).await.unwrap();
    let first = accept(&listener, addr).await;
    assert_eq!(first.peer, client.local_addr().unwrap());
    running.certify();
    let second = accept(&listener, addr).await;
    assert!(running.probe_listener.is_probe(&second));
    while !running.readiness.is_ready() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn probe_accepted_by_another_process_is_repeated() {
    let (listener, addr) = listen().await;
    let running = start(addr);
    running.certify();
    for _ in 0..3 {
        listener.accept().await.unwrap();
    }
    assert!(!running.readiness.is_ready() && !running.is_verified());
}
