//! Who is at the other end of an accepted connection, and where he wants to go.

use std::net::SocketAddr;

use mesh_core::identity::Identity;
use mesh_core::policy::inbound::{Client, ClientTls};

use crate::telemetry::labels::{NoServerTls, ServerTls};

/// What is known of an accepted connection before any byte of the application's.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) client: SocketAddr,
    /// Where the application listens.
    pub(super) target: SocketAddr,
    /// The address that the client dialled: the target, or the proxy's own port where a transport
    /// header named the target.
    pub(super) dialled: SocketAddr,
    pub(super) tls: ServerTls,
}

impl Peer {
    /// A client without TLS of the mesh, that dialled the application.
    pub(super) fn plain(client: SocketAddr, target: SocketAddr, no_tls: NoServerTls) -> Self {
        Self {
            client,
            target,
            dialled: target,
            tls: ServerTls::None(no_tls),
        }
    }

    /// The proven identity.
    pub(super) fn identity(&self) -> Option<&Identity> {
        match &self.tls {
            ServerTls::Established { client } => client.as_ref(),
            ServerTls::Opaque { .. } | ServerTls::None(_) => None,
        }
    }

    /// As policies see it.
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

/// What policies know of a client's TLS.
pub(super) fn client_tls(tls: &ServerTls) -> ClientTls<'_> {
    match tls {
        ServerTls::Established { client: Some(id) } => ClientTls::Identified(id),
        ServerTls::Established { client: None } => ClientTls::Anonymous,
        ServerTls::Opaque { .. } | ServerTls::None(_) => ClientTls::None,
    }
}
