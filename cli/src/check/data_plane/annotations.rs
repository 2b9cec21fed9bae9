//! Annotations and labels that do not have the intended effect.

use std::collections::BTreeSet;

use mesh_core::annotation as keys;
use mesh_core::ports::PortSet;
use mesh_k8s::inject::{self, InjectError, Values};
use mesh_k8s::kinds::{ObjectMeta, Pod, ResourceExt, Service};
use mesh_k8s::pod::owner::Owner;
use mesh_k8s::pod::{self, ports};
use mesh_k8s::select;
use mesh_objects::model::{Protocol, Server};

use super::super::framework::{CheckResult, Finding, Outcome};
use super::super::selected::servers;
use super::super::{analysis, fix};
use super::workloads;
use crate::facts::{Fact, Facts, fact_ref, full_name};

pub(super) fn inject_values(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    let mut inspect = |what: String, meta: &ObjectMeta| {
        let value = meta
            .annotations
            .as_ref()
            .and_then(|all| all.get(keys::INJECT));
        if let Some(value) = value.filter(|value| !INJECT_VALUES.contains(&value.as_str())) {
            let finding = Finding::new(format!(
                "{what}: {}: {value:?} is not one of {}",
                keys::INJECT,
                INJECT_VALUES.join(", ")
            ));
            wrong.push(finding.with_fix(match what.strip_prefix("namespace ") {
                Some(name) => format!(
                    "kubectl annotate namespace {name} --overwrite {}=enabled",
                    keys::INJECT
                ),
                None => format!(
                    "correct {} in the template of the workload of {what}",
                    keys::INJECT
                ),
            }));
        }
    };
    for namespace in fact_ref(&facts.objects.namespaces)? {
        if facts.scope.contains(&namespace.name_any()) {
            inspect(
                format!("namespace {}", namespace.name_any()),
                &namespace.metadata,
            );
        }
    }
    for pod in facts.scoped_pods()? {
        inspect(format!("pod {}", full_name(pod)), &pod.metadata);
    }
    Ok(Outcome::fail_if(wrong, ""))
}

const INJECT_VALUES: [&str; 3] = ["enabled", "ingress", "disabled"];

/// Returns labels with keys that the mesh reads only as annotations.
fn misplaced(meta: &ObjectMeta) -> Vec<&str> {
    let labels = meta.labels.iter().flat_map(|labels| labels.keys());
    labels
        .map(String::as_str)
        .filter(|key| {
            key.starts_with(keys::CONFIG_PREFIX) && *key != "config.linkerd.io/admission-webhooks"
                || *key == keys::INJECT
        })
        .collect()
}

pub(super) fn pod_labels(facts: &Facts) -> CheckResult {
    let wrong = facts.meshed_pods()?.flat_map(|pod| {
        misplaced(&pod.metadata).into_iter().map(move |key| {
            let finding = Finding::new(format!(
                "{} has {key} as a label, where it has no effect",
                full_name(pod)
            ));
            match fix::workload(pod) {
                Some(workload) => finding.with_fix(format!(
                    "kubectl -n {} edit {workload}: move {key} from the template's labels to its annotations",
                    pod.namespace().unwrap_or_default()
                )),
                None => finding,
            }
        })
    });
    Ok(Outcome::warn_if(wrong, ""))
}

pub(super) fn namespace_labels(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    for namespace in fact_ref(&facts.objects.namespaces)? {
        let name = namespace.name_any();
        if !facts.scope.contains(&name) {
            continue;
        }
        for key in misplaced(&namespace.metadata) {
            let value = namespace.labels().get(key).map_or("", String::as_str);
            let effect = if key == keys::INJECT {
                ": no pod is injected there"
            } else {
                ""
            };
            let finding = Finding::new(format!(
                "namespace {name} has {key} as a label, where it has no effect{effect}"
            ));
            wrong.push(finding.with_fix(format!(
                "kubectl label namespace {name} {key}- && kubectl annotate namespace {name} --overwrite {key}={value}"
            )));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

fn services(facts: &Facts) -> Result<impl Iterator<Item = &Service>, String> {
    let all = fact_ref(&facts.objects.services)?.iter();
    Ok(all.filter(|service| {
        facts
            .scope
            .contains(&service.namespace().unwrap_or_default())
    }))
}

fn service_name(service: &Service) -> String {
    format!(
        "Service {}/{}",
        service.namespace().unwrap_or_default(),
        service.name_any()
    )
}

pub(super) fn service_labels(facts: &Facts) -> CheckResult {
    let wrong = services(facts)?.flat_map(|service| {
        let name = service_name(service);
        misplaced(&service.metadata)
            .into_iter()
            .map(move |key| {
                let value = service.labels().get(key).map_or("", String::as_str);
                Finding::new(format!("{name} has {key} as a label, where it has no effect")).with_fix(
                    format!(
                        "kubectl -n {0} label service {1} {key}- && kubectl -n {0} annotate service {1} {key}={value}",
                        service.namespace().unwrap_or_default(),
                        service.name_any()
                    ),
                )
            })
    });
    Ok(Outcome::warn_if(wrong, ""))
}

/// The label that exports a Service; mirrors select Services by it.
const EXPORTED: &str = "mirror.linkerd.io/exported";

pub(super) fn service_annotations(facts: &Facts) -> CheckResult {
    let wrong = services(facts)?
        .filter(|service| service.annotations().contains_key(EXPORTED))
        .map(|service| {
            let finding = Finding::new(format!(
                "{} has {EXPORTED} as an annotation, where it has no effect",
                service_name(service)
            ));
            finding.with_fix(format!(
                "kubectl -n {0} annotate service {1} {EXPORTED}- && kubectl -n {0} label service {1} {EXPORTED}=true",
                service.namespace().unwrap_or_default(),
                service.name_any()
            ))
        });
    Ok(Outcome::warn_if(wrong, ""))
}

pub(super) fn unknown(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    let values = facts.values()?;
    let mut rejected = BTreeSet::new();
    for pod in facts.meshed_pods()? {
        rejected.extend(annotation_problems(facts, values, pod)?);
    }
    wrong.extend(
        rejected
            .iter()
            .map(|problem| Finding::new(problem.as_str())),
    );
    for workload in workloads::meshed(facts)? {
        let problems = annotation_problems(facts, values, &workload.pod)?;
        let new = problems
            .into_iter()
            .filter(|problem| !rejected.contains(problem));
        // The injector names the pod, which has no name yet.
        let pod = format!("pod {}/: ", workload.namespace);
        wrong.extend(new.map(|problem| {
            let problem = problem.strip_prefix(&pod).unwrap_or(&problem);
            Finding::new(format!("{}: {problem}", workload.title())).with_fix(workload.edit())
        }));
    }
    wrong.extend(analysis::ANNOTATIONS.findings(facts)?);
    Ok(Outcome::warn_if(wrong, ""))
}

/// Returns the messages of the injector about the annotations of a pod. The pod is reverted to its
/// state before injection and injected again.
fn annotation_problems(facts: &Facts, values: &Values, pod: &Pod) -> Fact<Vec<String>> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", full_name(pod));
    let mut before = serde_json::to_value(pod).map_err(|error| failed(&error))?;
    inject::uninject(&mut before);
    before["metadata"]["annotations"][keys::INJECT] = "enabled".into();
    let before: Pod = serde_json::from_value(before).map_err(|error| failed(&error))?;
    let namespace = facts.namespace(&pod.namespace().unwrap_or_default());
    let namespace = namespace.map(|namespace| namespace.metadata.clone());
    let owner = Owner {
        kind: "pod".to_owned(),
        name: pod.name_any(),
    };
    match inject::patch(values, &namespace.unwrap_or_default(), &before, &owner) {
        Ok(outcome) => Ok(outcome.warnings),
        // The pod was admitted with these annotations: by an older injector, or without one.
        Err(InjectError::Annotations(problems)) => Ok(problems),
        Err(error) => Err(failed(&error)),
    }
}

pub(super) fn opaque_ports(facts: &Facts) -> CheckResult {
    let pods: Vec<&Pod> = facts.meshed_pods()?.collect();
    let is_opaque = |server: &&Server| matches!(server.protocol, Protocol::Opaque | Protocol::Tls);
    let servers: Vec<&Server> = servers(facts)?.filter(is_opaque).collect();
    let mut wrong = Vec::new();
    for service in services(facts)? {
        let selector = service
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref());
        let selected = pods.iter().find(|pod| {
            pod.namespace() == service.namespace()
                && select::service_matches(selector, pod.metadata.labels.as_ref())
        });
        if let Some(pod) = selected
            && let Some(record) = facts.record(pod)
        {
            let is_opaque = |port| servers.iter().any(|it| it.selects(record.into(), port));
            wrong.extend(opaque_port_mismatches(service, pod, is_opaque));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// Finds ports that are opaque either for clients of the Service or for the pod's proxy. Without
/// annotations both use the same default.
///
/// `is_opaque` returns whether the pod's port has a Server with a protocol that the proxy forwards
/// without looking for HTTP, as if the port were opaque.
fn opaque_port_mismatches(
    service: &Service,
    pod: &Pod,
    is_opaque: impl Fn(u16) -> bool,
) -> Vec<Finding> {
    let annotation = service.annotations().get(keys::OPAQUE_PORTS);
    let of_service = annotation.map(|list| ports::resolve_list(pod.spec.as_ref(), list));
    let of_pod = ports::opaque(pod);
    if of_service.is_none() && pod::annotation(pod, keys::OPAQUE_PORTS).is_none() {
        return Vec::new();
    }
    let default = || ports::resolve_list(None, keys::DEFAULT_OPAQUE_PORTS);
    let of_service: PortSet = of_service.unwrap_or_else(default);
    let of_pod: PortSet = of_pod.unwrap_or_else(default);
    let listed = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let mut wrong = Vec::new();
    for port in listed.into_iter().flatten() {
        let Some(number) = ports::port_number(port.port) else {
            continue;
        };
        for target in ports::targets(port, pod, number) {
            let (here, there) = (of_service.contains(number), of_pod.contains(target));
            if here != there && !(here && is_opaque(target)) {
                let (yes, no) = (
                    format!("{} port {number}", service_name(service)),
                    format!("pod {} port {target}", full_name(pod)),
                );
                let (opaque, not) = if here { (yes, no) } else { (no, yes) };
                let finding = Finding::new(format!("{opaque} is opaque, {not} is not"));
                let both = pod::annotation(pod, keys::OPAQUE_PORTS);
                wrong.push(finding.with_fix(format!(
                    "kubectl -n {} annotate service {} {}",
                    service.namespace().unwrap_or_default(),
                    service.name_any(),
                    match both {
                        Some(ports) => format!("--overwrite {}={ports}", keys::OPAQUE_PORTS),
                        None => format!(
                            "{}-, or set the same ports in the pod template",
                            keys::OPAQUE_PORTS
                        ),
                    }
                )));
            }
        }
    }
    wrong
}
