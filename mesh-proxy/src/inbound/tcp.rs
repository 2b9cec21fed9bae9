//! Opaque inbound connections: authorized once, forwarded, and ended when the policy no longer
//! allows them.

use super::Inbound;
use super::error::ConnectionError;
use super::peer::Peer;
use super::policy::ActiveEnforcer;
use crate::context::ProxyContext;
use crate::outbound::ConnectionGuard;
use crate::transport::connect::ConnectError;
use crate::transport::{Io, copy};

/// An authorized client connection and its connection to the application.
pub(super) struct Tunnel {
    pub(super) client: Io,
    /// The connection to the application, or to an endpoint of another cluster's Service.
    pub(super) app: Io,
    pub(super) peer: Peer,
    pub(super) enforcer: ActiveEnforcer,
    /// Counts the connection to the endpoint.
    pub(super) guard: Option<ConnectionGuard>,
}

impl Inbound {
    /// Authorizes the connection, then connects to the application. If detection has tried to,
    /// `app` is the result.
    pub(super) async fn open_tunnel(
        &self,
        client: Io,
        app: Option<Result<Box<Io>, Box<ConnectError>>>,
        peer: Peer,
        enforcer: ActiveEnforcer,
    ) -> Result<Tunnel, ConnectionError> {
        enforcer.authorize_connection(&peer)?;
        let app = match app {
            Some(Ok(app)) => *app,
            Some(Err(error)) => return Err((*error).into()),
            None => self.apps.connect(peer.target).await?,
        };
        Ok(Tunnel {
            client,
            app,
            peer,
            enforcer,
            guard: None,
        })
    }

    /// Copies until both sides have closed or the policy no longer allows the connection.
    pub(super) async fn copy(&self, tunnel: Tunnel) {
        let Tunnel {
            client,
            app,
            peer,
            enforcer,
            mut guard,
        } = tunnel;
        let ProxyContext { scratch, drain, .. } = &*self.context;
        let idle = self.context.config.half_closed_idle;
        tokio::select! {
            biased;
            // First, so that no byte is copied that the policy no longer allows.
            () = enforcer.revoked(&peer) => {
                tracing::info!(client = %peer.client, server = %peer.target, "Connection terminated: the policy no longer allows it");
            }
            copied = copy::duplex(client, app, scratch, idle, drain) => {
                if let Err(error) = copied {
                    // The client or the application failed; the close is counted with its reason.
                    tracing::debug!(client = %peer.client, server = %peer.target, error = &error as &dyn std::error::Error, "Connection aborted");
                    if let Some(guard) = &mut guard {
                        guard.set_aborted();
                    }
                }
            }
        }
    }
}
