//! Handshakes over loopback sockets with real credentials.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mesh_core::endpoint::TlsPeer;
use mesh_core::identity::Identity;
use mesh_test_support::certificates;
use rcgen::{CertificateParams, SanType};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::error::PeerError;
use super::server::ClientTlsInfo;
use super::trust::TrustAnchorsError;
use super::*;
use crate::transport::Io;

pub(in crate::tls) mod attacker;
mod client_hello;
mod openssl;
mod spiffe;
mod stream;

/// A certificate authority with its own trust anchor, whose certificates the proxy can use.
pub(crate) struct TestCa {
    ca: certificates::TestCa,
    pub(crate) pem: String,
}

impl TestCa {
    pub(crate) fn new() -> Self {
        Self::from(certificates::TestCa::new())
    }

    fn from(ca: certificates::TestCa) -> Self {
        let pem = ca.anchor_pem().to_owned();
        Self { ca, pem }
    }

    pub(crate) fn anchors(&self) -> TrustAnchors {
        TrustAnchors::from_pem(&self.pem).unwrap()
    }

    /// Its trust anchor in DER.
    pub(crate) fn der(&self) -> Vec<u8> {
        let anchor = CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap();
        anchor.to_vec()
    }

    fn intermediate(&self) -> Self {
        Self::from(self.ca.intermediate())
    }

    /// Issues a certificate that is valid for an hour.
    pub(crate) fn sign(&self, der: &[u8]) -> IssuedCertificate {
        self.sign_with(der, |_| {})
    }

    /// Issues a certificate that is valid until `end`.
    pub(crate) fn sign_until(&self, der: &[u8], end: SystemTime) -> IssuedCertificate {
        self.sign_with(der, |params| params.not_after = end.into())
    }

    fn sign_with(
        &self,
        der: &[u8],
        change: impl FnOnce(&mut CertificateParams),
    ) -> IssuedCertificate {
        let issued = self.ca.sign_with(der, change);
        IssuedCertificate {
            leaf: issued.leaf,
            intermediates: issued.intermediates,
        }
    }

    pub(crate) fn credentials(&self, name: &str) -> Arc<Credentials> {
        Arc::new(self.try_credentials(name, |_| {}).unwrap())
    }

    fn try_credentials(
        &self,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Result<Credentials, CredentialsError> {
        let id = identity(name);
        let request = CertificateRequest::new(&id).unwrap();
        let issued = self.sign_with(request.der(), change);
        Credentials::new(&id, &name.into(), request, &issued, &self.anchors(), 1)
    }
}

pub(in crate::tls) fn identity(name: &str) -> Identity {
    Identity::parse(name).unwrap()
}

pub(in crate::tls) fn peer(name: &str) -> TlsPeer {
    TlsPeer {
        id: identity(name),
        server_name: name.into(),
    }
}

/// A peer with another identity at the same server name.
fn other_peer() -> TlsPeer {
    TlsPeer {
        id: identity("other.test"),
        server_name: "server.test".into(),
    }
}

/// A server that accepts one connection at a time, always at the same address.
pub(in crate::tls) struct Server {
    pub(in crate::tls) listener: TcpListener,
    credentials: Arc<Credentials>,
}

pub(in crate::tls) type Connected = (
    Result<(Io, bool), TlsError>,
    Result<(Io, ClientTlsInfo), TlsError>,
);

impl Server {
    pub(in crate::tls) async fn new(credentials: Arc<Credentials>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        Self {
            listener,
            credentials,
        }
    }

    async fn accept_from(&self, client: &Credentials, peer: &TlsPeer, alpn: bool) -> Connected {
        self.accept_for(client, peer, alpn, [Purpose::Control; 2])
            .await
    }

    pub(in crate::tls) async fn accept_for(
        &self,
        client: &Credentials,
        peer: &TlsPeer,
        alpn: bool,
        [client_purpose, server_purpose]: [Purpose; 2],
    ) -> Connected {
        let addr = self.listener.local_addr().unwrap();
        let dial = async {
            let tcp = TcpStream::connect(addr).await.unwrap();
            client::connect(Io::plain(tcp), client, peer, alpn, client_purpose).await
        };
        let accept = async {
            let (tcp, _) = self.listener.accept().await.unwrap();
            server::terminate(Io::plain(tcp), &self.credentials, alpn, server_purpose).await
        };
        tokio::join!(dial, accept)
    }

    /// Sends bytes in both directions over a new connection, so that the client receives the
    /// server's ticket.
    async fn exchange(&self, client: &Credentials, peer: &TlsPeer) -> (ClientTlsInfo, bool) {
        self.exchange_for(client, peer, Purpose::Control).await
    }

    async fn exchange_for(
        &self,
        client: &Credentials,
        peer: &TlsPeer,
        purpose: Purpose,
    ) -> (ClientTlsInfo, bool) {
        let (dialled, accepted) = self.accept_for(client, peer, false, [purpose; 2]).await;
        let (mut dialled, _) = dialled.unwrap();
        let (mut accepted, info) = accepted.unwrap();
        let mut byte = [0];
        accepted.write_all(b"a").await.unwrap();
        dialled.read_exact(&mut byte).await.unwrap();
        dialled.write_all(b"b").await.unwrap();
        accepted.read_exact(&mut byte).await.unwrap();
        assert_eq!(byte, *b"b");
        let resumed = match dialled.rustls_stream() {
            Some(stream) => {
                stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
            }
            None => dialled.sealable().unwrap().is_resumed(),
        };
        (info, resumed)
    }
}

#[tokio::test]
async fn handshake_authenticates_both_peers() {
    let ca = TestCa::new();
    let server = Server::new(ca.credentials("server.test")).await;
    let client = ca.credentials("client.test");
    for (alpn, purposes) in [
        (false, [Purpose::Control, Purpose::Control]),
        (true, [Purpose::Control, Purpose::Traffic]),
        (false, [Purpose::Traffic, Purpose::Control]),
        (true, [Purpose::Traffic, Purpose::Traffic]),
    ] {
        let (dialled, accepted) = server
            .accept_for(&client, &peer("server.test"), alpn, purposes)
            .await;
        assert_eq!(dialled.unwrap().1, alpn);
        let expected = ClientTlsInfo {
            id: Some(identity("client.test")),
            alpn,
        };
        assert_eq!(accepted.unwrap().1, expected);
    }
}

#[tokio::test]
async fn server_with_unexpected_identity_is_rejected() {
    let ca = TestCa::new();
    let server = Server::new(ca.credentials("server.test")).await;
    let client = ca.credentials("client.test");
    let other = other_peer();
    for purpose in [Purpose::Control, Purpose::Traffic] {
        let (dialled, accepted) = server
            .accept_for(&client, &other, false, [purpose; 2])
            .await;
        let TlsError::Handshake(cause) = dialled.unwrap_err() else {
            panic!("the handshake must fail");
        };
        let cause = cause.to_string();
        for name in ["server.test", "other.test"] {
            assert!(cause.contains(name), "{cause}");
        }
        let TlsError::Handshake(error) = accepted.unwrap_err() else {
            panic!("the server must receive an alert");
        };
        assert!(error.to_string().contains("alert"), "{error}");
    }
}

#[tokio::test]
async fn unknown_ca_is_rejected_by_client_and_server() {
    let (ca, other_ca) = (TestCa::new(), TestCa::new());
    let server = Server::new(ca.credentials("server.test")).await;
    let client = other_ca.credentials("client.test");
    let peer = peer("server.test");
    let (dialled, accepted) = server.accept_from(&client, &peer, false).await;
    assert!(dialled.is_err() && accepted.is_err());

    // Own certificates must chain to the anchors too.
    let error = client.with_anchors(&ca.anchors(), 2).unwrap_err();
    assert!(matches!(error, CredentialsError::NotTrusted(_)));
}

#[tokio::test]
async fn client_without_certificate_has_no_identity() {
    let ca = TestCa::new();
    let server = Server::new(ca.credentials("server.test")).await;
    let addr = server.listener.local_addr().unwrap();
    let dial = async {
        let tcp = TcpStream::connect(addr).await.unwrap();
        client::connect_anonymously(Io::plain(tcp), &ca.anchors(), &peer("server.test")).await
    };
    let accept = async {
        let (tcp, _) = server.listener.accept().await.unwrap();
        server::terminate(Io::plain(tcp), &server.credentials, false, Purpose::Control).await
    };
    let (dialled, accepted) = tokio::join!(dial, accept);
    dialled.unwrap();
    let expected = ClientTlsInfo {
        id: None,
        alpn: false,
    };
    assert_eq!(accepted.unwrap().1, expected);
}

#[tokio::test]
async fn sessions_are_resumed_within_one_generation_only() {
    let ca = TestCa::new();
    let mut server = Server::new(ca.credentials("server.test")).await;
    let client = ca.credentials("client.test");
    let peer = peer("server.test");
    let info = ClientTlsInfo {
        id: Some(identity("client.test")),
        alpn: false,
    };
    // First with tickets received by `RecordStream`, then by rustls.
    for resumed in [false, true, true] {
        let found = server.exchange_for(&client, &peer, Purpose::Traffic).await;
        assert_eq!(found, (info.clone(), resumed));
    }
    let client = client.with_anchors(&ca.anchors(), 1).unwrap();
    assert_eq!(server.exchange(&client, &peer).await, (info.clone(), false));
    // The session contains the identity.
    assert_eq!(server.exchange(&client, &peer).await, (info.clone(), true));

    let renewed = client.with_anchors(&ca.anchors(), 2).unwrap();
    let found = server.exchange(&renewed, &peer).await;
    assert_eq!(found, (info.clone(), false));

    server.credentials = Arc::new(server.credentials.with_anchors(&ca.anchors(), 2).unwrap());
    assert_eq!(server.exchange(&client, &peer).await, (info, false));
}

#[tokio::test]
async fn session_is_not_resumed_with_another_expected_identity() {
    let ca = TestCa::new();
    let server = Server::new(ca.credentials("server.test")).await;
    let client = ca.credentials("client.test");
    server.exchange(&client, &peer("server.test")).await;
    let other = other_peer();
    let (dialled, _) = server.accept_from(&client, &other, false).await;
    assert!(dialled.is_err());
}

#[test]
fn issued_certificate_is_verified_before_use() {
    let ca = TestCa::new();
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    let rejection = |change: &dyn Fn(&mut CertificateParams)| {
        let error = ca.try_credentials("a.test", change).unwrap_err();
        error.to_string()
    };
    let expired = rejection(&|params| {
        params.not_after = OffsetDateTime::now_utc() - Duration::from_secs(1);
    });
    assert!(expired.contains("does not chain"), "{expired}");
    let wrong = rejection(&|params| params.subject_alt_names = vec![dns("b.test")]);
    let mismatch = "issued certificate identity mismatch: expected a.test, got b.test";
    assert_eq!(wrong, mismatch);
    let two = rejection(&|params| params.subject_alt_names.push(dns("b.test")));
    assert_eq!(two, "invalid issued certificate");

    let id = identity("a.test");
    let issued = ca.sign(CertificateRequest::new(&id).unwrap().der());
    let other_key = CertificateRequest::new(&id).unwrap();
    let error = Credentials::new(&id, &"a.test".into(), other_key, &issued, &ca.anchors(), 1);
    let is_wrong = matches!(error, Err(CredentialsError::WrongKey(_)));
    assert!(is_wrong, "{error:?}");
}

#[test]
fn certificate_must_have_exactly_one_identity() {
    let ca = TestCa::new();
    let check = |sans: Vec<SanType>, expect: Result<&str, (usize, usize)>| {
        let id = identity("a.test");
        let issued = ca.sign_with(CertificateRequest::new(&id).unwrap().der(), |params| {
            params.subject_alt_names = sans;
        });
        let found = certificate::identity_of(&issued.leaf.into());
        let count = |(uris, dns_names)| PeerError::WrongIdentityCount { uris, dns_names };
        assert_eq!(found, expect.map(identity).map_err(count));
    };
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    let uri = |name: &str| SanType::URI(name.try_into().unwrap());
    let ip = SanType::IpAddress(Ipv4Addr::LOCALHOST.into());
    check(vec![dns("a.test")], Ok("a.test"));
    check(vec![uri("spiffe://td/a")], Ok("spiffe://td/a"));
    check(vec![ip.clone(), dns("a.test")], Ok("a.test"));
    check(vec![ip], Err((0, 0)));
    check(vec![dns("a.test"), dns("b.test")], Err((0, 2)));
    let spiffe = uri("spiffe://td/a");
    let two = vec![spiffe.clone(), uri("spiffe://td/b"), dns("a.test")];
    check(two, Err((2, 1)));
    // Its DNS names are not identities.
    let with_names = vec![dns("a.test"), spiffe, dns("b.test")];
    check(with_names, Ok("spiffe://td/a"));
}

#[test]
fn bundle_with_an_invalid_certificate_is_rejected() {
    let (one, two) = (TestCa::new(), TestCa::new());
    let bundle = format!("# comment\n{}\n{}", one.pem, two.pem);
    assert_eq!(TrustAnchors::from_pem(&bundle).unwrap().len(), 2);
    let none = TrustAnchors::from_pem("nothing here");
    assert_eq!(none, Err(TrustAnchorsError::Empty));
    let invalid = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let broken = TrustAnchors::from_pem(&format!("{}{invalid}", one.pem)).unwrap_err();
    assert!(matches!(
        broken,
        TrustAnchorsError::Certificate { number: 2, .. }
    ));
}

#[tokio::test]
async fn certificates_of_an_intermediate_issuer_are_accepted() {
    let ca = TestCa::new();
    let intermediate = ca.intermediate();
    let id = identity("server.test");
    let request = CertificateRequest::new(&id).unwrap();
    let issued = intermediate.sign(request.der());
    assert_eq!(issued.intermediates.len(), 1);
    let anchors = ca.anchors();
    let own = Credentials::new(&id, &"server.test".into(), request, &issued, &anchors, 1);
    let server = Server::new(Arc::new(own.unwrap())).await;
    let client = ca.credentials("client.test");
    let peer = peer("server.test");
    let (dialled, accepted) = server.accept_from(&client, &peer, false).await;
    dialled.unwrap();
    accepted.unwrap();
}
