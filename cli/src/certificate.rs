//! Evaluates certificates: validity, algorithms, signatures.

use x509_parser::certificate::X509Certificate;
use x509_parser::oid_registry;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;

/// Anchors and issuers with less remaining validity, in seconds, cause a warning, as in Linkerd.
const WARN_BEFORE: u64 = 60 * 24 * 3600;

/// Returns the certificates of a PEM text in DER. `what` is its source, for error messages.
pub(crate) fn read_pem(text: &[u8], what: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut certificates = Vec::new();
    for pem in Pem::iter_from_buffer(text) {
        let pem = pem.map_err(|error| format!("{what} is not valid PEM: {error}"))?;
        if pem.label == "CERTIFICATE" {
            parse(&pem.contents, what)?;
            certificates.push(pem.contents);
        }
    }
    if certificates.is_empty() {
        return Err(format!("{what} contains no certificate"));
    }
    Ok(certificates)
}

pub(crate) fn parse<'a>(der: &'a [u8], what: &str) -> Result<X509Certificate<'a>, String> {
    X509Certificate::from_der(der)
        .map(|(_, certificate)| certificate)
        .map_err(|error| format!("{what} contains an invalid certificate: {error}"))
}

/// Returns the subject of a certificate in quotes, or why it has none.
fn subject(der: &[u8], what: &str) -> String {
    parse(der, what).map_or_else(
        |error| error,
        |certificate| format!("{:?}", certificate.subject().to_string()),
    )
}

/// Returns the subjects of several certificates.
pub(crate) fn subjects(certificates: &[impl AsRef<[u8]>]) -> String {
    let subjects = certificates.iter();
    let subjects = subjects.map(|der| subject(der.as_ref(), "the bundle"));
    subjects.collect::<Vec<_>>().join(", ")
}

/// Returns a message if the certificate is not valid at the time `now`.
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
            "{subject} is not valid before {}: is this machine's clock correct?",
            validity.not_before
        ))
    } else if now > not_after {
        Some(format!("{subject} expired on {}", validity.not_after))
    } else {
        None
    }
}

/// Returns the valid certificates that expire soon, with their remaining validity in seconds.
pub(crate) fn expiring<'a, 'b>(
    certificates: &'b [X509Certificate<'a>],
    now: u64,
) -> impl Iterator<Item = (&'b X509Certificate<'a>, u64)> {
    let valid = certificates
        .iter()
        .filter(move |certificate| time_problem(certificate, now).is_none());
    valid
        .map(move |certificate| (certificate, remaining_seconds(certificate, now)))
        .filter(|(_, remaining)| *remaining < WARN_BEFORE)
}

/// Returns the remaining validity of the certificate that expires first, for the user.
pub(crate) fn first_expiry(certificates: &[X509Certificate<'_>], now: u64) -> String {
    let valid = certificates
        .iter()
        .filter(|certificate| time_problem(certificate, now).is_none());
    match valid
        .map(|certificate| remaining_seconds(certificate, now))
        .min()
    {
        Some(left) => format!("the first expires {}", format_expiry(left, now)),
        None => "none is valid now".to_owned(),
    }
}

/// Returns a message if the basic constraints or key usage (RFC 5280, sections 4.2.1.3 and 4.2.1.9)
/// do not allow the certificate to sign. `below` is the number of CAs between it and the
/// certificates of proxies.
pub(crate) fn signing_problem(certificate: &X509Certificate<'_>, below: u32) -> Option<String> {
    let subject = certificate.subject();
    let constraints = certificate.basic_constraints().ok().flatten();
    let usage = certificate.key_usage().ok().flatten();
    if !constraints.as_ref().is_some_and(|found| found.value.ca) {
        return Some(format!(
            "{subject} is not a CA certificate: its basic constraints lack CA:TRUE, so it may not sign certificates"
        ));
    }
    if usage.is_some_and(|found| !found.value.key_cert_sign()) {
        return Some(format!(
            "{subject} may not sign certificates: its key usage lacks keyCertSign"
        ));
    }
    let length = constraints.and_then(|found| found.value.path_len_constraint);
    length
        .filter(|length| *length < below)
        .map(|length| format!("{subject} allows at most {length} CAs below it, and has {below}"))
}

pub(crate) fn remaining_seconds(certificate: &X509Certificate<'_>, now: u64) -> u64 {
    let not_after = certificate.validity().not_after.timestamp();
    u64::try_from(not_after).unwrap_or(0).saturating_sub(now)
}

/// Returns the remaining validity of the certificate that expires first.
pub(crate) fn expiry(chain: &[Vec<u8>], now: u64) -> Option<String> {
    let left = chain.iter().filter_map(|der| {
        parse(der, "the chain")
            .ok()
            .map(|found| remaining_seconds(&found, now))
    });
    left.min().map(format_duration)
}

/// Returns a message if proxies do not support the algorithms of the certificate. They support
/// ECDSA on P-256 and, for anchors, RSA with 2048 or 4096 bits, signed with SHA-256.
pub(crate) fn algorithm_problem(
    certificate: &X509Certificate<'_>,
    is_rsa_allowed: bool,
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
            2048 | 4096 if is_rsa_allowed => None,
            bits => Some(format!("an RSA key of {bits} bits")),
        },
        _ => Some("an unsupported key type".to_owned()),
    };
    match key {
        Some(key) => Some(format!("{subject} has {key}; use ECDSA on P-256")),
        None if !sha256 => Some(format!("{subject} is not signed with SHA-256")),
        None => None,
    }
}

/// Returns whether signatures chain the first certificate to one of the anchors.
pub(crate) fn is_signed_by(chain: &[X509Certificate<'_>], anchors: &[X509Certificate<'_>]) -> bool {
    let Some((first, rest)) = chain.split_first() else {
        return false;
    };
    // Verifiers compare names byte by byte.
    let signed_by = |signer: &X509Certificate<'_>| {
        signer.subject().as_raw() == first.issuer().as_raw()
            && first.verify_signature(Some(signer.public_key())).is_ok()
    };
    let tbs = |certificate: &X509Certificate<'_>| certificate.tbs_certificate.as_ref().to_vec();
    anchors
        .iter()
        .any(|anchor| tbs(anchor) == tbs(first) || signed_by(anchor))
        || rest.first().is_some_and(signed_by) && is_signed_by(rest, anchors)
}

/// Formats an expiry as `in 12 days, on 2026-01-13`; one within two days with the time of day.
pub(crate) fn format_expiry(left: u64, now: u64) -> String {
    let at = i64::try_from(now.saturating_add(left)).ok();
    let at = at.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    let format = match left / 3600 {
        48.. => "%Y-%m-%d",
        _ => "%Y-%m-%dT%H:%M:%SZ",
    };
    let at = at.map_or_else(String::new, |at| format!(", on {}", at.strftime(format)));
    format!("in {}{at}", format_duration(left))
}

/// Formats a duration in days, hours or minutes.
pub(crate) fn format_duration(seconds: u64) -> String {
    match seconds / 3600 {
        hours @ 48.. => format!("{} days", hours / 24),
        hours @ 2.. => format!("{hours} hours"),
        _ => format!("{} minutes", seconds / 60),
    }
}
