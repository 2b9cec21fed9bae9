//! Makes one HTTP/2 connection to one replica, secured as the service asks for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http2;
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use mesh_core::endpoint::TlsPeer;
use mesh_core::identity::Identity;
use tokio::sync::watch;
use tokio::time::timeout;

use super::replicas::Connection;
use crate::tls::{self, Credentials, CredentialsRx, Purpose, TlsError, TrustAnchors};
use crate::transport::Io;
use crate::transport::connect::{ConnectError, ConnectOptions, dial};

/// As whom the client connects and whom it trusts.
#[derive(Clone, Debug)]
pub enum Trust {
    /// With this proxy's certificate; see [`super::Client::ready`].
    Certified(CredentialsRx),
    /// With the certificate if there is one: how the first one is asked for.
    Anonymous(CredentialsRx, watch::Receiver<TrustAnchors>),
}

/// Why one replica could not be connected to.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{addr} is not the peer it should be")]
    Tls { addr: SocketAddr, source: TlsError },
    #[error("{addr} does not speak HTTP/2")]
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

/// Makes the connections of one client.
pub(super) struct Dial {
    /// Who must answer; `None` is reached in plain text.
    pub(super) identity: Option<Identity>,
    pub(super) trust: Trust,
    pub(super) options: ConnectOptions,
}

/// A dead peer is noticed within the sum of both. Linkerd's proxy sends no pings here and waits for
/// the kernel to give up.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs what a connection spawns for each call. A task that has sent its question is done, but the
/// waker that it left with its stream keeps its memory as long as there are answers: in a box the
/// future is gone by then, which has more than a kilobyte.
#[derive(Clone)]
struct InBoxes;

impl Dial {
    /// Waits until there is a certificate, where one is needed.
    pub(super) async fn ready(&self) {
        if let (Trust::Certified(credentials), Some(_)) = (&self.trust, &self.identity) {
            // `Err` means that there will never be one; calls then fail and say so.
            let _ = credentials.clone().wait_for(Option::is_some).await;
        }
    }

    pub(super) async fn dial(&self, addr: SocketAddr) -> Result<Connection, DialError> {
        let limit = self.options.timeout;
        match timeout(limit, self.connect(addr)).await {
            Ok(result) => result,
            Err(_elapsed) => Err(DialError::TimedOut { addr, limit }),
        }
    }

    async fn connect(&self, addr: SocketAddr) -> Result<Connection, DialError> {
        let io = dial(addr, &self.options).await?;
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
        let (sender, connection) = http2::Builder::new(InBoxes)
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

impl<F> Executor<F> for InBoxes
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, future: F) {
        drop(tokio::spawn(Box::pin(future)));
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
        let refused = |source| DialError::Tls { addr, source };
        match (self.credentials(), self) {
            (Some(own), _) => {
                let (stream, _alpn) = tls::client::connect(io, &own, peer, false, Purpose::Control)
                    .await
                    .map_err(refused)?;
                Ok((Io::tls(stream), own.generation()))
            }
            (None, Self::Anonymous(_, anchors)) => {
                let anchors = anchors.borrow().clone();
                let stream = tls::client::connect_anonymously(io, &anchors, peer)
                    .await
                    .map_err(refused)?;
                Ok((Io::tls(stream), 0))
            }
            (None, Self::Certified(_)) => Err(DialError::NoCredentials),
        }
    }
}
