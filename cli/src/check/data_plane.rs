//! The meshed pods: did those that asked get a proxy, are they redirected, ready and current, and do their annotations say what was meant.

mod annotations;
mod redirection;

use std::collections::BTreeSet;

use mesh_k8s::{
    inject::{self, Decision, SkipReason},
    kinds::{ObjectMeta, Pod, ResourceExt},
    pod,
};

use super::{
    Category, Check, Ends, Facts, Mode, On, Outcome, Place, Verdict,
    control_plane::{container_problems, may_answer},
    count,
    facts::{full_name, see},
    versions,
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
            ends: Ends::Nothing,
            on: On::Cluster,
            look: meshed,
        },
        Check {
            anchor: "inject-annotation",
            description: "the annotation linkerd.io/inject says enabled, ingress or disabled",
            advice: "kubectl annotate namespace NAMESPACE --overwrite linkerd.io/inject=enabled",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: annotations::inject_values,
        },
        Check {
            anchor: "pods-enrolled",
            description: "connections of every meshed pod are redirected",
            advice: "kubectl -n {ns} logs -l app.kubernetes.io/name=mesh-agent: the agent repairs by itself and says why it cannot",
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: redirection::enrolled,
        },
        Check {
            anchor: "l5d-data-plane-ready",
            description: "proxies are ready",
            advice: "kubectl -n NAMESPACE logs POD -c linkerd-proxy; on a local node: meshctl local logs POD -c linkerd-proxy",
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: ready,
        },
        Check {
            anchor: "l5d-data-plane-version",
            description: "proxies are of the version that is injected now",
            advice: "kubectl -n NAMESPACE rollout restart WORKLOAD",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: versions::data_plane,
        },
        Check {
            anchor: "data-plane-redirection",
            description: "pods are redirected in the way that is set up now",
            advice: "kubectl -n NAMESPACE rollout restart WORKLOAD",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: redirection::way,
        },
        Check {
            anchor: "l5d-data-plane-pod-labels",
            description: "no pod has the mesh's settings as labels",
            advice: "move the key from the template's labels to its annotations",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: annotations::pod_labels,
        },
        Check {
            anchor: "l5d-data-plane-services-labels",
            description: "no Service has the mesh's settings as labels",
            advice: "kubectl -n NAMESPACE label service NAME KEY- && kubectl -n NAMESPACE annotate service NAME KEY=VALUE",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: annotations::service_labels,
        },
        Check {
            anchor: "l5d-data-plane-services-annotations",
            description: "no Service has the mark of export as an annotation",
            advice: "kubectl -n NAMESPACE annotate service NAME mirror.linkerd.io/exported- && kubectl -n NAMESPACE label service NAME mirror.linkerd.io/exported=true",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: annotations::service_annotations,
        },
        Check {
            anchor: "config-annotations",
            description: "every setting of the mesh exists and has a value that it can have",
            advice: "docs/reference/annotations.md has all of them and their values; kubectl annotate namespace NAMESPACE KEY- takes one away",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: annotations::unknown,
        },
        Check {
            anchor: "linkerd-opaque-ports-definition",
            description: "Services and pods agree about opaque ports",
            advice: "kubectl -n NAMESPACE annotate service NAME --overwrite config.linkerd.io/opaque-ports=PORTS, as the pods have it",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: annotations::opaque_ports,
        },
    ],
};

fn meshed(facts: &Facts) -> Verdict {
    see(&facts.objects.namespaces)?;
    let projection = facts.values()?.identity.service_account_token_projection;
    let mut wrong = Vec::new();
    for pod in facts.live_pods()?.filter(|pod| in_scope(facts, pod)) {
        let namespace = facts.namespace(&pod.namespace().unwrap_or_default());
        let none = ObjectMeta::default();
        let namespace = namespace.map_or(&none, |namespace| &namespace.metadata);
        let asked = pod.annotations().get(mesh_core::annotation::INJECT);
        match inject::decide(namespace, pod, projection) {
            Decision::Inject { .. } => {
                wrong.push(format!("{} has no proxy", full_name(pod)));
            }
            Decision::Skip(reasons)
                if reasons.contains(&SkipReason::HostNetwork)
                    && asked.is_some_and(|mode| mode == "enabled") =>
            {
                wrong.push(format!(
                    "{} asks for the mesh but uses the node's network: it cannot be meshed",
                    full_name(pod)
                ));
            }
            Decision::Skip(_) => {}
        }
    }
    let meshed = facts.meshed_pods()?.count();
    Ok(Outcome::fail_if(
        wrong,
        format!("{} meshed", count(meshed, "pod", "pods")),
    ))
}

/// Pods of the scope that are not the control plane's.
fn in_scope(facts: &Facts, pod: &Pod) -> bool {
    let namespace = pod.namespace().unwrap_or_default();
    facts.scope.contains(&namespace) && namespace != facts.control_namespace
}

fn ready(facts: &Facts) -> Verdict {
    let mut wrong = Vec::new();
    let mut named = BTreeSet::new();
    let mut asked = 0_usize;
    for proxy in &facts.proxies {
        if proxy.namespace == facts.control_namespace && facts.place == Place::Cluster {
            continue;
        }
        asked += 1;
        if let Err(reason) = &proxy.ready {
            named.insert((&proxy.namespace, &proxy.pod));
            wrong.push(format!("{}/{}: {reason}", proxy.namespace, proxy.pod));
        }
    }
    for pod in facts.meshed_pods()? {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        if named.contains(&(&namespace, &name)) {
            continue;
        }
        let problems = container_problems(pod, facts.clock());
        let of_proxy = format!("container {}", pod::PROXY_CONTAINER);
        let known = wrong.len();
        let problems = problems.into_iter().map(|line| line.text);
        wrong.extend(problems.filter(|one| one.contains(&of_proxy)));
        if wrong.len() == known && !may_answer(pod, pod::PROXY_CONTAINER) {
            wrong.push(format!("{namespace}/{name}: its proxy has not started yet"));
        }
    }
    Ok(Outcome::fail_if(wrong, count(asked, "proxy", "proxies")))
}
