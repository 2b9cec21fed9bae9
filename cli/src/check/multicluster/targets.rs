//! The target clusters.

use std::collections::BTreeSet;

use mesh_core::annotation::CLUSTER_NAME;
use mesh_k8s::crd::Link;
use mesh_k8s::crd::link::CREDENTIALS_TYPE;

use super::{checked, link_again, links, trust};
use crate::certificate;
use crate::check::framework::{CheckResult, Finding, Outcome};
use crate::facts::{Credentials, Facts, LinkFacts, fact_ref};

/// Whether the mirror controller can read the target, and the destination controller the endpoints
/// of Services that have no mirror of their own.
pub(super) fn access(facts: &Facts) -> CheckResult {
    let links = links(facts)?;
    let discovered = fact_ref(&facts.multicluster.discovered)?;
    let mut findings: Vec<Finding> = Vec::new();
    for (known, link) in &links {
        let cluster = &link.spec.target_cluster_name;
        findings.extend(denied(known, cluster));
        if !link.spec.discovers_endpoints() {
            continue;
        }
        let namespace = &facts.control_namespace;
        let without =
            "Services with remote discovery and federated Services have no endpoints there";
        let mut labelled = discovered.iter().filter(|it| it.cluster == *cluster);
        if labelled.clone().any(|it| it.is_followed) {
            continue;
        }
        let text = match labelled.next() {
            Some(credentials) => format!(
                "cluster {cluster}: Secret {namespace}/{} is not of type {CREDENTIALS_TYPE}, so that the destination controller ignores it: {without}",
                credentials.secret
            ),
            None => format!(
                "cluster {cluster}: namespace {namespace} has no Secret with credentials and the label {CLUSTER_NAME}={cluster}: {without}"
            ),
        };
        let again = labelled_again(namespace, discovered, cluster);
        findings.push(Finding::new(text).with_fix(again));
    }
    let detail = match links.as_slice() {
        [] => checked(&links),
        links => links.iter().map(described).collect::<Vec<_>>().join(", "),
    };
    Ok(Outcome::fail_if(findings, detail))
}

fn described((known, link): &(&LinkFacts, &Link)) -> String {
    let version = known.target.as_ref().map_or("", |target| &target.version);
    format!("{} {version}", link.spec.target_cluster_name)
}

fn denied(known: &LinkFacts, cluster: &str) -> Vec<Finding> {
    let denied = fact_ref(&known.target).and_then(|target| fact_ref(&target.denied));
    match denied {
        Ok(denied) => {
            let may_not = |permission: &String| {
                let text = format!("cluster {cluster}: the credentials may not {permission}");
                Finding::new(text).with_fix(format!(
                    "in cluster {cluster}: meshctl multicluster install | kubectl apply -f - (of an own ServiceAccount: meshctl multicluster allow --ignore-cluster)"
                ))
            };
            denied.iter().map(may_not).collect()
        }
        Err(reason) => {
            let text = format!("cluster {cluster}: {reason}");
            vec![Finding::new(text).with_fix(link_again(cluster))]
        }
    }
}

/// Returns how to write the credentials again. Kubernetes changes the type of no Secret, so that
/// one of another type is deleted first.
fn labelled_again(namespace: &str, discovered: &[Credentials], cluster: &str) -> String {
    let again = link_again(cluster);
    match discovered.iter().find(|it| it.cluster == cluster) {
        Some(other) => format!(
            "kubectl -n {namespace} delete secret {}; then {again}",
            other.secret
        ),
        None => again,
    }
}

/// A certificate is valid from 20 seconds before it was issued, unless a value says otherwise
/// (identity.issuer.clockSkewAllowance).
const MAX_SKEW_SECONDS: u64 = 20;

/// How two clusters come to trust each other's proxies without a trust bundle.
const SHARE_ANCHORS: &str =
    "add the anchors of each cluster to ConfigMap linkerd-identity-trust-roots of the other one";

/// Proxies of clusters with other clocks refuse each other's new certificates.
pub(super) fn clocks(facts: &Facts) -> CheckResult {
    let links = links(facts)?;
    let own = fact_ref(&facts.api_server)?.clock;
    let Some(own) = own.and_then(|own| own.checked_signed_diff(facts.now)) else {
        return Ok(Outcome::ok("the API server sends no Date header"));
    };
    let wrong = links.iter().filter_map(|(known, link)| {
        let ahead = known.target.as_ref().ok()?.clock_ahead? - own;
        (ahead.unsigned_abs() > MAX_SKEW_SECONDS).then(|| {
            let cluster = &link.spec.target_cluster_name;
            let direction = if ahead > 0 { "ahead of" } else { "behind" };
            Finding::new(format!(
                "the clock of cluster {cluster} is {} s {direction} this cluster's: proxies of the slower cluster refuse certificates that the other one has just issued",
                ahead.unsigned_abs()
            ))
        })
    });
    Ok(Outcome::warn_if(wrong, checked(&links)))
}

/// Proxies of clusters without a common anchor refuse each other. With further anchors on one side,
/// it depends on which of them the issuers use.
pub(super) fn anchors(facts: &Facts) -> CheckResult {
    let links = links(facts)?;
    if links.is_empty() {
        return Ok(Outcome::ok(checked(&links)));
    }
    let own: BTreeSet<&[u8]> = set(fact_ref(&facts.trust.anchors)?);
    let (mut disjoint, mut different) = (Vec::new(), Vec::new());
    for (known, link) in &links {
        let cluster = &link.spec.target_cluster_name;
        let anchors = fact_ref(&known.target).and_then(|target| fact_ref(&target.anchors));
        let theirs = match anchors {
            Ok(anchors) => set(anchors),
            Err(reason) => {
                disjoint.push(Finding::new(format!(
                    "the trust anchors of cluster {cluster} are unknown: {reason}"
                )));
                continue;
            }
        };
        if own.is_disjoint(&theirs) {
            match trust::of_target(facts, known)? {
                Some(domain) => different.push(of_its_own(cluster, &domain)),
                None => disjoint.push(without_common(facts, known, cluster)?),
            }
            continue;
        }
        let only = |who: String, anchors: Vec<&&[u8]>| {
            let names = certificate::subjects(&anchors);
            Finding::new(format!("only {who} trusts {names}"))
        };
        let (mine, other) = (own.difference(&theirs), theirs.difference(&own));
        let (mine, other): (Vec<_>, Vec<_>) = (mine.collect(), other.collect());
        if !mine.is_empty() {
            different.push(only(format!("this cluster, and not {cluster},"), mine));
        }
        if !other.is_empty() {
            different.push(only(format!("cluster {cluster}, and not this one,"), other));
        }
    }
    Ok(if disjoint.is_empty() {
        Outcome::warn_if(different, checked(&links))
    } else {
        disjoint.extend(different);
        Outcome::Fail(disjoint)
    })
}

/// A cluster with trust anchors of its own, whose bundle is in use.
fn of_its_own(cluster: &str, domain: &str) -> Finding {
    let text = format!(
        "cluster {cluster} has no trust anchor of this cluster: its trust bundle makes its anchors trusted for names of {domain} only, and proxies of Linkerd refuse them"
    );
    // A warning about a bundle does not explain it.
    Finding::new(text).into_root_cause().with_fix(
        "nothing, as long as the proxies on both sides are of this project; the check of this name in Linkerd's command line fails",
    )
}

/// A cluster whose proxies are refused.
fn without_common(facts: &Facts, known: &LinkFacts, cluster: &str) -> Result<Finding, String> {
    let text = format!(
        "cluster {cluster} has no trust anchor of this cluster: proxies of the two refuse each other"
    );
    let finding = match trust::config_map_of(facts, cluster)? {
        Some(name) => Finding::new(format!("{text}, and ConfigMap {name} is not in use")),
        // Rows about the ConfigMaps of other clusters do not explain it.
        None => Finding::new(text).into_root_cause(),
    };
    let own = facts.values()?.trust_domain();
    let target = fact_ref(&known.target).and_then(|target| fact_ref(&target.mesh));
    Ok(match target {
        Ok(mesh) if mesh.trust_domain == own => finding.with_fix(format!(
            "both clusters have the trust domain {own}, so that they need the same trust anchors: {SHARE_ANCHORS}"
        )),
        _ => finding,
    })
}

fn set(anchors: &[Vec<u8>]) -> BTreeSet<&[u8]> {
    anchors.iter().map(Vec::as_slice).collect()
}
