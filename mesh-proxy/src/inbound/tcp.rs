//! Connections whose bytes nobody interprets: judged once, forwarded, and ended when the policy no
//! longer allows them.

use super::Inbound;
use super::accept::ConnectionError;
use super::judge::{ActiveJudge, Unauthorized};
use super::peer::Peer;
use crate::transport::{Io, copy};

/// A connection that the policy allows, and the one to the application.
pub(super) struct Tunnel {
    client: Io,
    app: Io,
    peer: Peer,
    judge: ActiveJudge,
}

impl Tunnel {
    /// Judges the connection. `app` is open already.
    pub(super) fn over(
        client: Io,
        app: Io,
        peer: Peer,
        judge: ActiveJudge,
    ) -> Result<Self, Unauthorized> {
        judge.connection(&peer)?;
        Ok(Self {
            client,
            app,
            peer,
            judge,
        })
    }
}

impl Inbound {
    /// Judges the connection, then connects to the application.
    pub(super) async fn open_tunnel(
        &self,
        client: Io,
        peer: Peer,
        judge: ActiveJudge,
    ) -> Result<Tunnel, ConnectionError> {
        judge.connection(&peer)?;
        let app = self.apps.connect(peer.target).await?;
        Ok(Tunnel {
            client,
            app,
            peer,
            judge,
        })
    }

    /// Copies until both sides have ended or the policy changes its mind.
    pub(super) async fn copy(&self, tunnel: Tunnel) {
        let Tunnel {
            client,
            app,
            peer,
            judge,
        } = tunnel;
        tokio::select! {
            copied = copy::duplex(client, app, &self.worker.scratch, &self.worker.drain) => {
                if let Err(error) = copied {
                    // One of the two ends broke off. That is theirs to explain, and the close is
                    // counted with its reason.
                    tracing::debug!(client = %peer.client, server = %peer.target, error = &error as &dyn std::error::Error, "Connection broke off");
                }
            }
            () = judge.revoked(&peer) => {
                tracing::info!(client = %peer.client, server = %peer.target, "Connection terminated: the policy no longer allows it");
            }
        }
    }
}
