//! The mirrors of Services, which mirror controllers write.

use mesh_core::annotation::{
    LOCAL_DISCOVERY, MIRRORED_CLUSTER, MIRRORED_GATEWAY, MIRRORED_SERVICE, REMOTE_DISCOVERY,
};
use mesh_k8s::crd::Link;
use mesh_k8s::crd::link::{MISSING_NAMESPACE, MirroredService};
use mesh_k8s::kinds::core::Endpoints;
use mesh_k8s::kinds::{ResourceExt, Service};

use super::of_links;
use crate::check::framework::{CheckResult, Finding, Outcome};
use crate::facts::{Fact, Facts, LinkFacts, fact_ref};
use crate::output::count;

pub(super) fn endpoints(facts: &Facts) -> CheckResult {
    let mirrors: Vec<&Service> = mirrors(facts)?
        .filter(|service| !is_discovered(service))
        .collect();
    let mut findings = Vec::new();
    for mirror in &mirrors {
        let cluster = cluster_of(mirror);
        let problem = match has_addresses(facts, mirror)? {
            Addresses::Ready => continue,
            Addresses::NotReady => "whose gateway is not alive",
            Addresses::None => "whose Service has no ready pod or whose gateway has no address",
        };
        findings.push(Finding::new(format!(
            "mirror {} has no endpoints: it is of cluster {cluster}, {problem}",
            full_name(mirror)
        )));
    }
    Ok(Outcome::fail_if(
        findings,
        count(mirrors.len(), "mirror", "mirrors"),
    ))
}

/// The Services of a Link that are named.
const MAX_NAMED: usize = 10;

/// Finds Services that the controller of their Link could not mirror.
pub(super) fn mirrored(facts: &Facts) -> CheckResult {
    let of_link = |_known: &LinkFacts, link: &Link| {
        let status = link.status.iter();
        let all = status.flat_map(|it| it.mirror_services.iter().chain(&it.federated_services));
        let mut failed: Vec<Finding> = all.filter_map(|it| not_mirrored(link, it)).collect();
        let further = failed.len().saturating_sub(MAX_NAMED);
        failed.truncate(MAX_NAMED);
        if further > 0 {
            let cluster = &link.spec.target_cluster_name;
            failed.push(Finding::new(format!(
                "{further} further Services of cluster {cluster} are not mirrored"
            )));
        }
        failed
    };
    Ok(of_links(facts, of_link)?.into_warning())
}

fn not_mirrored(link: &Link, service: &MirroredService) -> Option<Finding> {
    let mut conditions = service.conditions.iter();
    let failed = conditions.find(|condition| condition.status == "False")?;
    let (of, cluster) = (&service.remote_ref, &link.spec.target_cluster_name);
    let finding = Finding::new(format!(
        "Service {}/{} of cluster {cluster} is not mirrored: {}",
        of.namespace, of.name, failed.message
    ));
    Some(if failed.reason == MISSING_NAMESPACE {
        finding.with_fix(format!("kubectl create namespace {}", of.namespace))
    } else {
        finding
    })
}

/// Finds mirrors that no controller updates or deletes.
pub(super) fn orphaned(facts: &Facts) -> CheckResult {
    // An invalid Link still has a name.
    let all = fact_ref(&facts.multicluster.links)?;
    let is_linked = |cluster: &str| {
        all.iter().any(|known| match &known.link {
            Ok(link) => link.spec.target_cluster_name == cluster,
            Err(_) => known.name == cluster,
        })
    };
    let mirrors = mirrors(facts)?.filter(|mirror| {
        let cluster = mirror.labels().get(MIRRORED_CLUSTER);
        cluster.is_some_and(|cluster| !is_linked(cluster))
    });
    let orphaned = mirrors.map(|mirror| {
        let (namespace, name) = (mirror.namespace().unwrap_or_default(), mirror.name_any());
        let cluster = cluster_of(mirror);
        Finding::new(format!(
            "mirror {namespace}/{name} is of cluster {cluster}, which no Link targets"
        ))
        .with_fix(format!("kubectl -n {namespace} delete service {name}"))
    });
    Ok(Outcome::warn_if(orphaned, ""))
}

fn mirrors(facts: &Facts) -> Fact<impl Iterator<Item = &Service>> {
    let services = fact_ref(&facts.multicluster.services)?.iter();
    Ok(services.filter(|service| {
        let labels = service.labels();
        labels.contains_key(MIRRORED_SERVICE) && !labels.contains_key(MIRRORED_GATEWAY)
    }))
}

/// Returns whether the destination controller discovers the endpoints, which no object has.
fn is_discovered(service: &Service) -> bool {
    let annotations = service.annotations();
    let annotated = |key| {
        annotations
            .get(key)
            .is_some_and(|value: &String| !value.is_empty())
    };
    service.labels().contains_key(REMOTE_DISCOVERY)
        || annotated(REMOTE_DISCOVERY)
        || annotated(LOCAL_DISCOVERY)
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Addresses {
    Ready,
    NotReady,
    None,
}

pub(super) fn has_addresses(facts: &Facts, service: &Service) -> Fact<Addresses> {
    let endpoints = fact_ref(&facts.multicluster.endpoints)?.iter();
    let same = |endpoints: &&Endpoints| {
        endpoints.name_any() == service.name_any() && endpoints.namespace() == service.namespace()
    };
    let subsets = endpoints
        .filter(same)
        .flat_map(|it| it.subsets.iter().flatten());
    let mut found = Addresses::None;
    for subset in subsets {
        let is_empty = |list: &Option<Vec<_>>| list.as_ref().is_none_or(Vec::is_empty);
        if !is_empty(&subset.addresses) {
            return Ok(Addresses::Ready);
        }
        if !is_empty(&subset.not_ready_addresses) {
            found = Addresses::NotReady;
        }
    }
    Ok(found)
}

fn cluster_of(service: &Service) -> &str {
    let cluster = service.labels().get(MIRRORED_CLUSTER);
    cluster.map_or("(unknown)", String::as_str)
}

pub(super) fn full_name(service: &Service) -> String {
    format!(
        "{}/{}",
        service.namespace().unwrap_or_default(),
        service.name_any()
    )
}
