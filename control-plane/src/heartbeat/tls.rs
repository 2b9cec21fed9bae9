//! TLS to the receiver of reports, with the CA certificates of the image.

use std::io;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Why there is no TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("no CA certificates in /etc/ssl/certs or SSL_CERT_FILE{0}")]
    NoAuthorities(String),
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
        .with_root_certificates(authorities()?)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(TlsError::Handshake)
}

fn authorities() -> Result<RootCertStore, TlsError> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(loaded.certs);
    if store.is_empty() {
        let error = loaded.errors.first();
        let error = error.map_or_else(String::new, |error| format!(": {error}"));
        return Err(TlsError::NoAuthorities(error));
    }
    Ok(store)
}
