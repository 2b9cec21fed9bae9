//! The plain HTTP/1 listener of the admin interface.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use super::Admin;
use crate::open_connections::OpenConnections;

/// Why the admin interface could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr} for the admin interface (is another instance running?)")]
pub struct BindError {
    addr: SocketAddr,
    source: io::Error,
}

/// Time limit of the header section of a request.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes that are buffered of a request: its header section, or a part of its body.
/// Requests of Prometheus and the kubelet have a few hundred bytes. hyper scans a header section
/// once, but one that begins with empty lines again with each segment. This limits the bytes
/// scanned for a segment, so that the work is linear in the number of segments.
const MAX_BUFFERED: usize = 16 * 1024;

/// The most open connections. Probes, scrapers and operators need a few.
const MAX_CONNECTIONS: usize = 64;

/// Pause after an error that persists, such as having no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Opens the admin socket. A separate step, so that a daemon fails before it reports that it has
/// started.
pub async fn bind(addr: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(addr)
        .await
        .map_err(|source| BindError { addr, source })
}

/// Serves until the process ends. Run it as an essential task.
pub async fn serve(listener: TcpListener, admin: Admin) {
    let mut open = OpenConnections::new(MAX_CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if open.spawn(serve_connection(stream, peer, admin.clone())) {
                    tracing::debug!("Closed the oldest admin connection: limit reached");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "Admin server failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, peer: SocketAddr, admin: Admin) {
    let service = service_fn(|request| async {
        let response = admin.respond(request, peer).await;
        Ok::<_, Infallible>(response)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_TIMEOUT)
        .max_buf_size(MAX_BUFFERED)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, %peer, "Admin connection failed");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::admin::Readiness;
    use crate::metrics::Registry;

    async fn admin() -> SocketAddr {
        let listener = bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let admin = Admin::new(Registry::new(), Readiness::new());
        tokio::spawn(serve(listener, admin));
        addr
    }

    async fn live(client: &mut TcpStream) -> io::Result<String> {
        client
            .write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
            .await?;
        let mut response = vec![0; 1024];
        let length = client.read(&mut response).await?;
        Ok(String::from_utf8_lossy(&response[..length]).into_owned())
    }

    #[tokio::test]
    async fn client_that_never_ends_its_header_section_is_closed() {
        let addr = admin().await;
        for piece in [&b"\r\n"[..], b"a: b\r\n"] {
            let mut client = TcpStream::connect(addr).await.unwrap();
            client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
            // More than the sockets' buffers take.
            let pieces = piece.repeat((64 << 20) / piece.len());
            assert!(client.write_all(&pieces).await.is_err(), "{piece:?}");
        }
        let mut client = TcpStream::connect(addr).await.unwrap();
        assert!(live(&mut client).await.unwrap().contains("200 OK"));
    }

    #[tokio::test]
    async fn header_section_above_the_limit_is_refused() {
        let addr = admin().await;
        for (length, is_served) in [(MAX_BUFFERED / 2, true), (MAX_BUFFERED, false)] {
            let mut client = TcpStream::connect(addr).await.unwrap();
            let field = "a".repeat(length);
            let request = format!("GET /live HTTP/1.1\r\nhost: x\r\na: {field}\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            let mut response = vec![0; 1024];
            let read = client.read(&mut response).await.unwrap_or(0);
            assert_eq!(response[..read].starts_with(b"HTTP/1.1 200"), is_served);
        }
    }

    #[tokio::test]
    async fn newest_connection_replaces_oldest_at_limit() {
        let addr = admin().await;
        let mut clients = Vec::new();
        for _ in 0..=MAX_CONNECTIONS {
            let mut client = TcpStream::connect(addr).await.unwrap();
            assert!(live(&mut client).await.unwrap().contains("200 OK"));
            clients.push(client);
        }
        let mut closed = [0];
        assert!(!matches!(clients[0].read(&mut closed).await, Ok(1..)));
        assert!(live(&mut clients[1]).await.unwrap().contains("200 OK"));
    }
}
