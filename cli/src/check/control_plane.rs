//! The controllers: do their pods run, and are they ready.

use super::{Category, Check, Look, Outcome, Subject};
use crate::node::{MeshPod, Node, http};

pub(crate) const CATEGORY: Category = Category {
    name: "control plane",
    needs_node: true,
    checks: &[
        Check {
            anchor: "control-plane-pods",
            description: "control plane pods are ready",
            fatal: true,
            look: pods_ready,
        },
        Check {
            anchor: "controllers-ready",
            description: "controllers have read their objects",
            fatal: false,
            look: controllers_ready,
        },
    ],
};

/// Component, controller and admin port, as Linkerd has them.
const CONTROLLERS: [(&str, &str, u16); 3] = [
    ("identity", "identity", 9990),
    ("destination", "destination", 9996),
    ("destination", "policy", 9990),
];

fn pods_ready(subject: &Subject) -> Look<'_> {
    on_pods(subject, |pods| {
        Box::pin(async move {
            let components = ["identity", "destination"];
            let bad: Vec<String> = components
                .iter()
                .filter_map(|component| problem(&pods, component))
                .collect();
            if bad.is_empty() {
                Outcome::Ok(components.join(", "))
            } else {
                Outcome::Fail(bad.join("; "))
            }
        })
    })
}

/// What is wrong with the pods of a component, if anything.
fn problem(pods: &[MeshPod], component: &str) -> Option<String> {
    let own: Vec<&MeshPod> = pods
        .iter()
        .filter(|pod| pod.component.as_deref() == Some(component))
        .collect();
    if own.is_empty() {
        return Some(format!("there is no pod of {component}"));
    }
    let late: Vec<String> = own
        .iter()
        .filter(|pod| !pod.ready)
        .map(|pod| pod.to_string())
        .collect();
    (late.len() == own.len()).then(|| format!("not ready: {}", late.join(", ")))
}

fn controllers_ready(subject: &Subject) -> Look<'_> {
    on_pods(subject, |pods| {
        Box::pin(async move {
            let mut bad = Vec::new();
            for (component, controller, port) in CONTROLLERS {
                let Some(pod) = pods
                    .iter()
                    .find(|pod| pod.component.as_deref() == Some(component))
                else {
                    continue;
                };
                let ready = match pod.address() {
                    Ok(ip) => http::get_ok((ip, port).into(), "/ready").await,
                    Err(error) => Err(error),
                };
                if let Err(error) = ready {
                    bad.push(format!("{controller}: {error:#}"));
                }
            }
            if bad.is_empty() {
                Outcome::Ok("identity, destination, policy".to_owned())
            } else {
                Outcome::Fail(bad.join("; "))
            }
        })
    })
}

fn on_pods<'a>(
    subject: &'a Subject,
    judge: impl FnOnce(Vec<MeshPod>) -> Look<'a> + 'a,
) -> Look<'a> {
    Box::pin(async move {
        match subject.node.as_ref().map(Node::pods) {
            Some(Ok(pods)) => judge(pods).await,
            Some(Err(error)) => Outcome::Fail(format!("{error:#}")),
            None => Outcome::Fail("no node".to_owned()),
        }
    })
}
