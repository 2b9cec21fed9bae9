//! Granted and rejected requests.

use std::time::Duration;

use futures_util::FutureExt as _;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, IsCa, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::*;

mod machines;

const IDENTITY: &str = "web.shop.serviceaccount.identity.linkerd.cluster.local";
const HOUR: Duration = Duration::from_secs(3600);

struct Fixture {
    authority: CertificateAuthority,
    machines: watch::Sender<Arc<Machines>>,
    denied: watch::Sender<Option<Arc<DenyList>>>,
    signer: aws_lc_rs::signature::EcdsaKeyPair,
    now: SystemTime,
}

fn ca(name: &str, lifetime: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_before = (SystemTime::now() - HOUR).into();
    params.not_after = (SystemTime::now() + lifetime).into();
    params
}

/// Returns an issuer and its anchor, in PEM: certificate, key, anchor.
fn issuer_files(issuer_lifetime: Duration) -> (String, String, String) {
    let anchor_key = KeyPair::generate().unwrap();
    let anchor =
        rcgen::CertifiedIssuer::self_signed(ca("anchor", HOUR * 1000), anchor_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let issuer = ca("issuer", issuer_lifetime)
        .signed_by(&key, &anchor)
        .unwrap();
    (issuer.pem(), key.serialize_pem(), anchor.pem())
}

const VALIDITY: Validity = Validity {
    lifetime: Duration::from_secs(24 * 3600),
    clock_skew: Duration::from_secs(20),
};

fn read_issuer(files: &(String, String, String), now: SystemTime) -> Result<Issuer, IssuerError> {
    let (certificate, key, anchor) = files;
    Issuer::read(
        certificate.as_bytes(),
        key.as_bytes(),
        anchor.as_bytes(),
        VALIDITY,
        now,
    )
}

fn token_keys() -> (aws_lc_rs::signature::EcdsaKeyPair, TokenKey) {
    let pair = KeyPair::generate().unwrap();
    let signer = aws_lc_rs::signature::EcdsaKeyPair::from_pkcs8(
        &aws_lc_rs::signature::ECDSA_P256_SHA256_FIXED_SIGNING,
        pair.serialized_der(),
    )
    .unwrap();
    let key = TokenKey::from_pem(pair.public_key_pem().as_bytes()).unwrap();
    (signer, key)
}

impl Fixture {
    fn new() -> Self {
        let now = SystemTime::now();
        let (signer, key) = token_keys();
        let names = IdentitySuffix {
            control_namespace: "linkerd".to_owned(),
            trust_domain: "cluster.local".to_owned(),
        };
        let rate = Rate {
            per_second: 1000.0,
            burst: 1000,
        };
        let (machines, following) = watch::channel(Arc::default());
        let (deny, denied) = watch::channel(Some(Arc::default()));
        let verifier = TokenVerifier::signed_by(key);
        let authority = CertificateAuthority::new(names, verifier, following, denied, rate);
        authority.set_issuer(read_issuer(&issuer_files(HOUR * 100), now).unwrap());
        Self {
            authority,
            machines,
            denied: deny,
            signer,
            now,
        }
    }

    fn token(&self, claims: &serde_json::Value) -> Vec<u8> {
        sign(&self.signer, "ES256", claims)
    }

    fn good_token(&self) -> Vec<u8> {
        self.token(&claims(self.now, "system:serviceaccount:shop:web"))
    }

    fn certify(&self, csr: &[u8], token: &[u8]) -> Result<IssuedCertificate, String> {
        let request = Request {
            identity: IDENTITY,
            token,
            csr,
        };
        let granted = self.certify_now(request, self.now).map_err(|error| {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            format!("{error}{}", source.unwrap_or_default())
        })?;
        assert_eq!(granted.authenticated.unwrap().account.name, "web");
        Ok(granted.issued)
    }

    /// Reviewing a signed token does not wait.
    fn certify_now(
        &self,
        request: Request<'_>,
        now: SystemTime,
    ) -> Result<GrantedCertificate, CertifyError> {
        self.authority
            .certify(request, now)
            .now_or_never()
            .expect("reviewing a signed token waited")
    }
}

fn claims(now: SystemTime, sub: &str) -> serde_json::Value {
    let now = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    serde_json::json!({ "sub": sub, "aud": ["identity.l5d.io"], "iat": now, "exp": now + 60 })
}

fn sign(
    signer: &aws_lc_rs::signature::EcdsaKeyPair,
    algorithm: &str,
    claims: &serde_json::Value,
) -> Vec<u8> {
    let header = serde_json::json!({ "alg": algorithm, "typ": "JWT" });
    sign_with(signer, &header, claims)
}

/// Signs a token with a header.
fn sign_with(
    signer: &aws_lc_rs::signature::EcdsaKeyPair,
    header: &serde_json::Value,
    claims: &serde_json::Value,
) -> Vec<u8> {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    let part = |json: &serde_json::Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let signed = format!("{}.{}", part(header), part(claims));
    let signature = signer
        .sign(&aws_lc_rs::rand::SystemRandom::new(), signed.as_bytes())
        .unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)).into_bytes()
}

fn csr_params(names: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::new(
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>(),
    )
    .unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
}

fn csr(params: &CertificateParams) -> Vec<u8> {
    let key = KeyPair::generate().unwrap();
    params.serialize_request(&key).unwrap().der().to_vec()
}

#[test]
fn denied_identity_gets_no_certificate_and_an_unknown_list_refuses_all() {
    let fixture = Fixture::new();
    let deny = |list: Option<&[&str]>| {
        let list = list.map(|list| Arc::new(DenyList::parse(list.iter().copied()).unwrap()));
        fixture.denied.send_replace(list);
        let csr = csr(&csr_params(&[IDENTITY]));
        fixture.certify(&csr, &fixture.good_token()).err()
    };
    let denied =
        format!("{IDENTITY} is denied (ConfigMap linkerd-denied-identities of the control plane)");
    let shop = "*.shop.serviceaccount.identity.linkerd.cluster.local";
    let unknown = "the list of denied identities cannot be read from the API server";
    for (list, expected) in [
        (
            Some(&["db.shop.serviceaccount.identity.linkerd.cluster.local"][..]),
            None,
        ),
        (Some(&[IDENTITY]), Some(&*denied)),
        (Some(&[shop]), Some(&*denied)),
        (None, Some(unknown)),
        (Some(&[]), None),
    ] {
        assert_eq!(deny(list).as_deref(), expected);
    }
    // A client without a valid token does not learn who is denied.
    fixture
        .denied
        .send_replace(Some(Arc::new(DenyList::parse([IDENTITY]).unwrap())));
    let csr = csr(&csr_params(&[IDENTITY]));
    let expired = fixture.token(&claims(
        fixture.now - HOUR,
        "system:serviceaccount:shop:web",
    ));
    let refused = fixture.certify(&csr, &expired).unwrap_err();
    assert!(!refused.contains("denied"), "{refused}");
}

#[test]
fn certificate_only_contains_key_of_csr() {
    let fixture = Fixture::new();
    let key = KeyPair::generate().unwrap();
    let mut params = csr_params(&[IDENTITY]);
    params.distinguished_name.push(DnType::CommonName, IDENTITY);
    params.custom_extensions = vec![CustomExtension::from_oid_content(&[1, 2, 3], vec![5, 0])];
    let request = params.serialize_request(&key).unwrap();
    let issued = fixture
        .certify(request.der(), &fixture.good_token())
        .unwrap();
    let (_, leaf) = X509Certificate::from_der(&issued.leaf).unwrap();
    let (_, issuer) = X509Certificate::from_der(&issued.intermediates[0]).unwrap();
    assert_eq!(issued.intermediates.len(), 1);
    assert_eq!(leaf.issuer(), issuer.subject());
    assert_eq!(leaf.subject().iter().count(), 0);
    assert_eq!(
        leaf.public_key().subject_public_key.data,
        PublicKeyData::der_bytes(&key)
    );
    let names = leaf.subject_alternative_name().unwrap().unwrap();
    assert_eq!(names.value.general_names, [GeneralName::DNSName(IDENTITY)]);
    assert!(!leaf.is_ca());
    let usage = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && usage.server_auth);
    assert!(
        leaf.extensions()
            .iter()
            .all(|ext| ext.oid.to_id_string() != "1.2.3")
    );
    assert_eq!(leaf.raw_serial().len(), 16);
    let seconds = |time: SystemTime| {
        i64::try_from(
            time.duration_since(SystemTime::UNIX_EPOCH)
                .unwrap()
                .as_secs(),
        )
        .unwrap()
    };
    let validity = leaf.validity();
    assert_eq!(
        validity.not_before.timestamp(),
        seconds(fixture.now - VALIDITY.clock_skew)
    );
    assert_eq!(validity.not_after.timestamp(), seconds(issued.valid_until));
    assert_eq!(
        validity.not_after.timestamp(),
        seconds(fixture.now + VALIDITY.lifetime + VALIDITY.clock_skew)
    );
    let again = fixture
        .certify(request.der(), &fixture.good_token())
        .unwrap();
    let (_, second) = X509Certificate::from_der(&again.leaf).unwrap();
    assert_ne!(leaf.raw_serial(), second.raw_serial());
}

#[test]
fn certificate_expiry_is_capped_by_issuer() {
    let fixture = Fixture::new();
    let issuer = read_issuer(&issuer_files(HOUR), fixture.now).unwrap();
    let end = issuer.not_after();
    fixture.authority.set_issuer(issuer);
    let issued = fixture
        .certify(&csr(&csr_params(&[IDENTITY])), &fixture.good_token())
        .unwrap();
    assert_eq!(issued.valid_until, end);
    let request = Request {
        identity: IDENTITY,
        token: &fixture.token(&claims(end, "system:serviceaccount:shop:web")),
        csr: &csr(&csr_params(&[IDENTITY])),
    };
    let error = fixture.certify_now(request, end).unwrap_err();
    assert!(matches!(error, CertifyError::Issue(IssueError::Expired)));
}

#[test]
fn cross_certificate_is_sent_while_it_is_valid_and_caps_nothing() {
    let now = SystemTime::now();
    let anchor = |name, lifetime| {
        let key = KeyPair::generate().unwrap();
        rcgen::CertifiedIssuer::self_signed(ca(name, lifetime), key).unwrap()
    };
    let (old, new) = (anchor("old", HOUR * 2), anchor("new", HOUR * 1000));
    let cross = ca("new", HOUR).signed_by(new.key(), &old).unwrap();
    let key = KeyPair::generate().unwrap();
    let issuer = ca("issuer", HOUR * 500).signed_by(&key, &new).unwrap();
    let chain = issuer.pem() + &cross.pem();
    let read = |chain: &str, anchors: String| {
        read_issuer(&(chain.to_owned(), key.serialize_pem(), anchors), now)
    };
    // As a proxy that knows only the old anchor verifies the certificates.
    let capped = read(&chain, old.pem()).unwrap();
    assert!(capped.not_after() < now + HOUR * 2);
    read(&issuer.pem(), old.pem()).unwrap_err();

    let issuer = read(&chain, new.pem()).unwrap();
    assert!(issuer.not_after() > now + HOUR * 499);
    for (at, sent) in [(now, 2), (now + HOUR * 2, 1)] {
        let issued = issuer.issue(IDENTITY, &KeyPair::generate().unwrap(), Purpose::Peer, at);
        assert_eq!(issued.unwrap().intermediates.len(), sent);
    }
}

#[test]
fn end_of_first_trust_anchor_is_known() {
    let now = SystemTime::now();
    let (certificate, key, anchor) = issuer_files(HOUR);
    let later = KeyPair::generate().unwrap();
    let later = rcgen::CertifiedIssuer::self_signed(ca("later", HOUR * 2000), later).unwrap();
    let issuer = read_issuer(&(certificate, key, later.pem() + &anchor), now).unwrap();
    let left = issuer.anchors_not_after().unwrap();
    let left = left.duration_since(now).unwrap();
    assert!(left > HOUR * 999 && left < HOUR * 1001, "{left:?}");
}

#[test]
fn invalid_csrs_are_rejected() {
    let fixture = Fixture::new();
    let assert_rejected = |csr: &[u8], expect: &str| {
        let error = fixture.certify(csr, &fixture.good_token()).unwrap_err();
        assert!(error.contains(expect), "{error} instead of {expect}");
    };
    let good = csr_params(&[IDENTITY]);
    let changed = |change: &dyn Fn(&mut CertificateParams)| {
        let mut params = good.clone();
        change(&mut params);
        csr(&params)
    };
    assert_rejected(b"", "is missing");
    assert_rejected(b"nonsense", "not a DER-encoded");
    assert_rejected(&[0x30; 17 * 1024], "maximum of 16384");
    let mut trailing = csr(&good);
    trailing.push(0);
    assert_rejected(&trailing, "not a DER-encoded");

    // Proof of possession.
    let mut forged = csr(&good);
    let middle = forged.len() / 2;
    let last = forged.len() - 1;
    forged[last] ^= 1;
    assert_rejected(&forged, "the signature");
    assert!(
        fixture
            .certify(
                &{
                    forged[last] ^= 1;
                    forged[middle] ^= 1;
                    forged
                },
                &fixture.good_token()
            )
            .is_err()
    );

    // Keys.
    let with_key = |algorithm| {
        let key = KeyPair::generate_for(algorithm).unwrap();
        good.serialize_request(&key).unwrap().der().to_vec()
    };
    assert_rejected(&with_key(&rcgen::PKCS_ECDSA_P384_SHA384), "not ECDSA P-256");
    assert_rejected(&with_key(&rcgen::PKCS_ED25519), "not ECDSA P-256");
    assert_rejected(&with_key(&rcgen::PKCS_RSA_SHA256), "not ECDSA P-256");

    // Names.
    assert_rejected(&csr(&csr_params(&[])), "exactly one");
    assert_rejected(&csr(&csr_params(&["other.example"])), "exactly one");
    assert_rejected(
        &csr(&csr_params(&[IDENTITY, "other.example"])),
        "exactly one",
    );
    assert_rejected(&csr(&csr_params(&[IDENTITY, IDENTITY])), "exactly one");
    assert_rejected(&csr(&csr_params(&[IDENTITY, "10.0.0.1"])), "exactly one");
    assert_rejected(
        &csr(&csr_params(&[&IDENTITY.to_uppercase()])),
        "exactly one",
    );
    assert_rejected(&csr(&csr_params(&[&format!("{IDENTITY}.")])), "exactly one");
    let also = |san: SanType| changed(&move |params| params.subject_alt_names.push(san.clone()));
    assert_rejected(
        &also(SanType::URI("spiffe://example/web".try_into().unwrap())),
        "exactly one",
    );
    assert_rejected(
        &also(SanType::Rfc822Name("web@example".try_into().unwrap())),
        "exactly one",
    );
    let subject = |kind: DnType, value: &'static str| {
        changed(&move |params| params.distinguished_name.push(kind.clone(), value))
    };
    assert_rejected(&subject(DnType::CommonName, "other.example"), "subject");
    assert_rejected(&subject(DnType::OrganizationName, IDENTITY), "subject");

    // Certificate authorities.
    assert_rejected(
        &changed(&|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
        "certificate authority",
    );
    assert_rejected(
        &changed(&|params| params.key_usages = vec![KeyUsagePurpose::KeyCertSign]),
        "certificate authority",
    );
    let filler = CustomExtension::from_oid_content(&[1, 2, 3], vec![0; 16 * 1024]);
    assert_rejected(
        &changed(&|params| params.custom_extensions = vec![filler.clone()]),
        "maximum of 16384",
    );
}

#[test]
fn invalid_tokens_are_rejected() {
    let fixture = Fixture::new();
    let csr = csr(&csr_params(&[IDENTITY]));
    let assert_rejected = |token: &[u8], expect: &str| {
        let error = fixture.certify(&csr, token).unwrap_err();
        assert!(error.contains(expect), "{error} instead of {expect}");
    };
    let good = claims(fixture.now, "system:serviceaccount:shop:web");
    let with = |key: &str, value: serde_json::Value| {
        let mut claims = good.clone();
        claims[key] = value;
        fixture.token(&claims)
    };
    let since = fixture
        .now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    assert_rejected(b"", "is missing");
    assert_rejected(b"a.b", "not a JSON Web Token");
    assert_rejected(b"\xff.\xff.\xff", "not a JSON Web Token");
    assert_rejected(&sign(&fixture.signer, "none", &good), "ES256");
    assert_rejected(&sign(&fixture.signer, "HS256", &good), "ES256");
    assert_rejected(&sign(&token_keys().0, "ES256", &good), "signature");
    let mut forged = fixture.good_token();
    let at = forged.iter().rposition(|byte| *byte == b'.').unwrap() + 5;
    forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
    assert_rejected(&forged, "signature");
    assert_rejected(&with("aud", "kubernetes".into()), "audience");
    assert_rejected(&with("aud", serde_json::json!([])), "audience");
    assert_rejected(&with("exp", since.into()), "expired");
    assert_rejected(&with("exp", serde_json::Value::Null), "expired");
    assert_rejected(&with("nbf", (since + 120).into()), "not valid yet");
    for subject in [
        "",
        "web",
        "system:serviceaccount:shop",
        "system:serviceaccount:shop:web:x",
        "system:node:shop:web",
        "system:serviceaccount:shop:we.b",
        "system:serviceaccount:Shop:web",
        "system:serviceaccount::web",
    ] {
        assert_rejected(&with("sub", subject.into()), "is not a ServiceAccount");
    }
    assert_rejected(
        &with("sub", "system:serviceaccount:shop:other".into()),
        "the token is of other.shop.",
    );
    assert!(
        fixture
            .certify(&csr, &with("aud", "identity.l5d.io".into()))
            .is_ok()
    );
    assert!(
        fixture
            .certify(&csr, &with("nbf", (since + 10).into()))
            .is_ok()
    );
    let mut newline = fixture.good_token();
    newline.push(b'\n');
    assert!(fixture.certify(&csr, &newline).is_ok());
}

#[test]
fn requests_over_limit_are_rejected() {
    let mut fixture = Fixture::new();
    let rate = Rate {
        per_second: 0.001,
        burst: 2,
    };
    fixture.authority.limits = CallerLimits::new(rate);
    let csr = csr(&csr_params(&[IDENTITY]));
    for _ in 0..2 {
        assert!(fixture.certify(&csr, &fixture.good_token()).is_ok());
    }
    let error = fixture.certify(&csr, &fixture.good_token()).unwrap_err();
    assert!(error.contains("too many certificates"), "{error}");
}

/// `openssl ecparam -name prime256v1 -genkey`
const KEY_WITH_PARAMETERS: &str = "-----BEGIN EC PARAMETERS-----
BggqhkjOPQMBBw==
-----END EC PARAMETERS-----
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIMUFAzE+iOaVc25myWdSFDX2fF1JQ7+ZEi8F9SaRRMe3oAoGCCqGSM49
AwEHoUQDQgAEprHTdyFUFb3fFM/NAD2D+rMNdB+OoXpRtguCJ/sTUF0OfbCCRTg7
ePfCi6IkxB/zH5kmLlQnIRSoU+CMx7rB6w==
-----END EC PRIVATE KEY-----
";

#[test]
fn issuer_key_after_parameters_of_its_curve_is_read() {
    let der = PrivateKeyDer::from_pem_slice(KEY_WITH_PARAMETERS.as_bytes()).unwrap();
    let key = KeyPair::try_from(&der).unwrap();
    let anchor = ca("anchor", HOUR).self_signed(&key).unwrap().pem();
    let files = (anchor.clone(), KEY_WITH_PARAMETERS.to_owned(), anchor);
    read_issuer(&files, SystemTime::now()).unwrap();
}

#[test]
fn untrusted_issuers_are_rejected() {
    let now = SystemTime::now();
    let files = issuer_files(HOUR);
    let other = issuer_files(HOUR);
    let rejection = |files: &(String, String, String), now: SystemTime| {
        read_issuer(files, now).map(drop).unwrap_err().to_string()
    };
    assert!(read_issuer(&files, now).is_ok());
    let (certificate, key, anchor) = files.clone();
    let not_valid = "would not be valid";
    assert!(
        rejection(&files, now + HOUR * 2).contains(not_valid),
        "expired"
    );
    assert!(
        rejection(&files, now - HOUR * 2).contains(not_valid),
        "not yet valid"
    );
    let mixed = (certificate.clone(), other.1, anchor.clone());
    assert!(rejection(&mixed, now).contains(not_valid), "another key");
    let mixed = (certificate.clone(), key.clone(), other.2);
    assert!(rejection(&mixed, now).contains(not_valid), "another anchor");
    let mut leaf = ca("leaf", HOUR);
    leaf.is_ca = IsCa::NoCa;
    let leaf_key = KeyPair::generate().unwrap();
    let leaf = leaf.self_signed(&leaf_key).unwrap().pem();
    let mixed = (leaf.clone(), leaf_key.serialize_pem(), leaf);
    assert!(rejection(&mixed, now).contains("not a CA certificate"));
    let mixed = (String::new(), key.clone(), anchor.clone());
    assert!(rejection(&mixed, now).contains("certificate file"));
    let mixed = (certificate.clone(), certificate.clone(), anchor);
    assert!(rejection(&mixed, now).contains("key file"));
    let mixed = (certificate, key, "-----".to_owned());
    assert!(rejection(&mixed, now).contains("trust anchors"));
}
