//! The ConfigMaps that make trust domains of other clusters trusted. Users create them with
//! `meshctl multicluster trust-gen` and `link-gen`, so that no chart removes them.

use mesh_k8s::kinds::{ConfigMap, ResourceExt as _};
use serde_json::json;

use crate::cluster::{Cluster, error, trust_bundles};
use crate::install::manifest::Manifest;

pub(crate) async fn list(cluster: &Cluster) -> anyhow::Result<Vec<ConfigMap>> {
    let found = trust_bundles::list(cluster).await;
    found.map_err(|error| error::failed("list the trust bundles of other clusters", error))
}

/// Returns type and name of each, which are sufficient to delete it.
pub(crate) async fn for_deletion(cluster: &Cluster) -> anyhow::Result<Vec<Manifest>> {
    let namespace = &cluster.control_namespace;
    let manifest = |object: ConfigMap| {
        Manifest::from_object(json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": object.name_any(), "namespace": namespace },
        }))
    };
    list(cluster).await?.into_iter().map(manifest).collect()
}

/// Returns what to say about those that stay when the multicluster extension is removed: the
/// control plane trusts their domains without it.
pub(super) async fn notes(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let namespace = &cluster.control_namespace;
    let note = |object: ConfigMap| {
        let name = object.name_any();
        format!(
            "ConfigMap {namespace}/{name} stays, because it is of the control plane: `kubectl -n {namespace} delete configmap {name}` ends the trust in its domain"
        )
    };
    Ok(list(cluster).await?.into_iter().map(note).collect())
}

#[cfg(test)]
mod tests {
    use mesh_core::annotation::TRUST_BUNDLE_OF;
    use mesh_test_support::kube_api::ScriptedApi;

    use super::*;
    use crate::commands::multicluster::tests::cluster_of;

    /// Returns a cluster that trusts the domain of cluster east.
    fn trusting() -> Cluster {
        let api = ScriptedApi::default();
        let east = json!({ "metadata": {
            "name": "linkerd-trust-bundle-east",
            "namespace": "linkerd",
            "labels": { TRUST_BUNDLE_OF: "east" },
        } });
        let list =
            json!({ "apiVersion": "v1", "kind": "ConfigMapList", "metadata": {}, "items": [east] });
        api.put("/api/v1/namespaces/linkerd/configmaps", list);
        cluster_of(&api)
    }

    #[tokio::test]
    async fn trust_bundle_is_deleted_with_the_control_plane() {
        let printed = for_deletion(&trusting()).await.unwrap();
        let names: Vec<_> = printed.iter().map(Manifest::name).collect();
        let [name] = &names[..] else {
            panic!("{names:?}");
        };
        assert_eq!(name.kind, "ConfigMap");
        assert_eq!(name.namespace.as_deref(), Some("linkerd"));
        assert_eq!(name.name, "linkerd-trust-bundle-east");
    }

    #[tokio::test]
    async fn trust_bundle_that_stays_without_the_extension_is_named() {
        let notes = notes(&trusting()).await.unwrap();
        let [note] = &notes[..] else {
            panic!("{notes:?}");
        };
        let expect = "kubectl -n linkerd delete configmap linkerd-trust-bundle-east";
        assert!(note.contains(expect), "{note}");
    }
}
