//! Functions for the certificates of the issuer, of workloads and of the webhooks.

pub mod authority;

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand::RngExt as _;
use rcgen::{KeyPair, SerialNumber};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use x509_parser::pem::Pem;
use x509_parser::time::ASN1Time;

/// Converts a time of a certificate; `None` before 1970 and after the range of the clock.
pub fn system_time(time: ASN1Time) -> Option<SystemTime> {
    let since = Duration::from_secs(u64::try_from(time.timestamp()).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// A certificate of a text in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemBlock<'a> {
    /// From its first line to its last, without the line break after it.
    pub text: &'a str,
    pub der: Vec<u8>,
}

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Returns a certificate in PEM.
pub fn to_pem(der: &[u8]) -> String {
    const WIDTH: usize = 64;
    let text = STANDARD.encode(der);
    let mut pem = format!("{BEGIN}\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(WIDTH));
        pem.push_str(line);
        pem.push('\n');
        rest = after;
    }
    pem + END + "\n"
}

/// Returns the certificates of a text in PEM. Other text and blocks that are not base64 are
/// skipped.
pub fn pem_blocks(text: &str) -> Vec<PemBlock<'_>> {
    let starts = text.match_indices(BEGIN);
    let blocks = starts.filter_map(|(start, _)| {
        let end = start + text[start..].find(END)? + END.len();
        let text = &text[start..end];
        let pem = Pem::iter_from_buffer(text.as_bytes()).next()?.ok()?;
        Some(PemBlock {
            text,
            der: pem.contents,
        })
    });
    blocks.collect()
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

#[cfg(test)]
mod tests {
    use super::authority::Authority;
    use super::*;

    #[test]
    fn blocks_of_a_bundle_have_their_text_and_other_text_is_skipped() {
        let authority = Authority {
            control_namespace: "linkerd".to_owned(),
            trust_domain: "cluster.local".to_owned(),
            anchor_lifetime: Authority::ANCHOR_LIFETIME,
            issuer_lifetime: Authority::ISSUER_LIFETIME,
        };
        let anchor = || authority.anchor(SystemTime::now()).unwrap().certificate;
        let (one, two) = (anchor(), anchor());
        let broken = "-----BEGIN CERTIFICATE-----\n???\n-----END CERTIFICATE-----\n";
        let cut = "-----BEGIN CERTIFICATE-----\nMIIB";
        let bundle = format!("# one\n{one}\n# broken\n{broken}{two}{cut}");
        let blocks = pem_blocks(&bundle);
        let texts: Vec<&str> = blocks.iter().map(|block| block.text).collect();
        assert_eq!(texts, [one.trim_end(), two.trim_end()]);
        assert_eq!(pem_blocks(&one)[0].der, blocks[0].der);
        assert_eq!(pem_blocks("").len(), 0);
    }
}
