//! Begins TLS with a peer of the mesh: endpoints from data threads, control-plane services from the
//! control thread.
//!
//! Deadlines are the dialler's: TCP, TLS and transport header share one.

use std::sync::Arc;

use mesh_core::endpoint::TlsPeer;
use rustls::client::{ClientConfig, UnbufferedClientConnection};
use rustls::{CommonState, Error, HandshakeKind};
use rustls_pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::error::{PeerError, TlsError};
use super::sessions::Target;
use super::trust::TrustAnchors;
use super::verify::ServerVerifier;
use super::{Credentials, Purpose, crypto, handshake, verify};
use crate::transport::Io;
use crate::transport::tls::TlsStream;

/// Performs the client's side of a handshake and says whether the server selected the transport
/// header's ALPN, which is offered when `alpn` is set.
pub async fn connect(
    io: Io,
    credentials: &Credentials,
    peer: &TlsPeer,
    alpn: bool,
    purpose: Purpose,
) -> Result<(TlsStream, bool), TlsError> {
    let target = Target {
        peer: peer.clone(),
        addr: io.peer_addr().map_err(TlsError::Handshake)?,
        alpn,
    };
    let config = credentials
        .client(&target)
        .map_err(|error| TlsError::Handshake(std::io::Error::other(error)))?;
    shake(io, config, peer, purpose).await
}

/// As [`connect`], without a certificate of our own: how the first one is asked for.
pub async fn connect_anonymously(
    io: Io,
    anchors: &TrustAnchors,
    peer: &TlsPeer,
) -> Result<TlsStream, TlsError> {
    let config = anonymous_config(anchors, peer)
        .map_err(|error| TlsError::Handshake(std::io::Error::other(error)))?;
    let (stream, _alpn) = shake(io, config, peer, Purpose::Control).await?;
    Ok(stream)
}

pub(super) fn anonymous_config(
    anchors: &TrustAnchors,
    peer: &TlsPeer,
) -> Result<Arc<ClientConfig>, Error> {
    let verifier = ServerVerifier::new(peer.id.clone(), anchors, Arc::default());
    let config = ClientConfig::builder_with_provider(crypto::provider())
        .with_protocol_versions(crypto::VERSIONS)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

async fn shake(
    io: Io,
    config: Arc<ClientConfig>,
    peer: &TlsPeer,
    purpose: Purpose,
) -> Result<(TlsStream, bool), TlsError> {
    let name = ServerName::try_from(peer.server_name.to_string())
        .map_err(|_invalid| TlsError::ServerName(peer.server_name.to_string()))?;
    let check = |session: &CommonState| check_peer(session, peer).map_err(TlsError::Peer);
    // Boxed: see `server::terminate`.
    match purpose {
        Purpose::Traffic => {
            let connection = UnbufferedClientConnection::new(config, name)
                .map_err(|error| TlsError::Handshake(std::io::Error::other(error)))?;
            let (stream, alpn) = Box::pin(handshake::shake(io, connection, check)).await?;
            Ok((TlsStream::Own(Box::new(stream)), alpn))
        }
        Purpose::Control => {
            let stream = Box::pin(TlsConnector::from(config).connect(name, io)).await?;
            let alpn = check(stream.get_ref().1)?;
            Ok((TlsStream::Library(Box::new(stream.into())), alpn))
        }
    }
}

/// A full handshake has verified all of this; a resumed one has verified nothing.
fn check_peer(session: &CommonState, peer: &TlsPeer) -> Result<bool, PeerError> {
    if session.handshake_kind() == Some(HandshakeKind::Resumed) {
        let leaf = session
            .peer_certificates()
            .and_then(|certificates| certificates.first())
            .ok_or(PeerError::Unreadable)?;
        verify::expect_identity(leaf, &peer.id)?;
        verify::still_valid(leaf)?;
    }
    Ok(session.alpn_protocol().is_some())
}
