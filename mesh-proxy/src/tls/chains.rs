//! Chains of certificates that were verified lately, so that a peer that comes back costs no
//! signatures but its own.
//!
//! A memory belongs to one role and one set of trust anchors ([`super::Credentials`] has two, and
//! both end with it). Only the chain is remembered: whether the peer has the key, which identity it
//! is, and whether that is the one wanted are asked in every handshake. Two verifications of P-256
//! signatures, 80 µs, are what it saves.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use aws_lc_rs::digest;
use parking_lot::Mutex;
use rustls::Error;
use rustls_pki_types::{CertificateDer, UnixTime};

use super::verify;

/// One for each role and set of anchors.
#[derive(Debug, Default)]
pub(super) struct VerifiedChains {
    // Taken twice in a full handshake, which takes a thousand times longer.
    halves: Mutex<(Half, Half)>,
}

/// When all certificates of a chain are valid, in seconds since the epoch, by the hash of the
/// chain.
type Half = HashMap<[u8; digest::SHA256_OUTPUT_LEN], RangeInclusive<u64>>;

/// 50 bytes each. The older half is forgotten when the younger is full.
const HALF: usize = 1024;

impl VerifiedChains {
    /// Has a chain verified, unless it was before and is still valid.
    pub(super) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        verify: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let chain = || std::iter::once(leaf).chain(intermediates);
        let hash = hash(chain());
        if self.holds(&hash, now.as_secs()) {
            return Ok(());
        }
        verify()?;
        // Also those that the verification had no need of: it forgets too early then, never too
        // late.
        if let Some(validity) = validity(chain()) {
            self.remember(hash, validity);
        }
        Ok(())
    }

    fn holds(&self, hash: &[u8; digest::SHA256_OUTPUT_LEN], now: u64) -> bool {
        let mut halves = self.halves.lock();
        let (young, old) = &mut *halves;
        if let Some(validity) = young.get(hash) {
            return validity.contains(&now);
        }
        let Some(validity) = old.remove(hash) else {
            return false;
        };
        let is_valid = validity.contains(&now);
        insert(young, old, *hash, validity);
        is_valid
    }

    fn remember(&self, hash: [u8; digest::SHA256_OUTPUT_LEN], validity: RangeInclusive<u64>) {
        let mut halves = self.halves.lock();
        let (young, old) = &mut *halves;
        insert(young, old, hash, validity);
    }
}

fn insert(
    young: &mut Half,
    old: &mut Half,
    hash: [u8; digest::SHA256_OUTPUT_LEN],
    validity: RangeInclusive<u64>,
) {
    if young.len() >= HALF {
        *old = std::mem::take(young);
    }
    young.insert(hash, validity);
}

/// Lengths are hashed too, so that no two chains are the same bytes.
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
        .map(|certificate| verify::validity(certificate).ok())
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
    use crate::tls::SigningRequest;
    use crate::tls::tests::{authority, identity};

    fn leaf() -> CertificateDer<'static> {
        let request = SigningRequest::new(&identity("a.test")).unwrap();
        authority().sign(request.der()).leaf.into()
    }

    #[test]
    fn a_chain_is_verified_once_as_long_as_it_is_valid() {
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
        assert!(check(&chain[0], &[], now), "another chain");
        assert!(check(&chain[0], std::slice::from_ref(&other), now));
        assert!(check(&chain[1], &chain[..1], now), "another order");
    }

    #[test]
    fn what_was_refused_is_not_remembered() {
        let leaf = leaf();
        let chains = VerifiedChains::default();
        let refused = || Err(CertificateError::UnknownIssuer.into());
        for _ in 0..2 {
            let checked = chains.verify(&leaf, &[], UnixTime::now(), refused);
            assert_eq!(checked, refused());
        }
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let chains = VerifiedChains::default();
        let name = |n: usize| {
            let mut hash = [0; digest::SHA256_OUTPUT_LEN];
            hash[..8].copy_from_slice(&n.to_be_bytes());
            hash
        };
        for n in 0..10 * HALF {
            chains.remember(name(n), 0..=u64::MAX);
            assert!(chains.holds(&name(0), 1), "{n}");
        }
        assert!(!chains.holds(&name(1), 1));
        let halves = chains.halves.lock();
        assert!(halves.0.len() + halves.1.len() <= 2 * HALF);
    }
}
