//! Resolves the destination of an outbound connection through discovery, and its protocol through
//! discovery or its first bytes.

use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt as _;
use mesh_core::policy::outbound::OutboundProtocol;
use tokio::time::Instant;

use super::Outbound;
use super::http::HttpTarget;
use super::opaque::{Connected, OpaqueError};
use crate::discovery::{DiscoveryError, OutboundTarget};
use crate::http::Protocol;
use crate::telemetry::detect::ConnectionProtocol;
use crate::telemetry::labels::{self, Direction};
use crate::transport::detect::{self, FirstSpeaker, HttpDetected, TlsDetected};
use crate::transport::listen::AcceptedConnection;
use crate::transport::{Io, copy};

/// The reason why a connection is not served.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("{0} is this proxy's own outbound port: the connection would loop")]
    Loop(SocketAddr),
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error(transparent)]
    Opaque(#[from] OpaqueError),
    #[error("the policy routes by TLS server name, but the connection has none")]
    NoServerName,
    #[error("the application's connection failed while its protocol was detected")]
    Detect(#[from] std::io::Error),
}

/// A connection with resolved destination and protocol.
enum ResolvedConnection {
    Tunnel(Io, Box<Connected>),
    Http(Io, Rc<HttpTarget>, Protocol),
    /// The application closed the connection during detection.
    Closed,
}

/// The result of waiting for the first bytes of a connection.
enum PeekOutcome {
    /// The application has sent data, in which its protocol can be detected.
    ClientData,
    /// The server has sent data first, or neither side has in time. The connection is opaque; this
    /// is the connection to the server.
    Opaque(Box<Connected>),
    /// Neither side has sent data in time, and no endpoint could be reached.
    TimedOut,
    Draining,
}

/// How the protocol of connections to a destination is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProtocolPlan {
    Detect,
    Http(Protocol),
    Opaque,
    Tls,
}

impl ConnectionError {
    /// Value of the `error` label of `outbound_tcp_errors_total`.
    fn reason(&self) -> &'static str {
        match self {
            Self::Opaque(error) => error.reason(),
            Self::Detect(_) => "i/o",
            Self::Loop(_) | Self::Discovery(_) | Self::NoServerName => "unexpected",
        }
    }
}

fn protocol_plan(target: &OutboundTarget) -> ProtocolPlan {
    match &target.policy.protocol {
        OutboundProtocol::Detect { .. } => ProtocolPlan::Detect,
        OutboundProtocol::Http1(_) => ProtocolPlan::Http(Protocol::Http1),
        OutboundProtocol::Http2(_) | OutboundProtocol::Grpc(_) => {
            ProtocolPlan::Http(Protocol::Http2)
        }
        OutboundProtocol::Opaque(_) => ProtocolPlan::Opaque,
        OutboundProtocol::Tls(_) => ProtocolPlan::Tls,
    }
}

impl ProtocolPlan {
    fn label(self) -> ConnectionProtocol {
        match self {
            Self::Detect => ConnectionProtocol::Detect,
            Self::Http(Protocol::Http1) => ConnectionProtocol::Http1,
            Self::Http(Protocol::Http2) => ConnectionProtocol::Http2,
            Self::Opaque => ConnectionProtocol::Opaque,
            Self::Tls => ConnectionProtocol::Tls,
        }
    }
}

impl Outbound {
    /// Serves one connection until it ends. Logs and counts every failure.
    pub async fn serve(self: Rc<Self>, accepted: AcceptedConnection) {
        let probe_listener = self.context.probe_listener.as_ref();
        if probe_listener.is_some_and(|listener| listener.is_probe(&accepted)) {
            return;
        }
        let (client, dst) = (accepted.peer, accepted.original_dst);
        // Each step is boxed when it begins, and freed when it ends.
        match Box::pin(self.resolve(accepted)).await {
            Ok(ResolvedConnection::Tunnel(io, server)) => Box::pin(self.copy(io, *server)).await,
            Ok(ResolvedConnection::Http(io, target, protocol)) => {
                let served = Box::pin(self.server.serve(io, protocol, target)).await;
                if let Err(error) = served {
                    tracing::debug!(%dst, error = &error as &dyn std::error::Error, "HTTP connection failed");
                }
            }
            Ok(ResolvedConnection::Closed) => {}
            Err(error) => {
                let errors = &self.context.families.errors;
                errors.tcp(Direction::Outbound, dst.into(), error.reason());
                tracing::info!(%client, %dst, error = &error as &dyn std::error::Error, "Connection closed");
            }
        }
    }

    async fn resolve(
        &self,
        accepted: AcceptedConnection,
    ) -> Result<ResolvedConnection, ConnectionError> {
        let dst = accepted.original_dst;
        if self.is_own_port(&accepted) {
            return Err(ConnectionError::Loop(dst));
        }
        let families = &self.context.families;
        let transport = families.tcp.transport(labels::outbound_accept(dst));
        let mut io = Io::plain(accepted.tcp).measured(transport.open());
        let updates = Box::pin(self.context.discovery.outbound(dst)).await?;
        let target = updates.borrow().clone();
        let parent = labels::parent(&target.policy.parent);
        let plan = protocol_plan(&target);
        families.detect.outbound_connection(&parent, plan.label());
        let protocol = match plan {
            ProtocolPlan::Http(protocol) => Some(protocol),
            ProtocolPlan::Opaque => None,
            ProtocolPlan::Tls => return Box::pin(self.resolve_tls(io, &target)).await,
            ProtocolPlan::Detect => match self.peek(&mut io, &target).await? {
                PeekOutcome::ClientData => match self.detect_http(&mut io, &target).await? {
                    HttpDetected::Http1 => Some(Protocol::Http1),
                    HttpDetected::Http2 => Some(Protocol::Http2),
                    HttpDetected::NotHttp | HttpDetected::TimedOut => None,
                    HttpDetected::Eof => return Ok(ResolvedConnection::Closed),
                },
                PeekOutcome::Opaque(server) => return Ok(ResolvedConnection::Tunnel(io, server)),
                PeekOutcome::TimedOut => None,
                PeekOutcome::Draining => return Ok(ResolvedConnection::Closed),
            },
        };
        Ok(match protocol {
            Some(protocol) => {
                ResolvedConnection::Http(io, self.http.target(dst, updates), protocol)
            }
            None => {
                let server = Box::pin(self.opaque.connect(&target)).await?;
                ResolvedConnection::Tunnel(io, Box::new(server))
            }
        })
    }

    /// Whether the connection is to the outbound port itself: it was not redirected, or its
    /// destination is that port of this pod.
    fn is_own_port(&self, accepted: &AcceptedConnection) -> bool {
        let dst = accepted.original_dst;
        let listens = &self.context.config.outbound.listen;
        listens.iter().any(|listen| listen.port() == dst.port())
            && (dst == accepted.local || dst.ip().is_loopback() || self.context.is_local(dst.ip()))
    }

    /// Waits for the first bytes of either side.
    async fn peek(&self, io: &mut Io, target: &OutboundTarget) -> std::io::Result<PeekOutcome> {
        let start = Instant::now();
        let mut guard = None;
        let guard_slot = &mut guard;
        let dial = move || {
            let dialling = async move {
                // An error is reported when the connection is forwarded, if the client sends no
                // HTTP.
                let Connected { io, guard } = self.opaque.connect(target).await.ok()?;
                *guard_slot = Some(guard);
                Some(io)
            };
            dialling.boxed_local()
        };
        let limit = self.context.config.outbound.detect_timeout;
        let client_wait = if self.is_server_first(target.addr) {
            Duration::ZERO
        } else {
            detect::SERVER_DIAL_DELAY
        };
        let first = {
            let scratch = &self.context.scratch;
            let first = pin!(detect::first_speaker(io, scratch, client_wait, limit, dial));
            self.context.unless_draining(first).await
        };
        let Some(first) = first else {
            return Ok(PeekOutcome::Draining);
        };
        let (server, detected) = match first? {
            FirstSpeaker::Client => return Ok(PeekOutcome::ClientData),
            FirstSpeaker::Server(server) => {
                self.remember_server_first(target.addr);
                (Some(server), HttpDetected::NotHttp)
            }
            FirstSpeaker::Neither(server) => (server, HttpDetected::TimedOut),
        };
        self.record_detection(target, &Ok(detected), start.elapsed());
        Ok(match server.zip(guard) {
            Some((io, guard)) => PeekOutcome::Opaque(Box::new(Connected { io, guard })),
            None => PeekOutcome::TimedOut,
        })
    }

    fn record_detection(
        &self,
        target: &OutboundTarget,
        detected: &std::io::Result<HttpDetected>,
        took: Duration,
    ) {
        let labels = labels::parent(&target.policy.parent);
        let families = &self.context.families.detect;
        let result = HttpDetected::label(detected);
        families.detected(Direction::Outbound, &labels, result, took);
    }

    async fn detect_http(
        &self,
        io: &mut Io,
        target: &OutboundTarget,
    ) -> std::io::Result<HttpDetected> {
        let start = Instant::now();
        let limit = self.context.config.outbound.detect_timeout;
        let detecting = pin!(detect::http(io, &self.context.scratch, limit));
        let Some(detected) = self.context.unless_draining(detecting).await else {
            return Ok(HttpDetected::Eof);
        };
        self.record_detection(target, &detected, start.elapsed());
        detected
    }

    /// Routes the application's own TLS by server name, and forwards it as opaque bytes.
    async fn resolve_tls(
        &self,
        mut io: Io,
        target: &OutboundTarget,
    ) -> Result<ResolvedConnection, ConnectionError> {
        let limit = self.context.config.outbound.detect_timeout;
        let detected = detect::tls(&mut io, &self.context.scratch, limit).await?;
        let TlsDetected::ClientHello { sni: Some(name) } = detected else {
            return Err(ConnectionError::NoServerName);
        };
        let server = self.opaque.connect_tls(target, &name).await?;
        Ok(ResolvedConnection::Tunnel(io, Box::new(server)))
    }

    async fn copy(&self, client: Io, server: Connected) {
        let Connected { io, mut guard } = server;
        let copied = copy::duplex(client, io, &self.context.scratch, &self.context.drain).await;
        if let Err(error) = copied {
            // The application or the server failed; the close is counted with its reason.
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "Connection aborted"
            );
            guard.set_aborted();
        }
    }
}
