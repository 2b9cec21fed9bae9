//! Certificate authorities of tests.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::CertificateSigningRequestDer;
use time::OffsetDateTime;

/// How long a certificate is valid unless a test changes it.
const LIFETIME: Duration = Duration::from_hours(1);
/// For clocks that differ.
const BACKDATED_BY: Duration = Duration::from_mins(1);

/// A certificate authority: a trust anchor, or an intermediate issuer below one.
pub struct TestCa {
    issuer: Issuer<'static, KeyPair>,
    anchor_pem: String,
    certificate_pem: String,
    /// From the issuer upwards, without the anchor. DER.
    chain: Vec<Vec<u8>>,
}

/// A certificate that a [`TestCa`] issued. All parts are DER.
pub struct TestCertificate {
    pub leaf: Vec<u8>,
    /// From the issuer upwards, without the anchor.
    pub intermediates: Vec<Vec<u8>>,
    pub valid_until: SystemTime,
}

impl TestCa {
    /// Creates a trust anchor.
    pub fn new() -> Self {
        let key = new_key();
        let params = ca(BasicConstraints::Unconstrained);
        let anchor = params.self_signed(&key).expect("a self-signed certificate");
        Self {
            anchor_pem: anchor.pem(),
            certificate_pem: anchor.pem(),
            issuer: Issuer::new(params, key),
            chain: Vec::new(),
        }
    }

    /// Creates an issuer below this authority, which may sign leaves only.
    #[must_use]
    pub fn intermediate(&self) -> Self {
        let key = new_key();
        let params = ca(BasicConstraints::Constrained(0));
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let mut chain = vec![certificate.der().to_vec()];
        chain.extend(self.chain.iter().cloned());
        Self {
            anchor_pem: self.anchor_pem.clone(),
            certificate_pem: certificate.pem(),
            issuer: Issuer::new(params, key),
            chain,
        }
    }

    /// Creates the next trust anchor, and a certificate of it that this one has signed, which is
    /// sent with each certificate.
    #[must_use]
    pub fn successor(&self) -> Self {
        let mut next = Self::new();
        let mut params = ca(BasicConstraints::Unconstrained);
        params.distinguished_name = successor_name();
        let key = next.issuer.key();
        let anchor = params.self_signed(key).expect("a self-signed certificate");
        next.anchor_pem = anchor.pem();
        next.certificate_pem = anchor.pem();
        let cross = params.signed_by(key, &self.issuer).expect("a certificate");
        next.chain = vec![cross.der().to_vec()];
        let key = KeyPair::try_from(key.serialized_der()).expect("the same key");
        next.issuer = Issuer::new(params, key);
        next
    }

    /// Returns the certificate of an issuer and its key, both in PEM.
    pub fn issuer_pem(&self) -> (&str, String) {
        (&self.certificate_pem, self.issuer.key().serialize_pem())
    }

    /// The trust anchor in PEM.
    pub fn anchor_pem(&self) -> &str {
        &self.anchor_pem
    }

    /// Issues the certificate that a request (PKCS #10, DER) asks for, valid for an hour.
    pub fn sign(&self, request: &[u8]) -> TestCertificate {
        self.sign_with(request, |_| {})
    }

    /// Issues a certificate whose parameters `change` has adjusted.
    pub fn sign_with(
        &self,
        request: &[u8],
        change: impl FnOnce(&mut CertificateParams),
    ) -> TestCertificate {
        let request = CertificateSigningRequestDer::from(request);
        let mut request =
            CertificateSigningRequestParams::from_der(&request).expect("a certificate request");
        let now = OffsetDateTime::now_utc();
        request.params.not_before = now - BACKDATED_BY;
        request.params.not_after = now + LIFETIME;
        change(&mut request.params);
        let valid_until = request.params.not_after.into();
        let leaf = request.signed_by(&self.issuer).expect("a certificate");
        TestCertificate {
            leaf: leaf.der().to_vec(),
            intermediates: self.chain.clone(),
            valid_until,
        }
    }
}

impl Default for TestCa {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns a name that no other authority has.
fn successor_name() -> rcgen::DistinguishedName {
    let mut name = rcgen::DistinguishedName::new();
    name.push(rcgen::DnType::CommonName, "successor");
    name
}

fn new_key() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key")
}

fn ca(constraints: BasicConstraints) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(constraints);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}
