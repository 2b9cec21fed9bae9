//! Generation of the certificates, with ECDSA P-256, which `linkerd check` and `meshctl check`
//! require.

use std::time::{Duration, SystemTime};

use mesh_cluster::certificate::{read_key, system_time};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use x509_parser::pem::Pem;

use super::Settings;

/// The lifetimes of generated certificates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetimes {
    pub(super) anchor_lifetime: Duration,
    pub(super) issuer_lifetime: Duration,
}

/// A certificate and its key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct CertificateAndKey {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// Why a certificate could not be generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    #[error("the trust anchor or its key in Secret linkerd-trust-anchor is invalid")]
    Anchor(#[source] rcgen::Error),
    #[error("{name:?} is not a DNS name; check the trust domain")]
    Name { name: String, source: rcgen::Error },
    #[error("signing failed")]
    Sign(#[source] rcgen::Error),
}

/// How long before its creation a certificate becomes valid, for nodes whose clocks are behind.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// Generates a self-signed trust anchor.
pub(super) fn anchor(
    settings: &Settings,
    now: SystemTime,
) -> Result<CertificateAndKey, GenerateError> {
    let mut params = authority(settings, "root", BasicConstraints::Unconstrained, now)?;
    params.not_after = (now + settings.lifetimes.anchor_lifetime).into();
    sign(|key| params.self_signed(key))
}

/// Generates an issuer signed by an anchor. The issuer expires no later than the anchor.
pub(super) fn issuer(
    settings: &Settings,
    anchor: &CertificateAndKey,
    now: SystemTime,
) -> Result<CertificateAndKey, GenerateError> {
    let mut params = authority(settings, "identity", BasicConstraints::Constrained(0), now)?;
    let requested = now + settings.lifetimes.issuer_lifetime;
    let anchor_end = validity_period(&anchor.certificate).map_or(requested, |(_, end)| end);
    params.not_after = requested.min(anchor_end).into();
    let anchor_key = read_key(anchor.key.as_bytes()).map_err(GenerateError::Anchor)?;
    let signer =
        Issuer::from_ca_cert_pem(&anchor.certificate, anchor_key).map_err(GenerateError::Anchor)?;
    sign(|key| params.signed_by(key, &signer))
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
pub(super) fn validity_period(pem: &str) -> Option<(SystemTime, SystemTime)> {
    let pem = Pem::iter_from_buffer(pem.as_bytes()).next()?.ok()?;
    let certificate = pem.parse_x509().ok()?;
    let validity = certificate.validity();
    Some((
        system_time(validity.not_before)?,
        system_time(validity.not_after)?,
    ))
}

/// `linkerd check` requires the name as a subject alternative name.
fn authority(
    settings: &Settings,
    prefix: &str,
    constraints: BasicConstraints,
    now: SystemTime,
) -> Result<CertificateParams, GenerateError> {
    let Settings {
        control_namespace,
        trust_domain,
        ..
    } = settings;
    let name = format!("{prefix}.{control_namespace}.{trust_domain}");
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
