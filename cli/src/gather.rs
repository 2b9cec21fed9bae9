//! Gathers facts from the machine, node or cluster, with concurrent queries.

mod access;
mod daemons;
mod dry_run;
pub(crate) mod host;
mod machine;
mod multicluster;
mod node;
mod objects;
mod trust;
mod viz;

use mesh_k8s::kinds::{Namespace, Node};
use serde_json::Value;

use crate::analyze;
use crate::cluster::error::to_fact;
use crate::cluster::{Cluster, clock};
use crate::facts::injection::dry_run_namespace;
use crate::facts::{ApiServer, Environment, Fact, Facts, InjectionDryRun, Mode};
use crate::mesh::Mesh;
use crate::resource::Scope;

/// Gathers the facts that the checks of the mode use.
pub(crate) async fn facts(mesh: Option<&Mesh>, mode: Mode, scope: Scope) -> Facts {
    match mesh {
        None => {
            let mut facts = Facts::new(Environment::Machine, mode, "", scope);
            facts.machine = machine::read();
            facts
        }
        Some(mesh @ Mesh::Local(node)) => {
            let mut facts = Facts::new(
                Environment::LocalNode,
                mode,
                mesh.control_namespace(),
                scope,
            );
            facts.machine = machine::read();
            facts.objects.pods = node::pods(node);
            facts.trust = trust::of_node(node);
            Box::pin(daemons::query(mesh, &mut facts)).await;
            facts
        }
        Some(mesh @ Mesh::Cluster(cluster)) => {
            let mut facts = Facts::new(Environment::Cluster, mode, mesh.control_namespace(), scope);
            Box::pin(of_cluster(mesh, cluster, &mut facts)).await;
            facts
        }
    }
}

async fn of_cluster(mesh: &Mesh, cluster: &Cluster, facts: &mut Facts) {
    facts.api_server = server(cluster).await;
    if facts.api_server.is_err() {
        // All other requests would run into the same timeout.
        return;
    }
    match facts.mode {
        // Hosts have no API server: [`host::facts`].
        Mode::Crds | Mode::Host => {}
        Mode::Pre => {
            let (namespaces, nodes, leases, config, cilium, access) = tokio::join!(
                cluster.list_all::<Namespace>(),
                cluster.list_all::<Node>(),
                objects::leases(cluster),
                objects::config(cluster),
                objects::cilium(cluster),
                access::of_user(cluster),
            );
            facts.objects.namespaces = to_fact("list the namespaces", namespaces);
            facts.objects.nodes = to_fact("list the nodes", nodes);
            facts.objects.leases = leases;
            facts.objects.config = config;
            facts.objects.cilium = cilium;
            facts.access = access;
            facts.objects.pods = objects::pods(cluster).await;
        }
        Mode::Rotation => Box::pin(rotation(mesh, cluster, facts)).await,
        Mode::Viz { .. } => Box::pin(viz::query(cluster, facts)).await,
        Mode::Multicluster { timeout } => {
            Box::pin(multicluster::query(cluster, facts, timeout)).await;
        }
        Mode::Installed { .. } => {
            Box::pin(objects::read(cluster, facts)).await;
            trust::of_cluster(cluster, facts).await;
            let place = dry_run_namespace(facts);
            let dry_run = async {
                match &place {
                    Ok(namespace) => dry_run::run(cluster, namespace).await,
                    Err(reason) => Ok(InjectionDryRun::NotAttempted(reason.clone())),
                }
            };
            let (access, dry_run) = tokio::join!(access::of_controllers(cluster, facts), dry_run);
            facts.access = access;
            facts.webhook.dry_run = dry_run;
            Box::pin(daemons::query(mesh, facts)).await;
        }
    }
}

/// Gathers what a rotation of the trust anchor depends on.
async fn rotation(mesh: &Mesh, cluster: &Cluster, facts: &mut Facts) {
    let control = Scope::Namespace(facts.control_namespace.clone());
    let machines = [analyze::kinds::EXTERNAL_WORKLOAD];
    let (nodes, config, roots, bundle, machines) = tokio::join!(
        cluster.list_all::<Node>(),
        objects::config(cluster),
        objects::trust_roots(cluster, &control),
        objects::trust_bundle(cluster),
        objects::json(cluster, &machines),
    );
    facts.objects.nodes = to_fact("list the nodes", nodes);
    facts.objects.config = config;
    facts.objects.trust_roots = roots;
    facts.objects.trust_bundle = bundle;
    facts.objects.policies = machines;
    facts.objects.pods = objects::pods(cluster).await;
    trust::of_cluster(cluster, facts).await;
    daemons::query_rotation(mesh, facts).await;
}

/// Returns the policy objects of a mesh in JSON.
pub(crate) async fn policies(mesh: &Mesh) -> Fact<Vec<Value>> {
    match mesh {
        Mesh::Local(node) => node::policies(node),
        Mesh::Cluster(cluster) => objects::policies(cluster).await,
    }
}

/// Returns version and clock of the API server and the kinds that it serves.
async fn server(cluster: &Cluster) -> Fact<ApiServer> {
    let request = http::Request::get("/version").body(kube::client::Body::empty());
    let request = request.map_err(|error| error.to_string())?;
    let response = to_fact(
        &format!("reach {}", cluster.server),
        cluster.client.send(request).await,
    )?;
    let clock = clock::of(response.headers());
    let info = to_fact(
        &format!("reach {}", cluster.server),
        cluster.client.apiserver_version().await,
    )?;
    let number = |text: &str| {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    };
    Ok(ApiServer {
        major_minor: number(&info.major).zip(number(&info.minor)),
        version: info.git_version,
        clock,
        served: objects::served(cluster).await,
    })
}
