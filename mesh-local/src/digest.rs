//! Digests for stable names and IDs.

use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest};
use serde::Serialize;

/// Returns the SHA-256 of an object's JSON in hexadecimal.
pub fn of_json(object: &impl Serialize) -> String {
    of_text(&serde_json::to_string(object).unwrap_or_default())
}

pub fn of_text(text: &str) -> String {
    let mut hex = String::with_capacity(64);
    for byte in digest(&SHA256, text.as_bytes()).as_ref() {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// Returns `length` characters derived from a digest. They are from the alphabet of Kubernetes' pod
/// names, which avoids similar characters and words.
pub fn short(digest: &str, length: usize) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    digest
        .as_bytes()
        .chunks(2)
        .take(length)
        .map(|pair| {
            let value = pair
                .iter()
                .fold(0, |sum, byte| sum * 31 + usize::from(*byte));
            char::from(LETTERS[value % LETTERS.len()])
        })
        .collect()
}

/// Returns a UUID (version 8) that is derived from a text.
pub fn uuid(text: &str) -> String {
    let hex = of_text(text);
    let part = |range: std::ops::Range<usize>| &hex[range];
    format!(
        "{}-{}-8{}-a{}-{}",
        part(0..8),
        part(8..12),
        part(12..15),
        part(15..18),
        part(18..30)
    )
}

/// Returns a random UUID (version 4).
pub fn random_uuid() -> Result<String, aws_lc_rs::error::Unspecified> {
    let mut bytes = [0u8; 16];
    aws_lc_rs::rand::fill(&mut bytes)?;
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_well_formed() {
        let random = random_uuid().unwrap();
        for uuid in [random.as_str(), &uuid("a")] {
            let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{uuid}");
        }
        assert_ne!(random, random_uuid().unwrap());
        assert_eq!(uuid("a"), uuid("a"));
    }

    #[test]
    fn short_names_differ() {
        let names: std::collections::BTreeSet<String> = (0..100)
            .map(|n| short(&of_text(&n.to_string()), 5))
            .collect();
        assert_eq!(names.len(), 100);
    }
}
