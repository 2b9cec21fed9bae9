//! Connections whose bytes nobody interprets: judged once, forwarded, and ended when the policy no longer allows them.

use super::Inbound;
use super::accept::ConnectionError;
use super::judge::Judge;
use super::peer::Peer;
use crate::transport::{Io, copy};

impl Inbound {
    /// Judges the connection, connects to the application and copies until both sides have ended.
    pub(super) async fn forward(
        &self,
        client: Io,
        peer: &Peer,
        judge: &Judge,
    ) -> Result<(), ConnectionError> {
        judge.connection(peer)?;
        let app = self.apps.connect(peer.target).await?;
        self.copy(client, app, peer, judge).await
    }

    /// The same with a connection to the application that is open already.
    pub(super) async fn forward_over(
        &self,
        client: Io,
        app: Io,
        peer: &Peer,
        judge: &Judge,
    ) -> Result<(), ConnectionError> {
        judge.connection(peer)?;
        self.copy(client, app, peer, judge).await
    }

    async fn copy(
        &self,
        client: Io,
        app: Io,
        peer: &Peer,
        judge: &Judge,
    ) -> Result<(), ConnectionError> {
        tokio::select! {
            copied = copy::duplex(client, app, &self.worker.scratch, &self.worker.drain) => {
                if let Err(error) = copied {
                    // One of the two ends broke off. That is theirs to explain, and the close is counted with its reason.
                    tracing::debug!(client = %peer.client, server = %peer.target, error = &error as &dyn std::error::Error, "Connection broke off");
                }
                Ok(())
            }
            () = judge.revoked(peer) => {
                tracing::info!(client = %peer.client, server = %peer.target, "Connection terminated: the policy no longer allows it");
                Ok(())
            }
        }
    }
}
