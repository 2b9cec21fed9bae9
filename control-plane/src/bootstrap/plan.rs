//! The next step of the bootstrap, a pure function of the existing objects.

use std::time::SystemTime;

use mesh_cluster::certificate::authority::{CertificateAndKey, validity_period};
use mesh_cluster::certificate::{PemBlock, pem_blocks, system_time};
use mesh_k8s::trust::IssuerNames;
use x509_parser::parse_x509_certificate;

use crate::identity::{Issuer, IssuerError, Validity};

/// The existing objects.
#[derive(Clone, Default)]
pub(super) struct ExistingObjects {
    /// Secret linkerd-trust-anchor
    pub(super) anchor: Option<CertificateAndKey>,
    /// Secret linkerd-identity-issuer
    pub(super) issuer: Option<ExistingIssuer>,
    /// ConfigMap linkerd-identity-trust-roots
    pub(super) roots: Option<String>,
}

#[derive(Clone)]
pub(super) struct ExistingIssuer {
    pub(super) certificate_and_key: CertificateAndKey,
    /// This command created it and may replace it.
    pub(super) managed: bool,
    /// The resource version, so that a replacement only replaces this version.
    pub(super) version: Option<String>,
}

/// The next step.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Step {
    Done,
    CreateAnchor,
    CreateIssuer(CertificateAndKey),
    RenewIssuer {
        anchor: CertificateAndKey,
        /// The certificates of this anchor that others signed, for proxies that have only those.
        cross_certificates: String,
        version: Option<String>,
    },
    CreateTrustRoots(String),
}

/// Why the existing objects are inconsistent, which a user must correct.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error(
        "ConfigMap linkerd-identity-trust-roots exists, but neither Secret linkerd-identity-issuer nor Secret linkerd-trust-anchor does; create the issuer of these trust anchors, or delete the ConfigMap to have both generated"
    )]
    RootsWithoutIssuer,
    #[error(
        "Secret linkerd-identity-issuer exists, but ConfigMap linkerd-identity-trust-roots does not; create it with the trust anchors of the issuer"
    )]
    IssuerWithoutRoots,
    #[error(
        "ConfigMap linkerd-identity-trust-roots does not contain the certificate of Secret linkerd-trust-anchor, so no proxy would trust an issuer signed by it; add it, or delete the Secret and create an issuer"
    )]
    AnchorNotInRoots,
    #[error(
        "the issuer in Secret linkerd-identity-issuer (keys {certificate} and {key}) cannot be used with the trust anchors in ConfigMap linkerd-identity-trust-roots"
    )]
    Issuer {
        certificate: &'static str,
        key: &'static str,
        source: IssuerError,
    },
}

/// Returns the next step.
pub(super) fn next(
    state: &ExistingObjects,
    names: &IssuerNames,
    now: SystemTime,
) -> Result<Step, PlanError> {
    let Some(issuer) = &state.issuer else {
        return match (&state.anchor, &state.roots) {
            (None, None) => Ok(Step::CreateAnchor),
            (None, Some(_)) => Err(PlanError::RootsWithoutIssuer),
            (Some(anchor), Some(roots)) if !contains_certificate(roots, &anchor.certificate) => {
                Err(PlanError::AnchorNotInRoots)
            }
            (Some(anchor), _) => Ok(Step::CreateIssuer(anchor.clone())),
        };
    };
    let chain = &issuer.certificate_and_key.certificate;
    // No proxy would trust an issuer of an anchor that was replaced without this Secret.
    let is_trusted = |anchor: &&CertificateAndKey| {
        let roots = state.roots.as_ref();
        roots.is_none_or(|roots| contains_certificate(roots, &anchor.certificate))
    };
    if let Some(anchor) = state.anchor.as_ref().filter(is_trusted)
        && issuer.managed
        && is_due_for_renewal(chain, now)
    {
        return Ok(Step::RenewIssuer {
            anchor: anchor.clone(),
            cross_certificates: cross_certificates(chain, &anchor.certificate, now),
            version: issuer.version.clone(),
        });
    }
    let check = |anchors: &str| check(&issuer.certificate_and_key, anchors, now);
    match (&state.roots, &state.anchor) {
        (Some(roots), _) => match check(roots) {
            Ok(()) => Ok(Step::Done),
            Err(source) => Err(PlanError::Issuer {
                certificate: names.certificate,
                key: names.key,
                source,
            }),
        },
        (None, Some(anchor)) if check(&anchor.certificate).is_ok() => {
            Ok(Step::CreateTrustRoots(anchor.certificate.clone()))
        }
        (None, _) => Err(PlanError::IssuerWithoutRoots),
    }
}

/// Checks the issuer like the identity service.
fn check(
    certificate_and_key: &CertificateAndKey,
    anchors: &str,
    now: SystemTime,
) -> Result<(), IssuerError> {
    // Unused, because no certificate is issued.
    let validity = Validity {
        lifetime: std::time::Duration::from_secs(60),
        clock_skew: std::time::Duration::ZERO,
    };
    let (certificate, key) = (
        certificate_and_key.certificate.as_bytes(),
        certificate_and_key.key.as_bytes(),
    );
    Issuer::read(certificate, key, anchors.as_bytes(), validity, now).map(drop)
}

/// Returns whether less than a third of the certificate's lifetime is left, or it is invalid.
fn is_due_for_renewal(certificate: &str, now: SystemTime) -> bool {
    validity_period(certificate).is_none_or(|(begin, end)| {
        let whole = end.duration_since(begin).unwrap_or_default();
        let left = end.duration_since(now).unwrap_or_default();
        left < whole / 3
    })
}

/// Returns the valid certificates of the anchor's key in an issuer's chain, in PEM.
fn cross_certificates(chain: &str, anchor: &str, now: SystemTime) -> String {
    let anchors = pem_blocks(anchor);
    let Some(Ok((_, anchor))) = anchors.first().map(|it| parse_x509_certificate(&it.der)) else {
        return String::new();
    };
    let is_kept = |block: &&PemBlock<'_>| {
        parse_x509_certificate(&block.der).is_ok_and(|(_, certificate)| {
            let end = system_time(certificate.validity().not_after);
            certificate.public_key() == anchor.public_key() && end.is_some_and(|end| end > now)
        })
    };
    let chain = pem_blocks(chain);
    let kept = chain.iter().skip(1).filter(is_kept);
    kept.map(|block| format!("{}\n", block.text)).collect()
}

/// Ignores whitespace, because bundles differ in it.
fn contains_certificate(bundle: &str, certificate: &str) -> bool {
    let squeeze = |text: &str| text.split_whitespace().collect::<String>();
    squeeze(bundle).contains(&squeeze(certificate))
}

#[cfg(test)]
mod tests;
