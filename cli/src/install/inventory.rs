//! Finds the objects of the mesh in a cluster by their label, for all kinds that charts and
//! controllers have ever created.

use std::collections::HashSet;

use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use mesh_core::annotation::{CONTROL_PLANE_NS, EXTENSION};
use serde_json::json;

use super::Chart;
use super::manifest::{Manifest, ObjectName};
use crate::cluster::{Cluster, error};

/// Group, version and kind in the order of deletion: first webhooks, so that they do not block pods
/// after the injector is deleted; then agents, which release the pods of their nodes while they
/// still have permissions; RBAC objects and namespaces last.
const KINDS: [(&str, &str, &str); 29] = [
    (ADMISSION, "v1", "MutatingWebhookConfiguration"),
    (ADMISSION, "v1", "ValidatingWebhookConfiguration"),
    ("apiregistration.k8s.io", "v1", "APIService"),
    ("autoscaling", "v2", "HorizontalPodAutoscaler"),
    ("apps", "v1", "DaemonSet"),
    ("apps", "v1", "Deployment"),
    ("batch", "v1", "CronJob"),
    ("batch", "v1", "Job"),
    ("policy", "v1", "PodDisruptionBudget"),
    ("monitoring.coreos.com", "v1", "PodMonitor"),
    ("monitoring.coreos.com", "v1", "PrometheusRule"),
    (POLICY, "v1beta3", "Server"),
    (POLICY, "v1beta1", "ServerAuthorization"),
    (POLICY, "v1alpha1", "AuthorizationPolicy"),
    (POLICY, "v1alpha1", "MeshTLSAuthentication"),
    (POLICY, "v1alpha1", "NetworkAuthentication"),
    ("", "v1", "Service"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Secret"),
    ("", "v1", "PersistentVolumeClaim"),
    (ADMISSION, "v1", "ValidatingAdmissionPolicyBinding"),
    (ADMISSION, "v1", "ValidatingAdmissionPolicy"),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding"),
    ("rbac.authorization.k8s.io", "v1", "Role"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole"),
    ("", "v1", "ServiceAccount"),
    ("apiextensions.k8s.io", "v1", DEFINITION),
    ("", "v1", NAMESPACE),
];

const ADMISSION: &str = "admissionregistration.k8s.io";
const POLICY: &str = "policy.linkerd.io";
const DEFINITION: &str = "CustomResourceDefinition";
const NAMESPACE: &str = "Namespace";

/// Objects that controllers and `meshctl identity rotate` create and use; they are not part of the
/// manifests.
const CREATED_BY_CONTROLLERS: [&str; 6] = [
    "linkerd-config-overrides",
    "linkerd-identity-issuer",
    "linkerd-identity-rotation",
    "linkerd-identity-trust-roots",
    "linkerd-proxy-injector-k8s-tls",
    "linkerd-trust-anchor",
];

/// The type and name of an object, which are sufficient to delete it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectRef {
    api_version: String,
    name: ObjectName,
}

/// Returns all objects with the label of this control plane.
pub(crate) async fn list_objects(cluster: &Cluster) -> anyhow::Result<Vec<ObjectRef>> {
    let label = format!("{CONTROL_PLANE_NS}={}", cluster.control_namespace);
    list_labelled(cluster, &label).await
}

/// Returns the objects of an extension with its label. Those that users created for it in other
/// namespaces (`viz allow-scrapes`) have the label too and are left out.
pub(crate) async fn list_extension(
    cluster: &Cluster,
    extension: &str,
    namespace: &str,
) -> anyhow::Result<Vec<ObjectRef>> {
    list_in(cluster, &format!("{EXTENSION}={extension}"), namespace).await
}

/// Returns the objects of an extension that a chart has, and none that other commands printed for
/// it, such as `multicluster allow`.
pub(crate) async fn list_chart(
    cluster: &Cluster,
    chart: Chart,
    extension: &str,
    namespace: &str,
) -> anyhow::Result<Vec<ObjectRef>> {
    let release = chart.name();
    let label = format!("{EXTENSION}={extension},app.kubernetes.io/instance={release}");
    list_in(cluster, &label, namespace).await
}

/// Returns the objects of the cluster, and of the namespace of an extension.
async fn list_in(
    cluster: &Cluster,
    label: &str,
    namespace: &str,
) -> anyhow::Result<Vec<ObjectRef>> {
    let mut found = list_labelled(cluster, label).await?;
    found.retain(|found| match &found.name.namespace {
        None => found.name.kind != NAMESPACE || found.name.name == namespace,
        // The permission to read the configuration of the API server.
        Some(name) => name == namespace || name == "kube-system",
    });
    Ok(found)
}

/// Kinds that the cluster does not serve are skipped.
async fn list_labelled(cluster: &Cluster, label: &str) -> anyhow::Result<Vec<ObjectRef>> {
    let selector = ListParams::default().labels(label);
    let mut found = Vec::new();
    for (group, version, kind) in KINDS {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &resource);
        let list = match api.list_metadata(&selector).await {
            Err(error) if error::is_missing(&error) => continue,
            other => {
                other.map_err(|error| error::failed(&format!("list {}", resource.plural), error))?
            }
        };
        // Kubernetes deletes objects together with their owners.
        let without_owner = list.items.into_iter().filter(|object| {
            object
                .metadata
                .owner_references
                .as_ref()
                .is_none_or(Vec::is_empty)
        });
        found.extend(without_owner.map(|object| ObjectRef {
            api_version: resource.api_version.clone(),
            name: ObjectName {
                kind: kind.to_owned(),
                namespace: object.metadata.namespace,
                name: object.metadata.name.unwrap_or_default(),
            },
        }));
    }
    Ok(found)
}

/// Returns the objects that uninstalling deletes. Custom resource definitions are included on
/// request only, because deleting them deletes all policies of the cluster.
pub(crate) fn for_deletion(found: Vec<ObjectRef>, definitions: bool) -> Vec<Manifest> {
    let kept = |found: &ObjectRef| definitions || found.name.kind != DEFINITION;
    found.into_iter().filter(kept).map(manifest).collect()
}

/// Returns the objects that are no longer part of the manifests and that no controller created.
pub(crate) fn obsolete(found: Vec<ObjectRef>, wanted: &HashSet<ObjectName>) -> Vec<Manifest> {
    let obsolete = found.into_iter().filter(|found| {
        !wanted.contains(&found.name) && !CREATED_BY_CONTROLLERS.contains(&found.name.name.as_str())
    });
    obsolete.map(manifest).collect()
}

fn manifest(found: ObjectRef) -> Manifest {
    let ObjectName {
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

    fn found(kind: &str, namespace: Option<&str>, name: &str) -> ObjectRef {
        ObjectRef {
            api_version: "v1".into(),
            name: ObjectName {
                kind: kind.into(),
                namespace: namespace.map(str::to_owned),
                name: name.into(),
            },
        }
    }

    #[test]
    fn definitions_are_deleted_on_request_only() {
        let all = vec![
            found("Service", Some("linkerd"), "a"),
            found(DEFINITION, None, "b"),
        ];
        assert_eq!(for_deletion(all.clone(), false).len(), 1);
        assert_eq!(for_deletion(all, true).len(), 2);
    }

    #[test]
    fn objects_of_manifests_and_controllers_are_not_obsolete() {
        let wanted = HashSet::from([found("Service", Some("linkerd"), "a").name]);
        let all = vec![
            found("Service", Some("linkerd"), "a"),
            found("Secret", Some("linkerd"), "linkerd-trust-anchor"),
            found("Service", Some("linkerd"), "old"),
        ];
        let left = obsolete(all, &wanted);
        assert_eq!(left.len(), 1);
        assert_eq!(
            left[0].text,
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: old\n  namespace: linkerd\n"
        );
    }
}
