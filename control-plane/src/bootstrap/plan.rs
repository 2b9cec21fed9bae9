//! What to do next, given what is there. Pure.

use std::time::SystemTime;

use super::certificates::{Pair, life};
use crate::identity::{Issuer, IssuerError, IssuerNames, Validity};

/// What is there.
#[derive(Clone, Default)]
pub(super) struct State {
    /// Secret linkerd-trust-anchor
    pub(super) anchor: Option<Pair>,
    /// Secret linkerd-identity-issuer
    pub(super) issuer: Option<Found>,
    /// ConfigMap linkerd-identity-trust-roots
    pub(super) roots: Option<String>,
}

#[derive(Clone)]
pub(super) struct Found {
    pub(super) pair: Pair,
    /// It was made here, and may be replaced.
    pub(super) ours: bool,
    /// By which a replacement proves that it replaces this one.
    pub(super) version: Option<String>,
}

/// The one next thing.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    MakeAnchor,
    MakeIssuer(Pair),
    RenewIssuer {
        anchor: Pair,
        version: Option<String>,
    },
    PublishAnchors(String),
}

/// What is there does not fit together, and only its owner can say what is meant.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error(
        "ConfigMap linkerd-identity-trust-roots exists, but neither Secret linkerd-identity-issuer nor a trust anchor of ours does (give the issuer that belongs to these anchors, or delete the ConfigMap to have both made)"
    )]
    RootsWithoutIssuer,
    #[error(
        "Secret linkerd-identity-issuer exists, but ConfigMap linkerd-identity-trust-roots does not (give the trust anchors that the issuer belongs to)"
    )]
    IssuerWithoutRoots,
    #[error(
        "ConfigMap linkerd-identity-trust-roots does not hold the certificate of Secret linkerd-trust-anchor, so no proxy would trust an issuer made from it (add it, or delete the Secret and give an issuer)"
    )]
    OtherRoots,
    #[error(
        "the issuer in Secret linkerd-identity-issuer (keys {certificate} and {key}) cannot be used with the trust anchors in ConfigMap linkerd-identity-trust-roots"
    )]
    Issuer {
        certificate: &'static str,
        key: &'static str,
        source: IssuerError,
    },
}

/// Looks at everything and names the next step.
pub(super) fn next(state: &State, names: &IssuerNames, now: SystemTime) -> Result<Step, PlanError> {
    let Some(issuer) = &state.issuer else {
        return match (&state.anchor, &state.roots) {
            (None, None) => Ok(Step::MakeAnchor),
            (None, Some(_)) => Err(PlanError::RootsWithoutIssuer),
            (Some(anchor), Some(roots)) if !holds(roots, &anchor.certificate) => {
                Err(PlanError::OtherRoots)
            }
            (Some(anchor), _) => Ok(Step::MakeIssuer(anchor.clone())),
        };
    };
    if let Some(anchor) = &state.anchor
        && issuer.ours
        && is_old(&issuer.pair.certificate, now)
    {
        return Ok(Step::RenewIssuer {
            anchor: anchor.clone(),
            version: issuer.version.clone(),
        });
    }
    let check = |anchors: &str| check(&issuer.pair, anchors, now);
    match (&state.roots, &state.anchor) {
        (Some(roots), _) => match check(roots) {
            Ok(()) => Ok(Step::Nothing),
            Err(source) => Err(PlanError::Issuer {
                certificate: names.certificate,
                key: names.key,
                source,
            }),
        },
        (None, Some(anchor)) if check(&anchor.certificate).is_ok() => {
            Ok(Step::PublishAnchors(anchor.certificate.clone()))
        }
        (None, _) => Err(PlanError::IssuerWithoutRoots),
    }
}

/// As the identity service will check it.
fn check(pair: &Pair, anchors: &str, now: SystemTime) -> Result<(), IssuerError> {
    // Of no matter: nothing is issued.
    let validity = Validity {
        lifetime: std::time::Duration::from_secs(60),
        clock_skew: std::time::Duration::ZERO,
    };
    let (certificate, key) = (pair.certificate.as_bytes(), pair.key.as_bytes());
    Issuer::read(certificate, key, anchors.as_bytes(), validity, now).map(drop)
}

/// Less than a third of its life is left. One that cannot be read has no life.
fn is_old(certificate: &str, now: SystemTime) -> bool {
    life(certificate).is_none_or(|(begin, end)| {
        let whole = end.duration_since(begin).unwrap_or_default();
        let left = end.duration_since(now).unwrap_or_default();
        left < whole / 3
    })
}

/// Bundles differ in blanks and comments.
fn holds(bundle: &str, certificate: &str) -> bool {
    let squeeze = |text: &str| text.split_whitespace().collect::<String>();
    squeeze(bundle).contains(&squeeze(certificate))
}

#[cfg(test)]
mod tests;
