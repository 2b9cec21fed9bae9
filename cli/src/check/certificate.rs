//! Judging certificates: how long, which algorithms, signed by whom.

use x509_parser::{
    certificate::X509Certificate, oid_registry, pem::Pem, prelude::FromDer as _,
    public_key::PublicKey,
};

use super::Outcome;

/// Linkerd warns as early, of anchors and issuers that people replace.
const WARN_BEFORE: u64 = 60 * 24 * 3600;

/// Every certificate of a PEM text, in DER.
pub(crate) fn read_pem(text: &[u8], what: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut certificates = Vec::new();
    for pem in Pem::iter_from_buffer(text) {
        let pem = pem.map_err(|error| format!("{what} is no PEM: {error}"))?;
        if pem.label == "CERTIFICATE" {
            parse(&pem.contents, what)?;
            certificates.push(pem.contents);
        }
    }
    if certificates.is_empty() {
        return Err(format!("{what} holds no certificate"));
    }
    Ok(certificates)
}

pub(crate) fn parse<'a>(der: &'a [u8], what: &str) -> Result<X509Certificate<'a>, String> {
    X509Certificate::from_der(der)
        .map(|(_, certificate)| certificate)
        .map_err(|error| format!("{what} holds something that is no certificate: {error}"))
}

/// What is wrong with the time of a certificate, if anything.
pub(crate) fn time_problem(certificate: &X509Certificate<'_>, now: u64) -> Option<String> {
    let validity = certificate.validity();
    let (not_before, not_after) = (
        validity.not_before.timestamp(),
        validity.not_after.timestamp(),
    );
    let subject = certificate.subject();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    if now < not_before {
        Some(format!(
            "{subject} is not valid before {}: is this machine's clock right?",
            validity.not_before
        ))
    } else if now > not_after {
        Some(format!("{subject} expired on {}", validity.not_after))
    } else {
        None
    }
}

/// Whether a certificate that is valid will be so for long enough.
pub(crate) fn expires_soon(certificates: &[X509Certificate<'_>], now: u64) -> Outcome {
    let mut soon = Vec::new();
    let mut first = u64::MAX;
    for certificate in certificates {
        let left = left(certificate, now);
        first = first.min(left);
        if left < WARN_BEFORE {
            soon.push(format!(
                "{} expires in {}",
                certificate.subject(),
                span(left)
            ));
        }
    }
    Outcome::warn_if(soon, format!("{} left", span(first)))
}

pub(crate) fn left(certificate: &X509Certificate<'_>, now: u64) -> u64 {
    let not_after = certificate.validity().not_after.timestamp();
    u64::try_from(not_after).unwrap_or(0).saturating_sub(now)
}

/// What is left of the certificate that expires first.
pub(crate) fn expiry(chain: &[Vec<u8>], now: u64) -> Option<String> {
    let left = chain
        .iter()
        .filter_map(|der| parse(der, "it").ok().map(|found| left(&found, now)));
    left.min().map(span)
}

/// The proxies take ECDSA on P-256 and RSA of 2048 or 4096 bits, signed with SHA-256.
pub(crate) fn algorithm_problem(
    certificate: &X509Certificate<'_>,
    rsa_too: bool,
) -> Option<String> {
    let subject = certificate.subject();
    let signature = &certificate.signature_algorithm.algorithm;
    let sha256 = *signature == oid_registry::OID_SIG_ECDSA_WITH_SHA256
        || *signature == oid_registry::OID_PKCS1_SHA256WITHRSA;
    let key = match certificate.public_key().parsed() {
        Ok(PublicKey::EC(point)) => match point.key_size() {
            256 => None,
            bits => Some(format!("an ECDSA key of {bits} bits")),
        },
        Ok(PublicKey::RSA(key)) => match key.key_size() {
            2048 | 4096 if rsa_too => None,
            bits => Some(format!("an RSA key of {bits} bits")),
        },
        _ => Some("a key of another kind".to_owned()),
    };
    match key {
        Some(key) => Some(format!("{subject} has {key}; use ECDSA on P-256")),
        None if !sha256 => Some(format!("{subject} is not signed with SHA-256")),
        None => None,
    }
}

/// Does a chain of signatures lead from the issuer to an anchor?
pub(crate) fn is_signed_by(chain: &[X509Certificate<'_>], anchors: &[X509Certificate<'_>]) -> bool {
    let Some((first, rest)) = chain.split_first() else {
        return false;
    };
    let signed_by =
        |signer: &X509Certificate<'_>| first.verify_signature(Some(signer.public_key())).is_ok();
    let tbs = |certificate: &X509Certificate<'_>| certificate.tbs_certificate.as_ref().to_vec();
    anchors
        .iter()
        .any(|anchor| tbs(anchor) == tbs(first) || signed_by(anchor))
        || rest.first().is_some_and(signed_by) && is_signed_by(rest, anchors)
}

/// A time span as people say it.
pub(crate) fn span(seconds: u64) -> String {
    match seconds / 3600 {
        hours @ 48.. => format!("{} days", hours / 24),
        hours @ 2.. => format!("{hours} hours"),
        _ => format!("{} minutes", seconds / 60),
    }
}
