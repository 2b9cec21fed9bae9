//! What of the mesh is in a cluster: every object that carries its label, by the kinds that charts
//! and controllers ever made.

use std::collections::HashSet;

use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use mesh_core::annotation::CONTROL_PLANE_NS;
use serde_json::json;

use super::manifest::{Manifest, Name};
use crate::cluster::{Cluster, error};

/// Group, version and kind, in the order in which objects are to be deleted: first webhooks, so
/// that no pod waits for one that is gone; then the agents, which release the pods of their nodes
/// while they still may; rights and names last.
const KINDS: [(&str, &str, &str); 20] = [
    (
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
    ),
    ("apps", "v1", "DaemonSet"),
    ("apps", "v1", "Deployment"),
    ("batch", "v1", "CronJob"),
    ("batch", "v1", "Job"),
    ("policy", "v1", "PodDisruptionBudget"),
    ("monitoring.coreos.com", "v1", "PodMonitor"),
    ("", "v1", "Service"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Secret"),
    (
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicyBinding",
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicy",
    ),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding"),
    ("rbac.authorization.k8s.io", "v1", "Role"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole"),
    ("", "v1", "ServiceAccount"),
    ("apiextensions.k8s.io", "v1", DEFINITION),
    ("", "v1", NAMESPACE),
];

const DEFINITION: &str = "CustomResourceDefinition";
const NAMESPACE: &str = "Namespace";

/// Made by the mesh itself rather than by its manifests, and of use as long as there is a mesh.
const MADE_BY_CONTROLLERS: [&str; 5] = [
    "linkerd-config-overrides",
    "linkerd-identity-issuer",
    "linkerd-identity-trust-roots",
    "linkerd-proxy-injector-k8s-tls",
    "linkerd-trust-anchor",
];

/// One object, named well enough to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    api_version: String,
    name: Name,
}

/// Everything with the label of this control plane. A kind that the cluster does not serve has no
/// objects.
pub(crate) async fn take(cluster: &Cluster) -> anyhow::Result<Vec<Found>> {
    let ours =
        ListParams::default().labels(&format!("{CONTROL_PLANE_NS}={}", cluster.control_namespace));
    let mut found = Vec::new();
    for (group, version, kind) in KINDS {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &resource);
        let list = match api.list_metadata(&ours).await {
            Err(error) if error::is_missing(&error) => continue,
            other => {
                other.map_err(|error| error::failed(&format!("list {}", resource.plural), error))?
            }
        };
        // What belongs to another object goes with it, and would be gone before its turn came.
        let on_its_own = list.items.into_iter().filter(|object| {
            object
                .metadata
                .owner_references
                .as_ref()
                .is_none_or(Vec::is_empty)
        });
        found.extend(on_its_own.map(|object| Found {
            api_version: resource.api_version.clone(),
            name: Name {
                kind: kind.to_owned(),
                namespace: object.metadata.namespace,
                name: object.metadata.name.unwrap_or_default(),
            },
        }));
    }
    Ok(found)
}

/// What uninstalling deletes. The custom resources only when asked for: every policy of the cluster
/// goes with them.
pub(crate) fn for_deletion(found: Vec<Found>, definitions: bool) -> Vec<Manifest> {
    let kept = |found: &Found| definitions || found.name.kind != DEFINITION;
    found.into_iter().filter(kept).map(manifest).collect()
}

/// What no manifest of the mesh makes any more.
pub(crate) fn left_over(found: Vec<Found>, wanted: &HashSet<Name>) -> Vec<Manifest> {
    let left = found.into_iter().filter(|found| {
        !wanted.contains(&found.name) && !MADE_BY_CONTROLLERS.contains(&found.name.name.as_str())
    });
    left.map(manifest).collect()
}

fn manifest(found: Found) -> Manifest {
    let Name {
        kind,
        namespace,
        name,
    } = found.name;
    let mut object =
        json!({ "apiVersion": found.api_version, "kind": kind, "metadata": { "name": name } });
    let mut text = format!(
        "apiVersion: {}\nkind: {kind}\nmetadata:\n  name: {name}\n",
        found.api_version
    );
    if let Some(namespace) = namespace {
        text.push_str(&format!("  namespace: {namespace}\n"));
        object["metadata"]["namespace"] = namespace.into();
    }
    Manifest { text, object }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kind: &str, namespace: Option<&str>, name: &str) -> Found {
        Found {
            api_version: "v1".into(),
            name: Name {
                kind: kind.into(),
                namespace: namespace.map(str::to_owned),
                name: name.into(),
            },
        }
    }

    #[test]
    fn definitions_are_deleted_only_when_asked_for() {
        let all = vec![
            found("Service", Some("linkerd"), "a"),
            found(DEFINITION, None, "b"),
        ];
        assert_eq!(for_deletion(all.clone(), false).len(), 1);
        assert_eq!(for_deletion(all, true).len(), 2);
    }

    #[test]
    fn what_is_wanted_or_made_by_controllers_is_no_left_over() {
        let wanted = HashSet::from([found("Service", Some("linkerd"), "a").name]);
        let all = vec![
            found("Service", Some("linkerd"), "a"),
            found("Secret", Some("linkerd"), "linkerd-trust-anchor"),
            found("Service", Some("linkerd"), "old"),
        ];
        let left = left_over(all, &wanted);
        assert_eq!(left.len(), 1);
        assert_eq!(
            left[0].text,
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: old\n  namespace: linkerd\n"
        );
    }
}
