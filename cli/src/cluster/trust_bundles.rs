//! The ConfigMaps that make trust domains of other clusters trusted.

use kube::api::ListParams;
use mesh_core::annotation::TRUST_BUNDLE_OF;
use mesh_k8s::kinds::ConfigMap;

use super::Cluster;
use crate::resource::Scope;

/// Lists them in the namespace of the control plane, where alone they have an effect.
pub(crate) async fn list(cluster: &Cluster) -> kube::Result<Vec<ConfigMap>> {
    let control = Scope::Namespace(cluster.control_namespace.clone());
    let labelled = ListParams::default().labels(TRUST_BUNDLE_OF);
    cluster.list(&control, labelled).await
}
