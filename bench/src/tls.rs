//! Client connections with mutual TLS, by the certificates of `mesh-bench authority`.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use rustls::crypto::aws_lc_rs;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Connects as `client`, the base name of files in the directory of an authority, to the server
/// whose identity is `server`, and offers protocols.
pub(crate) async fn connect(
    tcp: TcpStream,
    authority: &Path,
    client: &str,
    server: &str,
    protocols: &[&[u8]],
) -> anyhow::Result<TlsStream<TcpStream>> {
    let mut anchors = RootCertStore::empty();
    for anchor in certificates(&authority.join("anchor.pem"))? {
        anchors.add(anchor)?;
    }
    let chain = certificates(&authority.join(format!("{client}.pem")))?;
    let key = authority.join(format!("{client}-key.pem"));
    let key = PrivateKeyDer::from_pem_file(&key)
        .map_err(|error| anyhow::anyhow!("read {}: {error}", key.display()))?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(anchors)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    let name = ServerName::try_from(server.to_owned())?;
    let connected = TlsConnector::from(Arc::new(config)).connect(name, tcp);
    connected
        .await
        .with_context(|| format!("connect to {server} with TLS"))
}

fn certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    certificates.map_err(|error| anyhow::anyhow!("read {}: {error}", file.display()))
}
