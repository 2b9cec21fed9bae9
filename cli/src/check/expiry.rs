//! Certificates that expire soon.

use x509_parser::certificate::X509Certificate;

use super::framework::Outcome;
use crate::certificate::{expiring, first_expiry, format_expiry};

/// Warns of certificates that are valid but expire soon. Another check reports the invalid ones.
pub(crate) fn check_expiry(certificates: &[X509Certificate<'_>], now: u64) -> Outcome {
    let soon = expiring(certificates, now).map(|(certificate, left)| {
        format!(
            "{} expires {}",
            certificate.subject(),
            format_expiry(left, now)
        )
    });
    Outcome::warn_if(soon, first_expiry(certificates, now))
}
