//! The components of the extension: their pods, their proxies and what they answer.

use mesh_k8s::kinds::{Deployment, Pod, ResourceExt};

use crate::check::control_plane::pods::container_problems;
use crate::check::extension_proxies;
use crate::check::framework::{CheckResult, Finding, Outcome};
use crate::check::versions::tag;
use crate::facts::{Fact, Facts, fact_ref, full_name, proxy_container};
use crate::output::count;

const PROMETHEUS: &str = "prometheus";

/// The Deployments of every installation.
const DEPLOYMENTS: [&str; 4] = ["metrics-api", "tap", "tap-injector", "web"];

/// Returns whether the extension runs its own Prometheus.
pub(super) fn has_own_prometheus(facts: &Facts) -> bool {
    deployment(facts, PROMETHEUS).is_ok_and(|found| found.is_some())
}

fn deployment<'f>(facts: &'f Facts, name: &str) -> Fact<Option<&'f Deployment>> {
    let deployments = fact_ref(&facts.viz.deployments)?;
    Ok(deployments.iter().find(|it| it.name_any() == name))
}

/// Returns the pods of the extension.
fn pods(facts: &Facts) -> Fact<Vec<&Pod>> {
    let own = |pod: &&Pod| pod.namespace().as_deref() == Some(facts.viz_namespace());
    Ok(facts.live_pods()?.filter(own).collect())
}

pub(super) fn injected(facts: &Facts) -> CheckResult {
    let pods = pods(facts)?;
    let without = pods
        .iter()
        .filter(|pod| proxy_container(pod).is_none())
        .map(|pod| Finding::new(format!("{} has no proxy", full_name(pod))));
    Ok(Outcome::warn_if(without, count(pods.len(), "pod", "pods")))
}

pub(super) fn running(facts: &Facts) -> CheckResult {
    let mut problems = Vec::new();
    let own = has_own_prometheus(facts).then_some(PROMETHEUS);
    for name in DEPLOYMENTS.into_iter().chain(own) {
        let Some(found) = deployment(facts, name)? else {
            problems.push(Finding::new(format!("Deployment {name} is missing")));
            continue;
        };
        let status = found.status.as_ref();
        let ready = status.and_then(|status| status.ready_replicas).unwrap_or(0);
        let wanted = found.spec.as_ref().and_then(|spec| spec.replicas);
        let wanted = wanted.unwrap_or(1);
        if wanted == 0 {
            problems.push(
                Finding::new(format!("Deployment {name} has no replicas")).with_fix(format!(
                    "kubectl -n {} scale deployment {name} --replicas=1",
                    facts.viz_namespace()
                )),
            );
        } else if ready < wanted {
            problems.push(Finding::new(format!(
                "Deployment {name}: {ready} of {wanted} replicas are ready"
            )));
        }
    }
    for pod in pods(facts)? {
        problems.extend(container_problems(pod, facts.clock()));
    }
    Ok(Outcome::fail_if(problems, ""))
}

pub(super) fn proxies_ready(facts: &Facts) -> CheckResult {
    Ok(extension_proxies::ready(&pods(facts)?))
}

pub(super) fn proxy_versions(facts: &Facts) -> CheckResult {
    let wanted = &facts.values()?.linkerd_version;
    let pods = pods(facts)?;
    Ok(extension_proxies::have_version(
        &pods,
        wanted,
        "the control plane",
    ))
}

pub(super) fn versions(facts: &Facts) -> CheckResult {
    let mut other = Vec::new();
    for name in DEPLOYMENTS {
        let Some(found) = deployment(facts, name)? else {
            continue;
        };
        let spec = found
            .spec
            .as_ref()
            .and_then(|spec| spec.template.spec.as_ref());
        let containers = spec
            .map(|spec| spec.containers.as_slice())
            .unwrap_or_default();
        let image = containers.iter().find(|container| container.name == name);
        let version = image
            .and_then(|container| container.image.as_deref())
            .map(tag);
        if let Some(version) = version.filter(|version| *version != facts.cli_version) {
            other.push(Finding::new(format!(
                "{name} has version {version}, this command {}",
                facts.cli_version
            )));
        }
    }
    Ok(Outcome::warn_if(other, ""))
}

pub(super) fn prometheus(facts: &Facts) -> CheckResult {
    if let Some(url) = &facts.viz.external_prometheus {
        return Ok(Outcome::ok(url.clone()));
    }
    Ok(match deployment(facts, PROMETHEUS)? {
        Some(_) => Outcome::ok(""),
        None => Outcome::warn(
            "the extension has no Prometheus of its own and no URL of another one: there are no statistics",
        ),
    })
}

pub(super) fn metrics_api(facts: &Facts) -> CheckResult {
    let checks = fact_ref(&facts.viz.self_checks)?;
    let problems = checks.iter().filter_map(|check| {
        let problem = check.problem.as_ref()?;
        Some(Finding::new(format!("{}: {problem}", check.description)))
    });
    Ok(Outcome::fail_if(problems, ""))
}
