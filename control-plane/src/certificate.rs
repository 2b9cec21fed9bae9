//! What the certificates of the issuer, of workloads and of the webhook share.

use std::time::{Duration, SystemTime};

use rand::RngExt as _;
use rcgen::SerialNumber;
use x509_parser::time::ASN1Time;

/// Converts a time of a certificate; `None` before 1970 and after the range of the clock.
pub(crate) fn system_time(time: ASN1Time) -> Option<SystemTime> {
    let since = Duration::from_secs(u64::try_from(time.timestamp()).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// Returns 128 random bits, so that serial numbers are unique and do not reveal the number of
/// certificates. The first bits are fixed so that the number is positive and of full length.
pub(crate) fn random_serial() -> SerialNumber {
    let mut bytes: [u8; 16] = rand::rng().random();
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    SerialNumber::from_slice(&bytes)
}
