//! The meshed pods: enrolled, and their proxies ready.

use std::collections::BTreeSet;

use super::{Category, Check, Look, Outcome, Subject};
use crate::node::{MeshPod, Node, agent, http};

pub(crate) const CATEGORY: Category = Category {
    name: "data plane",
    needs_node: true,
    checks: &[
        Check {
            anchor: "pods-enrolled",
            description: "connections of every meshed pod are redirected",
            fatal: false,
            look: enrolled,
        },
        Check {
            anchor: "proxies-ready",
            description: "proxies are ready",
            fatal: false,
            look: proxies_ready,
        },
    ],
};

fn enrolled(subject: &Subject) -> Look<'_> {
    on_node(subject, |node| Box::pin(look_at_enrolment(node)))
}

async fn look_at_enrolment(node: &Node) -> anyhow::Result<Outcome> {
    let enrolled = agent::pods(&node.instance.agent_socket()).await?;
    let enrolled: BTreeSet<(String, String)> = enrolled
        .into_iter()
        .map(|status| (status.pod.namespace, status.pod.name))
        .collect();
    let meshed: Vec<MeshPod> = node
        .pods()?
        .into_iter()
        .filter(MeshPod::is_meshed)
        .collect();
    let bypassing: Vec<String> = meshed
        .iter()
        .filter(|pod| !enrolled.contains(&(pod.namespace.clone(), pod.name.clone())))
        .map(MeshPod::to_string)
        .collect();
    Ok(if bypassing.is_empty() {
        Outcome::Ok(format!("{} pods", meshed.len()))
    } else {
        Outcome::Fail(format!(
            "not enrolled by the node agent, so their traffic goes around the proxy: {}",
            bypassing.join(", ")
        ))
    })
}

fn proxies_ready(subject: &Subject) -> Look<'_> {
    on_node(subject, |node| Box::pin(look_at_readiness(node)))
}

async fn look_at_readiness(node: &Node) -> anyhow::Result<Outcome> {
    let meshed: Vec<MeshPod> = node
        .pods()?
        .into_iter()
        .filter(MeshPod::is_meshed)
        .collect();
    let mut bad = Vec::new();
    for pod in &meshed {
        if let Err(error) = http::get_ok(pod.admin()?, "/ready").await {
            bad.push(format!("{pod}: {error:#}"));
        }
    }
    Ok(if bad.is_empty() {
        Outcome::Ok(format!("{} proxies", meshed.len()))
    } else {
        Outcome::Fail(bad.join("; "))
    })
}

type NodeLook<'a> = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<Outcome>> + 'a>>;

fn on_node<'a>(subject: &'a Subject, look: fn(&'a Node) -> NodeLook<'a>) -> Look<'a> {
    Box::pin(async move {
        match &subject.node {
            Some(node) => Outcome::of(look(node).await),
            None => Outcome::Fail("no node".to_owned()),
        }
    })
}
