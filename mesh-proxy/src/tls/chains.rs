//! Cache of recently verified certificate chains. A returning peer costs no signature verification
//! except the one of its CertificateVerify, which saves two P-256 verifications (80 µs).
//!
//! A cache belongs to one role and one set of trust anchors: [`super::Credentials`] own two. It
//! covers the chain only; every handshake still verifies that the peer has the private key and
//! checks its identity.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use aws_lc_rs::digest;
use parking_lot::Mutex;
use rustls::Error;
use rustls_pki_types::{CertificateDer, UnixTime};

use super::certificate;

/// Verified chains, in the current and the previous generation.
#[derive(Debug, Default)]
pub(super) struct VerifiedChains {
    // Locked twice per full handshake, which takes a thousand times longer.
    generations: Mutex<(Generation, Generation)>,
}

/// Hash of a chain to the period when all its certificates are valid, in seconds since the Unix
/// epoch.
type Generation = HashMap<[u8; digest::SHA256_OUTPUT_LEN], RangeInclusive<u64>>;

/// Entries per generation, of 50 bytes each. A full current generation replaces the previous one.
const GENERATION_CAPACITY: usize = 1024;

impl VerifiedChains {
    /// Calls `verify` unless the chain has been verified before and is still valid.
    pub(super) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        verify: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let chain = || std::iter::once(leaf).chain(intermediates);
        let hash = hash(chain());
        if self.is_verified(&hash, now.as_secs()) {
            return Ok(());
        }
        verify()?;
        // Certificates that the verification did not use count as well: the entry then expires too
        // early, never too late.
        if let Some(validity) = validity(chain()) {
            self.insert(hash, validity);
        }
        Ok(())
    }

    fn is_verified(&self, hash: &[u8; digest::SHA256_OUTPUT_LEN], now: u64) -> bool {
        let mut generations = self.generations.lock();
        let (current, previous) = &mut *generations;
        if let Some(validity) = current.get(hash) {
            return validity.contains(&now);
        }
        let Some(validity) = previous.remove(hash) else {
            return false;
        };
        let is_valid = validity.contains(&now);
        insert(current, previous, *hash, validity);
        is_valid
    }

    fn insert(&self, hash: [u8; digest::SHA256_OUTPUT_LEN], validity: RangeInclusive<u64>) {
        let mut generations = self.generations.lock();
        let (current, previous) = &mut *generations;
        insert(current, previous, hash, validity);
    }
}

fn insert(
    current: &mut Generation,
    previous: &mut Generation,
    hash: [u8; digest::SHA256_OUTPUT_LEN],
    validity: RangeInclusive<u64>,
) {
    if current.len() >= GENERATION_CAPACITY {
        *previous = std::mem::take(current);
    }
    current.insert(hash, validity);
}

/// Hashes the lengths as well, so that different chains are never the same input.
fn hash<'a>(
    chain: impl Iterator<Item = &'a CertificateDer<'a>>,
) -> [u8; digest::SHA256_OUTPUT_LEN] {
    let mut context = digest::Context::new(&digest::SHA256);
    for certificate in chain {
        context.update(&(certificate.len() as u64).to_be_bytes());
        context.update(certificate);
    }
    let mut hash = [0; digest::SHA256_OUTPUT_LEN];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

fn validity<'a>(
    chain: impl Iterator<Item = &'a CertificateDer<'a>>,
) -> Option<RangeInclusive<u64>> {
    chain
        .map(|certificate| certificate::validity(certificate).ok())
        .try_fold(0..=u64::MAX, |all, one| {
            let one = one?;
            Some(*all.start().max(one.start())..=*all.end().min(one.end()))
        })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use rustls::CertificateError;

    use super::*;
    use crate::tls::CertificateRequest;
    use crate::tls::tests::{TestCa, identity};

    fn leaf() -> CertificateDer<'static> {
        let request = CertificateRequest::new(&identity("a.test")).unwrap();
        TestCa::new().sign(request.der()).leaf.into()
    }

    #[test]
    fn chain_is_verified_once_while_valid() {
        let (chain, other) = ([leaf(), leaf()], leaf());
        let chains = VerifiedChains::default();
        let verified = Cell::new(0);
        let check = |leaf: &_, rest: &[_], now: UnixTime| {
            let before = verified.get();
            let checked = chains.verify(leaf, rest, now, || {
                verified.set(before + 1);
                Ok(())
            });
            checked.unwrap();
            verified.get() > before
        };
        let now = UnixTime::now();
        let in_seconds = |n| UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs() + n));
        assert!(check(&chain[0], &chain[1..], now));
        assert!(!check(&chain[0], &chain[1..], now));
        assert!(!check(&chain[0], &chain[1..], in_seconds(3500)));
        assert!(check(&chain[0], &chain[1..], in_seconds(3700)), "expired");
        assert!(check(&chain[0], &[], now), "different chain");
        assert!(check(&chain[0], std::slice::from_ref(&other), now));
        assert!(check(&chain[1], &chain[..1], now), "different order");
    }

    #[test]
    fn failed_verification_is_not_cached() {
        let leaf = leaf();
        let chains = VerifiedChains::default();
        let fail = || Err(CertificateError::UnknownIssuer.into());
        for _ in 0..2 {
            let checked = chains.verify(&leaf, &[], UnixTime::now(), fail);
            assert_eq!(checked, fail());
        }
    }

    #[test]
    fn cache_is_bounded_and_keeps_chains_in_use() {
        let chains = VerifiedChains::default();
        let hash = |n: usize| {
            let mut hash = [0; digest::SHA256_OUTPUT_LEN];
            hash[..8].copy_from_slice(&n.to_be_bytes());
            hash
        };
        for n in 0..10 * GENERATION_CAPACITY {
            chains.insert(hash(n), 0..=u64::MAX);
            assert!(chains.is_verified(&hash(0), 1), "{n}");
        }
        assert!(!chains.is_verified(&hash(1), 1));
        let generations = chains.generations.lock();
        assert!(generations.0.len() + generations.1.len() <= 2 * GENERATION_CAPACITY);
    }
}
