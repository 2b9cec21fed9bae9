//! Resolves the TLS and protocol of an accepted connection.
//!
//! Opaque ports are forwarded without inspection. On all others the proxy detects TLS first: it
//! terminates TLS that names this proxy's identity, and forwards other TLS as opaque bytes. The
//! port's policy or, where it requires detection, the first bytes decide whether the connection is
//! HTTP.

use std::rc::Rc;
use std::sync::Arc;

use mesh_core::policy::inbound::{HttpVersions, Served};

use super::Inbound;
use super::error::ConnectionError;
use super::gateway::GatewayTarget;
use super::http::Destination;
use super::peer::Peer;
use super::policy::{ActiveEnforcer, PolicyEnforcer};
use super::tcp::Tunnel;
use crate::classify::{Classification, ProtocolPlan};
use crate::http::Protocol;
use crate::telemetry::labels::{Direction, NoServerTls, ServerTls};
use crate::tls::server::ClientTlsInfo;
use crate::tls::{self, Credentials, Purpose, TlsError};
use crate::transport::connect::ConnectError;
use crate::transport::detect::{FirstSpeaker, TlsDetected};
use crate::transport::header::SessionProtocol;
use crate::transport::listen::AcceptedConnection;
use crate::transport::{Io, Stage};

/// A connection with resolved TLS, policy and protocol.
#[expect(
    clippy::large_enum_variant,
    reason = "returned once for each connection and taken apart at once"
)]
pub(super) enum ResolvedConnection {
    Tunnel(Tunnel),
    Http {
        io: Io,
        peer: Peer,
        enforcer: ActiveEnforcer,
        protocol: Protocol,
        /// The Service of another cluster's requests; `None` for the application.
        gateway: Option<Box<GatewayTarget>>,
    },
    /// The client closed the connection during detection.
    Closed,
}

/// Returns the protocol plan by what the port serves, the client's TLS and the session protocol
/// that another proxy declared in a transport header. `None` refuses the connection: the policy's
/// routes cannot be enforced on opaque TLS.
pub(super) fn protocol_plan(
    served: Served,
    tls: &ServerTls,
    declared: Option<SessionProtocol>,
) -> Option<ProtocolPlan> {
    let is_meshed = matches!(tls, ServerTls::Established { .. });
    if matches!(tls, ServerTls::Opaque { .. }) {
        let is_http = matches!(served, Served::Http(_));
        return (!is_http).then_some(ProtocolPlan::Opaque);
    }
    Some(match (served, declared) {
        (_, Some(SessionProtocol::Http1)) => ProtocolPlan::Http(Protocol::Http1),
        (_, Some(SessionProtocol::Http2)) | (Served::Http(HttpVersions::Http2), _) => {
            ProtocolPlan::Http(Protocol::Http2)
        }
        (Served::Http(HttpVersions::Http1), None) if !is_meshed => {
            ProtocolPlan::Http(Protocol::Http1)
        }
        // The proxy of a meshed client may have upgraded HTTP/1 to HTTP/2.
        (Served::Http(_), _) => ProtocolPlan::DetectVersion,
        (Served::Opaque | Served::Tls, _) | (_, Some(SessionProtocol::Opaque)) => {
            ProtocolPlan::Opaque
        }
        (Served::Detected(timeout), None) => ProtocolPlan::Detect(timeout),
    })
}

/// Performs the handshake of a client that names this proxy. `alpn` allows a transport header.
pub(super) async fn perform_handshake(
    io: Io,
    credentials: &Credentials,
    alpn: bool,
) -> Result<(Io, ClientTlsInfo), TlsError> {
    io.enter(Stage::Handshake);
    let handshake = tls::server::terminate(io, credentials, alpn, Purpose::Traffic);
    let (io, info) = Box::pin(handshake).await?;
    io.enter(Stage::Unserved);
    Ok((io, info))
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
                gateway: None,
            }) => return Box::pin(self.serve_http(io, peer, enforcer, protocol)).await,
            Ok(ResolvedConnection::Http {
                io,
                peer,
                enforcer,
                protocol,
                gateway: Some(target),
            }) => {
                let drain = self.context.drain.clone();
                let to = Destination::Gateway(target);
                let serving = self.serve_requests(io, peer, enforcer, protocol, to, drain);
                return Box::pin(serving).await;
            }
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
                if let Some(reason) = error.limit() {
                    let refused = &self.context.families.refused;
                    refused.connection(Direction::Inbound, reason);
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
        // The application has accepted it while the client was silent.
        let mut app = None;
        match enforcer.current_policy().server.protocol.served() {
            Served::Opaque => {
                let peer = Peer::plain(accepted.peer, target, NoServerTls::PortSkipped);
                let enforcer = self.enforcer(&peer)?;
                let plan = ProtocolPlan::Opaque;
                return Box::pin(self.resolve_protocol(io, peer, enforcer, plan, None)).await;
            }
            Served::Detected(_) => {
                let timeout = self.classifier.timeout;
                let labels = || enforcer.detection_labels();
                let dial = async || self.connect_if_authorized(&plain, &enforcer).await;
                let classifier = &self.classifier;
                let first = classifier.first_speaker(&mut io, timeout, target, labels, dial);
                let opened = match first.await? {
                    Some(FirstSpeaker::Client(opened)) => {
                        app = opened;
                        None
                    }
                    // Such as a probe or a scan of ports, which is not worth a log line.
                    Some(FirstSpeaker::ClientFinished(None)) if !enforcer.is_authorized(&plain) => {
                        return Ok(ResolvedConnection::Closed);
                    }
                    Some(FirstSpeaker::ClientFinished(app)) => Some(app.map(Ok)),
                    Some(
                        FirstSpeaker::Server(app)
                        | FirstSpeaker::ServerClosed(app)
                        | FirstSpeaker::Neither(Some(app)),
                    ) => Some(Some(Ok(app))),
                    Some(FirstSpeaker::Unreachable(error)) => Some(Some(Err(error))),
                    Some(FirstSpeaker::Neither(None)) if enforcer.is_authorized(&plain) => {
                        Some(None)
                    }
                    Some(FirstSpeaker::Neither(None)) => {
                        return Err(ConnectionError::TlsTimedOut(timeout));
                    }
                    None => return Ok(ResolvedConnection::Closed),
                };
                if let Some(opened) = opened {
                    let io = enforcer.measure(io);
                    let opening = self.open_tunnel(io, opened, plain, enforcer);
                    return Ok(ResolvedConnection::Tunnel(Box::pin(opening).await?));
                }
            }
            Served::Tls | Served::Http(_) => {}
        }
        let Some((io, tls)) = self.terminate_tls(io).await? else {
            return Ok(ResolvedConnection::Closed);
        };
        let peer = Peer { tls, ..plain };
        let enforcer = self.enforcer(&peer)?;
        let policy = enforcer.current_policy();
        match protocol_plan(policy.server.protocol.served(), &peer.tls, None) {
            Some(plan) => Box::pin(self.resolve_protocol(io, peer, enforcer, plan, app)).await,
            None => {
                // Counts and refuses it as an unauthorized connection.
                enforcer.authorize_connection(&peer)?;
                Ok(ResolvedConnection::Closed)
            }
        }
    }

    /// Terminates TLS whose server name is this proxy's identity. Returns `None` when the client
    /// has closed the connection without sending data.
    pub(crate) async fn terminate_tls(
        &self,
        mut io: Io,
    ) -> Result<Option<(Io, ServerTls)>, ConnectionError> {
        let sni = match self.classifier.detect_tls(&mut io).await? {
            TlsDetected::ClientHello { sni } => sni,
            TlsDetected::NotTls => {
                return Ok(Some((io, ServerTls::None(NoServerTls::NoTlsFromRemote))));
            }
            TlsDetected::TimedOut => {
                return Err(ConnectionError::TlsTimedOut(self.classifier.timeout));
            }
            TlsDetected::Eof => return Ok(None),
        };
        let credentials = self.credentials()?;
        if sni.as_deref() != Some(credentials.server_name()) {
            return Ok(Some((io, ServerTls::Opaque { sni })));
        }
        let (io, info) = perform_handshake(io, &credentials, false).await?;
        let tls = ServerTls::Established { client: info.id };
        Ok(Some((io, tls)))
    }

    /// Resolves the protocol of a connection with resolved TLS and policy. `app` is a connection to
    /// the application, if there is one already.
    pub(super) async fn resolve_protocol(
        &self,
        io: Io,
        peer: Peer,
        enforcer: ActiveEnforcer,
        plan: ProtocolPlan,
        app: Option<Box<Io>>,
    ) -> Result<ResolvedConnection, ConnectionError> {
        let mut io = enforcer.measure(io);
        let labels = || enforcer.detection_labels();
        let dial = async || self.connect_if_authorized(&peer, &enforcer).await;
        let classifier = &self.classifier;
        let classified = classifier.classify(&mut io, plan, peer.target, labels, app, dial);
        Ok(match classified.await? {
            Classification::Http(protocol) => ResolvedConnection::Http {
                io,
                peer,
                enforcer,
                protocol,
                gateway: None,
            },
            Classification::Opaque(app) => {
                let opening = self.open_tunnel(io, app, peer, enforcer);
                ResolvedConnection::Tunnel(Box::pin(opening).await?)
            }
            Classification::Closed => ResolvedConnection::Closed,
        })
    }

    /// Connects to the application during detection, only for clients that the policy authorizes
    /// without inspecting requests: others may still send a request or a ClientHello that it
    /// allows.
    async fn connect_if_authorized(
        &self,
        peer: &Peer,
        enforcer: &PolicyEnforcer,
    ) -> Option<Result<Io, ConnectError>> {
        if !enforcer.is_authorized(peer) {
            return None;
        }
        match self.apps.connect(peer.target).await {
            // It may accept later: its backlog may be full.
            Err(ConnectError::TimedOut { .. }) => None,
            connected => Some(connected),
        }
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
