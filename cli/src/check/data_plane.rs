//! The meshed pods: injection, redirection, readiness, versions and annotations.

mod annotations;
mod pods;
mod redirection;
mod workloads;

use std::collections::BTreeSet;

use mesh_core::annotation;
use mesh_k8s::inject::{self, Decision, SkipReason};
use mesh_k8s::kinds::{ObjectMeta, Pod, ResourceExt};
use mesh_k8s::pod;

use super::causes::{AGENTS, NOT_RUNNING, NOT_WORKING, TRUST, WEBHOOK};
use super::control_plane::container_problem_of;
use super::framework::{AppliesTo, Category, Check, CheckResult, Finding, OnFailure, Outcome};
use super::identity::excluded_new_pods;
use super::{analysis, fix, versions};
use crate::facts::containers::can_respond;
use crate::facts::{Environment, Facts, Mode, fact_ref, full_name, injection, proxy_container};
use crate::output::count;
use crate::resource::Scope;

pub(super) const APPLIES: fn(&Facts) -> bool = |facts| match facts.environment {
    Environment::Machine => false,
    Environment::LocalNode => true,
    Environment::Cluster => facts.mode == Mode::Installed { proxies: true },
};

pub(super) const CATEGORY: Category = Category {
    name: "linkerd-data-plane",
    applies: APPLIES,
    checks: &[
        Check::new(
            "l5d-data-plane-exists",
            "the namespace exists",
            "kubectl get namespaces; -A checks all",
            |facts| {
                fact_ref(&facts.objects.namespaces)?;
                Ok(match &facts.scope {
                    Scope::Namespace(name) if facts.namespace(name).is_none() => {
                        Outcome::fail(format!("namespace {name} does not exist"))
                    }
                    Scope::Namespace(name) => Outcome::ok(name),
                    Scope::All => Outcome::ok("all namespaces"),
                })
            },
        )
        .on_failure(OnFailure::Abort),
        Check::new(
            "pods-meshed",
            "every pod with the injection annotation has a proxy",
            "kubectl -n NAMESPACE rollout restart WORKLOAD: the injector adds the proxy to new pods",
            meshed,
        )
        .explained_by(&[WEBHOOK, &["webhook-injects"]]),
        Check::new(
            "workload-pods",
            "the pods of meshed workloads can be created",
            "kubectl get events -A --field-selector reason=FailedCreate",
            workloads::cannot_create,
        )
        .explained_by(&[WEBHOOK, &["webhook-injects", "kube-controllers"]]),
        Check::new(
            "pods-service-account-token",
            "no pod with the injection annotation lacks a service account token",
            "set automountServiceAccountToken: true in the template of the workload",
            without_token,
        ),
        Check::new(
            "pods-host-network",
            "no pod with the injection annotation uses the host network",
            "kubectl annotate namespace NAMESPACE linkerd.io/inject-, or exclude the workload",
            host_network,
        ),
        Check::new(
            "pods-marked-meshed",
            "every pod that is labelled as meshed has a proxy",
            "kubectl -n NAMESPACE label pod POD linkerd.io/control-plane-ns-",
            marked,
        ),
        Check::new(
            "inject-annotation",
            "the annotation linkerd.io/inject is enabled, ingress or disabled",
            "kubectl annotate namespace NAMESPACE --overwrite linkerd.io/inject=enabled",
            annotations::inject_values,
        ),
        Check::new(
            "namespace-labels",
            "no namespace has settings of the mesh as labels",
            "kubectl label namespace NAMESPACE KEY- && kubectl annotate namespace NAMESPACE KEY=VALUE",
            annotations::namespace_labels,
        ),
        Check::new(
            "pods-enrolled",
            "connections of every meshed pod are redirected",
            "kubectl -n {agent-ns} logs -l app.kubernetes.io/name=mesh-agent",
            redirection::enrolled,
        )
        .explained_by(&[AGENTS, &["agent-answers"]])
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "data-plane-containers",
            "proxy containers start and do not crash",
            "kubectl -n NAMESPACE describe pod POD",
            containers,
        )
        .explained_by(&[&["nodes-ready"]]),
        Check::new(
            "l5d-data-plane-ready",
            "proxies are ready",
            "meshctl check explain l5d-data-plane-ready",
            ready,
        )
        .explained_by(&[
            &["token-audience"],
            NOT_RUNNING,
            TRUST,
            NOT_WORKING,
            AGENTS,
            &[
                "pods-enrolled",
                "l5d-api-control-ready",
                "proxy-certificates",
            ],
        ])
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "pods-one-mesh",
            "no pod has the proxy of another mesh too",
            "exclude the pod from one of the meshes",
            pods::foreign_proxies,
        ),
        Check::new(
            "pods-ports",
            "no container uses a port of the proxy",
            "correct the port of the container",
            pods::ports,
        ),
        Check::new(
            "pods-grace-period",
            "no proxy waits longer before it ends than its pod has time",
            "set terminationGracePeriodSeconds in the template to more than the wait",
            |facts| analysis::GRACE_PERIODS.warn_by_values(facts),
        ),
        Check::new(
            "jobs-finish",
            "no Job is kept running by its proxy",
            "kubectl -n NAMESPACE delete job NAME",
            pods::jobs,
        ),
        Check::new(
            "l5d-data-plane-version",
            "proxies have the version that is currently injected",
            "kubectl -n NAMESPACE rollout restart WORKLOAD",
            versions::data_plane,
        ),
        Check::new(
            "data-plane-redirection",
            "pods are redirected in the configured way",
            "kubectl -n NAMESPACE rollout restart WORKLOAD",
            redirection::mode,
        ),
        Check::new(
            "l5d-data-plane-pod-labels",
            "no pod has settings of the mesh as labels",
            "move the key from the template's labels to its annotations",
            annotations::pod_labels,
        ),
        Check::new(
            "l5d-data-plane-services-labels",
            "no Service has settings of the mesh as labels",
            "kubectl -n NAMESPACE label service NAME KEY- && kubectl -n NAMESPACE annotate service NAME KEY=VALUE",
            annotations::service_labels,
        ),
        Check::new(
            "l5d-data-plane-services-annotations",
            "no Service has the export label as an annotation",
            "kubectl -n NAMESPACE annotate service NAME mirror.linkerd.io/exported- && kubectl -n NAMESPACE label service NAME mirror.linkerd.io/exported=true",
            annotations::service_annotations,
        ),
        Check::new(
            "config-annotations",
            "all settings of the mesh exist and have valid values",
            "meshctl check explain config-annotations; on a workload the setting is in its template",
            annotations::unknown,
        ),
        Check::new(
            "linkerd-opaque-ports-definition",
            "Services and pods have the same opaque ports",
            "kubectl -n NAMESPACE annotate service NAME --overwrite config.linkerd.io/opaque-ports=PORTS, as the pods have it",
            annotations::opaque_ports,
        ),
    ],
};

/// Returns the decision of the injector for a pod.
fn decision(facts: &Facts, pod: &Pod, projection: bool) -> Decision {
    let namespace = facts.namespace(&pod.namespace().unwrap_or_default());
    let none = ObjectMeta::default();
    let namespace = namespace.map_or(&none, |namespace| &namespace.metadata);
    inject::decide(namespace, pod, projection)
}

fn meshed(facts: &Facts) -> CheckResult {
    fact_ref(&facts.objects.namespaces)?;
    let projection = facts.values()?.identity.service_account_token_projection;
    let mut wrong = Vec::new();
    for pod in facts.scoped_pods()? {
        if let Decision::Inject { .. } = decision(facts, pod, projection) {
            let finding = Finding::new(format!("{} has no proxy", full_name(pod)));
            let namespace = pod.namespace().unwrap_or_default();
            let is_excluded = facts
                .namespace(&namespace)
                .is_some_and(injection::excludes_webhooks);
            // As long as it is, a new pod gets no proxy either.
            wrong.push(finding.with_fix(if is_excluded {
                format!(
                    "kubectl label namespace {namespace} {}- first, then {}",
                    injection::ADMISSION,
                    fix::restart_command(pod)
                )
            } else {
                fix::restart_command(pod)
            }));
        }
    }
    let meshed = facts.meshed_pods()?.count();
    Ok(Outcome::fail_if(
        wrong,
        format!("{} meshed", count(meshed, "pod", "pods")),
    ))
}

/// Finds pods that the injector skips only because they have no token.
fn without_token(facts: &Facts) -> CheckResult {
    fact_ref(&facts.objects.namespaces)?;
    let projection = facts.values()?.identity.service_account_token_projection;
    let mut wrong = Vec::new();
    for pod in facts.scoped_pods()? {
        let skipped = Decision::Skip(vec![SkipReason::NoServiceAccountToken]);
        if decision(facts, pod, projection) != skipped {
            continue;
        }
        let finding = Finding::new(format!(
            "{} has the injection annotation but no proxy: automountServiceAccountToken is false, and identity.serviceAccountTokenProjection is off",
            full_name(pod)
        ));
        let fix = "set the value identity.serviceAccountTokenProjection to true";
        wrong.push(finding.with_fix(match fix::workload(pod) {
            Some(workload) => format!(
                "{fix} and {{upgrade}}, or kubectl -n {} patch {workload} -p '{{\"spec\": {{\"template\": {{\"spec\": {{\"automountServiceAccountToken\": true}}}}}}}}'",
                pod.namespace().unwrap_or_default()
            ),
            None => format!("{fix} and {{upgrade}}"),
        }));
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// Finds pods that the injector skips only because they use the host network.
fn host_network(facts: &Facts) -> CheckResult {
    fact_ref(&facts.objects.namespaces)?;
    let projection = facts.values()?.identity.service_account_token_projection;
    let mut wrong = Vec::new();
    for pod in facts.scoped_pods()? {
        if decision(facts, pod, projection) != Decision::Skip(vec![SkipReason::HostNetwork]) {
            continue;
        }
        let (namespace, own) = (
            pod.namespace().unwrap_or_default(),
            pod.annotations().contains_key(annotation::INJECT),
        );
        let finding = Finding::new(format!(
            "{} has the injection annotation{} but uses the host network: it cannot be meshed, and its traffic is neither encrypted nor authorised",
            full_name(pod),
            if own {
                String::new()
            } else {
                format!(" of namespace {namespace}")
            }
        ));
        wrong.push(match fix::workload(pod) {
            Some(workload) => finding.with_fix(format!(
                "remove hostNetwork from the template of {workload}, or exclude it: kubectl -n {namespace} patch {workload} -p '{{\"spec\": {{\"template\": {{\"metadata\": {{\"annotations\": {{\"{}\": \"disabled\"}}}}}}}}}}'",
                annotation::INJECT
            )),
            None => finding.with_fix(format!(
                "kubectl -n {namespace} annotate pod {} --overwrite {}=disabled",
                pod.name_any(),
                annotation::INJECT
            )),
        });
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// Finds pods with the label that makes clients expect a proxy and open mutual TLS to the
/// application's port.
fn marked(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    for pod in facts.scoped_pods()? {
        if proxy_container(pod).is_some() {
            continue;
        }
        if pod::control_plane_namespace(pod).is_none() {
            wrong.extend(annotated(pod));
            continue;
        }
        let finding = Finding::new(format!(
            "{} has the label {} but no proxy: meshed clients cannot reach it",
            full_name(pod),
            annotation::CONTROL_PLANE_NS
        ));
        let namespace = pod.namespace().unwrap_or_default();
        wrong.push(match fix::workload(pod) {
            Some(workload) => finding.with_fix(format!(
                "remove the label {} from the template of {workload}: kubectl -n {namespace} edit {workload}; the injector adds it together with the proxy",
                annotation::CONTROL_PLANE_NS
            )),
            None => finding.with_fix(format!(
                "kubectl -n {namespace} label pod {} {}-",
                pod.name_any(),
                annotation::CONTROL_PLANE_NS
            )),
        });
    }
    Ok(Outcome::fail_if(wrong, ""))
}

/// Reports a pod without a proxy that has an annotation of the injector.
fn annotated(pod: &Pod) -> Option<Finding> {
    let written = [annotation::PROXY_VERSION, annotation::TRUST_ROOT_SHA256];
    let key = written
        .into_iter()
        .find(|key| pod.annotations().contains_key(*key))?;
    let finding = Finding::new(format!(
        "{} has the annotation {key}, which the injector adds together with the proxy, but no proxy",
        full_name(pod)
    ));
    let namespace = pod.namespace().unwrap_or_default();
    Some(match fix::workload(pod) {
        Some(workload) => finding.with_fix(format!(
            "remove {key} from the template of {workload}: kubectl -n {namespace} edit {workload}; meshctl uninject removes what a manifest has of the mesh"
        )),
        None => finding.with_fix(format!(
            "kubectl -n {namespace} annotate pod {} {key}-",
            pod.name_any()
        )),
    })
}

/// Finds proxies that cannot start or that crash.
fn containers(facts: &Facts) -> CheckResult {
    let pods = facts
        .meshed_pods()?
        .filter(|pod| !facts.is_on_unready_node(pod));
    let wrong = pods.filter_map(|pod| {
        let finding = container_problem_of(pod, pod::PROXY_CONTAINER, facts.clock())?;
        // A workload may select another proxy image by annotation.
        let by = [
            "config.linkerd.io/proxy-image",
            "config.linkerd.io/proxy-version",
        ]
        .into_iter()
        .find(|key| pod.annotations().contains_key(*key));
        Some(match (by, fix::workload(pod)) {
            (Some(key), Some(workload)) if finding.text.contains("Image") => finding.with_fix(format!(
                "correct the annotation {key} of the template of {workload}, or kubectl -n {} rollout undo {workload}",
                pod.namespace().unwrap_or_default()
            )),
            _ => finding,
        })
    });
    Ok(Outcome::fail_if(wrong, ""))
}

fn ready(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    let mut named = BTreeSet::new();
    let (mut queried, mut new) = (0_usize, 0_usize);
    for proxy in &facts.proxies {
        if proxy.namespace == facts.control_namespace && facts.environment == Environment::Cluster {
            continue;
        }
        queried += 1;
        let Err(reason) = &proxy.ready else { continue };
        named.insert((&proxy.namespace, &proxy.pod));
        if proxy.is_new {
            new += 1;
            continue;
        }
        let (namespace, pod) = (&proxy.namespace, &proxy.pod);
        let finding = Finding::new(format!("{namespace}/{pod}: {reason}"));
        wrong.push(match facts.environment {
            Environment::Cluster => finding.with_fix(format!(
                "kubectl -n {namespace} logs {pod} -c linkerd-proxy"
            )),
            _ => finding.with_fix(format!("meshctl local logs {pod} -c linkerd-proxy")),
        });
    }
    for pod in facts.meshed_pods()? {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let is_named = named.contains(&(&namespace, &name));
        // `data-plane-containers` reports containers that cannot start.
        let is_reported = facts.is_on_unready_node(pod)
            || container_problem_of(pod, pod::PROXY_CONTAINER, facts.clock()).is_some();
        if is_named || is_reported || can_respond(pod, pod::PROXY_CONTAINER) {
            continue;
        }
        if facts.is_new(pod) {
            new += 1;
            continue;
        }
        wrong.push(
            Finding::new(format!("{namespace}/{name}: its proxy has not started yet"))
                .with_fix(format!("kubectl -n {namespace} describe pod {name}")),
        );
    }
    let ok = count(queried, "proxy", "proxies") + &excluded_new_pods(new);
    Ok(Outcome::fail_if(wrong, ok))
}
