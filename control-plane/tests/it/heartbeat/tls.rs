//! A receiver of reports with TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use mesh_test_support::kube_api;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::{Respond, recorded};

pub(super) struct Server {
    pub(super) addr: SocketAddr,
    pub(super) requests: mpsc::UnboundedReceiver<(String, String)>,
    /// The certificate of its CA, in PEM.
    pub(super) authority: String,
}

/// Serves with a certificate for `localhost`.
pub(super) async fn start(respond: Respond) -> Server {
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &ca).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (received, requests) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not trust the certificate ends the handshake.
            if let Ok(stream) = acceptor.accept(stream).await {
                let respond = recorded(respond, received.clone());
                tokio::spawn(kube_api::serve_connection(stream, respond));
            }
        }
    });
    Server {
        addr,
        requests,
        authority: ca.pem(),
    }
}
