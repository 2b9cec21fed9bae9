//! What the proxy reads from a certificate: its identity and its validity period.

use std::ops::RangeInclusive;

use mesh_core::identity::{Identity, IdentityError};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::error::PeerError;

/// Returns the identity of a certificate: its only URI, or if it has none its only DNS name. Other
/// subject alternative names are ignored, and so are the DNS names of a SPIFFE identity, which
/// issuers add for peers without SPIFFE (X.509-SVID, section 2).
pub(super) fn identity_of(certificate: &CertificateDer<'_>) -> Result<Identity, PeerError> {
    let parsed = parse(certificate)?;
    let names = parsed
        .subject_alternative_name()
        .map_err(|_malformed| PeerError::Malformed)?;
    let names = || {
        let values = names.iter().map(|extension| &extension.value);
        values.flat_map(|value| &value.general_names)
    };
    let mut uris = names().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let mut dns_names = names().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    });
    match (
        uris.next(),
        uris.count(),
        dns_names.next(),
        dns_names.count(),
    ) {
        (Some(uri), 0, _, _) => spiffe_identity(uri, &parsed),
        (None, _, Some(name), 0) => Identity::parse(name).map_err(PeerError::InvalidIdentity),
        (uri, more_uris, name, more_names) => Err(PeerError::WrongIdentityCount {
            uris: usize::from(uri.is_some()) + more_uris,
            dns_names: usize::from(name.is_some()) + more_names,
        }),
    }
}

/// Returns the SPIFFE identity of a certificate that is not for signing others (X.509-SVID,
/// section 5.2). The verification of the chain refuses those whose basic constraints are of a CA.
fn spiffe_identity(uri: &str, certificate: &X509Certificate<'_>) -> Result<Identity, PeerError> {
    let usage = certificate
        .key_usage()
        .map_err(|_malformed| PeerError::Malformed)?;
    if usage.is_some_and(|usage| usage.value.key_cert_sign() || usage.value.crl_sign()) {
        return Err(PeerError::SigningCertificate);
    }
    match Identity::parse(uri) {
        Ok(id @ Identity::Uri(_)) => Ok(id),
        Ok(Identity::Dns(_)) => Err(PeerError::InvalidIdentity(IdentityError::InvalidUri(
            uri.to_owned(),
        ))),
        Err(error) => Err(PeerError::InvalidIdentity(error)),
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

/// Splits certificates in DER that follow each other.
pub(super) fn split_der(mut der: &[u8]) -> Result<Vec<CertificateDer<'static>>, PeerError> {
    let mut certificates = Vec::new();
    while !der.is_empty() {
        let (rest, _parsed) =
            X509Certificate::from_der(der).map_err(|_malformed| PeerError::Malformed)?;
        let (first, _) = der.split_at(der.len() - rest.len());
        certificates.push(first.to_vec().into());
        der = rest;
    }
    Ok(certificates)
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, PeerError> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        _ => Err(PeerError::Malformed),
    }
}
