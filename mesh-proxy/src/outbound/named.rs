//! Requests and connections to a Service by its name: a gateway sends them for proxies of other
//! clusters.

use std::net::SocketAddr;

use super::Outbound;
use super::opaque::{Connected, OpaqueError};
use crate::discovery::{Destination, DiscoveryError, NameAddr};
use crate::http::{Request, Reset, Response};

/// Why a connection to a Service cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NamedError {
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error(transparent)]
    Opaque(#[from] OpaqueError),
}

impl Outbound {
    /// Sends a request of `client` to a Service. `dialled` is the address of its connection.
    pub(crate) async fn send_to(
        &self,
        name: &NameAddr,
        client: SocketAddr,
        dialled: SocketAddr,
        request: &mut Request,
    ) -> Result<Response, Reset> {
        self.http
            .send_to(Destination::Name(name.clone()), client, dialled, request)
            .await
    }

    /// Opens an opaque connection to an endpoint of a Service.
    pub(crate) async fn connect_to(&self, name: &NameAddr) -> Result<Connected, NamedError> {
        let destination = Destination::Name(name.clone());
        let updates = self.context.discovery.outbound(destination).await?;
        let target = updates.borrow().clone();
        Ok(self.opaque.connect(&target).await?)
    }
}
