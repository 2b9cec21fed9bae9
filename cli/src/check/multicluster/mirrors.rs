//! What mirror controllers write: the endpoints of gateways, and mirrors of Services.

use mesh_core::annotation::{
    LOCAL_DISCOVERY, MIRRORED_CLUSTER, MIRRORED_GATEWAY, MIRRORED_SERVICE, REMOTE_DISCOVERY,
};
use mesh_k8s::kinds::core::Endpoints;
use mesh_k8s::kinds::{ResourceExt, Service};

use super::{checked, links};
use crate::check::framework::{CheckResult, Finding, Outcome};
use crate::cluster::mirrors::GatewayStatus;
use crate::facts::{Fact, Facts, LinkFacts, fact_ref};
use crate::output::count;

pub(super) fn gateways(facts: &Facts) -> CheckResult {
    let links = links(facts)?;
    let services = fact_ref(&facts.multicluster.services)?;
    let mut findings = Vec::new();
    for (known, link) in &links {
        let has_gateway = matches!(link.spec.gateway(), Ok(Some(_)));
        // The values of the chart can disable the gateway of a controller.
        if !has_gateway || matches!(known.gateway, Ok(None)) {
            continue;
        }
        let cluster = &link.spec.target_cluster_name;
        let probes: Vec<&Service> = services
            .iter()
            .filter(|service| {
                let labels = service.labels();
                labels.contains_key(MIRRORED_GATEWAY)
                    && labels.get(MIRRORED_CLUSTER) == Some(cluster)
            })
            .collect();
        match probes.as_slice() {
            [probe] if has_addresses(facts, probe)? == Addresses::None => {
                let name = full_name(probe);
                let text = format!("Service {name} has no endpoints: the gateway of cluster {cluster} has no address");
                findings.push(Finding::new(text));
            }
            [_] => findings.extend(dead(known, cluster)),
            [] => findings.push(Finding::new(format!(
                "no Service has the label {MIRRORED_GATEWAY} for cluster {cluster}: its gateway is not probed"
            ))),
            several => {
                let names: Vec<String> = several.iter().map(|it| full_name(it)).collect();
                let names = names.join(", ");
                findings.push(Finding::new(format!(
                    "several Services have the gateway of cluster {cluster} as endpoints: {names}"
                )));
            }
        }
    }
    Ok(Outcome::fail_if(findings, checked(&links)))
}

fn dead(known: &LinkFacts, cluster: &str) -> Option<Finding> {
    let text = match &known.gateway {
        Ok(Some(GatewayStatus { alive: true, .. })) | Ok(None) => return None,
        Ok(Some(_)) => format!("the gateway of cluster {cluster} does not respond to probes"),
        Err(reason) => format!("the gateway of cluster {cluster}: {reason}"),
    };
    Some(Finding::new(text))
}

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
enum Addresses {
    Ready,
    NotReady,
    None,
}

fn has_addresses(facts: &Facts, service: &Service) -> Fact<Addresses> {
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

fn full_name(service: &Service) -> String {
    format!(
        "{}/{}",
        service.namespace().unwrap_or_default(),
        service.name_any()
    )
}
