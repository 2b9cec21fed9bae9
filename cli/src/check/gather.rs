//! Asks machine, node or cluster everything that the checks judge, as much as possible at the same
//! time.

mod access;
mod answers;
mod machine;
mod node;
mod objects;
mod trial;
mod trust;

use kube::api::ListParams;
use mesh_k8s::kinds::{Namespace, Node};
use serde_json::Value;

use super::{
    facts::{Facts, Mode, Place, Seen, Server, Trial},
    webhook,
};
use crate::{
    cluster::{Cluster, error},
    mesh::{Mesh, Scope},
};

/// Everything that the mode asks about.
pub(crate) async fn facts(mesh: Option<&Mesh>, mode: Mode, scope: Scope) -> Facts {
    match mesh {
        None => {
            let mut facts = Facts::new(Place::Machine, mode, "", scope);
            facts.machine = machine::look();
            facts
        }
        Some(mesh @ Mesh::Local(node)) => {
            let mut facts = Facts::new(Place::Node, mode, mesh.control_namespace(), scope);
            facts.machine = machine::look();
            facts.objects.pods = node::pods(node);
            facts.trust = trust::of_node(node);
            Box::pin(answers::ask(mesh, &mut facts)).await;
            facts
        }
        Some(mesh @ Mesh::Cluster(cluster)) => {
            let mut facts = Facts::new(Place::Cluster, mode, mesh.control_namespace(), scope);
            Box::pin(of_cluster(mesh, cluster, &mut facts)).await;
            facts
        }
    }
}

async fn of_cluster(mesh: &Mesh, cluster: &Cluster, facts: &mut Facts) {
    facts.server = server(cluster).await;
    if facts.server.is_err() {
        // Everything else would wait for the same silence.
        return;
    }
    match facts.mode {
        Mode::Crds => {}
        Mode::Pre => {
            let (namespaces, nodes, leases, config, cilium, access) = tokio::join!(
                cluster.list_all::<Namespace>(),
                cluster.list_all::<Node>(),
                objects::leases(cluster),
                objects::config(cluster),
                objects::cilium(cluster),
                access::of_user(cluster),
            );
            facts.objects.namespaces = seen("list the namespaces", namespaces);
            facts.objects.nodes = seen("list the nodes", nodes);
            facts.objects.leases = leases;
            facts.objects.config = config;
            facts.objects.cilium = cilium;
            facts.access = access;
            facts.objects.pods = objects::pods(cluster).await;
        }
        Mode::Installed { .. } => {
            Box::pin(objects::look(cluster, facts)).await;
            facts.trust = trust::of_cluster(cluster, facts).await;
            let place = webhook::trial_namespace(facts);
            let trial = async {
                match &place {
                    Ok(namespace) => trial::run(cluster, namespace).await,
                    Err(reason) => Ok(Trial::NotTried(reason.clone())),
                }
            };
            let (access, trial) =
                tokio::join!(access::of_controllers(cluster, facts.has_agents()), trial);
            facts.access = access;
            facts.webhook.trial = trial;
            Box::pin(answers::ask(mesh, facts)).await;
        }
    }
}

/// The policy objects of a mesh, as they are.
pub(crate) async fn policies(mesh: &Mesh) -> Seen<Vec<Value>> {
    match mesh {
        Mesh::Local(node) => node::policies(node),
        Mesh::Cluster(cluster) => objects::policies(cluster).await,
    }
}

/// Names the operation in the reason why something could not be seen.
pub(super) fn seen<T>(what: &str, result: kube::Result<T>) -> Seen<T> {
    result.map_err(|error| format!("cannot {what}: {}", error::explain(&error)))
}

/// Version and clock in one answer, and what is served of the groups that matter.
async fn server(cluster: &Cluster) -> Seen<Server> {
    let request = http::Request::get("/version").body(kube::client::Body::empty());
    let request = request.map_err(|error| error.to_string())?;
    let response = seen(
        &format!("reach {}", cluster.server),
        cluster.client.send(request).await,
    )?;
    let clock = response
        .headers()
        .get(http::header::DATE)
        .and_then(|date| date.to_str().ok())
        .and_then(|date| jiff::fmt::rfc2822::parse(date).ok())
        .and_then(|date| u64::try_from(date.timestamp().as_second()).ok());
    let info = seen(
        &format!("reach {}", cluster.server),
        cluster.client.apiserver_version().await,
    )?;
    let number = |text: &str| {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    };
    Ok(Server {
        major_minor: number(&info.major).zip(number(&info.minor)),
        version: info.git_version,
        clock,
        served: objects::served(cluster).await,
    })
}

/// Everything of a kind in a namespace.
pub(super) fn within(namespace: &str) -> (Scope, ListParams) {
    (
        Scope::Namespace(namespace.to_owned()),
        ListParams::default(),
    )
}
