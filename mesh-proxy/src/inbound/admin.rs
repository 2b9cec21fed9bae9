//! The admin interface as an inbound port: its connections are detected, authorized and measured as
//! the application's, and the proxy itself responds.
//!
//! Runs on the control thread, which has its own [`Inbound`], so that probes and scrapes are served
//! when the data threads are busy, before there is a certificate, and while the proxy drains.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use mesh_runtime::admin::Admin;
use mesh_runtime::drain::Watch;

use super::Inbound;
use super::error::ConnectionError;
use super::http::Destination;
use super::peer::Peer;
use crate::http::Protocol;
use crate::http::server::Server;
use crate::telemetry::labels::{Direction, ServerTls};
use crate::transport::Io;
use crate::transport::detect::{self, HttpDetected};
use crate::transport::socket::Socket;

/// Probes and scrapers send their requests immediately.
const DETECT_TIMEOUT: Duration = Duration::from_secs(1);

impl Inbound {
    /// Serves one connection to the admin interface. Logs and counts every failure.
    pub(crate) async fn serve_admin(self: Rc<Self>, tcp: Socket, admin: Admin) {
        let (Ok(client), Ok(target)) = (tcp.peer_addr(), tcp.local_addr()) else {
            // The client has closed the connection already.
            return;
        };
        let canonical = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
        let (client, target) = (canonical(client), canonical(target));
        if let Err(error) = self.accept_admin(tcp, client, target, admin).await {
            if let Some(reason) = error.reason() {
                let errors = &self.context.families.errors;
                errors.tcp(Direction::Inbound, target.into(), reason);
            }
            tracing::info!(%client, error = &error as &dyn std::error::Error, "Admin connection closed");
        }
    }

    /// Returns the HTTP server of the inbound port, for other services of the proxy, and the drain
    /// of its connections.
    pub(crate) fn http_server(&self) -> (Server, Watch) {
        (self.server.clone(), self.context.drain.clone())
    }

    /// Counts an admin connection that was closed in favour of a newer one.
    pub(crate) fn count_admin_connection_closed(&self) {
        let refused = &self.context.families.refused;
        refused.connection(Direction::Inbound, "admin_connections");
        tracing::debug!("Closed the oldest admin connection: limit reached");
    }

    async fn accept_admin(
        self: &Rc<Self>,
        tcp: Socket,
        client: SocketAddr,
        target: SocketAddr,
        admin: Admin,
    ) -> Result<(), ConnectionError> {
        let Some((mut io, tls)) = self.terminate_tls(Io::plain(tcp)).await? else {
            return Ok(());
        };
        if let ServerTls::Opaque { sni } = tls {
            return Err(ConnectionError::ServerNameMismatch(sni));
        }
        let detected = detect::http(&mut io, &self.context.scratch, DETECT_TIMEOUT).await?;
        let protocol = match detected {
            HttpDetected::Http1 => Protocol::Http1,
            HttpDetected::Http2 => Protocol::Http2,
            // Peers of the mesh speak HTTP/2 to each other.
            HttpDetected::TimedOut if io.is_tls() => Protocol::Http2,
            HttpDetected::TimedOut => Protocol::Http1,
            HttpDetected::Eof => return Ok(()),
            HttpDetected::NotHttp => return Err(ConnectionError::NotHttp),
        };
        let peer = Peer {
            client,
            target,
            dialled: target,
            tls,
        };
        let enforcer = self.enforcer(&peer)?;
        let io = enforcer.measure(io);
        let to = Destination::Admin(admin, self.context.clone());
        let drain = self.context.drain.clone();
        self.serve_requests(io, peer, enforcer, protocol, to, drain)
            .await;
        Ok(())
    }
}
