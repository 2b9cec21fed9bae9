//! TLS server: terminates TLS of clients of the mesh. Runs on data threads, and on the control
//! thread for the admin interface.

use std::time::Duration;

use mesh_core::identity::Identity;
use mesh_planted::Bug;
use rustls::server::UnbufferedServerConnection;
use rustls::{CommonState, HandshakeKind};
use tokio_rustls::TlsAcceptor;

use super::error::TlsError;
use super::{Credentials, Purpose, certificate, handshake};
use crate::transport::Io;

/// Properties of a client from its handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientTlsInfo {
    /// `None` when the client has no certificate.
    pub(crate) id: Option<Identity>,
    /// Whether the client sends a transport header.
    pub(crate) alpn: bool,
}

/// A handshake takes two round trips and a millisecond of CPU time. Until it completes, the client
/// holds a connection that no policy has authorized.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Performs a handshake as the server. `alpn` selects the configuration that accepts transport
/// headers.
pub(crate) async fn terminate(
    io: Io,
    credentials: &Credentials,
    alpn: bool,
    purpose: Purpose,
) -> Result<(Io, ClientTlsInfo), TlsError> {
    // Boxed: otherwise kilobytes of handshake state would be part of every connection's future
    // until the connection closes.
    let handshake = Box::pin(perform_handshake(io, credentials, alpn, purpose));
    tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake)
        .await
        .map_err(|_elapsed| TlsError::TimedOut(HANDSHAKE_TIMEOUT))?
}

async fn perform_handshake(
    io: Io,
    credentials: &Credentials,
    alpn: bool,
    purpose: Purpose,
) -> Result<(Io, ClientTlsInfo), TlsError> {
    let config = credentials.server_config(alpn);
    match purpose {
        Purpose::Traffic => {
            let connection = UnbufferedServerConnection::new(config)
                .map_err(|error| TlsError::Handshake(std::io::Error::other(error)))?;
            let (mut stream, info) = handshake::perform(io, connection, client_info).await?;
            if let Some(id) = &info.id {
                stream.end_with(credentials.admit(id)?);
            }
            Ok((Io::records(stream), info))
        }
        Purpose::Control => {
            let stream = TlsAcceptor::from(config).accept(io).await?;
            let info = client_info(stream.get_ref().1)?;
            Ok((Io::rustls(stream), info))
        }
    }
}

fn client_info(session: &CommonState) -> Result<ClientTlsInfo, TlsError> {
    let leaf = session
        .peer_certificates()
        .and_then(|certificates| certificates.first());
    let is_resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
    let id = match leaf {
        Some(_) if is_resumed && Bug::ResumedIdentityLost.is_planted() => None,
        None => None,
        Some(leaf) => {
            if is_resumed {
                certificate::check_not_expired(leaf).map_err(TlsError::Peer)?;
            }
            Some(certificate::identity_of(leaf).map_err(TlsError::Peer)?)
        }
    };
    Ok(ClientTlsInfo {
        id,
        alpn: session.alpn_protocol().is_some(),
    })
}
