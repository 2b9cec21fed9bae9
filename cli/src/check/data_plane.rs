//! The meshed pods: did those that asked get a proxy, are they redirected, ready and current, and
//! do their annotations say what was meant.

mod annotations;
mod pods;
mod redirection;

use std::collections::BTreeSet;

use mesh_core::annotation;
use mesh_k8s::{
    inject::{self, Decision, SkipReason},
    kinds::{ObjectMeta, Pod, ResourceExt},
    pod,
};

use super::{
    Category, Check, Ends, Facts, Line, Mode, On, Outcome, Place, Verdict,
    causes::{AGENTS, NOT_RUNNING, NOT_WORKING, TRUST, WEBHOOK},
    control_plane::{may_answer, problem_of},
    count,
    facts::{full_name, proxy_container, see},
    identity::left_out,
    repair, versions,
};
use crate::mesh::Scope;

pub(super) const APPLIES: fn(&Facts) -> bool = |facts| match facts.place {
    Place::Machine => false,
    Place::Node => true,
    Place::Cluster => facts.mode == Mode::Installed { proxies: true },
};

pub(super) const CATEGORY: Category = Category {
    name: "linkerd-data-plane",
    applies: APPLIES,
    checks: &[
        Check {
            anchor: "l5d-data-plane-exists",
            description: "the namespace exists",
            advice: "kubectl get namespaces; -A looks at all",
            explained_by: &[],
            ends: Ends::Run,
            on: On::Cluster,
            look: |facts| {
                see(&facts.objects.namespaces)?;
                Ok(match &facts.scope {
                    Scope::Namespace(name) if facts.namespace(name).is_none() => {
                        Outcome::fail(format!("there is no namespace {name}"))
                    }
                    Scope::Namespace(name) => Outcome::ok(name),
                    Scope::All => Outcome::ok("all namespaces"),
                })
            },
        },
        Check {
            anchor: "pods-meshed",
            description: "every pod that asked for the mesh has a proxy",
            advice: "kubectl -n NAMESPACE rollout restart WORKLOAD: the injector adds the proxy to new pods",
            explained_by: &[WEBHOOK, &["webhook-injects"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: meshed,
        },
        Check {
            anchor: "pods-host-network",
            description: "no pod that asks for the mesh uses the node's network",
            advice: "kubectl annotate namespace NAMESPACE linkerd.io/inject-, or exclude the workload",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: host_network,
        },
        Check {
            anchor: "pods-marked-meshed",
            description: "every pod that is marked as meshed has a proxy",
            advice: "kubectl -n NAMESPACE label pod POD linkerd.io/control-plane-ns-",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: marked,
        },
        Check {
            anchor: "inject-annotation",
            description: "the annotation linkerd.io/inject says enabled, ingress or disabled",
            advice: "kubectl annotate namespace NAMESPACE --overwrite linkerd.io/inject=enabled",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: annotations::inject_values,
        },
        Check {
            anchor: "namespace-labels",
            description: "no namespace has the mesh's settings as labels",
            advice: "kubectl label namespace NAMESPACE KEY- && kubectl annotate namespace NAMESPACE KEY=VALUE",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: annotations::namespace_labels,
        },
        Check {
            anchor: "pods-enrolled",
            description: "connections of every meshed pod are redirected",
            advice: "kubectl -n {ns} logs -l app.kubernetes.io/name=mesh-agent",
            explained_by: &[AGENTS, &["agent-answers"]],
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: redirection::enrolled,
        },
        Check {
            anchor: "data-plane-containers",
            description: "containers of proxies start and stay up",
            advice: "kubectl -n NAMESPACE describe pod POD",
            explained_by: &[&["nodes-ready"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: containers,
        },
        Check {
            anchor: "l5d-data-plane-ready",
            description: "proxies are ready",
            advice: "meshctl check explain l5d-data-plane-ready",
            explained_by: &[
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
            ],
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: ready,
        },
        Check {
            anchor: "pods-ports",
            description: "no container uses a port of its proxy",
            advice: "correct the port of the container",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: pods::ports,
        },
        Check {
            anchor: "jobs-finish",
            description: "no Job is held open by its proxy",
            advice: "kubectl -n NAMESPACE delete job NAME",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: pods::jobs,
        },
        Check {
            anchor: "l5d-data-plane-version",
            description: "proxies are of the version that is injected now",
            advice: "kubectl -n NAMESPACE rollout restart WORKLOAD",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: versions::data_plane,
        },
        Check {
            anchor: "data-plane-redirection",
            description: "pods are redirected in the way that is set up now",
            advice: "kubectl -n NAMESPACE rollout restart WORKLOAD",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: redirection::way,
        },
        Check {
            anchor: "l5d-data-plane-pod-labels",
            description: "no pod has the mesh's settings as labels",
            advice: "move the key from the template's labels to its annotations",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: annotations::pod_labels,
        },
        Check {
            anchor: "l5d-data-plane-services-labels",
            description: "no Service has the mesh's settings as labels",
            advice: "kubectl -n NAMESPACE label service NAME KEY- && kubectl -n NAMESPACE annotate service NAME KEY=VALUE",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: annotations::service_labels,
        },
        Check {
            anchor: "l5d-data-plane-services-annotations",
            description: "no Service has the mark of export as an annotation",
            advice: "kubectl -n NAMESPACE annotate service NAME mirror.linkerd.io/exported- && kubectl -n NAMESPACE label service NAME mirror.linkerd.io/exported=true",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: annotations::service_annotations,
        },
        Check {
            anchor: "config-annotations",
            description: "every setting of the mesh exists and has a value that it can have",
            advice: "meshctl check explain config-annotations; on a workload the setting is in its template",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: annotations::unknown,
        },
        Check {
            anchor: "linkerd-opaque-ports-definition",
            description: "Services and pods agree about opaque ports",
            advice: "kubectl -n NAMESPACE annotate service NAME --overwrite config.linkerd.io/opaque-ports=PORTS, as the pods have it",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: annotations::opaque_ports,
        },
    ],
};

/// What the injector would do with a pod of the scope.
fn decision(facts: &Facts, pod: &Pod, projection: bool) -> Decision {
    let namespace = facts.namespace(&pod.namespace().unwrap_or_default());
    let none = ObjectMeta::default();
    let namespace = namespace.map_or(&none, |namespace| &namespace.metadata);
    inject::decide(namespace, pod, projection)
}

fn meshed(facts: &Facts) -> Verdict {
    see(&facts.objects.namespaces)?;
    let projection = facts.values()?.identity.service_account_token_projection;
    let mut wrong = Vec::new();
    for pod in facts.live_pods()?.filter(|pod| in_scope(facts, pod)) {
        if let Decision::Inject { .. } = decision(facts, pod, projection) {
            wrong.push(
                Line::new(format!("{} has no proxy", full_name(pod)))
                    .fixed_by(repair::restart(pod)),
            );
        }
    }
    let meshed = facts.meshed_pods()?.count();
    Ok(Outcome::fail_if(
        wrong,
        format!("{} meshed", count(meshed, "pod", "pods")),
    ))
}

/// Pods that would be injected, were it not for the node's network.
fn host_network(facts: &Facts) -> Verdict {
    see(&facts.objects.namespaces)?;
    let projection = facts.values()?.identity.service_account_token_projection;
    let mut wrong = Vec::new();
    for pod in facts.live_pods()?.filter(|pod| in_scope(facts, pod)) {
        if decision(facts, pod, projection) != Decision::Skip(vec![SkipReason::HostNetwork]) {
            continue;
        }
        let (namespace, own) = (
            pod.namespace().unwrap_or_default(),
            pod.annotations().contains_key(annotation::INJECT),
        );
        let line = Line::new(format!(
            "{} asks for the mesh{} but uses the node's network: it cannot be meshed, and its traffic is neither encrypted nor authorised",
            full_name(pod),
            match own {
                true => String::new(),
                false => format!(" by the annotation of namespace {namespace}"),
            }
        ));
        wrong.push(match repair::workload(pod) {
            Some(workload) => line.fixed_by(format!(
                "take hostNetwork out of the template of {workload}, or exclude it: kubectl -n {namespace} patch {workload} -p '{{\"spec\": {{\"template\": {{\"metadata\": {{\"annotations\": {{\"{}\": \"disabled\"}}}}}}}}}}'",
                annotation::INJECT
            )),
            None => line.fixed_by(format!(
                "kubectl -n {namespace} annotate pod {} --overwrite {}=disabled",
                pod.name_any(),
                annotation::INJECT
            )),
        });
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// The label makes clients expect a proxy: they open mutual TLS to the application's own port.
fn marked(facts: &Facts) -> Verdict {
    let mut wrong = Vec::new();
    for pod in facts.live_pods()?.filter(|pod| in_scope(facts, pod)) {
        if pod::control_plane_namespace(pod).is_none() || proxy_container(pod).is_some() {
            continue;
        }
        let line = Line::new(format!(
            "{} has the label {} and no proxy: meshed clients cannot reach it",
            full_name(pod),
            annotation::CONTROL_PLANE_NS
        ));
        let namespace = pod.namespace().unwrap_or_default();
        wrong.push(match repair::workload(pod) {
            Some(workload) => line.fixed_by(format!(
                "take the label {} out of the template of {workload}: kubectl -n {namespace} edit {workload}; the injector adds it together with the proxy",
                annotation::CONTROL_PLANE_NS
            )),
            None => line.fixed_by(format!(
                "kubectl -n {namespace} label pod {} {}-",
                pod.name_any(),
                annotation::CONTROL_PLANE_NS
            )),
        });
    }
    Ok(Outcome::fail_if(wrong, ""))
}

/// Proxies that cannot start or do not stay up. Such a proxy answers nothing and has no log.
fn containers(facts: &Facts) -> Verdict {
    let pods = facts
        .meshed_pods()?
        .filter(|pod| !facts.is_on_lost_node(pod));
    let wrong = pods.filter_map(|pod| {
        let line = problem_of(pod, pod::PROXY_CONTAINER, facts.clock())?;
        // The proxy's image is the mesh's; a workload chooses another by annotation.
        let by = [
            "config.linkerd.io/proxy-image",
            "config.linkerd.io/proxy-version",
        ]
        .into_iter()
        .find(|key| pod.annotations().contains_key(*key));
        Some(match (by, repair::workload(pod)) {
            (Some(key), Some(workload)) if line.text.contains("Image") => line.fixed_by(format!(
                "correct the annotation {key} of the template of {workload}, or kubectl -n {} rollout undo {workload}",
                pod.namespace().unwrap_or_default()
            )),
            _ => line,
        })
    });
    Ok(Outcome::fail_if(wrong.collect(), ""))
}

/// Pods of the scope that are not the control plane's.
fn in_scope(facts: &Facts, pod: &Pod) -> bool {
    let namespace = pod.namespace().unwrap_or_default();
    facts.scope.contains(&namespace) && namespace != facts.control_namespace
}

fn ready(facts: &Facts) -> Verdict {
    let mut wrong = Vec::new();
    let mut named = BTreeSet::new();
    let (mut asked, mut new) = (0_usize, 0_usize);
    for proxy in &facts.proxies {
        if proxy.namespace == facts.control_namespace && facts.place == Place::Cluster {
            continue;
        }
        asked += 1;
        let Err(reason) = &proxy.ready else { continue };
        named.insert((&proxy.namespace, &proxy.pod));
        if proxy.new {
            new += 1;
            continue;
        }
        let (namespace, pod) = (&proxy.namespace, &proxy.pod);
        let line = Line::new(format!("{namespace}/{pod}: {reason}"));
        wrong.push(match facts.place {
            Place::Cluster => line.fixed_by(format!(
                "kubectl -n {namespace} logs {pod} -c linkerd-proxy"
            )),
            _ => line.fixed_by(format!("meshctl local logs {pod} -c linkerd-proxy")),
        });
    }
    for pod in facts.meshed_pods()? {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let is_named = named.contains(&(&namespace, &name));
        // Of a container that cannot start its own check speaks.
        let elsewhere = facts.is_on_lost_node(pod)
            || problem_of(pod, pod::PROXY_CONTAINER, facts.clock()).is_some();
        if is_named || elsewhere || may_answer(pod, pod::PROXY_CONTAINER) {
            continue;
        }
        if facts.is_new(pod) {
            new += 1;
            continue;
        }
        wrong.push(
            Line::new(format!("{namespace}/{name}: its proxy has not started yet"))
                .fixed_by(format!("kubectl -n {namespace} describe pod {name}")),
        );
    }
    let ok = count(asked, "proxy", "proxies") + &left_out(new);
    Ok(Outcome::fail_if(wrong, ok))
}
