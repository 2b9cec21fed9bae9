//! From an accepted connection to what is done with it.
//!
//! Opaque ports are forwarded without a look at the bytes. On all others TLS is looked for first:
//! ours is ended here, somebody else's is passed on. What follows is HTTP or not by the port's
//! policy, or by its first bytes where the policy says "detect".

use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use mesh_core::policy::inbound::ServerProtocol;
use tokio::time::Instant;

use super::Inbound;
use super::judge::{ActiveJudge, Judge, Unauthorized};
use super::peer::Peer;
use super::tcp::Tunnel;
use crate::discovery::TooManyPorts;
use crate::http::Protocol;
use crate::telemetry::labels::{Direction, NoServerTls, ServerTls};
use crate::tls::{self, Credentials, Purpose, TlsError};
use crate::transport::Io;
use crate::transport::connect::ConnectError;
use crate::transport::detect::{self, FirstWord, HttpDetected, TlsDetected};
use crate::transport::header::HeaderError;
use crate::transport::listen::Accepted;

/// Why a connection is not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("{0} is none of this pod's addresses")]
    ForeignAddress(SocketAddr),
    #[error("inbound connection must not target port {0}: it is the proxy's own")]
    OwnPort(u16),
    #[error("the proxy has no certificate to show")]
    NoCertificate,
    #[error("no TLS handshake began within {0:?}")]
    TlsTimedOut(Duration),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("its TLS is meant for {0:?}")]
    ForeignTls(Option<Arc<str>>),
    #[error("it does not speak HTTP")]
    NotHttp,
    #[error("direct connections must be mutually authenticated")]
    NotAuthenticated,
    #[error("direct connections must negotiate the transport header")]
    NoTransportHeader,
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("the peer asks for {0:?} to be reached, but this proxy is no multicluster gateway")]
    NoGateway(Arc<str>),
    #[error(transparent)]
    TooManyPorts(#[from] TooManyPorts),
    #[error(transparent)]
    Unauthorized(#[from] Unauthorized),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the client's connection failed while its protocol was detected")]
    Detect(#[from] std::io::Error),
}

/// A connection of which everything is known.
pub(super) enum Decided {
    Tunnel(Tunnel),
    Http {
        io: Io,
        peer: Peer,
        judge: ActiveJudge,
        protocol: Protocol,
    },
    /// The client left before it was known what it wanted.
    Gone,
}

/// What is done with a connection once its TLS is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Forward,
    Http(Protocol),
    /// Look at the first bytes, this long.
    Detect(Duration, OnSilence),
}

/// How a conversation begins.
enum Greeting {
    /// The client has spoken, so its protocol can be detected.
    ClientSpoke,
    /// The application has spoken first, or neither side has in time: such a connection is not
    /// HTTP, and opaque to us.
    Open(Io),
    /// Neither side has spoken in time, and there is no connection to the application.
    Silence,
    Draining,
}

/// What a connection is taken for whose first bytes never come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnSilence {
    Forward,
    Http1,
}

impl ConnectionError {
    /// Value of the `error` label of `inbound_tcp_errors_total`; `None` for what the authorization
    /// counters count.
    pub(super) fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Unauthorized(_) | Self::TooManyPorts(_) => None,
            Self::TlsTimedOut(_) | Self::Tls(TlsError::TimedOut(_)) => {
                Some("tls detection timeout")
            }
            Self::NoGateway(_) => Some("gateway domain invalid"),
            Self::Connect(_) | Self::Detect(_) => Some("i/o"),
            _ => Some("unexpected"),
        }
    }
}

/// What the policy says about a connection. `None`: it must be refused, because the policy's routes
/// could not be enforced on bytes that nobody can read.
fn next(protocol: &ServerProtocol, tls: &ServerTls, detect_timeout: Duration) -> Option<Next> {
    let passed_on = matches!(tls, ServerTls::Opaque { .. });
    let meshed = matches!(tls, ServerTls::Established { .. });
    match protocol {
        ServerProtocol::Opaque | ServerProtocol::Tls => Some(Next::Forward),
        ServerProtocol::Detect { .. } if passed_on => Some(Next::Forward),
        ServerProtocol::Detect { timeout, .. } => Some(Next::Detect(*timeout, OnSilence::Forward)),
        _ if passed_on => None,
        // The peer's proxy may have made HTTP/2 of it.
        ServerProtocol::Http1(_) if meshed => Some(Next::Detect(detect_timeout, OnSilence::Http1)),
        ServerProtocol::Http1(_) => Some(Next::Http(Protocol::Http1)),
        ServerProtocol::Http2(_) | ServerProtocol::Grpc(_) => Some(Next::Http(Protocol::Http2)),
    }
}

impl Inbound {
    /// Serves one connection to its end. Whatever happens is logged and counted here.
    pub async fn serve(self: Rc<Self>, accepted: Accepted) {
        let (client, server) = (accepted.peer, accepted.original_dst);
        // Each step is boxed when it begins: a connection that never sends a byte holds no memory
        // for the steps behind detection.
        let error = match Box::pin(self.decide(accepted)).await {
            Ok(Decided::Tunnel(tunnel)) => return Box::pin(self.copy(tunnel)).await,
            Ok(Decided::Http {
                io,
                peer,
                judge,
                protocol,
            }) => return Box::pin(self.serve_http(io, peer, judge, protocol)).await,
            Ok(Decided::Gone) => return,
            Err(error) => error,
        };
        match error.reason() {
            Some(reason) => {
                let errors = &self.worker.families.errors;
                errors.tcp(Direction::Inbound, self.labelled(server), reason);
                tracing::info!(%client, %server, error = &error as &dyn std::error::Error, "Connection closed");
            }
            None => {
                if let ConnectionError::TooManyPorts(_) = error {
                    let refused = &self.worker.families.refused;
                    refused.connection(Direction::Inbound, "ports");
                }
                tracing::info!(%client, %server, %error, "Connection denied");
            }
        }
    }

    async fn decide(&self, accepted: Accepted) -> Result<Decided, ConnectionError> {
        let inbound = &self.worker.config.inbound;
        let target = accepted.original_dst;
        if !inbound.ips.is_empty() && !self.worker.is_local(target.ip()) {
            return Err(ConnectionError::ForeignAddress(target));
        }
        if target.port() == inbound.listen.port() {
            return Box::pin(self.decide_direct(accepted)).await;
        }
        self.refuse_own_port(target.port())?;

        let mut io = Io::plain(accepted.tcp);
        let plain = Peer::plain(accepted.peer, target, NoServerTls::NoTlsFromRemote);
        let judge = self.first_judge_of(&plain).await?;
        match &judge.law().policy.protocol {
            ServerProtocol::Opaque => {
                let peer = Peer::plain(accepted.peer, target, NoServerTls::PortSkipped);
                let judge = self.judge_of(&peer)?;
                return Box::pin(self.proceed(io, peer, judge, Next::Forward)).await;
            }
            ServerProtocol::Detect { .. } => {
                let limit = inbound.detect_timeout;
                match self.greeting(&mut io, &plain, &judge, limit).await? {
                    Greeting::ClientSpoke => {}
                    Greeting::Open(app) => {
                        let io = judge.measure(io);
                        return Ok(Decided::Tunnel(Tunnel::over(io, app, plain, judge)?));
                    }
                    Greeting::Silence => return Err(ConnectionError::TlsTimedOut(limit)),
                    Greeting::Draining => return Ok(Decided::Gone),
                }
            }
            _ => {}
        }
        let Some((io, tls)) = self.end_tls(io).await? else {
            return Ok(Decided::Gone);
        };
        let peer = Peer { tls, ..plain };
        let judge = self.judge_of(&peer)?;
        let law = judge.law();
        match next(&law.policy.protocol, &peer.tls, inbound.detect_timeout) {
            Some(next) => Box::pin(self.proceed(io, peer, judge, next)).await,
            None => {
                // Counted and refused as any unauthorized connection.
                judge.connection(&peer)?;
                Ok(Decided::Gone)
            }
        }
    }

    /// Ends TLS that is meant for us. `None` when the client left without a word.
    pub(super) async fn end_tls(
        &self,
        mut io: Io,
    ) -> Result<Option<(Io, ServerTls)>, ConnectionError> {
        let limit = self.worker.config.inbound.detect_timeout;
        let detected = {
            let detecting = pin!(detect::tls(&mut io, &self.worker.scratch, limit));
            self.worker.unless_draining(detecting).await
        };
        let Some(detected) = detected else {
            return Ok(None);
        };
        let sni = match detected? {
            TlsDetected::ClientHello { sni } => sni,
            TlsDetected::NotTls => {
                return Ok(Some((io, ServerTls::None(NoServerTls::NoTlsFromRemote))));
            }
            TlsDetected::TimedOut => return Err(ConnectionError::TlsTimedOut(limit)),
            TlsDetected::Eof => return Ok(None),
        };
        let credentials = self.credentials()?;
        if sni.as_deref() != Some(credentials.server_name()) {
            return Ok(Some((io, ServerTls::Opaque { sni })));
        }
        let handshake = tls::server::terminate(io, &credentials, false, Purpose::Traffic);
        let (stream, info) = Box::pin(handshake).await?;
        let tls = ServerTls::Established { client: info.id };
        Ok(Some((Io::tls(stream), tls)))
    }

    /// Goes on with a connection of which everything but the protocol is known.
    pub(super) async fn proceed(
        &self,
        io: Io,
        peer: Peer,
        judge: ActiveJudge,
        next: Next,
    ) -> Result<Decided, ConnectionError> {
        let mut io = judge.measure(io);
        let protocol = match next {
            Next::Forward => None,
            Next::Http(protocol) => Some(protocol),
            Next::Detect(limit, OnSilence::Http1) => {
                match self.detect_http(&mut io, &judge, limit).await? {
                    HttpDetected::Http1 | HttpDetected::TimedOut => Some(Protocol::Http1),
                    HttpDetected::Http2 => Some(Protocol::Http2),
                    HttpDetected::Eof => return Ok(Decided::Gone),
                    HttpDetected::NotHttp => None,
                }
            }
            Next::Detect(limit, OnSilence::Forward) => {
                match self.greeting(&mut io, &peer, &judge, limit).await? {
                    Greeting::ClientSpoke => {
                        match self.detect_http(&mut io, &judge, limit).await? {
                            HttpDetected::Http1 => Some(Protocol::Http1),
                            HttpDetected::Http2 => Some(Protocol::Http2),
                            HttpDetected::Eof => return Ok(Decided::Gone),
                            HttpDetected::NotHttp | HttpDetected::TimedOut => None,
                        }
                    }
                    Greeting::Open(app) => {
                        return Ok(Decided::Tunnel(Tunnel::over(io, app, peer, judge)?));
                    }
                    Greeting::Silence => None,
                    Greeting::Draining => return Ok(Decided::Gone),
                }
            }
        };
        Ok(match protocol {
            Some(protocol) => Decided::Http {
                io,
                peer,
                judge,
                protocol,
            },
            None => Decided::Tunnel(Box::pin(self.open_tunnel(io, peer, judge)).await?),
        })
    }

    async fn detect_http(
        &self,
        io: &mut Io,
        judge: &Judge,
        limit: Duration,
    ) -> std::io::Result<HttpDetected> {
        let start = Instant::now();
        let detecting = pin!(detect::http(io, &self.worker.scratch, limit));
        let Some(detected) = self.worker.unless_draining(detecting).await else {
            return Ok(HttpDetected::Eof);
        };
        judge.detected(&detected, start.elapsed());
        detected
    }

    /// Waits for the first word. The application is dialled only for clients that the policy would
    /// let through without any detection.
    async fn greeting(
        &self,
        io: &mut Io,
        peer: &Peer,
        judge: &Judge,
        limit: Duration,
    ) -> std::io::Result<Greeting> {
        let start = Instant::now();
        let dial = move || {
            let dialling = async move {
                match judge.would_admit(peer) {
                    true => self.apps.connect(peer.target).await.ok(),
                    false => None,
                }
            };
            dialling.boxed_local()
        };
        let greets = self.greeters.borrow().contains(&peer.target);
        let patience = if greets {
            Duration::ZERO
        } else {
            detect::PATIENCE
        };
        let scratch = &self.worker.scratch;
        let word = pin!(detect::first_word(io, scratch, patience, limit, dial));
        let Some(word) = self.worker.unless_draining(word).await else {
            return Ok(Greeting::Draining);
        };
        let (greeting, detected) = match word? {
            FirstWord::Client => return Ok(Greeting::ClientSpoke),
            FirstWord::Server(app) => {
                self.greeters.borrow_mut().insert(peer.target);
                (Greeting::Open(app), HttpDetected::NotHttp)
            }
            FirstWord::Nobody(Some(app)) => (Greeting::Open(app), HttpDetected::TimedOut),
            FirstWord::Nobody(None) => (Greeting::Silence, HttpDetected::TimedOut),
        };
        judge.detected(&Ok(detected), start.elapsed());
        Ok(greeting)
    }

    /// The proxy's other ports are nobody's target: a connection would come back to the proxy.
    pub(super) fn refuse_own_port(&self, port: u16) -> Result<(), ConnectionError> {
        let config = &self.worker.config;
        let is_own = config.inbound.listen.port() == port
            || config
                .outbound
                .listen
                .iter()
                .any(|addr| addr.port() == port);
        match is_own {
            true => Err(ConnectionError::OwnPort(port)),
            false => Ok(()),
        }
    }

    pub(super) fn credentials(&self) -> Result<Arc<Credentials>, ConnectionError> {
        self.worker
            .credentials()
            .ok_or(ConnectionError::NoCertificate)
    }
}
