//! Resolves the TLS and protocol of an accepted connection.
//!
//! Opaque ports are forwarded without inspection. On all others the proxy detects TLS first: it
//! terminates TLS that names this proxy's identity, and forwards other TLS as opaque bytes. The
//! port's policy or, where it requires detection, the first bytes decide whether the connection is
//! HTTP.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use mesh_core::policy::inbound::ServerProtocol;
use tokio::time::Instant;

use super::Inbound;
use super::error::ConnectionError;
use super::peer::Peer;
use super::policy::{ActiveEnforcer, PolicyEnforcer};
use super::tcp::Tunnel;
use crate::http::Protocol;
use crate::telemetry::labels::{Direction, NoServerTls, ServerTls};
use crate::tls::{self, Credentials, Purpose};
use crate::transport::Io;
use crate::transport::detect::{self, FirstSpeaker, HttpDetected, TlsDetected};
use crate::transport::listen::AcceptedConnection;

/// A connection with resolved TLS, policy and protocol.
pub(super) enum ResolvedConnection {
    Tunnel(Tunnel),
    Http {
        io: Io,
        peer: Peer,
        enforcer: ActiveEnforcer,
        protocol: Protocol,
    },
    /// The client closed the connection during detection.
    Closed,
}

/// How the protocol of a connection is determined after its TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProtocolPlan {
    Forward,
    Http(Protocol),
    /// Detect HTTP in the first bytes, which must arrive within this time.
    Detect(Duration, DetectTimeoutAction),
}

/// The result of waiting for the first bytes of a connection.
enum PeekOutcome {
    /// The client has sent data, in which its protocol can be detected.
    ClientData,
    /// The application has sent data first, or neither side has in time. The connection is opaque;
    /// this is the connection to the application.
    Opaque(Io),
    /// Neither side has sent data in time, and there is no connection to the application.
    TimedOut,
    Draining,
}

/// How a connection is treated whose first bytes do not arrive in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DetectTimeoutAction {
    Forward,
    Http1,
}

/// Returns the protocol plan by policy. `None` refuses the connection: the policy's routes cannot
/// be enforced on opaque TLS.
fn protocol_plan(
    protocol: &ServerProtocol,
    tls: &ServerTls,
    detect_timeout: Duration,
) -> Option<ProtocolPlan> {
    let is_opaque = matches!(tls, ServerTls::Opaque { .. });
    let meshed = matches!(tls, ServerTls::Established { .. });
    match protocol {
        ServerProtocol::Opaque | ServerProtocol::Tls => Some(ProtocolPlan::Forward),
        ServerProtocol::Detect { .. } if is_opaque => Some(ProtocolPlan::Forward),
        ServerProtocol::Detect { timeout, .. } => {
            Some(ProtocolPlan::Detect(*timeout, DetectTimeoutAction::Forward))
        }
        _ if is_opaque => None,
        // The peer's proxy may have upgraded it to HTTP/2.
        ServerProtocol::Http1(_) if meshed => Some(ProtocolPlan::Detect(
            detect_timeout,
            DetectTimeoutAction::Http1,
        )),
        ServerProtocol::Http1(_) => Some(ProtocolPlan::Http(Protocol::Http1)),
        ServerProtocol::Http2(_) | ServerProtocol::Grpc(_) => {
            Some(ProtocolPlan::Http(Protocol::Http2))
        }
    }
}

impl Inbound {
    /// Serves one connection until it ends. Logs and counts every failure.
    pub async fn serve(self: Rc<Self>, accepted: AcceptedConnection) {
        let (client, server) = (accepted.peer, accepted.original_dst);
        // Each step is boxed when it begins: a connection that never sends a byte holds no memory
        // for the steps after detection.
        let error = match Box::pin(self.resolve(accepted)).await {
            Ok(ResolvedConnection::Tunnel(tunnel)) => return Box::pin(self.copy(tunnel)).await,
            Ok(ResolvedConnection::Http {
                io,
                peer,
                enforcer,
                protocol,
            }) => return Box::pin(self.serve_http(io, peer, enforcer, protocol)).await,
            Ok(ResolvedConnection::Closed) => return,
            Err(error) => error,
        };
        match error.reason() {
            Some(reason) => {
                let errors = &self.context.families.errors;
                errors.tcp(Direction::Inbound, self.labelled(server), reason);
                tracing::info!(%client, %server, error = &error as &dyn std::error::Error, "Connection closed");
            }
            None => {
                if let ConnectionError::TooManyPorts(_) = error {
                    let refused = &self.context.families.refused;
                    refused.connection(Direction::Inbound, "ports");
                }
                tracing::info!(%client, %server, %error, "Connection denied");
            }
        }
    }

    async fn resolve(
        &self,
        accepted: AcceptedConnection,
    ) -> Result<ResolvedConnection, ConnectionError> {
        let inbound = &self.context.config.inbound;
        let target = accepted.original_dst;
        if !inbound.ips.is_empty() && !self.context.is_local(target.ip()) {
            return Err(ConnectionError::ForeignAddress(target));
        }
        if target.port() == inbound.listen.port() {
            return Box::pin(self.resolve_direct(accepted)).await;
        }
        self.refuse_own_port(target.port())?;

        let mut io = Io::plain(accepted.tcp);
        let plain = Peer::plain(accepted.peer, target, NoServerTls::NoTlsFromRemote);
        let enforcer = self.enforcer_with_policy(&plain).await?;
        match &enforcer.current_policy().server.protocol {
            ServerProtocol::Opaque => {
                let peer = Peer::plain(accepted.peer, target, NoServerTls::PortSkipped);
                let enforcer = self.enforcer(&peer)?;
                return Box::pin(self.resolve_protocol(io, peer, enforcer, ProtocolPlan::Forward))
                    .await;
            }
            ServerProtocol::Detect { .. } => {
                let limit = inbound.detect_timeout;
                match self.peek(&mut io, &plain, &enforcer, limit).await? {
                    PeekOutcome::ClientData => {}
                    PeekOutcome::Opaque(app) => {
                        let io = enforcer.measure(io);
                        return Ok(ResolvedConnection::Tunnel(Tunnel::authorize(
                            io, app, plain, enforcer,
                        )?));
                    }
                    PeekOutcome::TimedOut => return Err(ConnectionError::TlsTimedOut(limit)),
                    PeekOutcome::Draining => return Ok(ResolvedConnection::Closed),
                }
            }
            _ => {}
        }
        let Some((io, tls)) = self.terminate_tls(io).await? else {
            return Ok(ResolvedConnection::Closed);
        };
        let peer = Peer { tls, ..plain };
        let enforcer = self.enforcer(&peer)?;
        let policy = enforcer.current_policy();
        match protocol_plan(&policy.server.protocol, &peer.tls, inbound.detect_timeout) {
            Some(plan) => Box::pin(self.resolve_protocol(io, peer, enforcer, plan)).await,
            None => {
                // Counts and refuses it as an unauthorized connection.
                enforcer.authorize_connection(&peer)?;
                Ok(ResolvedConnection::Closed)
            }
        }
    }

    /// Terminates TLS whose server name is this proxy's identity. Returns `None` when the client
    /// has closed the connection without sending data.
    pub(super) async fn terminate_tls(
        &self,
        mut io: Io,
    ) -> Result<Option<(Io, ServerTls)>, ConnectionError> {
        let limit = self.context.config.inbound.detect_timeout;
        let detected = {
            let detecting = pin!(detect::tls(&mut io, &self.context.scratch, limit));
            self.context.unless_draining(detecting).await
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

    /// Resolves the protocol of a connection with resolved TLS and policy.
    pub(super) async fn resolve_protocol(
        &self,
        io: Io,
        peer: Peer,
        enforcer: ActiveEnforcer,
        plan: ProtocolPlan,
    ) -> Result<ResolvedConnection, ConnectionError> {
        let mut io = enforcer.measure(io);
        let protocol = match plan {
            ProtocolPlan::Forward => None,
            ProtocolPlan::Http(protocol) => Some(protocol),
            ProtocolPlan::Detect(limit, DetectTimeoutAction::Http1) => {
                match self.detect_http(&mut io, &enforcer, limit).await? {
                    HttpDetected::Http1 | HttpDetected::TimedOut => Some(Protocol::Http1),
                    HttpDetected::Http2 => Some(Protocol::Http2),
                    HttpDetected::Eof => return Ok(ResolvedConnection::Closed),
                    HttpDetected::NotHttp => None,
                }
            }
            ProtocolPlan::Detect(limit, DetectTimeoutAction::Forward) => {
                match self.peek(&mut io, &peer, &enforcer, limit).await? {
                    PeekOutcome::ClientData => {
                        match self.detect_http(&mut io, &enforcer, limit).await? {
                            HttpDetected::Http1 => Some(Protocol::Http1),
                            HttpDetected::Http2 => Some(Protocol::Http2),
                            HttpDetected::Eof => return Ok(ResolvedConnection::Closed),
                            HttpDetected::NotHttp | HttpDetected::TimedOut => None,
                        }
                    }
                    PeekOutcome::Opaque(app) => {
                        return Ok(ResolvedConnection::Tunnel(Tunnel::authorize(
                            io, app, peer, enforcer,
                        )?));
                    }
                    PeekOutcome::TimedOut => None,
                    PeekOutcome::Draining => return Ok(ResolvedConnection::Closed),
                }
            }
        };
        Ok(match protocol {
            Some(protocol) => ResolvedConnection::Http {
                io,
                peer,
                enforcer,
                protocol,
            },
            None => {
                ResolvedConnection::Tunnel(Box::pin(self.open_tunnel(io, peer, enforcer)).await?)
            }
        })
    }

    async fn detect_http(
        &self,
        io: &mut Io,
        enforcer: &PolicyEnforcer,
        limit: Duration,
    ) -> std::io::Result<HttpDetected> {
        let start = Instant::now();
        let detecting = pin!(detect::http(io, &self.context.scratch, limit));
        let Some(detected) = self.context.unless_draining(detecting).await else {
            return Ok(HttpDetected::Eof);
        };
        enforcer.record_detection(&detected, start.elapsed());
        detected
    }

    /// Waits for the first bytes of either side. The application is dialled only for clients that
    /// the policy authorizes without detection.
    async fn peek(
        &self,
        io: &mut Io,
        peer: &Peer,
        enforcer: &PolicyEnforcer,
        limit: Duration,
    ) -> std::io::Result<PeekOutcome> {
        let start = Instant::now();
        let dial = move || {
            let dialling = async move {
                if enforcer.is_authorized(peer) {
                    self.apps.connect(peer.target).await.ok()
                } else {
                    None
                }
            };
            dialling.boxed_local()
        };
        let is_server_first = self.server_first.borrow().contains(&peer.target);
        let client_wait = if is_server_first {
            Duration::ZERO
        } else {
            detect::SERVER_DIAL_DELAY
        };
        let scratch = &self.context.scratch;
        let first = pin!(detect::first_speaker(io, scratch, client_wait, limit, dial));
        let Some(first) = self.context.unless_draining(first).await else {
            return Ok(PeekOutcome::Draining);
        };
        let (outcome, detected) = match first? {
            FirstSpeaker::Client => return Ok(PeekOutcome::ClientData),
            FirstSpeaker::Server(app) => {
                self.server_first.borrow_mut().insert(peer.target);
                (PeekOutcome::Opaque(app), HttpDetected::NotHttp)
            }
            FirstSpeaker::Neither(Some(app)) => (PeekOutcome::Opaque(app), HttpDetected::TimedOut),
            FirstSpeaker::Neither(None) => (PeekOutcome::TimedOut, HttpDetected::TimedOut),
        };
        enforcer.record_detection(&Ok(detected), start.elapsed());
        Ok(outcome)
    }

    /// Refuses the proxy's own ports as a target: such a connection would come back to the proxy.
    pub(super) fn refuse_own_port(&self, port: u16) -> Result<(), ConnectionError> {
        let config = &self.context.config;
        let is_own = config.inbound.listen.port() == port
            || config
                .outbound
                .listen
                .iter()
                .any(|addr| addr.port() == port);
        if is_own {
            return Err(ConnectionError::OwnPort(port));
        }
        Ok(())
    }

    pub(super) fn credentials(&self) -> Result<Arc<Credentials>, ConnectionError> {
        self.context
            .credentials()
            .ok_or(ConnectionError::NoCertificate)
    }
}
