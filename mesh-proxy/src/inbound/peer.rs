//! The client of an accepted connection, its TLS and its target.

use std::net::SocketAddr;

use mesh_core::identity::Identity;
use mesh_core::policy::inbound::{Client, ClientTls};

use crate::telemetry::labels::{NoServerTls, ServerTls};

/// Addresses and TLS of an accepted connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) client: SocketAddr,
    /// The address where the application listens.
    pub(super) target: SocketAddr,
    /// The address that the client dialled: the target, or the proxy's own port if a transport
    /// header names the target.
    pub(super) dialled: SocketAddr,
    pub(super) tls: ServerTls,
}

impl Peer {
    /// Returns the peer of a connection to the application without the mesh's TLS.
    pub(super) fn plain(client: SocketAddr, target: SocketAddr, no_tls: NoServerTls) -> Self {
        Self {
            client,
            target,
            dialled: target,
            tls: ServerTls::None(no_tls),
        }
    }

    /// The authenticated identity.
    pub(super) fn identity(&self) -> Option<&Identity> {
        match &self.tls {
            ServerTls::Established { client } => client.as_ref(),
            ServerTls::Opaque { .. } | ServerTls::None(_) => None,
        }
    }

    /// Returns the client as policies match it.
    pub(super) fn as_client(&self) -> Client<'_> {
        Client {
            ip: self.client.ip(),
            tls: client_tls(&self.tls),
        }
    }

    /// Whether another proxy named the target in a transport header.
    pub(super) fn is_direct(&self) -> bool {
        self.dialled != self.target
    }
}

/// Returns a client's TLS as policies match it.
pub(super) fn client_tls(tls: &ServerTls) -> ClientTls<'_> {
    match tls {
        ServerTls::Established { client: Some(id) } => ClientTls::Identified(id),
        ServerTls::Established { client: None } => ClientTls::Anonymous,
        ServerTls::Opaque { .. } | ServerTls::None(_) => ClientTls::None,
    }
}
