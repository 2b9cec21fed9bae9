//! Verifies clients of the tap API by a certificate of the API server's front proxy. A client
//! without a certificate may connect, but not tap.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};

use super::front_proxy::FrontProxy;

/// Why the authorities of the front proxy cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientVerifierError {
    #[error("an authority of the front proxy is not a certificate")]
    Authority(#[source] rustls::Error),
    #[error("the authorities of the front proxy cannot verify clients")]
    Verifier(#[from] VerifierBuilderError),
}

pub(crate) fn client_verifier(
    front_proxy: &FrontProxy,
) -> Result<Arc<dyn ClientCertVerifier>, ClientVerifierError> {
    let mut roots = RootCertStore::empty();
    for authority in &front_proxy.authorities {
        roots
            .add(authority.clone())
            .map_err(ClientVerifierError::Authority)?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    Ok(
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .allow_unauthenticated()
            .build()?,
    )
}
