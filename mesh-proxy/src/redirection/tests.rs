//! The check against listeners that stand in for what is, or is not, behind the check address: to
//! the check it is the address that matters, and the kernel's answer about the original destination
//! is what `tests/it/redirection.rs` is about.

use std::sync::Arc;

use mesh_runtime::admin::Readiness;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::*;
use crate::tls::Credentials;
use crate::tls::tests::TestCa;

struct Running {
    witness: Witness,
    readiness: Readiness,
    registry: Registry,
    publish: watch::Sender<Option<Arc<Credentials>>>,
}

fn start(addr: SocketAddr) -> Running {
    let readiness = Readiness::new();
    let registry = Registry::new();
    let (check, witness) = new(addr, readiness.condition(CONDITION), &registry);
    let (publish, credentials) = watch::channel(None);
    tokio::spawn(check.run(credentials));
    Running {
        witness,
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

    fn verified(&self) -> bool {
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
    AcceptedConnection {
        tcp,
        peer,
        local,
        original_dst,
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

#[tokio::test]
async fn ready_with_the_first_own_connection_that_arrives() {
    let (listener, addr) = listen().await;
    let running = start(addr);
    running.certify();
    // An application that goes there proves nothing of this proxy's own connections, and is no
    // traffic either.
    let stranger = TcpStream::connect(addr).await.unwrap();
    let first = accept(&listener, addr).await;
    let second = accept(&listener, addr).await;
    let (strange, own) = match first.peer == stranger.local_addr().unwrap() {
        true => (first, second),
        false => (second, first),
    };
    assert!(running.witness.recognises(&strange));
    // The next question shows that the stranger was looked at and did not count.
    let next = accept(&listener, addr).await;
    assert_eq!(running.readiness.missing(), [CONDITION]);
    assert!(!running.verified());
    // An arrival is recognised even when the next question has been asked already.
    assert!(running.witness.recognises(&own));
    while !running.readiness.is_ready() {
        tokio::task::yield_now().await;
    }
    assert!(running.verified());
    // From then on such connections are still nobody's traffic.
    assert!(running.witness.recognises(&next));
    assert!(running.witness.recognises(&strange));
}

#[tokio::test]
async fn other_destinations_are_traffic() {
    let (listener, addr) = listen().await;
    let running = start(addr);
    let _client = TcpStream::connect(addr).await.unwrap();
    let mut other = addr;
    other.set_port(addr.port() ^ 1);
    let accepted = accept(&listener, other).await;
    assert!(!running.witness.recognises(&accepted));
}

#[tokio::test]
async fn nothing_is_asked_before_there_is_a_certificate() {
    let (listener, addr) = listen().await;
    let running = start(addr);
    let client = TcpStream::connect(addr).await.unwrap();
    let first = accept(&listener, addr).await;
    assert_eq!(first.peer, client.local_addr().unwrap());
    running.certify();
    let second = accept(&listener, addr).await;
    assert!(running.witness.recognises(&second));
    while !running.readiness.is_ready() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_question_that_somebody_else_accepts_is_asked_again() {
    let (listener, addr) = listen().await;
    let running = start(addr);
    running.certify();
    for _ in 0..3 {
        listener.accept().await.unwrap();
    }
    assert!(!running.readiness.is_ready() && !running.verified());
}
