//! Certificates of SPIFFE identities, and trust anchors that are valid in one trust domain only.

use rcgen::{KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, SignatureAlgorithm};

use super::*;

const OWN: &str = "spiffe://own.test/vm";
const FOREIGN: &str = "spiffe://foreign.test/vm";

/// The authorities of a mesh, of a trust domain and of a foreign one.
struct Authorities {
    mesh: TestCa,
    own: TestCa,
    foreign: TestCa,
}

/// A certificate with its key, as the Workload API sends them.
struct Svid {
    chain: Vec<u8>,
    key: Vec<u8>,
}

impl Authorities {
    fn new() -> Self {
        Self {
            mesh: TestCa::new(),
            own: TestCa::new(),
            foreign: TestCa::new(),
        }
    }

    /// The anchors of the mesh, with the bundles of both trust domains.
    fn anchors(&self) -> TrustAnchors {
        let mut domains = DomainBundles::default();
        domains.insert("own.test", &self.own.der()).unwrap();
        domains.insert("foreign.test", &self.foreign.der()).unwrap();
        self.mesh.anchors().with_domains(domains)
    }

    /// Credentials of `name` that `ca` has issued, whose owner accepts any peer.
    fn credentials(&self, ca: &TestCa, name: &str) -> Credentials {
        let svid = ca.svid(name, &PKCS_ECDSA_P256_SHA256, |_| {});
        svid.credentials(name, &self.everything()).unwrap()
    }

    /// All authorities, for all names.
    fn everything(&self) -> TrustAnchors {
        let all = [&self.mesh, &self.own, &self.foreign].map(|ca| ca.pem.as_str());
        TrustAnchors::from_pem(&all.concat()).unwrap()
    }
}

impl TestCa {
    fn svid(
        &self,
        name: &str,
        algorithm: &'static SignatureAlgorithm,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Svid {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let params = CertificateParams::new(Vec::new()).unwrap();
        let request = params.serialize_request(&key).unwrap();
        let issued = self.sign_with(request.der(), |params| {
            params.subject_alt_names = vec![match identity(name) {
                Identity::Dns(name) => SanType::DnsName(name.as_ref().try_into().unwrap()),
                Identity::Uri(uri) => SanType::URI(uri.as_ref().try_into().unwrap()),
            }];
            change(params);
        });
        let chain = std::iter::once(issued.leaf).chain(issued.intermediates);
        Svid {
            chain: chain.flatten().collect(),
            key: key.serialize_der(),
        }
    }
}

impl Svid {
    fn credentials(
        &self,
        name: &str,
        anchors: &TrustAnchors,
    ) -> Result<Credentials, CredentialsError> {
        let id = identity(name);
        Credentials::from_svid(&id, &"vm.test".into(), &self.chain, &self.key, anchors, 1)
    }
}

/// Connects with credentials of `client`, which it has from `issuer`, to a server that has the
/// anchors of a mesh and of both trust domains. Returns the client's identity if the server accepts
/// it.
async fn accepted(all: &Authorities, issuer: &TestCa, client: &str) -> Option<Identity> {
    let server = all.own.svid(OWN, &PKCS_ECDSA_P256_SHA256, |_| {});
    let server = server.credentials(OWN, &all.anchors()).unwrap();
    let server = Server::new(Arc::new(server)).await;
    let client = all.credentials(issuer, client);
    let (_, accepted) = server.accept_from(&client, &vm(OWN), false).await;
    accepted.ok().map(|(_, info)| info.id.unwrap())
}

/// Connects to a server with the identity `server`, which it has from `issuer`, from a client that
/// has the anchors of a mesh and of both trust domains. Returns whether the client accepts it.
async fn connects(all: &Authorities, issuer: &TestCa, server: &str) -> bool {
    let client = all.own.svid(OWN, &PKCS_ECDSA_P256_SHA256, |_| {});
    let client = client.credentials(OWN, &all.anchors()).unwrap();
    let credentials = Arc::new(all.credentials(issuer, server));
    let listening = Server::new(credentials).await;
    let (dialled, _) = listening.accept_from(&client, &vm(server), false).await;
    dialled.is_ok()
}

/// A peer whose server name is not its identity, as of an ExternalWorkload.
fn vm(id: &str) -> TlsPeer {
    TlsPeer {
        id: identity(id),
        server_name: "vm.test".into(),
    }
}

#[tokio::test]
async fn anchors_of_a_trust_domain_are_valid_for_its_identities_only() {
    let all = Authorities::new();
    let unknown = "spiffe://unknown.test/vm";
    let name = "web.shop.test";
    for (issuer, peer, is_trusted) in [
        (&all.mesh, name, true),
        // Domains without a bundle, as in Linkerd.
        (&all.mesh, unknown, true),
        (&all.mesh, OWN, false),
        (&all.mesh, FOREIGN, false),
        (&all.own, OWN, true),
        (&all.own, name, false),
        (&all.own, FOREIGN, false),
        (&all.own, unknown, false),
        (&all.foreign, FOREIGN, true),
        (&all.foreign, name, false),
        (&all.foreign, OWN, false),
        (&all.foreign, unknown, false),
    ] {
        let expected = is_trusted.then(|| identity(peer));
        assert_eq!(
            accepted(&all, issuer, peer).await,
            expected,
            "client {peer}"
        );
        assert_eq!(
            connects(&all, issuer, peer).await,
            is_trusted,
            "server {peer}"
        );
    }
}

#[tokio::test]
async fn identity_of_a_server_is_its_uri_and_not_its_server_name() {
    let ca = TestCa::new();
    let with_name = |params: &mut CertificateParams| {
        let name = SanType::DnsName("web.shop.test".try_into().unwrap());
        params.subject_alt_names.insert(0, name);
    };
    let svid = ca.svid(OWN, &PKCS_ECDSA_P256_SHA256, with_name);
    let credentials = Arc::new(svid.credentials(OWN, &ca.anchors()).unwrap());
    assert_eq!(credentials.server_name(), "vm.test");
    let server = Server::new(credentials.clone()).await;
    for (expected, is_accepted) in [
        (OWN, true),
        ("spiffe://own.test/other", false),
        ("web.shop.test", false),
        ("vm.test", false),
    ] {
        let (dialled, accepted) = server.accept_from(&credentials, &vm(expected), false).await;
        assert_eq!(dialled.is_ok(), is_accepted, "{expected}");
        if is_accepted {
            assert_eq!(accepted.unwrap().1.id, Some(identity(OWN)));
        }
    }
}

#[tokio::test]
async fn sessions_end_with_a_withdrawn_bundle() {
    let all = Authorities::new();
    let own = all.own.svid(OWN, &PKCS_ECDSA_P256_SHA256, |_| {});
    let own = Arc::new(own.credentials(OWN, &all.anchors()).unwrap());
    let mut server = Server::new(own.clone()).await;
    let client = all.credentials(&all.foreign, FOREIGN);
    for is_resumed in [false, true] {
        let (info, resumed) = server.exchange(&client, &vm(OWN)).await;
        assert_eq!((info.id, resumed), (Some(identity(FOREIGN)), is_resumed));
    }
    let mut domains = DomainBundles::default();
    domains.insert("own.test", &all.own.der()).unwrap();
    let anchors = all.mesh.anchors().with_domains(domains);
    server.credentials = Arc::new(own.with_anchors(&anchors, 2).unwrap());
    let (_, accepted) = server.accept_from(&client, &vm(OWN), false).await;
    assert!(accepted.is_err());
}

#[test]
fn certificate_is_usable_with_the_keys_that_agents_generate() {
    let ca = TestCa::new();
    for algorithm in [
        &PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &PKCS_ED25519,
        &rcgen::PKCS_RSA_SHA256,
    ] {
        let svid = ca.svid(OWN, algorithm, |_| {});
        svid.credentials(OWN, &ca.anchors()).unwrap();
    }
}

#[test]
fn unusable_certificates_are_refused() {
    let ca = TestCa::new();
    let error_of = |svid: &Svid| {
        let error = svid.credentials(OWN, &ca.anchors()).unwrap_err();
        mesh_runtime::log::chain(&error)
    };
    let svid = |change: fn(&mut CertificateParams)| ca.svid(OWN, &PKCS_ECDSA_P256_SHA256, change);
    let check = |svid: Svid, text: &str| {
        let error = error_of(&svid);
        assert!(error.contains(text), "{error}");
    };
    check(
        svid(|params| params.key_usages = vec![KeyUsagePurpose::KeyCertSign]),
        "is for signing other certificates",
    );
    check(
        svid(|params| params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained)),
        "does not chain",
    );
    let other = ca.svid("spiffe://own.test/other", &PKCS_ECDSA_P256_SHA256, |_| {});
    check(other, "identity mismatch");
    let good = svid(|_| {});
    let other_key = Svid {
        key: svid(|_| {}).key,
        ..svid(|_| {})
    };
    check(other_key, "does not match its private key");
    let no_key = Svid {
        key: b"key".to_vec(),
        ..svid(|_| {})
    };
    check(no_key, "invalid private key");
    for chain in [&good.chain[1..], &[&good.chain[..], b"x"].concat()] {
        let malformed = Svid {
            chain: chain.to_vec(),
            key: good.key.clone(),
        };
        check(malformed, "malformed certificate");
    }
    let repeated = |count| Svid {
        chain: good.chain.repeat(count),
        key: good.key.clone(),
    };
    repeated(8).credentials(OWN, &ca.anchors()).unwrap();
    check(repeated(9), "chain of 9 certificates, expected at most 8");
}

#[test]
fn certificate_that_only_its_trust_domain_accepts_is_recognized() {
    let all = Authorities::new();
    let of = |ca: &TestCa, anchors: &TrustAnchors| {
        let svid = ca.svid(OWN, &PKCS_ECDSA_P256_SHA256, |_| {});
        svid.credentials(OWN, anchors).unwrap().is_trusted_in_mesh()
    };
    assert!(!of(&all.own, &all.anchors()));
    let mut domains = DomainBundles::default();
    domains.insert("own.test", &all.mesh.der()).unwrap();
    assert!(of(&all.mesh, &all.mesh.anchors().with_domains(domains)));
}

#[test]
fn bundle_of_a_trust_domain_is_a_sequence_of_certificates() {
    let (one, two) = (TestCa::new(), TestCa::new());
    let both = [one.der(), two.der()].concat();
    let mut domains = DomainBundles::default();
    domains.insert("a", &both).unwrap();
    let mut same = DomainBundles::default();
    same.insert("a", &both).unwrap();
    assert_eq!(domains, same);
    same.insert("a", &two.der()).unwrap();
    assert_ne!(domains, same);
    for (invalid, expected) in [
        (Vec::new(), TrustAnchorsError::Empty),
        (b"certificate".to_vec(), TrustAnchorsError::Der),
        ([&both[..], b"x"].concat(), TrustAnchorsError::Der),
        (both[..both.len() - 1].to_vec(), TrustAnchorsError::Der),
    ] {
        assert_eq!(domains.insert("a", &invalid), Err(expected));
    }
}
