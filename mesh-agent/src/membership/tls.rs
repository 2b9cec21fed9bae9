//! TLS to the identity service, whose server name is verified against the trust anchors. The only
//! module of the agent that uses rustls.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, CertificateError, ClientConfig, RootCertStore};

/// Why there is no TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the trust anchors are not certificates in PEM")]
    Anchors,
    #[error("{0:?} is not the name of a server")]
    Name(String),
    #[error("TLS is not available")]
    Config(#[source] rustls::Error),
    #[error("{hint}")]
    Handshake {
        hint: &'static str,
        source: io::Error,
    },
}

/// Returns the number of anchors, which are at least one certificate.
pub(super) fn count_anchors(pem: &str) -> Result<usize, TlsError> {
    roots(pem).map(|roots| roots.len())
}

/// Completes a handshake with a server that has this name, without a certificate of a client.
pub(super) async fn connect(
    stream: TcpStream,
    name: &str,
    anchors: &str,
) -> Result<TlsStream<TcpStream>, TlsError> {
    let server = ServerName::try_from(name.to_owned());
    let server = server.map_err(|_invalid| TlsError::Name(name.to_owned()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Config)?
        .with_root_certificates(roots(anchors)?)
        .with_no_client_auth();
    let handshake = TlsConnector::from(Arc::new(config)).connect(server, stream);
    handshake.await.map_err(|source| TlsError::Handshake {
        hint: hint(&source),
        source,
    })
}

fn roots(pem: &str) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|_invalid| TlsError::Anchors)?;
        store
            .add(certificate)
            .map_err(|_invalid| TlsError::Anchors)?;
    }
    if store.is_empty() {
        return Err(TlsError::Anchors);
    }
    Ok(store)
}

/// Returns the usual cause of a failed handshake, and what to do.
fn hint(error: &io::Error) -> &'static str {
    let inner = error.get_ref().and_then(|it| it.downcast_ref());
    let Some(rustls::Error::InvalidCertificate(problem)) = inner else {
        return "the TLS handshake failed; is it the port of the identity service, behind its proxy?";
    };
    match problem {
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet by the clock of this machine; set the clock"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired by the clock of this machine; check the clock, and then the issuer with `meshctl check`"
        }
        // An anchor of the same name has another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "no trust anchor of this machine verifies its certificate: another mesh, or anchors that were replaced meanwhile; admit the machine again and join with the new file"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "another server responds there; admit the machine again with --identity-addr"
        }
        _ => "its certificate cannot be verified",
    }
}

#[cfg(test)]
mod tests {
    use rustls::AlertDescription;

    use super::*;

    #[test]
    fn failed_handshake_names_its_usual_cause() {
        let hint_of = |error: rustls::Error| hint(&io::Error::other(error));
        let certificate = |problem| hint_of(rustls::Error::InvalidCertificate(problem));
        for (problem, expected) in [
            (CertificateError::NotValidYet, "set the clock"),
            (CertificateError::Expired, "check the clock"),
            (CertificateError::UnknownIssuer, "another mesh"),
            (CertificateError::BadSignature, "another mesh"),
            (CertificateError::NotValidForName, "another server"),
        ] {
            let found = certificate(problem);
            assert!(found.contains(expected), "{expected}: {found}");
        }
        let other = hint_of(rustls::Error::AlertReceived(
            AlertDescription::HandshakeFailure,
        ));
        assert!(other.contains("behind its proxy"), "{other}");
        let closed = hint(&io::ErrorKind::UnexpectedEof.into());
        assert!(closed.contains("behind its proxy"), "{closed}");
    }
}
