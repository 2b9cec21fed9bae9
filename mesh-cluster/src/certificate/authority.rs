//! Generation of trust anchors and issuers, with ECDSA P-256, which `linkerd check` and `meshctl
//! check` require. The bootstrap and `meshctl identity rotate` use it.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use x509_parser::pem::Pem;

use super::{read_key, system_time};

/// The names and lifetimes of generated certificates.
#[derive(Clone, Debug)]
pub struct Authority {
    pub control_namespace: String,
    pub trust_domain: String,
    pub anchor_lifetime: Duration,
    pub issuer_lifetime: Duration,
}

/// A certificate and its key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificateAndKey {
    pub certificate: String,
    pub key: String,
}

/// Why a certificate could not be generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    #[error("the trust anchor or its key is invalid")]
    Anchor(#[source] rcgen::Error),
    #[error("{name:?} is not a DNS name; check the trust domain")]
    Name { name: String, source: rcgen::Error },
    #[error("signing failed")]
    Sign(#[source] rcgen::Error),
}

/// How long before its creation a certificate becomes valid, for nodes whose clocks are behind.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

impl Authority {
    /// The lifetime of a trust anchor by default.
    pub const ANCHOR_LIFETIME: Duration = Duration::from_hours(87_600);
    /// The lifetime of an issuer by default.
    pub const ISSUER_LIFETIME: Duration = Duration::from_hours(8_760);

    /// Generates a self-signed trust anchor.
    pub fn anchor(&self, now: SystemTime) -> Result<CertificateAndKey, GenerateError> {
        let mut params = self.params("root", BasicConstraints::Unconstrained, now)?;
        params.not_after = (now + self.anchor_lifetime).into();
        sign(|key| params.self_signed(key))
    }

    /// Generates an issuer signed by an anchor. The issuer expires no later than the anchor.
    pub fn issuer(
        &self,
        anchor: &CertificateAndKey,
        now: SystemTime,
    ) -> Result<CertificateAndKey, GenerateError> {
        let mut params = self.params("identity", BasicConstraints::Constrained(0), now)?;
        let requested = now + self.issuer_lifetime;
        let anchor_end = validity_period(&anchor.certificate).map_or(requested, |(_, end)| end);
        params.not_after = requested.min(anchor_end).into();
        let anchor_key = read_key(anchor.key.as_bytes()).map_err(GenerateError::Anchor)?;
        let signer = Issuer::from_ca_cert_pem(&anchor.certificate, anchor_key)
            .map_err(GenerateError::Anchor)?;
        sign(|key| params.signed_by(key, &signer))
    }

    /// `linkerd check` requires the name as a subject alternative name.
    fn params(
        &self,
        prefix: &str,
        constraints: BasicConstraints,
        now: SystemTime,
    ) -> Result<CertificateParams, GenerateError> {
        let name = format!("{prefix}.{}.{}", self.control_namespace, self.trust_domain);
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, &name);
        let dns = name.as_str().try_into();
        let dns = dns.map_err(|source| GenerateError::Name { name, source })?;
        params.subject_alt_names = vec![SanType::DnsName(dns)];
        params.is_ca = IsCa::Ca(constraints);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.use_authority_key_identifier_extension = true;
        params.not_before = (now - CLOCK_SKEW).into();
        Ok(params)
    }
}

/// Returns a new key and its certificate.
fn sign(
    certify: impl FnOnce(&KeyPair) -> Result<Certificate, rcgen::Error>,
) -> Result<CertificateAndKey, GenerateError> {
    let key = KeyPair::generate().map_err(GenerateError::Sign)?;
    let certificate = certify(&key).map_err(GenerateError::Sign)?;
    Ok(CertificateAndKey {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

/// Returns the start and end of the first certificate's validity; `None` if it is invalid.
pub fn validity_period(pem: &str) -> Option<(SystemTime, SystemTime)> {
    let pem = Pem::iter_from_buffer(pem.as_bytes()).next()?.ok()?;
    let certificate = pem.parse_x509().ok()?;
    let validity = certificate.validity();
    Some((
        system_time(validity.not_before)?,
        system_time(validity.not_after)?,
    ))
}
