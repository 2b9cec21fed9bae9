//! Connections to proxies as a client of the mesh, with or without a certificate.

use std::sync::Arc;

use anyhow::Context as _;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, ConfigBuilder, RootCertStore};

use super::HANDSHAKE_TIMEOUT;
use crate::clients::connection::Connection;
use crate::exit::Failure;

/// A new key and the request for its certificate. The key does not leave this process.
pub(crate) struct CertificateRequest {
    key: KeyPair,
    der: Vec<u8>,
}

/// The trust anchors of the mesh, and a certificate if the client has one.
#[derive(Clone)]
pub(crate) struct TlsClient {
    config: Arc<ClientConfig>,
}

impl CertificateRequest {
    /// Generates a key and a request with the identity as the only name.
    pub(crate) fn new(identity: &str) -> anyhow::Result<Self> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).context("generate a key")?;
        let params = CertificateParams::new(vec![identity.to_owned()]);
        let mut params = params.with_context(|| format!("request a certificate of {identity}"))?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key);
        let request = request.context("sign the request for a certificate")?;
        Ok(Self {
            der: request.der().to_vec(),
            key,
        })
    }

    pub(crate) fn der(&self) -> &[u8] {
        &self.der
    }
}

impl TlsClient {
    /// Creates a client without a certificate. `anchors` is in PEM.
    pub(crate) fn anonymous(anchors: &str) -> anyhow::Result<Self> {
        Ok(Self::new(verifying(anchors)?.with_no_client_auth()))
    }

    /// Creates a client with the chain that was issued for the request, leaf first and in DER.
    pub(crate) fn certified(
        request: CertificateRequest,
        chain: Vec<Vec<u8>>,
        anchors: &str,
    ) -> anyhow::Result<Self> {
        let chain = chain.into_iter().map(CertificateDer::from).collect();
        let key = PrivatePkcs8KeyDer::from(request.key.serialize_der());
        let config = verifying(anchors)?.with_client_auth_cert(chain, key.into());
        Ok(Self::new(config.context("use the issued certificate")?))
    }

    fn new(config: ClientConfig) -> Self {
        Self {
            config: Arc::new(config),
        }
    }

    /// Performs the handshake with a proxy, which must have this identity.
    pub(crate) async fn connect(
        &self,
        connection: Connection,
        identity: &str,
    ) -> anyhow::Result<Connection> {
        let name = ServerName::try_from(identity.to_owned())
            .with_context(|| format!("{identity:?} is not a valid server name"))?;
        let handshake = TlsConnector::from(self.config.clone()).connect(name, connection.io);
        let stream = timeout(HANDSHAKE_TIMEOUT, handshake).await;
        let stream = stream.map_err(|_elapsed| {
            Failure::TimedOut(format!(
                "no TLS handshake with {identity} within {} s",
                HANDSHAKE_TIMEOUT.as_secs()
            ))
        })?;
        let stream = stream.with_context(|| format!("TLS handshake with {identity}"))?;
        Ok(Connection {
            io: Box::new(stream),
            failure_reason: connection.failure_reason,
        })
    }
}

/// Returns a configuration that verifies servers by the trust anchors.
fn verifying(
    anchors: &str,
) -> anyhow::Result<ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>> {
    let mut roots = RootCertStore::empty();
    for anchor in CertificateDer::pem_slice_iter(anchors.as_bytes()) {
        let anchor = anchor.context("read the trust anchors")?;
        roots.add(anchor).context("read the trust anchors")?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots))
}
