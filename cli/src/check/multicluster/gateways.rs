//! The gateways of targets, as the mirror controllers of this cluster see them.

use mesh_core::annotation::{MIRRORED_CLUSTER, MIRRORED_GATEWAY};
use mesh_k8s::kinds::{ResourceExt, Service};

use super::mirrors::{Addresses, full_name, has_addresses};
use super::{checked, links};
use crate::check::framework::{CheckResult, Finding, Outcome};
use crate::cluster::mirrors::GatewayStatus;
use crate::facts::{Facts, LinkFacts, fact_ref};

pub(super) fn alive(facts: &Facts) -> CheckResult {
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
        match probes(services, cluster).as_slice() {
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

/// Returns why the gateway cannot be used, if so.
fn dead(known: &LinkFacts, cluster: &str) -> Option<Finding> {
    let text = match &known.gateway {
        Ok(Some(GatewayStatus { alive: true, .. })) | Ok(None) => return None,
        Ok(Some(_)) => format!("the gateway of cluster {cluster} does not respond to probes"),
        Err(reason) => format!("the gateway of cluster {cluster}: {reason}"),
    };
    Some(Finding::new(text))
}

/// Finds Services without the port of the Link, which the controller's probes go to.
pub(super) fn probe_ports(facts: &Facts) -> CheckResult {
    let links = links(facts)?;
    let services = fact_ref(&facts.multicluster.services)?;
    let mut findings = Vec::new();
    for (known, link) in &links {
        let Ok(Some(gateway)) = link.spec.gateway() else {
            continue;
        };
        let Some(probe) = gateway.probe else {
            continue;
        };
        let (cluster, name) = (&link.spec.target_cluster_name, &known.name);
        for service in probes(services, cluster) {
            let ports = service
                .spec
                .iter()
                .flat_map(|spec| spec.ports.iter().flatten());
            let ports: Vec<i32> = ports.map(|port| port.port).collect();
            if ports.contains(&i32::from(probe.port)) {
                continue;
            }
            let found: Vec<String> = ports.iter().map(i32::to_string).collect();
            let text = format!(
                "Service {} has port {}, but spec.probeSpec.port of Link {}/{name} is {}: no probe reaches the gateway",
                full_name(service),
                found.join(", "),
                known.namespace,
                probe.port
            );
            findings.push(Finding::new(text).with_fix(format!(
                "set gateway.probe.port: {} for the Link {name} in the value controllers of the chart linkerd-multicluster: meshctl multicluster install --set 'controllers[0].link.ref.name={name}' --set 'controllers[0].gateway.probe.port={}' | kubectl apply -f -",
                probe.port, probe.port
            )));
        }
    }
    Ok(Outcome::fail_if(findings, checked(&links)))
}

/// Returns the Services for probes of a cluster's gateway.
fn probes<'a>(services: &'a [Service], cluster: &str) -> Vec<&'a Service> {
    let is_of = |service: &&Service| {
        let labels = service.labels();
        let of = labels.get(MIRRORED_CLUSTER);
        labels.contains_key(MIRRORED_GATEWAY) && of.is_some_and(|it| it == cluster)
    };
    services.iter().filter(is_of).collect()
}
