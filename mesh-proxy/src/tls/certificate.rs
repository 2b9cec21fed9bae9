//! What the proxy reads from a certificate: its identity and its validity period.

use std::ops::RangeInclusive;

use mesh_core::identity::Identity;
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::error::PeerError;

/// Returns the identity of a certificate. Subject alternative names that are neither DNS names nor
/// URIs are ignored.
pub(super) fn identity_of(certificate: &CertificateDer<'_>) -> Result<Identity, PeerError> {
    let parsed = parse(certificate)?;
    let names = parsed
        .subject_alternative_name()
        .map_err(|_malformed| PeerError::Malformed)?;
    let mut identities = names
        .iter()
        .flat_map(|extension| &extension.value.general_names)
        .filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::URI(name) => Some(*name),
            _ => None,
        });
    match (identities.next(), identities.count()) {
        (Some(only), 0) => Identity::parse(only).map_err(PeerError::InvalidIdentity),
        (first, rest) => Err(PeerError::WrongIdentityCount(
            usize::from(first.is_some()) + rest,
        )),
    }
}

pub(super) fn check_identity(
    certificate: &CertificateDer<'_>,
    expected: &Identity,
) -> Result<(), PeerError> {
    let found = identity_of(certificate)?;
    if found == *expected {
        return Ok(());
    }
    Err(PeerError::IdentityMismatch {
        expected: expected.clone(),
        found,
    })
}

/// Checks that the certificate of a resumed session has not expired. Resumption does not verify it
/// again; its chain is still valid because sessions do not outlive a change of anchors.
pub(super) fn check_not_expired(certificate: &CertificateDer<'_>) -> Result<(), PeerError> {
    let not_after = not_after(certificate)?;
    if UnixTime::now().as_secs() > not_after {
        return Err(PeerError::Expired);
    }
    Ok(())
}

/// Returns when a certificate expires, in seconds since the Unix epoch.
pub(super) fn not_after(certificate: &CertificateDer<'_>) -> Result<u64, PeerError> {
    validity(certificate).map(|validity| *validity.end())
}

/// Returns the validity period of a certificate, in seconds since the Unix epoch.
pub(super) fn validity(certificate: &CertificateDer<'_>) -> Result<RangeInclusive<u64>, PeerError> {
    let parsed = parse(certificate)?;
    let validity = parsed.validity();
    // Times before 1970 become 1970, which is long ago as a start and as an end.
    let seconds = |timestamp: i64| u64::try_from(timestamp).unwrap_or(0);
    Ok(seconds(validity.not_before.timestamp())..=seconds(validity.not_after.timestamp()))
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, PeerError> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        _ => Err(PeerError::Malformed),
    }
}
