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

    /// Treats a connection as the data thread that accepted it does.
    fn report(&self, accepted: AcceptedConnection) {
        assert!(self.probe_listener.without_probe(accepted).is_none());
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
    running.report(other);
    // The probe connects again, so it has ignored the application's connection.
    let next = accept(&listener, addr).await;
    assert_eq!(running.readiness.missing(), [CONDITION]);
    assert!(!running.is_verified());
    // An arrival counts even when the probe has connected again.
    running.report(own);
    while !running.readiness.is_ready() {
        tokio::task::yield_now().await;
    }
    assert!(running.is_verified());
    // Afterwards, connections to the address are still recognised.
    running.report(next);
}

/// A data thread may preempt the control thread between the system calls of the probe.
#[tokio::test]
async fn connection_that_is_closed_before_the_probe_continues_is_recognised() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let addr = listener.local_addr().unwrap();
    let running = start(addr);
    running.certify();
    // Accepts without waiting for the runtime's driver, which would resume the probe, too.
    let (tcp, peer) = loop {
        match listener.accept() {
            Ok(accepted) => break accepted,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        tokio::task::yield_now().await;
    };
    tcp.set_nonblocking(true).unwrap();
    let tcp = TcpStream::from_std(tcp).unwrap();
    running.report(AcceptedConnection::new(tcp, peer, addr, addr));
    while !running.readiness.is_ready() {
        let next = listener.accept().map(drop).map_err(|error| error.kind());
        assert_eq!(
            next,
            Err(io::ErrorKind::WouldBlock),
            "the probe connected again"
        );
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn connection_to_another_destination_is_not_a_probe() {
    let (listener, addr) = listen().await;
    let running = start(addr);
    let _client = TcpStream::connect(addr).await.unwrap();
    let mut other = addr;
    other.set_port(addr.port() ^ 1);
    let accepted = accept(&listener, other).await;
    let accepted = running.probe_listener.without_probe(accepted);
    assert_eq!(accepted.map(|accepted| accepted.original_dst), Some(other));
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
    running.report(second);
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
