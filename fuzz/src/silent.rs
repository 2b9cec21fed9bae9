//! What a connection holds whose client never sends a byte.

use std::net::TcpListener as StdListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::rc::Rc;

use mesh_proxy::inbound::Inbound;
use mesh_proxy::transport::listen::AcceptedConnection;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{spawn_local, yield_now};

use crate::{memory, world};

/// Few enough for the usual limit of descriptors, of which each connection takes four.
const CONNECTIONS: usize = 100;

/// Turns of the runtime after which every task has run.
const TURNS: usize = 100;

/// Heap bytes of one inbound connection on whose port the protocol is detected, before its client
/// has sent a byte and after the application was connected to, which may have to speak first.
pub fn silent_connection() -> usize {
    world::run(async {
        let inbound = world::inbound();
        let listener = StdListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let listener = TcpListener::from_std(listener).expect("a runtime");
        // What all connections share is made by the first.
        let _first = open(&inbound, &listener, 1).await;
        let before = memory::start();
        let _others = open(&inbound, &listener, CONNECTIONS).await;
        (memory::start() - before) / CONNECTIONS
    })
}

/// Opens connections and waits until each is connected to the application. Returns the ends of the
/// clients and of the application, which keep them open and hold no heap memory.
async fn open(
    inbound: &Rc<Inbound>,
    listener: &TcpListener,
    count: usize,
) -> (Vec<OwnedFd>, Vec<OwnedFd>) {
    let target = listener.local_addr().expect("a socket");
    let mut clients = Vec::new();
    for _ in 0..count {
        let (proxy, client) = StdUnixStream::pair().expect("descriptors");
        proxy.set_nonblocking(true).expect("a socket");
        let tcp = TcpStream::from_std(OwnedFd::from(proxy).into()).expect("a runtime");
        clients.push(OwnedFd::from(client));
        drop(spawn_local(inbound.clone().serve(AcceptedConnection {
            tcp,
            peer: ([192, 0, 2, 7], 40_000).into(),
            local: target,
            original_dst: target,
        })));
    }
    let mut applications = Vec::new();
    for _ in 0..count {
        let (tcp, _proxy) = listener.accept().await.expect("a connection");
        applications.push(OwnedFd::from(tcp.into_std().expect("a socket")));
    }
    for _ in 0..TURNS {
        yield_now().await;
    }
    (clients, applications)
}
