//! Connections to the proxy's own inbound port. Another proxy of the mesh names the target in a
//! transport header.
//!
//! They must be mutually authenticated. The policy of the named port then applies, as to every
//! other connection.

use std::net::SocketAddr;

use super::Inbound;
use super::accept::{ResolvedConnection, perform_handshake, protocol_plan};
use super::error::ConnectionError;
use super::peer::Peer;
use crate::telemetry::labels::ServerTls;
use crate::transport::detect::TlsDetected;
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
        if let Some(name) = header.name {
            return Err(ConnectionError::NoGateway(name));
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
}
