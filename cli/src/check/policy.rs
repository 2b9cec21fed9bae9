//! Policies: can each be read, does what it names exist, and does it choose anything. An object that says nothing protects nothing.

use std::collections::BTreeSet;

use mesh_k8s::{
    crd::{AuthorizationPolicy, Server},
    kinds::{Namespace, ResourceExt, ServiceAccount},
    select,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    Category, Check, Ends, Facts, On, Outcome, Place, Verdict, count, data_plane,
    facts::{Seen, see},
};

pub(super) const CATEGORY: Category = Category {
    name: "linkerd-policy",
    applies: |facts| facts.place == Place::Cluster && (data_plane::APPLIES)(facts),
    checks: &[
        Check {
            anchor: "policy-readable",
            description: "every policy can be read",
            advice: "kubectl -n NAMESPACE edit KIND NAME; until then the controller keeps the last version it could read",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: readable,
        },
        Check {
            anchor: "policy-references",
            description: "what policies name exists",
            advice: "kubectl -n NAMESPACE get server,meshtlsauthentication,networkauthentication,httproute; correct the name",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: references,
        },
        Check {
            anchor: "policy-servers",
            description: "every Server chooses a pod",
            advice: "kubectl -n NAMESPACE get pods --show-labels; correct the Server's podSelector",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: servers,
        },
    ],
};

/// The objects of a kind that can be read.
fn read<T: DeserializeOwned>(facts: &Facts, kind: &str) -> Seen<Vec<T>> {
    let all = of_kind(facts, kind)?;
    Ok(all
        .into_iter()
        .filter_map(|value| serde_json::from_value(value.clone()).ok())
        .collect())
}

fn of_kind<'a>(facts: &'a Facts, kind: &str) -> Seen<Vec<&'a Value>> {
    let all = see(&facts.objects.policies)?.iter();
    Ok(all
        .filter(|value| {
            value["kind"] == kind
                && facts
                    .scope
                    .contains(value["metadata"]["namespace"].as_str().unwrap_or_default())
        })
        .collect())
}

fn readable(facts: &Facts) -> Verdict {
    let mut wrong = Vec::new();
    let mut seen = 0_usize;
    let mut judge = |kind: &str, problem: fn(&Value) -> Option<String>| -> Seen<()> {
        for value in of_kind(facts, kind)? {
            seen += 1;
            if let Some(problem) = problem(value) {
                wrong.push(format!("{}: {problem}", name(value)));
            }
        }
        Ok(())
    };
    judge("Server", problem::<Server>)?;
    judge("AuthorizationPolicy", problem::<AuthorizationPolicy>)?;
    judge(
        "MeshTLSAuthentication",
        problem::<mesh_k8s::crd::MeshTLSAuthentication>,
    )?;
    judge(
        "NetworkAuthentication",
        problem::<mesh_k8s::crd::NetworkAuthentication>,
    )?;
    judge("HTTPRoute", problem::<mesh_k8s::crd::PolicyHttpRoute>)?;
    Ok(Outcome::fail_if(wrong, count(seen, "object", "objects")))
}

fn problem<T: DeserializeOwned>(value: &Value) -> Option<String> {
    serde_json::from_value::<T>(value.clone())
        .err()
        .map(|error| error.to_string())
}

fn name(value: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!(
        "{} {}/{}",
        text(&value["kind"]),
        text(&value["metadata"]["namespace"]),
        text(&value["metadata"]["name"])
    )
}

fn references(facts: &Facts) -> Verdict {
    let there: BTreeSet<(String, String, String)> = see(&facts.objects.policies)?
        .iter()
        .map(|value| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            (
                text(&value["kind"]).to_ascii_lowercase(),
                text(&value["metadata"]["namespace"]),
                text(&value["metadata"]["name"]),
            )
        })
        .collect();
    let exists = |kind: &str, namespace: &str, name: &str| {
        let key = (
            kind.to_ascii_lowercase(),
            namespace.to_owned(),
            name.to_owned(),
        );
        there.contains(&key)
    };
    let mut wrong = Vec::new();
    for policy in read::<AuthorizationPolicy>(facts, "AuthorizationPolicy")? {
        let own = policy.namespace().unwrap_or_default();
        let title = format!("AuthorizationPolicy {own}/{}", policy.name_any());
        let target = &policy.spec.target_ref;
        if target.targets::<Namespace>() {
            if target.name != own {
                wrong.push(format!(
                    "{title} is for namespace {}, and can only be for its own",
                    target.name
                ));
            }
        } else if !exists(&target.kind, &own, &target.name) {
            wrong.push(format!(
                "{title} is for {} {}, which does not exist: it allows nobody anything",
                target.kind, target.name
            ));
        }
        for reference in &policy.spec.required_authentication_refs {
            let namespace = reference.namespace.as_deref().unwrap_or(&own);
            // Accounts need not exist yet: their pods may come later.
            if !reference.targets::<ServiceAccount>()
                && !exists(&reference.kind, namespace, &reference.name)
            {
                wrong.push(format!(
                    "{title} requires {} {namespace}/{}, which does not exist: nobody satisfies it",
                    reference.kind, reference.name
                ));
            }
        }
    }
    Ok(Outcome::fail_if(wrong, ""))
}

fn servers(facts: &Facts) -> Verdict {
    let mut wrong = Vec::new();
    for server in read::<Server>(facts, "Server")? {
        // External workloads are not pods of this cluster.
        let Some(selector) = &server.spec.pod_selector else {
            continue;
        };
        let chosen = facts.live_pods()?.any(|pod| {
            pod.namespace() == server.namespace()
                && select::matches(selector, pod.metadata.labels.as_ref())
        });
        if !chosen {
            wrong.push(format!(
                "Server {}/{} (port {}) chooses no pod",
                server.namespace().unwrap_or_default(),
                server.name_any(),
                server.spec.port
            ));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}
