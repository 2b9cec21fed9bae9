//! The certificates themselves: ECDSA P-256, as the checks of both projects' command lines expect
//! them.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use x509_parser::{pem::Pem, prelude::X509Certificate};

use super::Settings;

/// How long what is made here lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Issuance {
    pub(super) anchor_lifetime: Duration,
    pub(super) issuer_lifetime: Duration,
}

/// A certificate and its key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    #[error("the trust anchor or its key in Secret linkerd-trust-anchor is unreadable")]
    Anchor(#[source] rcgen::Error),
    #[error("{0:?} is no DNS name (is the trust domain one?)")]
    Name(String, #[source] rcgen::Error),
    #[error("signing failed")]
    Sign(#[source] rcgen::Error),
}

/// Valid since a little before it was made, for nodes whose clocks are behind.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// A new trust anchor: it signs itself.
pub(super) fn anchor(settings: &Settings, now: SystemTime) -> Result<Pair, MakeError> {
    let name = format!(
        "root.{}.{}",
        settings.control_namespace, settings.trust_domain
    );
    let mut params = authority(&name, BasicConstraints::Unconstrained)?;
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + settings.issuance.anchor_lifetime).into();
    let key = KeyPair::generate().map_err(MakeError::Sign)?;
    let certificate = params.self_signed(&key).map_err(MakeError::Sign)?;
    Ok(Pair {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

/// A new issuer below an anchor. Linkerd's checks ask for its alternative name. It must not outlive
/// what it stands on.
pub(super) fn issuer(
    settings: &Settings,
    anchor: &Pair,
    now: SystemTime,
) -> Result<Pair, MakeError> {
    let name = format!(
        "identity.{}.{}",
        settings.control_namespace, settings.trust_domain
    );
    let mut params = authority(&name, BasicConstraints::Constrained(0))?;
    params.not_before = (now - CLOCK_SKEW).into();
    let wanted = now + settings.issuance.issuer_lifetime;
    let possible = life(&anchor.certificate).map_or(wanted, |(_, end)| end);
    params.not_after = wanted.min(possible).into();
    let anchor_key = KeyPair::from_pem(&anchor.key).map_err(MakeError::Anchor)?;
    let signer =
        Issuer::from_ca_cert_pem(&anchor.certificate, anchor_key).map_err(MakeError::Anchor)?;
    let key = KeyPair::generate().map_err(MakeError::Sign)?;
    let certificate = params.signed_by(&key, &signer).map_err(MakeError::Sign)?;
    Ok(Pair {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

/// Beginning and end of the first certificate; nothing when it cannot be read.
pub(super) fn life(pem: &str) -> Option<(SystemTime, SystemTime)> {
    let pem = Pem::iter_from_buffer(pem.as_bytes()).next()?.ok()?;
    let certificate: X509Certificate<'_> = pem.parse_x509().ok()?;
    let time = |seconds: i64| {
        let seconds = u64::try_from(seconds).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    };
    let validity = certificate.validity();
    Some((
        time(validity.not_before.timestamp())?,
        time(validity.not_after.timestamp())?,
    ))
}

fn authority(name: &str, constraints: BasicConstraints) -> Result<CertificateParams, MakeError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let dns = name
        .try_into()
        .map_err(|error| MakeError::Name(name.to_owned(), error))?;
    params.subject_alt_names = vec![SanType::DnsName(dns)];
    params.is_ca = IsCa::Ca(constraints);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}
