//! Connections of API servers: how many there are, and their handshakes.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::tls::{Acceptor, TlsStream};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The delay after a failed accept, probably for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Spawns the future that `serve` returns for each connection, at most `max` at a time; further
/// connections wait in the kernel's accept queue. If `serve` returns `None`, it has closed the
/// connection.
pub async fn accept<F>(
    listener: TcpListener,
    max: usize,
    server: &'static str,
    mut serve: impl FnMut(TcpStream, SocketAddr) -> Option<F>,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let connections = Arc::new(Semaphore::new(max));
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else {
            return;
        };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "Cannot accept connection of the {server}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if let Some(serving) = serve(stream, peer) {
            tokio::spawn(async move {
                serving.await;
                drop(permit);
            });
        }
    }
}

/// Returns a connection after its handshake; a failed one is logged.
pub async fn handshake(
    acceptor: &Acceptor,
    stream: TcpStream,
    peer: SocketAddr,
    server: &'static str,
) -> Option<TlsStream> {
    match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            // Probably the API server does not trust the certificate.
            tracing::warn!(%peer, %error, "TLS handshake of the {server} failed");
            None
        }
        Err(_elapsed) => {
            tracing::debug!(%peer, "TLS handshake of the {server} timed out");
            None
        }
    }
}
