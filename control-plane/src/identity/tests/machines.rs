//! Machines outside Kubernetes: joining, tokens of units, renewal.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mesh_k8s::machine::{AccountName, JoinToken, Machine};
use mesh_k8s::trust::fingerprint;
use rustls_pki_types::UnixTime;
use serde_json::{Value, json};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::*;

const TOKEN: &str = "mesh-join.db-1.secret";
const MACHINE: &str = "db-1.machine.identity.linkerd.cluster.local";
const DATABASE: &str = "db.shop.serviceaccount.identity.linkerd.cluster.local";

/// A machine with its key.
struct Host {
    key: KeyPair,
    signer: EcdsaKeyPair,
}

impl Host {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let signer =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.serialized_der());
        Self {
            signer: signer.unwrap(),
            key,
        }
    }

    fn fingerprint(&self) -> String {
        fingerprint(&self.key.subject_public_key_info())
    }

    fn csr(&self, identity: &str) -> Vec<u8> {
        let request = csr_params(&[identity]).serialize_request(&self.key);
        request.unwrap().der().to_vec()
    }

    /// Signs a token with this certificate and the ones above it.
    fn token(&self, issued: &IssuedCertificate, claims: &Value) -> Vec<u8> {
        let chain = [&issued.leaf].into_iter().chain(&issued.intermediates);
        let chain: Vec<String> = chain.map(|der| STANDARD.encode(der)).collect();
        let header = json!({ "alg": "ES256", "x5c": chain });
        sign_with(&self.signer, &header, claims)
    }
}

/// A mesh that admits `db-1` with the ServiceAccount `shop/db`.
struct Admitted {
    fixture: Fixture,
    host: Host,
}

impl Admitted {
    fn new() -> Self {
        let admitted = Self {
            fixture: Fixture::new(),
            host: Host::new(),
        };
        admitted.change(|_| {});
        admitted
    }

    fn change(&self, change: impl FnOnce(&mut Machine)) {
        let expires = jiff::Timestamp::try_from(self.fixture.now + HOUR).unwrap();
        let mut machine = Machine {
            name: "db-1".to_owned(),
            accounts: [AccountName::parse("shop/db").unwrap()].into(),
            key: self.host.fingerprint(),
            token: Some(JoinToken {
                sha256: fingerprint(TOKEN.as_bytes()),
                expires,
            }),
        };
        change(&mut machine);
        let machines = Machines::from([(machine.name.clone(), machine)]);
        self.fixture.machines.send_replace(Arc::new(machines));
    }

    fn certify(
        &self,
        identity: &str,
        token: &[u8],
        csr: &[u8],
    ) -> Result<GrantedCertificate, String> {
        let request = Request {
            identity,
            token,
            csr,
        };
        let granted = self.fixture.certify_now(request, self.fixture.now);
        granted.map_err(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            format!("{error}: {}", source.unwrap_or_default())
        })
    }

    fn join(&self) -> Result<IssuedCertificate, String> {
        let csr = self.host.csr(MACHINE);
        let granted = self.certify(MACHINE, TOKEN.as_bytes(), &csr)?;
        assert!(granted.authenticated.is_none());
        Ok(granted.issued)
    }

    fn claims(&self, subject: &str) -> Value {
        claims(self.fixture.now, subject)
    }

    /// Requests the identity of a unit with a key of its proxy.
    fn unit(&self, token: &[u8]) -> Result<GrantedCertificate, String> {
        self.certify(DATABASE, token, &csr(&csr_params(&[DATABASE])))
    }
}

#[test]
fn joined_machine_gets_the_identities_of_its_service_accounts_and_renews_itself() {
    let admitted = Admitted::new();
    let joined = admitted.join().unwrap();
    let token = admitted
        .host
        .token(&joined, &admitted.claims("system:serviceaccount:shop:db"));
    let granted = admitted.unit(&token).unwrap();
    let account = granted.authenticated.unwrap().account;
    assert_eq!((&*account.namespace, &*account.name), ("shop", "db"));

    // Also when the token to join with has been removed.
    admitted.change(|machine| machine.token = None);
    let renewal = admitted
        .host
        .token(&joined, &admitted.claims("system:machine:db-1"));
    let csr = admitted.host.csr(MACHINE);
    let renewed = admitted.certify(MACHINE, &renewal, &csr).unwrap();
    assert!(renewed.authenticated.is_none());
    assert!(admitted.unit(&token).is_ok());
}

#[test]
fn certificate_of_a_machine_is_none_of_a_peer() {
    let admitted = Admitted::new();
    let joined = admitted.join().unwrap();
    let issuer = admitted.fixture.authority.issuer().unwrap();
    let (leaf, intermediates) = (
        rustls_pki_types::CertificateDer::from(joined.leaf),
        rustls_pki_types::CertificateDer::from(joined.intermediates[0].clone()),
    );
    let intermediates = [intermediates];
    issuer
        .verify_machine(&leaf, &intermediates, admitted.fixture.now)
        .unwrap();
    let anchors = [anchor_from_trusted_cert(&intermediates[0]).unwrap()];
    for usage in [KeyUsage::client_auth(), KeyUsage::server_auth()] {
        let leaf = EndEntityCert::try_from(&leaf).unwrap();
        let verified = leaf.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &anchors,
            &[],
            UnixTime::now(),
            usage,
            None,
            None,
        );
        assert!(matches!(
            verified.map(drop),
            Err(webpki::Error::RequiredEkuNotFoundContext(_))
        ));
    }
}

#[test]
fn machine_joins_only_with_its_key_and_token_while_that_is_valid() {
    let admitted = Admitted::new();
    let refused = |change: &dyn Fn(&mut Machine)| {
        admitted.change(change);
        admitted.join().unwrap_err()
    };
    let error = refused(&|machine| machine.key = Host::new().fingerprint());
    assert!(error.contains("not the one of machine db-1"), "{error}");
    let error = refused(&|machine| machine.token = None);
    assert!(error.contains("unknown or was replaced"), "{error}");
    let error = refused(&|machine| {
        let token = machine.token.as_mut().unwrap();
        token.sha256 = fingerprint(b"mesh-join.db-1.other");
    });
    assert!(error.contains("unknown or was replaced"), "{error}");
    let now = admitted.fixture.now;
    let error = refused(&|machine| {
        let token = machine.token.as_mut().unwrap();
        token.expires = jiff::Timestamp::try_from(now).unwrap();
    });
    assert!(error.contains("expired"), "{error}");
    let error = refused(&|machine| machine.name = "db-2".to_owned());
    assert!(
        error.contains("machine \"db-1\" is not admitted"),
        "{error}"
    );
    admitted.change(|_| {});
    // The token is for no other identity.
    let csr = admitted.host.csr(DATABASE);
    let error = admitted.certify(DATABASE, TOKEN.as_bytes(), &csr);
    assert!(error.unwrap_err().contains("but the requested identity is"));
    admitted.join().unwrap();
}

#[test]
fn tokens_of_machines_are_verified() {
    let admitted = Admitted::new();
    let joined = admitted.join().unwrap();
    let (host, subject) = (&admitted.host, "system:serviceaccount:shop:db");
    let good = admitted.claims(subject);
    admitted.unit(&host.token(&joined, &good)).unwrap();
    let refused = |token: &[u8]| admitted.unit(token).map(drop).unwrap_err();

    let error = refused(&Host::new().token(&joined, &good));
    assert!(error.contains("signature"), "{error}");
    let with = |key: &str, value: Value| {
        let mut claims = good.clone();
        claims[key] = value;
        host.token(&joined, &claims)
    };
    let error = refused(&with("aud", "https://kubernetes.default.svc".into()));
    assert!(error.contains("audience"), "{error}");
    let end = good["exp"].as_u64().unwrap();
    let error = refused(&with("exp", (end - 60).into()));
    assert!(error.contains("expired"), "{error}");
    let error = refused(&with("exp", (end + 3700).into()));
    assert!(error.contains("expired"), "{error}");
    let error = refused(&with("sub", "system:serviceaccount:shop:web".into()));
    assert!(error.contains("requested identity"), "{error}");

    // Certificates that others have issued, that are for peers, and too many.
    let stranger = Admitted::new();
    let other = stranger.join().unwrap();
    let error = refused(&stranger.host.token(&other, &good));
    assert!(error.contains("no trust anchor verifies it"), "{error}");
    let peer = admitted
        .fixture
        .certify(&host.csr(IDENTITY), &admitted.fixture.good_token());
    let error = refused(&host.token(&peer.unwrap(), &good));
    assert!(error.contains("no trust anchor verifies it"), "{error}");
    let mut long = joined.clone();
    long.intermediates = vec![joined.intermediates[0].clone(); 8];
    let error = refused(&host.token(&long, &good));
    assert!(error.contains("more than 8"), "{error}");

    // The ConfigMap decides at every request.
    admitted.change(|machine| machine.key = Host::new().fingerprint());
    let error = refused(&host.token(&joined, &good));
    assert!(error.contains("not the one of machine db-1"), "{error}");
    admitted.change(|machine| machine.accounts = [AccountName::parse("shop/web").unwrap()].into());
    let error = refused(&host.token(&joined, &good));
    assert!(error.contains("may not have the identity"), "{error}");
    admitted.fixture.machines.send_replace(Arc::default());
    let error = refused(&host.token(&joined, &good));
    assert!(error.contains("is not admitted"), "{error}");
}

#[test]
fn machine_renews_only_its_own_certificate_for_its_own_key() {
    let admitted = Admitted::new();
    let joined = admitted.join().unwrap();
    let own = admitted.claims("system:machine:db-1");
    let token = admitted.host.token(&joined, &own);
    let error = admitted.certify(MACHINE, &token, &Host::new().csr(MACHINE));
    assert!(error.unwrap_err().contains("not the one of machine db-1"));
    let identity = "db-2.machine.identity.linkerd.cluster.local";
    let claims = admitted.claims("system:machine:db-2");
    let token = admitted.host.token(&joined, &claims);
    let error = admitted.certify(identity, &token, &admitted.host.csr(identity));
    assert!(
        error
            .unwrap_err()
            .contains("signed a token for machine db-2")
    );
}
