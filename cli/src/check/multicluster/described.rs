//! Whether Links and credentials describe their targets as they are.

use std::collections::BTreeMap;

use mesh_core::annotation::{CLUSTER_DOMAIN, GATEWAY_IDENTITY, TRUST_DOMAIN};
use mesh_k8s::crd::{Link, LinkSpec};
use mesh_k8s::kinds::{ResourceExt, Service};

use super::mirrors::full_name;
use super::{checked, link_again, links};
use crate::check::framework::{CheckResult, Finding, Outcome};
use crate::cluster::gateway::{self, Choice};
use crate::cluster::mirrors::GatewayStatus;
use crate::facts::{Facts, LinkFacts, TargetMesh, fact_ref};

/// Finds credentials of another cluster, and domains that are not the target's. Targets that do not
/// respond are skipped: another row has the reason.
pub(super) fn targets(facts: &Facts) -> CheckResult {
    let links = links(facts)?;
    let own = fact_ref(&facts.objects.config)?.as_ref();
    let own = own.and_then(|config| config.metadata.uid.as_deref());
    let mut findings = Vec::new();
    let mut reached: BTreeMap<&str, &str> = BTreeMap::new();
    for (known, link) in &links {
        let Ok(mesh) = fact_ref(&known.target).and_then(|target| fact_ref(&target.mesh)) else {
            continue;
        };
        let cluster = link.spec.target_cluster_name.as_str();
        let secret = format!(
            "Secret {}/{}",
            known.namespace, link.spec.cluster_credentials_secret
        );
        let again = |text: String| Finding::new(text).with_fix(link_again(cluster));
        if own == Some(mesh.id.as_str()) {
            let text = format!("{secret}: its kubeconfig is of this cluster, not of {cluster}");
            findings.push(again(text));
            continue;
        }
        if let Some(other) = reached
            .insert(&mesh.id, cluster)
            .filter(|it| *it != cluster)
        {
            let text = format!(
                "{secret}: its kubeconfig is of the cluster that Link {other} reaches, so that {cluster} and {other} are the same cluster, or one kubeconfig is of the wrong one"
            );
            findings.push(again(text));
        }
        if mesh.cluster_domain != link.spec.target_cluster_domain {
            findings.push(again(format!(
                "Link {}/{}: spec.targetClusterDomain is {}, but cluster {cluster} has the domain {}",
                known.namespace, known.name, link.spec.target_cluster_domain, mesh.cluster_domain
            )));
        }
        findings.extend(domains(facts, cluster, mesh)?.into_iter().map(again));
    }
    Ok(Outcome::fail_if(findings, checked(&links)))
}

/// Returns the annotations of the destination controller's credentials that are wrong.
fn domains(facts: &Facts, cluster: &str, mesh: &TargetMesh) -> Result<Vec<String>, String> {
    let discovered = fact_ref(&facts.multicluster.discovered)?;
    let mut wrong = Vec::new();
    for credentials in discovered.iter().filter(|it| it.cluster == cluster) {
        for (annotation, found, expected) in [
            (TRUST_DOMAIN, &credentials.trust_domain, &mesh.trust_domain),
            (
                CLUSTER_DOMAIN,
                &credentials.cluster_domain,
                &mesh.cluster_domain,
            ),
        ] {
            if found.as_ref() != Some(expected) {
                let found = found.as_deref().unwrap_or("missing");
                wrong.push(format!(
                    "Secret {}/{}: annotation {annotation} is {found}, but cluster {cluster} has {expected}",
                    facts.control_namespace, credentials.secret
                ));
            }
        }
    }
    Ok(wrong)
}

/// Finds Links whose gateway has other settings. While the gateway responds to probes, they may be
/// right: an address that is translated, or a port of a further Service.
pub(super) fn gateways(facts: &Facts) -> CheckResult {
    let links = links(facts)?;
    let (mut failed, mut warned) = (Vec::new(), Vec::new());
    for (known, link) in &links {
        let has_gateway = matches!(link.spec.gateway(), Ok(Some(_)));
        let services = fact_ref(&known.target).and_then(|target| fact_ref(&target.gateways));
        let (true, Ok(services)) = (has_gateway, services) else {
            continue;
        };
        let is_alive = matches!(known.gateway, Ok(Some(GatewayStatus { alive: true, .. })));
        let findings = if is_alive { &mut warned } else { &mut failed };
        let cluster = &link.spec.target_cluster_name;
        let again = |text| Finding::new(text).with_fix(link_again(cluster));
        findings.extend(differences(known, link, services).into_iter().map(again));
    }
    Ok(if failed.is_empty() {
        Outcome::warn_if(warned, checked(&links))
    } else {
        failed.extend(warned);
        Outcome::Fail(failed)
    })
}

/// Returns what differs between a Link and the Service of its gateway.
fn differences(known: &LinkFacts, link: &Link, services: &[Service]) -> Vec<String> {
    let cluster = &link.spec.target_cluster_name;
    let of_link = format!("Link {}/{}", known.namespace, known.name);
    let has_identity = |service: &&Service| {
        service.annotations().get(GATEWAY_IDENTITY) == Some(&link.spec.gateway_identity)
    };
    let Some(service) = services.iter().find(has_identity).or(services.first()) else {
        return vec![format!(
            "{of_link}: cluster {cluster} has no gateway: no Service there has the annotation {GATEWAY_IDENTITY}"
        )];
    };
    let name = format!("Service {} of cluster {cluster}", full_name(service));
    let spec = service.spec.as_ref();
    let is_balanced = spec.and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer");
    // The addresses of nodes are a choice of the user.
    let chosen: Vec<String> = match link.spec.gateway() {
        Ok(Some(gateway)) if !is_balanced => gateway.addresses,
        _ => Vec::new(),
    };
    let choice = Choice {
        addresses: &chosen,
        port: None,
    };
    let mut expected = LinkSpec::default();
    if let Err(problem) = gateway::add(service, choice, &mut expected) {
        return vec![format!("{name} {problem}")];
    }
    let fields = [
        (
            "gatewayAddress",
            addresses(&link.spec),
            addresses(&expected),
        ),
        (
            "gatewayPort",
            link.spec.gateway_port.clone(),
            expected.gateway_port.clone(),
        ),
        (
            "gatewayIdentity",
            link.spec.gateway_identity.clone(),
            expected.gateway_identity.clone(),
        ),
        (
            "probeSpec.port",
            probe_port(&link.spec),
            probe_port(&expected),
        ),
    ];
    let differ = fields
        .into_iter()
        .filter(|(_, found, expected)| found != expected);
    let differences = differ.map(|(field, found, expected)| {
        format!("{of_link}: spec.{field} is {found:?}, but {name} has {expected:?}")
    });
    differences.collect()
}

/// Returns the addresses in any order.
fn addresses(spec: &LinkSpec) -> String {
    let gateway = spec.gateway().ok().flatten();
    let mut addresses = gateway.map(|it| it.addresses).unwrap_or_default();
    addresses.sort_unstable();
    addresses.join(",")
}

fn probe_port(spec: &LinkSpec) -> String {
    let probe = spec.probe_spec.as_ref();
    probe.map(|probe| probe.port.clone()).unwrap_or_default()
}
