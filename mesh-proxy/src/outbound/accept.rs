//! Resolves the destination of an outbound connection through discovery, and its protocol through
//! discovery or its first bytes.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use mesh_core::meta::Meta;
use mesh_core::policy::outbound::OutboundProtocol;

use super::Outbound;
use super::http::ClientConnection;
use super::opaque::{self, Connected, OpaqueError};
use crate::classify::{Classification, ProtocolPlan};
use crate::config::ClientTrust;
use crate::context::ProxyContext;
use crate::discovery::{DiscoveryError, OutboundTarget};
use crate::http::Protocol;
use crate::telemetry::labels::{self, Direction};
use crate::transport::detect::TlsDetected;
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
    #[error("the policy routes by TLS server name, but no ClientHello arrived in time")]
    ClientHelloTimeout,
    #[error("the application's connection failed while its protocol was detected")]
    Detect(#[from] std::io::Error),
}

/// A connection with resolved destination and protocol.
enum ResolvedConnection {
    Tunnel(Box<Connected>),
    Http(Rc<ClientConnection>, Protocol),
    /// The application closed the connection during detection.
    Closed,
}

impl ConnectionError {
    /// Value of the `error` label of `outbound_tcp_errors_total`.
    fn reason(&self) -> &'static str {
        match self {
            Self::Opaque(error) => error.reason(),
            Self::Detect(_) => "i/o",
            Self::Loop(_) | Self::Discovery(_) | Self::NoServerName | Self::ClientHelloTimeout => {
                "unexpected"
            }
        }
    }
}

/// Returns the value of the label `protocol` of `outbound_tcp_protocol_connections_total`.
fn protocol_label(protocol: &OutboundProtocol) -> &'static str {
    match protocol {
        OutboundProtocol::Http1(_) => "http/1",
        OutboundProtocol::Http2(_) | OutboundProtocol::Grpc(_) => "http/2",
        OutboundProtocol::Detect { .. } => "detect",
        OutboundProtocol::Opaque(_) => "opaq",
        OutboundProtocol::Tls(_) => "tls",
    }
}

impl Outbound {
    /// Serves one connection until it ends. Logs and counts every failure.
    pub(crate) async fn serve(self: Rc<Self>, accepted: AcceptedConnection) {
        let accepted = match &self.context.probe_listener {
            Some(listener) => listener.without_probe(accepted),
            None => Some(accepted),
        };
        let Some(accepted) = accepted else {
            return;
        };
        let (client, dst) = (accepted.peer, accepted.original_dst);
        // Each step is boxed when it begins, and freed when it ends.
        match Box::pin(self.resolve(accepted)).await {
            Ok((io, ResolvedConnection::Tunnel(server))) => Box::pin(self.copy(io, *server)).await,
            Ok((io, ResolvedConnection::Http(connection, protocol))) => {
                let drain = connection.drain();
                let serving =
                    self.server
                        .serve_client(io, protocol, connection, ClientTrust::Known, drain);
                let served = Box::pin(serving).await;
                if let Err(error) = served {
                    tracing::debug!(%dst, error = &error as &dyn std::error::Error, "HTTP connection failed");
                }
            }
            Ok((_, ResolvedConnection::Closed)) => {}
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
    ) -> Result<(Io, ResolvedConnection), ConnectionError> {
        let (client, dst) = (accepted.peer, accepted.original_dst);
        if self.is_own_port(&accepted) {
            return Err(ConnectionError::Loop(dst));
        }
        let tcp = &self.context.families.tcp;
        let transport = tcp.transport(labels::outbound_accept(dst));
        let mut io = Io::plain(accepted.tcp).measured(transport.open());
        let resolved = if self.context.config.outbound.ingress {
            Box::pin(self.resolve_ingress(&mut io, client, dst)).await
        } else {
            self.resolve_original(&mut io, client, dst).await
        };
        Ok((io, resolved?))
    }

    /// Resolves a connection whose destination is the original one.
    async fn resolve_original(
        &self,
        io: &mut Io,
        client: SocketAddr,
        dst: SocketAddr,
    ) -> Result<ResolvedConnection, ConnectionError> {
        let updates = Box::pin(self.context.discovery.outbound(dst)).await?;
        let target = updates.borrow().clone();
        let labels = || labels::parent(&target.policy.parent);
        let protocol = &target.policy.protocol;
        let detect = &self.context.families.detect;
        detect.outbound_connection(&labels(), protocol_label(protocol));
        let plan = match protocol {
            OutboundProtocol::Detect { .. } => ProtocolPlan::Detect(self.classifier.timeout),
            OutboundProtocol::Http1(_) => ProtocolPlan::Http(Protocol::Http1),
            OutboundProtocol::Http2(_) | OutboundProtocol::Grpc(_) => {
                ProtocolPlan::Http(Protocol::Http2)
            }
            OutboundProtocol::Opaque(_) => ProtocolPlan::Opaque,
            OutboundProtocol::Tls(_) => return Box::pin(self.resolve_tls(io, &target)).await,
        };
        let dial = async || {
            if !opaque::is_forwarded(protocol) {
                return None;
            }
            Some(self.opaque.connect(&target).await)
        };
        let classified = self.classifier.classify(io, plan, dst, labels, None, dial);
        let classified = classified.await?;
        // What the application has sent was meant for the object that had the address.
        if updates.borrow().replaces(target.object.as_ref()) {
            return Ok(ResolvedConnection::Closed);
        }
        Ok(match classified {
            Classification::Http(protocol) => {
                let connection = self.http.connection(client, dst, updates);
                ResolvedConnection::Http(Rc::new(connection), protocol)
            }
            Classification::Opaque(Some(server)) => {
                ResolvedConnection::Tunnel(server.map_err(|error| *error)?)
            }
            Classification::Opaque(None) => {
                let server = Box::pin(self.opaque.connect(&target)).await?;
                ResolvedConnection::Tunnel(Box::new(server))
            }
            Classification::Closed => ResolvedConnection::Closed,
        })
    }

    /// Detects the protocol whatever the policy is, because requests select their destination. Any
    /// other connection is forwarded to its original destination.
    async fn resolve_ingress(
        &self,
        io: &mut Io,
        client: SocketAddr,
        dst: SocketAddr,
    ) -> Result<ResolvedConnection, ConnectionError> {
        let labels = || labels::parent(&Meta::new_default("ingress"));
        let families = &self.context.families;
        families.detect.outbound_connection(&labels(), "detect");
        let plan = ProtocolPlan::Detect(self.classifier.timeout);
        let dial = async || {
            let target = self.original_target(dst).await.ok()?;
            if !opaque::is_forwarded(&target.policy.protocol) {
                return None;
            }
            Some(self.opaque.connect(&target).await)
        };
        let classified = self.classifier.classify(io, plan, dst, labels, None, dial);
        Ok(match classified.await? {
            Classification::Http(protocol) => {
                let connection = self.http.ingress_connection(client, dst);
                ResolvedConnection::Http(Rc::new(connection), protocol)
            }
            Classification::Opaque(Some(server)) => {
                ResolvedConnection::Tunnel(server.map_err(|error| *error)?)
            }
            Classification::Opaque(None) => {
                let target = self.original_target(dst).await?;
                if let OutboundProtocol::Tls(_) = target.policy.protocol {
                    return self.resolve_tls(io, &target).await;
                }
                let server = self.opaque.connect(&target).await?;
                ResolvedConnection::Tunnel(Box::new(server))
            }
            Classification::Closed => ResolvedConnection::Closed,
        })
    }

    /// Looks up the original destination of one connection.
    async fn original_target(
        &self,
        dst: SocketAddr,
    ) -> Result<Arc<OutboundTarget>, DiscoveryError> {
        let updates = self.context.discovery.outbound(dst).await?;
        let target = updates.borrow().clone();
        Ok(target)
    }

    /// Whether the connection is to the outbound port itself: it was not redirected, or its
    /// destination is that port of this pod.
    fn is_own_port(&self, accepted: &AcceptedConnection) -> bool {
        let dst = accepted.original_dst;
        let listens = &self.context.config.outbound.listen;
        listens.iter().any(|listen| listen.port() == dst.port())
            && (dst == accepted.local || dst.ip().is_loopback() || self.context.is_local(dst.ip()))
    }

    /// Routes the application's own TLS by server name, and forwards it as opaque bytes.
    async fn resolve_tls(
        &self,
        io: &mut Io,
        target: &OutboundTarget,
    ) -> Result<ResolvedConnection, ConnectionError> {
        let name = match self.classifier.detect_tls(io).await? {
            TlsDetected::ClientHello { sni: Some(name) } => name,
            TlsDetected::Eof => return Ok(ResolvedConnection::Closed),
            TlsDetected::ClientHello { sni: None } | TlsDetected::NotTls => {
                return Err(ConnectionError::NoServerName);
            }
            TlsDetected::TimedOut => return Err(ConnectionError::ClientHelloTimeout),
        };
        let server = self.opaque.connect_tls(target, &name).await?;
        Ok(ResolvedConnection::Tunnel(Box::new(server)))
    }

    async fn copy(&self, client: Io, server: Connected) {
        let Connected { io, mut guard } = server;
        let ProxyContext { scratch, drain, .. } = &*self.context;
        let idle = self.context.config.half_closed_idle;
        let copied = copy::duplex(client, io, scratch, idle, drain).await;
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
