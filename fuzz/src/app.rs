//! The application behind the inbound side, and a client in front of it: what a client's bytes
//! become for the application, and the other way round.
//!
//! The client's connection is a pair of sockets without a network. The application's has to be TCP,
//! because the inbound side dials an address.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use mesh_proxy::transport::listen::AcceptedConnection;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use crate::input::pieces;
use crate::judge::reader::{self, Asked, Message, Role, STRICT};
use crate::world::{self, inbound, pipe, receive, send};

thread_local! {
    static LISTENER: Listening = Listening::new();
}

struct Listening {
    tcp: Rc<TcpListener>,
    addr: SocketAddr,
}

/// What the application does with a connection.
#[derive(Clone)]
pub(crate) enum Manner {
    /// Answers each request, and `CONNECT` with a refusal.
    Polite,
    /// Waits for the head of a request, says these bytes, cut so, and closes.
    Says(Rc<[u8]>, u8),
}

/// What happened.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    /// Whole requests, in the order of their ends.
    pub(crate) requests: Vec<Message>,
    /// What was left on a connection when it ended.
    pub(crate) rests: Vec<Vec<u8>>,
    /// What the client got.
    pub(crate) got: Vec<u8>,
}

pub(crate) const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const OK_WITHOUT_BODY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n";
const NO_TUNNEL: &[u8] = b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n";

/// A client that sends `bytes`, cut so, and closes its half; both sides are at their ends when this
/// returns.
pub(crate) fn exchange(bytes: &[u8], how: u8, manner: Manner) -> Exchange {
    world::run(async {
        let (tcp, addr) = listener();
        let seen = Rc::new(RefCell::new(Exchange::default()));
        let app = spawn_local(accept(tcp, manner, seen.clone()));
        let (io, client) = pipe();
        let (stream, _) = io.into_plain().expect("a plain connection");
        let peer = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 40_000));
        let inbound = inbound();
        let serving = spawn_local(inbound.clone().serve(AcceptedConnection {
            tcp: stream,
            peer,
            local: addr,
            original_dst: addr,
        }));
        let (reading, writing) = client.into_split();
        let sending = spawn_local({
            let bytes = bytes.to_vec();
            async move { send(writing, &bytes, how).await }
        });
        let (got, _closed) = receive(reading).await;
        // A client that got everything is of no interest to the other side.
        sending.abort();
        serving
            .await
            .expect("the connection was served without a panic");
        // With its pools, so that the application sees the end of its connections.
        drop(inbound);
        while Rc::strong_count(&seen) > 2 {
            tokio::task::yield_now().await;
        }
        app.abort();
        let mut exchange = seen.take();
        exchange.got = got;
        exchange
    })
}

impl Listening {
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

/// Where the application listens; called on the runtime.
fn listener() -> (Rc<TcpListener>, SocketAddr) {
    LISTENER.with(|listening| (listening.tcp.clone(), listening.addr))
}

async fn accept(listener: Rc<TcpListener>, manner: Manner, seen: Rc<RefCell<Exchange>>) {
    loop {
        let (tcp, _) = listener.accept().await.expect("a connection");
        tcp.set_nodelay(true).expect("a connection");
        // The port can be used again at once.
        let _unset = SockRef::from(&tcp).set_linger(Some(Duration::ZERO));
        let (manner, seen) = (manner.clone(), seen.clone());
        spawn_local(async move {
            let rest = match manner {
                Manner::Polite => answer(tcp, &seen).await,
                Manner::Says(bytes, how) => say(tcp, &bytes, how).await,
            };
            seen.borrow_mut().rests.push(rest);
        });
    }
}

/// Answers requests until the proxy closes; returns what was no whole request.
async fn answer(mut tcp: TcpStream, seen: &RefCell<Exchange>) -> Vec<u8> {
    let mut waiting = Vec::new();
    loop {
        match reader::message(&waiting, Role::Request, &STRICT) {
            Ok(Some(request)) => {
                let answer = match request.asked() {
                    Asked::Head => OK_WITHOUT_BODY,
                    Asked::Connect => NO_TUNNEL,
                    Asked::Other => OK,
                };
                waiting.drain(..request.end);
                seen.borrow_mut().requests.push(request);
                if tcp.write_all(answer).await.is_err() {
                    return waiting;
                }
            }
            Ok(None) => {
                if !matches!(tcp.read_buf(&mut waiting).await, Ok(1..)) {
                    return waiting;
                }
            }
            Err(wrong) => {
                let shown = String::from_utf8_lossy(&waiting);
                panic!("the application was sent what is no request ({wrong}): {shown:?}");
            }
        }
    }
}

/// Returns what the proxy sent.
async fn say(mut tcp: TcpStream, bytes: &[u8], how: u8) -> Vec<u8> {
    let mut read = Vec::new();
    while !read.windows(4).any(|end| end == b"\r\n\r\n") {
        if !matches!(tcp.read_buf(&mut read).await, Ok(1..)) {
            return read;
        }
    }
    // The reset at the end would overtake what has not been read.
    let _unset = SockRef::from(&tcp).set_linger(None);
    for piece in pieces(bytes, how) {
        if tcp.write_all(piece).await.is_err() {
            return read;
        }
        tokio::task::yield_now().await;
    }
    let _gone = tcp.shutdown().await;
    while matches!(tcp.read_buf(&mut read).await, Ok(1..)) {}
    read
}
