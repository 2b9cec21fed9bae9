//! The trust bundles of linked clusters with trust anchors of their own: the ConfigMaps of their
//! trust domains, and what each replica of the identity service says about them.

use std::time::Duration;

use kube::api::ListParams;
use mesh_core::annotation::CONTROL_PLANE_COMPONENT;
use mesh_k8s::kinds::{ConfigMap, Pod, ResourceExt};
use mesh_k8s::pod;

use crate::clients;
use crate::cluster::error::to_fact;
use crate::cluster::{Cluster, trust_bundles};
use crate::facts::containers::can_respond;
use crate::facts::{Fact, Replica};
use crate::mesh::controllers::ADMIN_PORTS;
use crate::resource::Scope;

pub(super) async fn config_maps(cluster: &Cluster) -> Fact<Vec<ConfigMap>> {
    let found = trust_bundles::list(cluster).await;
    to_fact(
        "list the ConfigMaps of linked clusters' trust bundles",
        found,
    )
}

/// Asks the replicas of the identity service. Each of them fetches bundles.
pub(super) async fn replicas(cluster: &Cluster, timeout: Duration) -> Fact<Vec<Replica>> {
    let (component, container, port) = ADMIN_PORTS[0];
    let own = Scope::Namespace(cluster.control_namespace.clone());
    let labels = format!("{CONTROL_PLANE_COMPONENT}={component}");
    let pods = cluster.list::<Pod>(&own, ListParams::default().labels(&labels));
    let pods = to_fact("list the pods of the identity service", pods.await)?;
    let running = pods.iter().filter(|it| {
        !pod::is_terminal(it)
            && it.metadata.deletion_timestamp.is_none()
            && can_respond(it, container)
    });
    let replicas = running.map(|it| async {
        let pod = it.name_any();
        let metrics = cluster.metrics(&cluster.control_namespace, &pod, port, timeout);
        let metrics = Box::pin(metrics)
            .await
            .map_err(|error| format!("{error:#}"));
        Replica { pod, metrics }
    });
    Ok(clients::concurrently(replicas).await)
}
