//! Opaque inbound connections: authorized once, forwarded, and ended when the policy no longer
//! allows them.

use super::Inbound;
use super::error::ConnectionError;
use super::peer::Peer;
use super::policy::{ActiveEnforcer, Unauthorized};
use crate::transport::{Io, copy};

/// An authorized client connection and its connection to the application.
pub(super) struct Tunnel {
    client: Io,
    app: Io,
    peer: Peer,
    enforcer: ActiveEnforcer,
}

impl Tunnel {
    /// Authorizes a connection for which `app` is already open.
    pub(super) fn authorize(
        client: Io,
        app: Io,
        peer: Peer,
        enforcer: ActiveEnforcer,
    ) -> Result<Self, Unauthorized> {
        enforcer.authorize_connection(&peer)?;
        Ok(Self {
            client,
            app,
            peer,
            enforcer,
        })
    }
}

impl Inbound {
    /// Authorizes the connection, then connects to the application.
    pub(super) async fn open_tunnel(
        &self,
        client: Io,
        peer: Peer,
        enforcer: ActiveEnforcer,
    ) -> Result<Tunnel, ConnectionError> {
        enforcer.authorize_connection(&peer)?;
        let app = self.apps.connect(peer.target).await?;
        Ok(Tunnel {
            client,
            app,
            peer,
            enforcer,
        })
    }

    /// Copies until both sides have closed or the policy no longer allows the connection.
    pub(super) async fn copy(&self, tunnel: Tunnel) {
        let Tunnel {
            client,
            app,
            peer,
            enforcer,
        } = tunnel;
        tokio::select! {
            copied = copy::duplex(client, app, &self.context.scratch, &self.context.drain) => {
                if let Err(error) = copied {
                                        // The client or the application failed; the close is
                                        // counted with its reason.
                    tracing::debug!(client = %peer.client, server = %peer.target, error = &error as &dyn std::error::Error, "Connection aborted");
                }
            }
            () = enforcer.revoked(&peer) => {
                tracing::info!(client = %peer.client, server = %peer.target, "Connection terminated: the policy no longer allows it");
            }
        }
    }
}
