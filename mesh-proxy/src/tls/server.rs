//! Ends TLS that a peer of the mesh began. Runs on data threads, and on the control thread for the admin interface.

use std::time::Duration;

use mesh_core::identity::Identity;
use rustls::{HandshakeKind, ServerConnection};
use tokio_rustls::TlsAcceptor;

use super::error::TlsError;
use super::{Credentials, verify};
use crate::transport::Io;
use crate::transport::tls::TlsStream;

/// What a handshake tells about the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTlsInfo {
    /// Absent when the client had no certificate.
    pub id: Option<Identity>,
    /// Whether the client will send a transport header.
    pub alpn: bool,
}

/// A handshake takes two round trips and a millisecond of work; a client that needs longer than this is not serious, and
/// holds a connection without having been judged by any policy.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Performs the server's side of a handshake. `alpn` selects the configuration that accepts transport headers.
pub async fn terminate(
    io: Io,
    credentials: &Credentials,
    alpn: bool,
) -> Result<(TlsStream, ClientTlsInfo), TlsError> {
    let acceptor = TlsAcceptor::from(credentials.server(alpn));
    // Boxed: kilobytes of handshake state would otherwise be part of every connection's future for its whole life.
    let handshake = Box::pin(acceptor.accept(io));
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake)
        .await
        .map_err(|_elapsed| TlsError::TimedOut(HANDSHAKE_TIMEOUT))?
        .map_err(TlsError::Handshake)?;
    let info = client_info(stream.get_ref().1)?;
    Ok((stream.into(), info))
}

fn client_info(session: &ServerConnection) -> Result<ClientTlsInfo, TlsError> {
    let leaf = session
        .peer_certificates()
        .and_then(|certificates| certificates.first());
    let id = match leaf {
        None => None,
        Some(leaf) => {
            if session.handshake_kind() == Some(HandshakeKind::Resumed) {
                verify::still_valid(leaf).map_err(TlsError::Peer)?;
            }
            Some(verify::identity_of(leaf).map_err(TlsError::Peer)?)
        }
    };
    Ok(ClientTlsInfo {
        id,
        alpn: session.alpn_protocol().is_some(),
    })
}
