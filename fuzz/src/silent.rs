//! The memory of connections whose clients never send a byte.

use std::net::TcpListener as StdListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::rc::Rc;

use mesh_proxy::fuzzing::{AcceptedConnection, Inbound};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{spawn_local, yield_now};

use crate::{memory, test_env};

/// Each connection takes four file descriptors. The usual limit is 1024.
const CONNECTIONS: usize = 100;

/// After this number of iterations of the runtime, every task has run.
const TURNS: usize = 100;

/// Returns the heap bytes of an inbound connection on a port with protocol detection. Its client
/// has not sent a byte, and the proxy has connected to the application in case its protocol is
/// server-first.
pub fn silent_connection() -> usize {
    test_env::run(async {
        let inbound = test_env::inbound();
        let listener = StdListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let listener = TcpListener::from_std(listener).expect("a runtime");
        // The first connection allocates the memory that all of them share.
        let _first = open(&inbound, &listener, 1).await;
        let before = memory::start();
        let _others = open(&inbound, &listener, CONNECTIONS).await;
        (memory::start() - before) / CONNECTIONS
    })
}

/// Opens connections and waits until each is connected to the application. Returns the sockets of
/// the clients and of the application, which keep them open and use no heap memory.
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
        let peer = ([192, 0, 2, 7], 40_000).into();
        let accepted = AcceptedConnection::new(tcp, peer, target, target);
        drop(spawn_local(inbound.clone().serve(accepted)));
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
