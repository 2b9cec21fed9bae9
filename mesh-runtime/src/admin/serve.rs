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

/// Why the admin interface could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr} for the admin interface (is another instance running?)")]
pub struct BindError {
    addr: SocketAddr,
    source: io::Error,
}

/// Time limit of the header section of a request.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);

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
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                tokio::spawn(serve_connection(stream, peer, admin.clone()));
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
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, %peer, "Admin connection failed");
    }
}
