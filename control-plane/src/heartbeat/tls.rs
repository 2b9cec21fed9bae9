//! TLS to the receiver of reports, with the CA certificates of the image.

use std::io;
use std::sync::Arc;

use mesh_cluster::trust_bundle::tls::{NoAuthorities, system_authorities};
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Why there is no TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    NoAuthorities(#[from] NoAuthorities),
    #[error("{0:?} is not the name of a server")]
    Name(String),
    #[error("TLS is not available")]
    Config(#[source] rustls::Error),
    #[error("the handshake failed")]
    Handshake(#[source] io::Error),
}

/// Completes a handshake with the server, whose certificate must have the name.
pub(super) async fn connect(
    stream: TcpStream,
    host: &str,
) -> Result<TlsStream<TcpStream>, TlsError> {
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_invalid| TlsError::Name(host.to_owned()))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Config)?
        .with_root_certificates(system_authorities()?)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(TlsError::Handshake)
}
