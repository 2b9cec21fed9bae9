//! Servers of bundles that respond wrongly, or are not the ones that are expected.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use mesh_core::identity::Identity;
use mesh_k8s::foreign_domain::EndpointProfile;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::webhook::certificate::{CertificateAndKey, generate};
use crate::webhook::{Acceptor, ServingCertificate};

const HOST: &str = "localhost";
const ID: &str = "spiffe://west.example/bundle";

/// Serves this response to each connection.
async fn serve(certificate: &str, key: &str, response: String) -> SocketAddr {
    let serving = Arc::<ServingCertificate>::default();
    let pair = CertificateAndKey::read(certificate.as_bytes(), key.as_bytes()).unwrap();
    serving.set(&pair).unwrap();
    let acceptor = Acceptor::new(serving);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, response) = (acceptor.clone(), response.clone());
            tokio::spawn(async move {
                // The client may refuse the certificate.
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    return;
                };
                let mut request = [0; 1024];
                let _length = stream.read(&mut request).await.unwrap();
                // It may also have read enough.
                let _closed = stream.write_all(response.as_bytes()).await;
                let _closed = stream.shutdown().await;
            });
        }
    });
    addr
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{body}")
}

fn endpoint(addr: SocketAddr, profile: EndpointProfile) -> BundleEndpoint {
    let url = format!("https://{HOST}:{}/", addr.port());
    BundleEndpoint::from_url(&url, profile).unwrap()
}

async fn error(endpoint: &BundleEndpoint, trusted: &str) -> String {
    let error = fetch(endpoint, trusted, "test").await.unwrap_err();
    mesh_runtime::log::chain(&error)
}

/// An authority, and a certificate of an identity that it has issued, with its key. All in PEM.
fn spiffe(id: &str) -> (String, String, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    (authority, certificate, key.serialize_pem())
}

#[tokio::test]
async fn responses_beyond_their_bounds_are_refused() {
    let made = generate(&[HOST.to_owned()], SystemTime::now()).unwrap();
    let profile = EndpointProfile::Web(Some(made.authority_pem.clone()));
    let padded = |length: usize| {
        let body = r#"{"keys":[]}"#;
        ok(&format!("{body}{}", " ".repeat(length - body.len())))
    };
    for (response, problem) in [
        (padded(MAX_DOCUMENT), None),
        (padded(MAX_DOCUMENT + 1), Some("more than 65536 bytes")),
        (ok("[]"), Some("not a bundle of SPIFFE")),
        (
            "HTTP/1.1 302 Found\r\nlocation: https://other.example/\r\n\r\n".to_owned(),
            Some("it responded with 302"),
        ),
        (
            format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "b".repeat(MAX_HEADERS)),
            Some("the connection failed"),
        ),
        ("no HTTP".to_owned(), Some("the connection failed")),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}".to_owned(),
            Some("cannot be read"),
        ),
    ] {
        let addr = serve(&made.certificate_pem, &made.key_pem, response).await;
        let endpoint = endpoint(addr, profile.clone());
        match problem {
            None => {
                let document = fetch(&endpoint, "", "test").await.unwrap();
                assert_eq!(document.bundle.anchors, "");
            }
            Some(problem) => {
                let error = error(&endpoint, "").await;
                assert!(error.contains(problem), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn server_with_another_authority_or_name_is_refused() {
    let made = generate(&[HOST.to_owned()], SystemTime::now()).unwrap();
    let other = generate(&["other.example".to_owned()], SystemTime::now()).unwrap();
    let right = serve(&made.certificate_pem, &made.key_pem, ok(r#"{"keys":[]}"#)).await;
    let named = serve(&other.certificate_pem, &other.key_pem, ok("{}")).await;
    for (addr, authority, problem) in [
        (right, &other.authority_pem, "UnknownIssuer"),
        (named, &other.authority_pem, "not valid for name"),
        (
            right,
            &"none".to_owned(),
            "endpoint-ca.crt has no valid certificate",
        ),
    ] {
        let profile = EndpointProfile::Web(Some(authority.clone()));
        let error = error(&endpoint(addr, profile), "").await;
        assert!(error.contains(problem), "{error}");
    }
    let closed = mesh_test_support::network::free_address();
    let profile = EndpointProfile::Web(Some(made.authority_pem));
    let error = error(&endpoint(closed, profile), "").await;
    assert!(error.contains("cannot connect"), "{error}");
}

#[tokio::test]
async fn server_of_a_trust_domain_needs_the_identity_and_a_trusted_root() {
    let profile = || EndpointProfile::Spiffe(Identity::parse(ID).unwrap());
    let (authority, certificate, key) = spiffe(ID);
    let addr = serve(&certificate, &key, ok(r#"{"keys":[],"spiffe_sequence":7}"#)).await;
    let document = fetch(&endpoint(addr, profile()), &authority, "test").await;
    assert_eq!(document.unwrap().bundle.sequence, Some(7));
    let (unrelated, ..) = spiffe(ID);
    for (trusted, problem) in [
        // The authorities have the same name.
        (unrelated.as_str(), "BadSignature"),
        ("", "the last bundle has no valid certificate"),
    ] {
        let error = error(&endpoint(addr, profile()), trusted).await;
        assert!(error.contains(problem), "{error}");
    }
    let (authority, certificate, key) = spiffe("spiffe://other.example/bundle");
    let addr = serve(&certificate, &key, ok("{}")).await;
    let error = error(&endpoint(addr, profile()), &authority).await;
    let mismatch = "the identity [\"spiffe://other.example/bundle\"], expected spiffe://west";
    assert!(error.contains(mismatch), "{error}");
}
