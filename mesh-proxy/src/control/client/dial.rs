//! Opens an HTTP/2 connection to one replica, with the service's TLS settings.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http2;
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use mesh_core::endpoint::TlsPeer;
use mesh_core::identity::Identity;
use tokio::time::timeout;

use super::replicas::Connection;
use crate::tls::{self, Credentials, CredentialsRx, Purpose, TlsError, TrustAnchors};
use crate::transport::Io;
use crate::transport::connect::{ConnectError, ConnectOptions, Origin, dial};
use crate::watch;

/// The client's certificate and trust anchors.
#[derive(Clone, Debug)]
pub(crate) enum Trust {
    /// Requires this proxy's certificate; see [`super::Client::ready`].
    Certified(CredentialsRx),
    /// Uses the certificate if there is one. The first certificate is requested without one.
    Anonymous(CredentialsRx, watch::Receiver<TrustAnchors>),
}

/// The reason why a connection to a replica failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("TLS with {addr} failed")]
    Tls { addr: SocketAddr, source: TlsError },
    #[error("HTTP/2 handshake with {addr} failed")]
    Http {
        addr: SocketAddr,
        source: hyper::Error,
    },
    #[error("{addr} did not complete the connection within {limit:?}")]
    TimedOut { addr: SocketAddr, limit: Duration },
    #[error("this proxy has no certificate")]
    NoCredentials,
    #[error("the service has no replicas")]
    NoReplicas,
}

/// Opens the connections of one client.
pub(super) struct ReplicaDialer {
    /// The identity that replicas must authenticate as; `None` connects in plaintext.
    pub(super) identity: Option<Identity>,
    pub(super) trust: Trust,
    pub(super) options: ConnectOptions,
    /// The tasks that call belong to the runtime, not to the proxy.
    pub(super) origin: Origin,
}

/// A dead peer is detected within the sum of both. Linkerd's proxy sends no pings to the control
/// plane and relies on the kernel's timeout.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Spawns hyper's per-call tasks in boxes. The stream's waker keeps a completed task's memory until
/// the stream ends; boxed, the future of more than a kilobyte is freed when the task completes.
#[derive(Clone)]
struct BoxingExecutor;

impl ReplicaDialer {
    /// Waits until there is a certificate, if one is required.
    pub(super) async fn ready(&self) {
        if let (Trust::Certified(credentials), Some(_)) = (&self.trust, &self.identity) {
            // `Err` means that there will never be one. Calls then fail with `NoCredentials`.
            let _ = credentials.clone().wait_for(Option::is_some).await;
        }
    }

    pub(super) async fn dial(&self, addr: SocketAddr) -> Result<Connection, DialError> {
        let limit = self.options.timeout;
        timeout(limit, self.connect(addr))
            .await
            .unwrap_or(Err(DialError::TimedOut { addr, limit }))
    }

    async fn connect(&self, addr: SocketAddr) -> Result<Connection, DialError> {
        let io = self.origin.run(dial(addr, &self.options)).await?;
        let (io, generation) = match &self.identity {
            None => (io, None),
            Some(id) => {
                let peer = TlsPeer {
                    id: id.clone(),
                    server_name: id.as_str().into(),
                };
                let (io, generation) = self.trust.secure(io, addr, &peer).await?;
                (io, Some(generation))
            }
        };
        let (sender, connection) = http2::Builder::new(BoxingExecutor)
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(io))
            .await
            .map_err(|source| DialError::Http { addr, source })?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%addr, %error, "Control-plane connection ended");
            }
        });
        Ok(Connection::new(sender, generation))
    }
}

impl<F> Executor<F> for BoxingExecutor
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, future: F) {
        tokio::spawn(Box::pin(future));
    }
}

impl Trust {
    fn credentials(&self) -> Option<Arc<Credentials>> {
        match self {
            Self::Certified(credentials) | Self::Anonymous(credentials, _) => {
                credentials.borrow().clone()
            }
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.credentials().map_or(0, |own| own.generation())
    }

    async fn secure(
        &self,
        io: Io,
        addr: SocketAddr,
        peer: &TlsPeer,
    ) -> Result<(Io, u64), DialError> {
        let tls_error = |source| DialError::Tls { addr, source };
        match (self.credentials(), self) {
            (Some(own), _) => {
                let (io, _alpn) = tls::client::connect(io, &own, peer, false, Purpose::Control)
                    .await
                    .map_err(tls_error)?;
                Ok((io, own.generation()))
            }
            (None, Self::Anonymous(_, anchors)) => {
                let anchors = anchors.borrow().clone();
                let io = tls::client::connect_anonymously(io, &anchors, peer)
                    .await
                    .map_err(tls_error)?;
                Ok((io, 0))
            }
            (None, Self::Certified(_)) => Err(DialError::NoCredentials),
        }
    }
}
