//! Connections to the proxy's own inbound port: another proxy of the mesh names the target in a
//! transport header.
//!
//! They must be mutually authenticated. What is then done to them is what the policy of the named
//! port says, as for every other connection.

use std::net::SocketAddr;

use super::Inbound;
use super::accept::{ConnectionError, Decided, Next};
use super::peer::Peer;
use crate::http::Protocol;
use crate::telemetry::labels::ServerTls;
use crate::tls::{self, Purpose};
use crate::transport::Io;
use crate::transport::detect::{self, TlsDetected};
use crate::transport::header::{self, Session};
use crate::transport::listen::Accepted;

impl Inbound {
    pub(super) async fn decide_direct(
        &self,
        accepted: Accepted,
    ) -> Result<Decided, ConnectionError> {
        let limit = self.worker.config.inbound.detect_timeout;
        let credentials = self.credentials()?;
        let mut io = Io::plain(accepted.tcp);
        match detect::tls(&mut io, &self.worker.scratch, limit).await? {
            TlsDetected::ClientHello { sni: Some(sni) } if *sni == *credentials.server_name() => {}
            TlsDetected::TimedOut => return Err(ConnectionError::TlsTimedOut(limit)),
            TlsDetected::Eof => return Ok(Decided::Gone),
            TlsDetected::ClientHello { .. } | TlsDetected::NotTls => {
                return Err(ConnectionError::NotAuthenticated);
            }
        }
        // Transport headers are for ports whose connections are opaque.
        let handshake = tls::server::terminate(io, &credentials, true, Purpose::Traffic);
        let (stream, info) = Box::pin(handshake).await?;
        let Some(id) = info.id else {
            return Err(ConnectionError::NotAuthenticated);
        };
        if !info.alpn {
            return Err(ConnectionError::NoTransportHeader);
        }
        let mut io = Io::tls(stream);
        let header = header::read(&mut io, limit).await?;
        self.worker.families.detect.transport_header(
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
        let judge = self.first_judge_of(&peer).await?;
        let next = match header.session {
            Session::Opaque => Next::Forward,
            Session::Http1 => Next::Http(Protocol::Http1),
            Session::Http2 => Next::Http(Protocol::Http2),
        };
        Box::pin(self.proceed(io, peer, judge, next)).await
    }
}
