//! An issuer that cert-manager renews, and anchors that trust-manager writes.

use mesh_k8s::trust::ISSUER_SECRET;
use x509_parser::certificate::X509Certificate;

use super::super::expiry::check_expiry;
use super::super::framework::{CheckResult, Finding, Outcome};
use crate::certificate::{self, format_expiry, time_problem};
use crate::facts::cert_manager::Certificate;
use crate::facts::trust::own_map;
use crate::facts::{Fact, Facts, fact_ref};
use crate::rotation::owner::Owner;

/// Fails if the Certificate is the reason why there is no usable issuer. Until then the mesh works.
pub(super) fn is_renewed(facts: &Facts) -> CheckResult {
    let Some(certificate) = certificate(facts)? else {
        return Ok(Outcome::ok("cert-manager does not write the issuer"));
    };
    let name = certificate.name();
    let findings = certificate.problems(facts.now).into_iter().map(|problem| {
        Finding::new(problem).with_fix(format!(
            "kubectl -n {{ns}} describe certificate {name}, and its CertificateRequests: they name what the issuer lacks"
        ))
    });
    let outcome = Outcome::fail_if(findings, name);
    Ok(if has_valid_issuer(facts) {
        outcome.into_warning()
    } else {
        outcome
    })
}

/// Warns if a certificate of the issuer's chain expires soon. An issuer that cert-manager renews in
/// time does not; others renew the certificates above it.
pub(super) fn expiry(facts: &Facts, chain: &[X509Certificate<'_>]) -> Outcome {
    let certificate = certificate(facts).ok().flatten();
    let renewal = certificate.and_then(|it| it.renewal(facts.now));
    match (renewal, chain) {
        (Some(time), [issuer, above @ ..]) if time_problem(issuer, facts.now).is_none() => {
            let left = format_expiry(time.saturating_sub(facts.now), facts.now);
            match check_expiry(above, facts.now) {
                Outcome::Ok(_) => Outcome::ok(format!("cert-manager renews it {left}")),
                soon => soon,
            }
        }
        _ => check_expiry(chain, facts.now),
    }
}

/// Returns how the writer of the issuer's Secret writes it again, if cert-manager is the writer.
pub(super) fn rewrite(facts: &Facts) -> Option<String> {
    let values = facts.values().ok()?;
    let meta = facts.objects.issuer.as_ref().ok()?.as_ref()?;
    match Owner::of_issuer(values, meta)? {
        Owner::CertManager(name) => Some(format!(
            "cert-manager writes Secret {ISSUER_SECRET} again while it runs: kubectl -n {{ns}} describe certificate {name}"
        )),
        _ => None,
    }
}

/// Returns how the anchor of the issuer gets into the bundle, if trust-manager writes it.
pub(super) fn add_source(facts: &Facts) -> Option<String> {
    let values = facts.values().ok()?;
    let map = own_map(facts).ok()??;
    match Owner::of_anchors(values, &map.metadata)? {
        Owner::TrustManager(bundle) => Some(format!(
            "add the CA that signed the issuer to the sources of Bundle {bundle}: trust-manager would revert a change of the ConfigMap; kubectl describe bundle {bundle}"
        )),
        _ => None,
    }
}

fn certificate(facts: &Facts) -> Fact<Option<&Certificate>> {
    Ok(fact_ref(&facts.objects.issuer_certificate)?.as_ref())
}

fn has_valid_issuer(facts: &Facts) -> bool {
    let first = facts.trust.issuer.iter().flatten().next();
    let parsed = first.and_then(|der| certificate::parse(der, "the issuer").ok());
    parsed.is_some_and(|issuer| time_problem(&issuer, facts.now).is_none())
}
