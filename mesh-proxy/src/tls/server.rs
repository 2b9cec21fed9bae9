//! Ends TLS that a peer of the mesh began. Runs on data threads, and on the control thread for the
//! admin interface.

use std::sync::Arc;
use std::time::Duration;

use mesh_core::identity::Identity;
use rustls::server::{ServerConfig, UnbufferedServerConnection};
use rustls::{CommonState, HandshakeKind};
use tokio_rustls::TlsAcceptor;

use super::error::TlsError;
use super::{Credentials, Purpose, handshake, verify};
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

/// A handshake takes two round trips and a millisecond of work; a client that needs longer than
/// this is not serious, and holds a connection without having been judged by any policy.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Performs the server's side of a handshake. `alpn` selects the configuration that accepts
/// transport headers.
pub async fn terminate(
    io: Io,
    credentials: &Credentials,
    alpn: bool,
    purpose: Purpose,
) -> Result<(TlsStream, ClientTlsInfo), TlsError> {
    // Boxed: kilobytes of handshake state would otherwise be part of every connection's future for
    // its whole life.
    let shaking = Box::pin(shake(io, credentials.server(alpn), purpose));
    tokio::time::timeout(HANDSHAKE_TIMEOUT, shaking)
        .await
        .map_err(|_elapsed| TlsError::TimedOut(HANDSHAKE_TIMEOUT))?
}

async fn shake(
    io: Io,
    config: Arc<ServerConfig>,
    purpose: Purpose,
) -> Result<(TlsStream, ClientTlsInfo), TlsError> {
    match purpose {
        Purpose::Traffic => {
            let connection = UnbufferedServerConnection::new(config)
                .map_err(|error| TlsError::Handshake(std::io::Error::other(error)))?;
            let (stream, info) = handshake::shake(io, connection, client_info).await?;
            Ok((TlsStream::Own(Box::new(stream)), info))
        }
        Purpose::Control => {
            let stream = TlsAcceptor::from(config).accept(io).await?;
            let info = client_info(stream.get_ref().1)?;
            Ok((TlsStream::Library(Box::new(stream.into())), info))
        }
    }
}

fn client_info(session: &CommonState) -> Result<ClientTlsInfo, TlsError> {
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
