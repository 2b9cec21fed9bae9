//! Functions for the certificates of the issuer, of workloads and of the webhooks.

use std::time::{Duration, SystemTime};

use rand::RngExt as _;
use rcgen::{KeyPair, SerialNumber};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use x509_parser::time::ASN1Time;

/// Converts a time of a certificate; `None` before 1970 and after the range of the clock.
pub fn system_time(time: ASN1Time) -> Option<SystemTime> {
    let since = Duration::from_secs(u64::try_from(time.timestamp()).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// Parses the first private key of a PEM file. OpenSSL writes `EC PARAMETERS` before a key of an
/// elliptic curve, which the key repeats.
pub fn read_key(pem: &[u8]) -> Result<KeyPair, rcgen::Error> {
    let der =
        PrivateKeyDer::from_pem_slice(pem).map_err(|_error| rcgen::Error::CouldNotParseKeyPair)?;
    KeyPair::try_from(&der)
}

/// Returns 128 random bits, so that serial numbers are unique and do not reveal the number of
/// certificates. The first bits are fixed so that the number is positive and of full length.
pub fn random_serial() -> SerialNumber {
    let mut bytes: [u8; 16] = rand::rng().random();
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    SerialNumber::from_slice(&bytes)
}
