//! Connections to the proxy's own inbound port. Another proxy of the mesh names the target in a
//! transport header: a port of this pod, or a Service if this proxy is a [gateway](super::gateway).
//!
//! They must be mutually authenticated. The policy of the named port then applies, as to every
//! other connection, or for a Service the policy of the inbound port.

use std::net::SocketAddr;

use mesh_core::identity::Identity;

use super::Inbound;
use super::accept::{ResolvedConnection, perform_handshake, protocol_plan};
use super::error::ConnectionError;
use super::gateway::GatewayTarget;
use super::peer::Peer;
use super::tcp::Tunnel;
use crate::classify::ProtocolPlan;
use crate::discovery::NameAddr;
use crate::telemetry::labels::ServerTls;
use crate::transport::detect::TlsDetected;
use crate::transport::header::TransportHeader;
use crate::transport::listen::AcceptedConnection;
use crate::transport::{Io, header};

impl Inbound {
    pub(super) async fn resolve_direct(
        &self,
        accepted: AcceptedConnection,
    ) -> Result<ResolvedConnection, ConnectionError> {
        let limit = self.classifier.timeout;
        let credentials = self.credentials()?;
        let mut io = Io::plain(accepted.tcp);
        match self.classifier.detect_tls(&mut io).await? {
            TlsDetected::ClientHello { sni: Some(sni) } if *sni == *credentials.server_name() => {}
            TlsDetected::TimedOut => return Err(ConnectionError::TlsTimedOut(limit)),
            TlsDetected::Eof => return Ok(ResolvedConnection::Closed),
            TlsDetected::ClientHello { .. } | TlsDetected::NotTls => {
                return Err(ConnectionError::NotAuthenticated);
            }
        }
        // Transport headers are for ports whose connections are opaque.
        let (mut io, info) = perform_handshake(io, &credentials, true).await?;
        let Some(id) = info.id else {
            return Err(ConnectionError::NotAuthenticated);
        };
        if !info.alpn {
            return Err(ConnectionError::NoTransportHeader);
        }
        let header = header::read(&mut io, &self.context.scratch, limit).await?;
        self.context.families.detect.transport_header(
            header.session.as_str(),
            header.port,
            header.name.as_deref().unwrap_or(""),
            id.as_str(),
        );
        if header.name.is_some() {
            let ends = (accepted.peer, accepted.original_dst);
            return Box::pin(self.resolve_gateway(io, ends, id, header)).await;
        }
        self.refuse_own_port(header.port)?;
        let peer = Peer {
            client: accepted.peer,
            target: SocketAddr::new(accepted.original_dst.ip(), header.port),
            dialled: accepted.original_dst,
            tls: ServerTls::Established { client: Some(id) },
        };
        let enforcer = self.enforcer_with_policy(&peer).await?;
        let served = enforcer.current_policy().server.protocol.served();
        let Some(plan) = protocol_plan(served, &peer.tls, Some(header.session)) else {
            return Err(ConnectionError::NotAuthenticated);
        };
        Box::pin(self.resolve_protocol(io, peer, enforcer, plan, None)).await
    }

    /// Resolves a connection whose transport header names a Service.
    async fn resolve_gateway(
        &self,
        io: Io,
        (client, dialled): (SocketAddr, SocketAddr),
        id: Identity,
        header: TransportHeader,
    ) -> Result<ResolvedConnection, ConnectionError> {
        let name = header.name.unwrap_or_default();
        let Some(outbound) = &self.gateway else {
            return Err(ConnectionError::NoGateway(name));
        };
        let credentials = self.credentials()?;
        let is_loop = id == *credentials.id();
        let peer = Peer {
            client,
            target: dialled,
            dialled,
            tls: ServerTls::Established { client: Some(id) },
        };
        let enforcer = self.enforcer_with_policy(&peer).await?;
        let served = enforcer.current_policy().server.protocol.served();
        let service = self.service(&name, header.port);
        match protocol_plan(served, &peer.tls, Some(header.session)) {
            Some(ProtocolPlan::Http(protocol)) => {
                let target = GatewayTarget {
                    outbound: outbound.clone(),
                    service: service.ok_or(name),
                    dialled,
                    credentials,
                };
                Ok(ResolvedConnection::Http {
                    io: enforcer.measure(io),
                    peer,
                    enforcer,
                    protocol,
                    gateway: Some(Box::new(target)),
                })
            }
            _ => {
                enforcer.authorize_connection(&peer)?;
                if is_loop {
                    return Err(ConnectionError::GatewayLoop);
                }
                let service = service.ok_or(ConnectionError::GatewayDomain(name))?;
                let connected = outbound.connect_to(&service).await;
                let connected = connected.map_err(ConnectionError::Gateway)?;
                Ok(ResolvedConnection::Tunnel(Tunnel {
                    client: enforcer.measure(io),
                    app: connected.io,
                    peer,
                    enforcer,
                    guard: Some(connected.guard),
                }))
            }
        }
    }

    /// Returns the Service with a name, if this gateway serves its domain.
    fn service(&self, name: &str, port: u16) -> Option<NameAddr> {
        let service: NameAddr = format!("{name}:{port}").parse().ok()?;
        let is_served = self
            .context
            .config
            .inbound
            .serves_as_gateway(service.host());
        is_served.then_some(service)
    }
}
