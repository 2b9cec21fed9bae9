//! TLS clients of the mesh: data threads connect to endpoints, the control thread to control-plane
//! services.
//!
//! There is no deadline here: the caller applies one to TCP, TLS and transport header together.

use std::sync::Arc;

use mesh_core::endpoint::TlsPeer;
use rustls::client::{ClientConfig, UnbufferedClientConnection};
use rustls::{CommonState, Error, HandshakeKind};
use rustls_pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::error::{PeerError, TlsError};
use super::sessions::SessionKey;
use super::trust::TrustAnchors;
use super::verify::ServerVerifier;
use super::{Credentials, Purpose, certificate, crypto, handshake};
use crate::transport::Io;
use crate::transport::revocation::Admission;

/// Performs a handshake as the client. Returns whether the server selected the ALPN protocol of the
/// transport header, which is offered when `alpn` is set.
pub(crate) async fn connect(
    io: Io,
    credentials: &Credentials,
    peer: &TlsPeer,
    alpn: bool,
    purpose: Purpose,
) -> Result<(Io, bool), TlsError> {
    let session = SessionKey {
        peer: peer.clone(),
        addr: io.peer_addr().map_err(TlsError::Handshake)?,
        alpn,
    };
    let config = credentials
        .client_config(&session)
        .map_err(|error| TlsError::Handshake(std::io::Error::other(error)))?;
    let admission = credentials.admit(&peer.id)?;
    perform_handshake(io, config, peer, purpose, Some(admission)).await
}

/// Performs a handshake as a client without a certificate, to request the first one.
pub(crate) async fn connect_anonymously(
    io: Io,
    anchors: &TrustAnchors,
    peer: &TlsPeer,
) -> Result<Io, TlsError> {
    let config = anonymous_config(anchors, peer)
        .map_err(|error| TlsError::Handshake(std::io::Error::other(error)))?;
    let (stream, _alpn) = perform_handshake(io, config, peer, Purpose::Control, None).await?;
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

async fn perform_handshake(
    io: Io,
    config: Arc<ClientConfig>,
    peer: &TlsPeer,
    purpose: Purpose,
    admission: Option<Arc<Admission>>,
) -> Result<(Io, bool), TlsError> {
    let name = ServerName::try_from(peer.server_name.to_string())
        .map_err(|_invalid| TlsError::ServerName(peer.server_name.to_string()))?;
    let check = |session: &CommonState| check_peer(session, peer).map_err(TlsError::Peer);
    // The futures are boxed for the reason that `server::terminate` gives.
    match purpose {
        Purpose::Traffic => {
            let connection = UnbufferedClientConnection::new(config, name)
                .map_err(|error| TlsError::Handshake(std::io::Error::other(error)))?;
            let (mut stream, alpn) = Box::pin(handshake::perform(io, connection, check)).await?;
            if let Some(admission) = admission {
                stream.end_with(admission);
            }
            Ok((Io::records(stream), alpn))
        }
        Purpose::Control => {
            let stream = Box::pin(TlsConnector::from(config).connect(name, io)).await?;
            let alpn = check(stream.get_ref().1)?;
            Ok((Io::rustls(stream), alpn))
        }
    }
}

/// Checks the peer of a resumed session, whose certificate rustls has not verified again, and
/// returns whether the ALPN protocol was selected.
fn check_peer(session: &CommonState, peer: &TlsPeer) -> Result<bool, PeerError> {
    if session.handshake_kind() == Some(HandshakeKind::Resumed) {
        let leaf = session
            .peer_certificates()
            .and_then(|certificates| certificates.first())
            .ok_or(PeerError::Malformed)?;
        certificate::check_identity(leaf, &peer.id)?;
        certificate::check_not_expired(leaf)?;
    }
    Ok(session.alpn_protocol().is_some())
}
