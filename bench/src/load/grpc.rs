//! gRPC messages as bytes, for clients that must cost less than a server and therefore encode and
//! decode as little as possible.

use std::net::SocketAddr;

use anyhow::Context as _;
use bytes::Bytes;
use h2::client::SendRequest;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// So large that no stream waits for the client's windows.
const WINDOW: u32 = 16 * 1024 * 1024;

/// Opens a connection. Its task ends with it, or when it is aborted.
pub(super) async fn connect(
    address: SocketAddr,
) -> anyhow::Result<(SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>)> {
    let tcp = TcpStream::connect(address)
        .await
        .with_context(|| format!("connect to {address}"))?;
    tcp.set_nodelay(true)?;
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .handshake(tcp)
        .await?;
    Ok((sender, tokio::spawn(connection)))
}

/// Returns the head of a request.
pub(super) fn request(address: SocketAddr, method: &str) -> http::request::Builder {
    http::Request::post(format!("http://{address}/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
}

/// Appends a field of bytes, of text or of a message.
pub(super) fn put(message: &mut Vec<u8>, field: u8, value: &[u8]) {
    message.push(field << 3 | 2);
    let mut length = value.len();
    while length >= 0x80 {
        message.push(length as u8 | 0x80);
        length >>= 7;
    }
    message.push(length as u8);
    message.extend_from_slice(value);
}

/// Returns a message with its prefix.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend((message.len() as u32).to_be_bytes());
    framed.extend_from_slice(message);
    framed
}
