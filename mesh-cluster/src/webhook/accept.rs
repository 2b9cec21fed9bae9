//! Connections of API servers and browsers: how many there are, and their handshakes.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use mesh_runtime::open_connections::{ActiveRequest, Activity, OpenConnections};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::tls::{Acceptor, TlsStream};

/// The body of a response, whose request counts until the body has been sent or is dropped.
#[derive(Debug)]
pub struct HeldBody<B> {
    body: B,
    _request: ActiveRequest,
}

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The delay after a failed accept, probably for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Spawns the future that `serve` returns for each connection, at most `max` at a time. A further
/// connection closes one: of those without requests the one that has been so for the longest time,
/// so that clients with idle connections do not keep out others. If `serve` returns `None`, it has
/// closed the connection.
pub async fn accept<F>(
    listener: TcpListener,
    max: usize,
    server: &'static str,
    mut serve: impl FnMut(TcpStream, SocketAddr, Activity) -> Option<F>,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut open = OpenConnections::new(max);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "Cannot accept connection of the {server}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let activity = Activity::default();
        if let Some(serving) = serve(stream, peer, activity.clone())
            && open.spawn_active(activity, serving)
        {
            tracing::debug!(max, "Closed a connection of the {server}: limit reached");
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

impl<B> HeldBody<B> {
    pub fn new(body: B, request: ActiveRequest) -> Self {
        Self {
            body,
            _request: request,
        }
    }
}

impl<B: Body + Unpin> Body for HeldBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
