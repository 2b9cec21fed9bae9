//! The anchors of a rotation, and which of them a certificate chains to.

use mesh_core::anchor_rotation::{Anchors, Root};
use x509_parser::certificate::X509Certificate;

use super::Direction;
use crate::certificate::{self, is_signed_by};
use crate::clients::tls;
use crate::facts::Fact;

/// The anchors of a rotation, in DER.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Roots {
    /// The anchors that signed the issuer when the rotation began.
    pub(crate) old: Vec<Vec<u8>>,
    pub(crate) new: Vec<u8>,
    pub(crate) direction: Direction,
}

impl Roots {
    /// Infers the anchors of a rotation that other programs make from the anchors of the cluster.
    /// `new` is the new anchor, if the user names it. Without it the anchor that begins later is
    /// the new one, if there are two. Returns `None` if there is one anchor.
    pub(super) fn infer(anchors: &[Vec<u8>], new: Option<&[u8]>) -> Fact<Option<Self>> {
        let new = match (new, anchors) {
            (Some(new), _) => new.to_vec(),
            (None, [] | [_]) => return Ok(None),
            (None, [one, two]) => {
                let begin = |der: &Vec<u8>| -> Fact<i64> {
                    let parsed = certificate::parse(der, "a trust anchor")?;
                    Ok(parsed.validity().not_before.timestamp())
                };
                let is_two = begin(two)? > begin(one)?;
                if is_two { two.clone() } else { one.clone() }
            }
            (None, _) => {
                return Err(format!(
                    "there are {} trust anchors: name the new one of the rotation with --anchor-cert FILE",
                    anchors.len()
                ));
            }
        };
        let old = anchors.iter().filter(|it| **it != new).cloned();
        Ok(Some(Self {
            old: old.collect(),
            new,
            direction: Direction::Forward,
        }))
    }

    /// Returns which anchors of the rotation a bundle has.
    pub(super) fn of_bundle(&self, bundle: &[Vec<u8>]) -> Anchors {
        let old = bundle.iter().any(|der| self.old.contains(der));
        let all_old = self.old.iter().all(|der| bundle.contains(der));
        let new = bundle.contains(&self.new);
        match self.direction {
            Direction::Forward => Anchors { old, new },
            Direction::Back => Anchors {
                old: new,
                new: all_old,
            },
        }
    }

    /// Returns the anchor that signed an issuer's chain, regardless of a cross-certificate.
    pub(super) fn of_issuer(&self, chain: &[Vec<u8>]) -> Root {
        let chain = parsed(chain);
        let is_by = |anchors: &[Vec<u8>]| is_signed_by(&chain, &parsed(anchors));
        self.root(is_by)
    }

    /// Returns the anchor by which a client trusts the chain of a proxy with this identity.
    pub(super) fn of_proxy(&self, chain: &[Vec<u8>], identity: &str, now: u64) -> Root {
        let is_by = |anchors: &[Vec<u8>]| tls::verify_chain(chain, anchors, identity, now).is_ok();
        self.root(is_by)
    }

    /// Returns whether an issuer's chain has a certificate of the new anchor that another one
    /// signed.
    pub(super) fn has_cross_certificate(&self, chain: &[Vec<u8>]) -> bool {
        let above = chain.get(1..).unwrap_or_default();
        above.iter().any(|der| self.is_cross_certificate(der))
    }

    /// Returns whether a certificate has the key of the new anchor, but is another one.
    pub(crate) fn is_cross_certificate(&self, der: &[u8]) -> bool {
        let key = |der| {
            let parsed = certificate::parse(der, "a certificate").ok()?;
            Some(parsed.public_key().raw.to_vec())
        };
        der != self.new && key(der).is_some() && key(der) == key(&self.new)
    }

    /// A chain of the new anchor may lead to an old one, too, by a cross-certificate.
    fn root(&self, is_by: impl Fn(&[Vec<u8>]) -> bool) -> Root {
        match (is_by(std::slice::from_ref(&self.new)), self.direction) {
            (true, Direction::Forward) => Root::New,
            (true, Direction::Back) => Root::Old,
            (false, _) if !is_by(&self.old) => Root::Other,
            (false, Direction::Forward) => Root::Old,
            (false, Direction::Back) => Root::New,
        }
    }
}

/// Invalid certificates are left out; `check` reports them.
fn parsed(all: &[Vec<u8>]) -> Vec<X509Certificate<'_>> {
    let all = all.iter();
    all.filter_map(|der| certificate::parse(der, "a certificate").ok())
        .collect()
}
