//! Test applications and clients, which write and read bytes or whole requests.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_local};

use super::world::{POD, run};

/// A connection, encrypted or not.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + 'static> Stream for T {}

/// A listener whose connections the test handles.
pub(super) struct App {
    pub(super) addr: SocketAddr,
    listener: TcpListener,
}

impl App {
    pub(super) async fn start() -> Self {
        Self::start_at((POD, 0).into()).await
    }

    pub(super) async fn start_at(addr: SocketAddr) -> Self {
        let listener = TcpListener::bind(addr).await.unwrap();
        let addr = listener.local_addr().unwrap();
        Self { addr, listener }
    }

    pub(super) async fn accept(&self) -> TcpStream {
        self.listener.accept().await.unwrap().0
    }

    /// Accepts a connection and reads the head of a request.
    pub(super) async fn receive(&self) -> (TcpStream, String) {
        let mut tcp = self.accept().await;
        let request = head(&mut tcp).await;
        (tcp, request)
    }

    /// Responds to every request on every connection with `name`, in HTTP/1 and HTTP/2.
    pub(super) fn named(self, name: &'static str) -> SocketAddr {
        let addr = self.addr;
        spawn_local(async move {
            loop {
                let tcp = self.accept().await;
                spawn_local(answer(tcp, name));
            }
        });
        addr
    }
}

/// An address without a listener.
pub(super) async fn unused_addr() -> SocketAddr {
    App::start().await.addr
}

async fn answer(mut tcp: TcpStream, name: &'static str) {
    let mut first = [0];
    if tcp.peek(&mut first).await.is_err() {
        return;
    }
    if first == *b"P" {
        let mut connection = h2::server::handshake(tcp).await.unwrap();
        while let Some(Ok((_request, mut respond))) = connection.accept().await {
            let response = http::Response::new(());
            let mut body = respond.send_response(response, false).unwrap();
            body.send_data(name.into(), true).unwrap();
        }
        return;
    }
    while try_head(&mut tcp).await.is_some() {
        let length = name.len();
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{name}");
        send(&mut tcp, &response).await;
    }
}

/// The protocol of a client's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    Http1,
    /// With an absolute-form request target, as to a forward proxy.
    Http1Absolute,
    Http2,
}

impl Speaks {
    /// Runs a test for each protocol.
    pub(super) fn each(story: impl AsyncFn(Self) + Sync) {
        for speaks in [Self::Http1, Self::Http1Absolute, Self::Http2] {
            run(async || story(speaks).await);
        }
    }
}

/// A client connection that sends requests one after the other.
pub(super) enum Client {
    Http1(TcpStream, &'static str),
    Http2(SendRequest<Bytes>),
}

impl Client {
    pub(super) async fn new(tcp: TcpStream, speaks: Speaks) -> Self {
        match speaks {
            Speaks::Http1 => Self::Http1(tcp, "/"),
            Speaks::Http1Absolute => Self::Http1(tcp, "http://web.shop:80/"),
            Speaks::Http2 => Self::Http2(http2(tcp).await),
        }
    }

    pub(super) async fn get(&mut self) -> (u16, String) {
        match self {
            Self::Http1(tcp, target) => {
                let request = format!("GET {target} HTTP/1.1\r\nhost: web.shop:80\r\n\r\n");
                send(tcp, &request).await;
                let response = message(tcp).await;
                let status = response[9..12].parse().unwrap();
                let body = response.split_once("\r\n\r\n").unwrap().1;
                (status, body.to_owned())
            }
            Self::Http2(client) => {
                let request = http::Request::get("http://web.shop:80/").body(()).unwrap();
                let (response, _) = client.send_request(request, true).unwrap();
                let (head, mut body) = response.await.unwrap().into_parts();
                (head.status.as_u16(), read(&mut body).await)
            }
        }
    }
}

pub(super) async fn http2(io: impl Stream) -> SendRequest<Bytes> {
    let (client, connection) = h2::client::handshake(io).await.unwrap();
    spawn_local(connection);
    client.ready().await.unwrap()
}

/// A stream received by an HTTP/2 application.
pub(super) type Call = (http::Request<RecvStream>, SendResponse<Bytes>);

pub(super) type Calls = mpsc::UnboundedReceiver<Call>;

/// The streams of one connection, which is served until the receiver is dropped.
pub(super) async fn streams(io: impl Stream) -> Calls {
    let mut connection = h2::server::handshake(io).await.unwrap();
    let (calls, called) = mpsc::unbounded_channel();
    spawn_local(async move {
        while let Some(Ok(call)) = connection.accept().await {
            if calls.send(call).is_err() {
                return;
            }
        }
    });
    called
}

/// The response to a request, once it has arrived.
pub(super) type Pending = JoinHandle<Result<http::Response<RecvStream>, h2::Error>>;

/// Sends a request without a body.
pub(super) fn ask(client: &mut SendRequest<Bytes>, request: http::Request<()>) -> Pending {
    let (response, _) = client.send_request(request, true).unwrap();
    spawn_local(response)
}

pub(super) async fn status_of(asking: Pending) -> u16 {
    asking.await.unwrap().unwrap().status().as_u16()
}

pub(super) fn get() -> http::Request<()> {
    http::Request::get("http://web/").body(()).unwrap()
}

pub(super) async fn read(body: &mut RecvStream) -> String {
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        bytes.extend_from_slice(&data);
    }
    String::from_utf8(bytes).unwrap()
}

pub(super) fn respond(mut to: SendResponse<Bytes>) -> SendStream<Bytes> {
    to.send_response(http::Response::new(()), false).unwrap()
}

pub(super) async fn send(tcp: &mut impl Stream, text: &str) {
    tcp.write_all(text.as_bytes()).await.unwrap();
}

/// Closes a connection with RST.
pub(super) fn reset(tcp: TcpStream) {
    let linger = Some(Duration::ZERO);
    socket2::SockRef::from(&tcp).set_linger(linger).unwrap();
    drop(tcp);
}

/// Reads a header section with its empty line.
pub(super) async fn head(tcp: &mut impl Stream) -> String {
    try_head(tcp).await.unwrap()
}

pub(super) async fn try_head(tcp: &mut impl Stream) -> Option<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(tcp.read_u8().await.ok()?);
    }
    Some(String::from_utf8(bytes).unwrap())
}

/// Reads a header section and the body that it declares, unless the body ends with the connection.
pub(super) async fn message(tcp: &mut impl Stream) -> String {
    try_message(tcp).await.unwrap()
}

/// The same; `None` if the connection has ended.
pub(super) async fn try_message(tcp: &mut impl Stream) -> Option<String> {
    let mut text = try_head(tcp).await?;
    let field = |name: &str| {
        let mut fields = text.lines().filter_map(|line| line.split_once(": "));
        let field = fields.find(|field| field.0 == name);
        field.map(|field| field.1.to_owned())
    };
    if let Some(length) = field("content-length") {
        let mut body = vec![0; length.parse().unwrap()];
        tcp.read_exact(&mut body).await.ok()?;
        text += str::from_utf8(&body).unwrap();
    } else if field("transfer-encoding").is_some() {
        while !text.ends_with("0\r\n\r\n") {
            text.push(char::from(tcp.read_u8().await.ok()?));
        }
    }
    Some(text)
}

/// Reads a response, which must have this status.
pub(super) async fn expect(tcp: &mut impl Stream, status: u16) -> String {
    let response = message(tcp).await;
    let line = format!("HTTP/1.1 {status} ");
    assert!(response.starts_with(&line), "{response}");
    response
}

/// Reads until the connection is closed or reset.
pub(super) async fn rest(tcp: &mut impl Stream) -> String {
    let mut bytes = Vec::new();
    let _broken = tcp.read_to_end(&mut bytes).await;
    String::from_utf8(bytes).unwrap()
}
