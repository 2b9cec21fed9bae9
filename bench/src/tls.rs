//! Client connections with mutual TLS, and servers without client certificates, by the certificates
//! of `mesh-bench authority`.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use rustls::crypto::aws_lc_rs;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub(crate) use tokio_rustls::TlsAcceptor as Acceptor;

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
    let (chain, key) = identity(authority, client)?;
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

/// Returns an acceptor of connections to `server`, the base name of files in the directory of an
/// authority.
pub(crate) fn acceptor(authority: &Path, server: &str) -> anyhow::Result<Acceptor> {
    let (chain, key) = identity(authority, server)?;
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(Acceptor::from(Arc::new(config)))
}

fn identity(
    authority: &Path,
    name: &str,
) -> anyhow::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let key = authority.join(format!("{name}-key.pem"));
    let key = PrivateKeyDer::from_pem_file(&key)
        .map_err(|error| anyhow::anyhow!("read {}: {error}", key.display()))?;
    Ok((certificates(&authority.join(format!("{name}.pem")))?, key))
}

fn certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    certificates.map_err(|error| anyhow::anyhow!("read {}: {error}", file.display()))
}
