//! An application behind the inbound proxy and a client in front of it, to compare the bytes that
//! one sends with those that the other receives.
//!
//! The client's connection is a pair of Unix sockets. The application's is TCP, because the inbound
//! proxy connects to an address.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use mesh_proxy::fuzzing::AcceptedConnection;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use crate::input::pieces;
use crate::oracle::reader::{self, Message, MessageKind, RequestMethod, STRICT};
use crate::test_env::{self, inbound, pipe, receive, send};

thread_local! {
    static LISTENER: AppListener = AppListener::new();
}

struct AppListener {
    tcp: Rc<TcpListener>,
    addr: SocketAddr,
}

/// How the application handles a connection.
#[derive(Clone)]
pub(crate) enum AppBehavior {
    /// Responds to each request, to `CONNECT` with an error.
    RespondOk,
    /// Waits for the header section of a request, sends these bytes with this split, and closes.
    Script(Rc<[u8]>, u8),
}

/// The result of [`exchange`].
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    /// Requests that the application received completely, in this order.
    pub(crate) requests: Vec<Message>,
    /// The remaining bytes of each connection when it closed.
    pub(crate) rests: Vec<Vec<u8>>,
    /// The bytes that the client received.
    pub(crate) received: Vec<u8>,
}

pub(crate) const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const OK_WITHOUT_BODY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n";
const NO_TUNNEL: &[u8] = b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n";

/// Runs a client that sends `bytes` and closes its direction. Returns when all connections are
/// closed.
pub(crate) fn exchange(bytes: &[u8], split: u8, behavior: AppBehavior) -> Exchange {
    test_env::run(async {
        let (tcp, addr) = listener();
        let exchange = Rc::new(RefCell::new(Exchange::default()));
        let app = spawn_local(accept(tcp, behavior, exchange.clone()));
        let (io, client) = pipe();
        let (stream, _) = io.into_plain().expect("a plain connection");
        let peer = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 40_000));
        let inbound = inbound();
        let accepted = AcceptedConnection::new(stream, peer, addr, addr);
        let serving = spawn_local(inbound.clone().serve(accepted));
        let (reading, writing) = client.into_split();
        let sending = spawn_local({
            let bytes = bytes.to_vec();
            async move { send(writing, &bytes, split).await }
        });
        let (received, _closed) = receive(reading).await;
        // The connection is closed, so the rest cannot be sent.
        sending.abort();
        serving
            .await
            .expect("the connection was served without a panic");
        // Drops its connection pools, so that the connections to the application close.
        drop(inbound);
        while Rc::strong_count(&exchange) > 2 {
            tokio::task::yield_now().await;
        }
        app.abort();
        let mut exchange = exchange.take();
        exchange.received = received;
        exchange
    })
}

impl AppListener {
    fn new() -> Self {
        let tcp = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        tcp.set_nonblocking(true).expect("a socket");
        let addr = tcp.local_addr().expect("a socket");
        Self {
            tcp: Rc::new(TcpListener::from_std(tcp).expect("a runtime")),
            addr,
        }
    }
}

/// Returns the application's listener. Must be called on the runtime.
fn listener() -> (Rc<TcpListener>, SocketAddr) {
    LISTENER.with(|listening| (listening.tcp.clone(), listening.addr))
}

async fn accept(listener: Rc<TcpListener>, behavior: AppBehavior, exchange: Rc<RefCell<Exchange>>) {
    loop {
        let (tcp, _) = listener.accept().await.expect("a connection");
        tcp.set_nodelay(true).expect("a connection");
        // Closes with a reset, so that ports can be reused immediately.
        let _error = SockRef::from(&tcp).set_linger(Some(Duration::ZERO));
        let (behavior, exchange) = (behavior.clone(), exchange.clone());
        spawn_local(async move {
            let rest = match behavior {
                AppBehavior::RespondOk => respond(tcp, &exchange).await,
                AppBehavior::Script(bytes, split) => send_script(tcp, &bytes, split).await,
            };
            exchange.borrow_mut().rests.push(rest);
        });
    }
}

/// Responds to requests until the proxy closes. Returns the bytes of an incomplete request.
async fn respond(mut tcp: TcpStream, exchange: &RefCell<Exchange>) -> Vec<u8> {
    let mut received = Vec::new();
    loop {
        match reader::message(&received, MessageKind::Request, &STRICT) {
            Ok(Some(request)) => {
                let response = match request.request_method() {
                    RequestMethod::Head => OK_WITHOUT_BODY,
                    RequestMethod::Connect => NO_TUNNEL,
                    RequestMethod::Other => OK,
                };
                received.drain(..request.end);
                exchange.borrow_mut().requests.push(request);
                if tcp.write_all(response).await.is_err() {
                    return received;
                }
            }
            Ok(None) => {
                if !matches!(tcp.read_buf(&mut received).await, Ok(1..)) {
                    return received;
                }
            }
            Err(wrong) => {
                let shown = String::from_utf8_lossy(&received);
                panic!("the application received an invalid request ({wrong}): {shown:?}");
            }
        }
    }
}

/// Sends the script. Returns the proxy's bytes.
async fn send_script(mut tcp: TcpStream, bytes: &[u8], split: u8) -> Vec<u8> {
    let mut read = Vec::new();
    while !read.windows(4).any(|end| end == b"\r\n\r\n") {
        if !matches!(tcp.read_buf(&mut read).await, Ok(1..)) {
            return read;
        }
    }
    // A reset would discard bytes that the proxy has not read.
    let _error = SockRef::from(&tcp).set_linger(None);
    for piece in pieces(bytes, split) {
        if tcp.write_all(piece).await.is_err() {
            return read;
        }
        tokio::task::yield_now().await;
    }
    let _error = tcp.shutdown().await;
    while matches!(tcp.read_buf(&mut read).await, Ok(1..)) {}
    read
}
