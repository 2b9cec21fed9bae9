//! The mirror controllers.

use mesh_core::annotation::MIRRORED_CLUSTER;
use mesh_k8s::kinds::{Deployment, Pod, ResourceExt};
use mesh_k8s::pod;

use super::{checked, links, of_links, pods};
use crate::check::control_plane::pods::container_problems;
use crate::check::framework::{CheckResult, Finding, Outcome};
use crate::check::versions::tag;
use crate::cluster::mirrors::CONTAINERS;
use crate::facts::{Facts, fact_ref};

/// The label of the Deployments of `multicluster link`.
const COMPONENT: &str = "component";
const OF_LINK: &str = "service-mirror";

pub(super) fn permissions(facts: &Facts) -> CheckResult {
    of_links(facts, |known, link| {
        let cluster = &link.spec.target_cluster_name;
        match &known.denied {
            Ok(denied) => {
                let may_not = |permission: &String| {
                    Finding::new(format!(
                        "the mirror controller of {cluster} may not {permission}"
                    ))
                };
                denied.iter().map(may_not).collect()
            }
            Err(reason) => vec![Finding::new(reason.clone())],
        }
    })
}

pub(super) fn running(facts: &Facts) -> CheckResult {
    let links = links(facts)?;
    let controllers = fact_ref(&facts.multicluster.controllers)?;
    let mut findings = Vec::new();
    for (known, link) in &links {
        let (namespace, cluster) = (&known.namespace, &link.spec.target_cluster_name);
        let of_link: Vec<&Deployment> = controllers
            .iter()
            .filter(|controller| {
                controller.namespace().as_ref() == Some(namespace)
                    && controller.labels().get(MIRRORED_CLUSTER) == Some(cluster)
            })
            .collect();
        match of_link.as_slice() {
            [controller] => findings.extend(unavailable(controller)),
            [] => findings.push(
                Finding::new(format!("Link {namespace}/{} has no mirror controller", known.name))
                    .with_fix(format!(
                        "add {{link: {{ref: {{name: {}}}}}}} to the value controllers of the chart linkerd-multicluster",
                        known.name
                    )),
            ),
            several => {
                let names: Vec<String> = several.iter().map(|it| it.name_any()).collect();
                findings.push(Finding::new(format!(
                    "Link {namespace}/{} has several mirror controllers: {}",
                    known.name,
                    names.join(", ")
                )));
            }
        }
    }
    for (known, link) in &links {
        let has_gateway = matches!(link.spec.gateway(), Ok(Some(_)));
        // Another row has what the controller of a gateway does not say.
        if let (false, Err(reason)) = (has_gateway, &known.gateway) {
            let cluster = &link.spec.target_cluster_name;
            findings.push(Finding::new(format!(
                "the mirror controller of {cluster}: {reason}"
            )));
        }
    }
    let of_mirrors = |it: &&Pod| pod::label(it, MIRRORED_CLUSTER).is_some();
    for pod in pods(facts)?.into_iter().filter(of_mirrors) {
        findings.extend(container_problems(pod, facts.clock()));
    }
    Ok(Outcome::fail_if(findings, checked(&links)))
}

fn unavailable(controller: &Deployment) -> Option<Finding> {
    let (namespace, name) = (
        controller.namespace().unwrap_or_default(),
        controller.name_any(),
    );
    let wanted = controller.spec.as_ref().and_then(|spec| spec.replicas);
    if wanted == Some(0) {
        let text = format!("Deployment {namespace}/{name} has no replicas");
        let scale = format!("kubectl -n {namespace} scale deployment {name} --replicas=1");
        return Some(Finding::new(text).with_fix(scale));
    }
    let available = controller.status.as_ref();
    let available = available.and_then(|status| status.available_replicas);
    (available.unwrap_or(0) < 1).then(|| {
        Finding::new(format!(
            "Deployment {namespace}/{name} has no available replica"
        ))
    })
}

pub(super) fn version(facts: &Facts) -> CheckResult {
    let wanted = &facts.values()?.linkerd_version;
    let controllers = fact_ref(&facts.multicluster.controllers)?.iter();
    let other = controllers.filter_map(|controller| {
        let pod = controller.spec.as_ref()?.template.spec.as_ref()?;
        let mut containers = pod.containers.iter();
        let container = containers.find(|it| CONTAINERS.contains(&it.name.as_str()))?;
        let version = tag(container.image.as_deref()?);
        (version != wanted).then(|| {
            Finding::new(format!(
                "Deployment {}/{} has version {version}, the control plane {wanted}",
                controller.namespace().unwrap_or_default(),
                controller.name_any()
            ))
        })
    });
    Ok(Outcome::warn_if(other, ""))
}

/// Controllers of `multicluster link` are not upgraded together with the extension.
pub(super) fn managed(facts: &Facts) -> CheckResult {
    let controllers = fact_ref(&facts.multicluster.controllers)?.iter();
    let of_link = controllers.filter_map(|controller| {
        let labels = controller.labels();
        if labels.get(COMPONENT).map(String::as_str) != Some(OF_LINK) {
            return None;
        }
        let namespace = controller.namespace().unwrap_or_default();
        let cluster = labels.get(MIRRORED_CLUSTER)?;
        let name = controller.name_any();
        let text = format!("Deployment {namespace}/{name} is of `multicluster link`");
        Some(Finding::new(text).with_fix(format!(
            "meshctl multicluster unlink -n {namespace} --cluster-name {cluster} --only-controller | kubectl delete -f -; then add the Link to the value controllers of the chart linkerd-multicluster"
        )))
    });
    Ok(Outcome::warn_if(of_link, ""))
}
