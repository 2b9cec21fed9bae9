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

/// Those that are valid now and not for long enough, and what is left of each.
pub(crate) fn ending<'a, 'b>(
    certificates: &'b [X509Certificate<'a>],
    now: u64,
) -> impl Iterator<Item = (&'b X509Certificate<'a>, u64)> {
    let valid = certificates
        .iter()
        .filter(move |certificate| time_problem(certificate, now).is_none());
    valid
        .map(move |certificate| (certificate, left(certificate, now)))
        .filter(|(_, left)| *left < WARN_BEFORE)
}

/// Whether certificates that are valid will be so for long enough. Of others a check of its own
/// says that they are not.
pub(crate) fn expires_soon(certificates: &[X509Certificate<'_>], now: u64) -> Outcome {
    let soon = ending(certificates, now)
        .map(|(certificate, left)| format!("{} expires in {}", certificate.subject(), span(left)));
    Outcome::warn_if(soon.collect(), first_expiry(certificates, now))
}

/// What is left of the valid certificate that expires first, in words.
pub(crate) fn first_expiry(certificates: &[X509Certificate<'_>], now: u64) -> String {
    let valid = certificates
        .iter()
        .filter(|certificate| time_problem(certificate, now).is_none());
    match valid.map(|certificate| left(certificate, now)).min() {
        Some(left) => format!("{} left", span(left)),
        None => "none is valid now".to_owned(),
    }
}

/// Why certificates that this one signs are not accepted: RFC 5280 has the basic constraints and
/// the key usage say who may sign. `below` is the number of authorities between it and the
/// certificates of proxies.
pub(crate) fn signing_problem(certificate: &X509Certificate<'_>, below: u32) -> Option<String> {
    let subject = certificate.subject();
    let constraints = certificate.basic_constraints().ok().flatten();
    let usage = certificate.key_usage().ok().flatten();
    if !constraints.as_ref().is_some_and(|found| found.value.ca) {
        return Some(format!(
            "{subject} does not belong to an authority: its basic constraints do not say CA:TRUE, so it may not sign certificates"
        ));
    }
    if usage.is_some_and(|found| !found.value.key_cert_sign()) {
        return Some(format!(
            "{subject} may not sign certificates: its key usage lacks keyCertSign"
        ));
    }
    let length = constraints.and_then(|found| found.value.path_len_constraint);
    length.filter(|length| *length < below).map(|length| {
        format!("{subject} may have at most {length} authorities below it, and has {below}")
    })
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
