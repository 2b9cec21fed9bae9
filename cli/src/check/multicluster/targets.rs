//! The target clusters.

use std::collections::BTreeSet;

use mesh_core::annotation::CLUSTER_NAME;
use mesh_k8s::crd::{Link, LinkSpec};
use mesh_k8s::kinds::LabelSelector;

use super::{checked, links};
use crate::certificate;
use crate::check::framework::{CheckResult, Finding, Outcome};
use crate::facts::{Facts, LinkFacts, fact_ref};

/// Whether the mirror controller can read the target, and the destination controller the endpoints
/// of Services that have no mirror of their own.
pub(super) fn access(facts: &Facts) -> CheckResult {
    let links = links(facts)?;
    let discovered = fact_ref(&facts.multicluster.discovered)?;
    let mut findings: Vec<Finding> = Vec::new();
    for (known, link) in &links {
        let cluster = &link.spec.target_cluster_name;
        findings.extend(denied(known, cluster));
        if discovers_endpoints(&link.spec) && !discovered.contains(cluster) {
            findings.push(Finding::new(format!(
                "cluster {cluster}: namespace {} has no Secret with credentials and the label {CLUSTER_NAME}={cluster}: Services with remote discovery and federated Services have no endpoints there",
                facts.control_namespace
            )));
        }
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
        Err(reason) => vec![Finding::new(format!("cluster {cluster}: {reason}"))],
    }
}

fn discovers_endpoints(spec: &LinkSpec) -> bool {
    let selects = |selector: &Option<LabelSelector>| {
        selector
            .as_ref()
            .is_some_and(|selector| *selector != LabelSelector::default())
    };
    selects(&spec.remote_discovery_selector) || selects(&spec.federated_service_selector)
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
            disjoint.push(Finding::new(format!(
                "cluster {cluster} has no trust anchor of this cluster: proxies of the two refuse each other"
            )));
            continue;
        }
        let only = |who: String, anchors: Vec<&&[u8]>| {
            let names: Vec<String> = anchors.iter().map(|anchor| subject(anchor)).collect();
            let names = names.join(", ");
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

fn set(anchors: &[Vec<u8>]) -> BTreeSet<&[u8]> {
    anchors.iter().map(Vec::as_slice).collect()
}

fn subject(anchor: &[u8]) -> String {
    let certificate = certificate::parse(anchor, "the bundle");
    certificate.map_or_else(
        |error| error,
        |it| format!("{:?}", it.subject().to_string()),
    )
}
