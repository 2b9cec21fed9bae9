//! Computes the pods to run from manifests: expands Deployments, sets defaults, injects proxies and
//! rejects invalid pods. The same manifests always result in the same pods with the same names, so
//! that `apply` can detect changes by comparison.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodSpec, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use mesh_k8s::inject::{self, Values};
use mesh_k8s::pod::owner;
use mesh_runtime::log::chain;

use crate::manifest::{Manifests, ObjectKey, Problem};
use crate::{digest, observer};

mod validate;

/// The pods to run.
#[derive(Clone, Debug, Default)]
pub struct Workloads {
    pub pods: BTreeMap<ObjectKey, Workload>,
    /// The ReplicaSets of Deployments. The controllers find the Deployment of a pod through them.
    pub replica_sets: BTreeMap<ObjectKey, ReplicaSet>,
    pub problems: Vec<Problem>,
    /// Objects whose current version is invalid.
    rejected: BTreeSet<Origin>,
    /// Warnings of the injector.
    pub warnings: Vec<String>,
}

/// The kind and name of the manifest object of a pod.
pub type Origin = (&'static str, ObjectKey);

/// A pod with its sidecar, but without uid, addresses and status.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    pub pod: Pod,
    pub origin: Origin,
    /// Changes when the pod must be replaced.
    pub digest: String,
}

impl Workloads {
    /// Retains the pods of objects whose current version is invalid.
    pub fn retain_last_valid(&mut self, last: &Self) {
        for (key, workload) in &last.pods {
            if self.rejected.contains(&workload.origin) && !self.pods.contains_key(key) {
                self.pods.insert(key.clone(), workload.clone());
            }
        }
        for (key, set) in &last.replica_sets {
            let used = self.pods.keys().any(|pod| {
                pod.namespace == key.namespace && pod.name.starts_with(&format!("{}-", key.name))
            });
            if used {
                self.replica_sets
                    .entry(key.clone())
                    .or_insert_with(|| set.clone());
            }
        }
    }
}

/// The label of the Deployment controller on pods and ReplicaSets.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// Computes the pods of the manifests. Without values no pods are injected.
pub fn compute(
    manifests: &Manifests,
    values: Option<&Values>,
    capabilities: &NodeCapabilities<'_>,
) -> Workloads {
    let mut workloads = Workloads::default();
    let mut pods: Vec<(&'static str, ObjectKey, Pod)> = Vec::new();
    for (key, pod) in &manifests.pods {
        pods.push(("Pod", key.clone(), pod.clone()));
    }
    for (key, deployment) in &manifests.deployments {
        let (replica_set, expanded) = expand(key, deployment);
        let name = replica_set.metadata.name.clone().unwrap_or_default();
        workloads
            .replica_sets
            .insert(ObjectKey::new(&key.namespace, name), replica_set);
        pods.extend(
            expanded
                .into_iter()
                .map(|pod| ("Deployment", key.clone(), pod)),
        );
    }
    for (kind, origin, mut pod) in pods {
        let key = ObjectKey::fill_in(&mut pod.metadata);
        fill_in_defaults(&mut pod);
        if let Some(values) = values {
            match inject_pod(manifests, values, &workloads.replica_sets, &pod) {
                Ok((patched, warnings)) => {
                    pod = patched;
                    let named = warnings
                        .into_iter()
                        .map(|warning| format!("Pod {key}: {warning}"));
                    workloads.warnings.extend(named);
                }
                Err(message) => {
                    workloads
                        .problems
                        .push(manifests.problem(kind, &origin, message));
                    workloads.rejected.insert((kind, origin));
                    continue;
                }
            }
        }
        let errors = validate::errors(manifests, capabilities, &pod);
        if !errors.is_empty() {
            let errors = errors
                .into_iter()
                .map(|error| manifests.problem(kind, &origin, error));
            workloads.problems.extend(errors);
            workloads.rejected.insert((kind, origin));
            continue;
        }
        if workloads.pods.contains_key(&key) {
            let message = format!("duplicate pod name {}; rename one of the objects", key.name);
            workloads
                .problems
                .push(manifests.problem(kind, &origin, message));
            continue;
        }
        let digest = digest::of_json(&(&pod, referenced(manifests, &key.namespace, &pod)));
        let origin = (kind, origin);
        let workload = Workload {
            pod,
            origin,
            digest,
        };
        workloads.pods.insert(key, workload);
    }
    workloads
        .problems
        .extend(validate::host_port_clashes(&workloads.pods));
    // All replicas of a template have the same errors.
    workloads.problems.dedup();
    workloads
}

pub use validate::NodeCapabilities;

/// Returns the ReplicaSet and the pods of a Deployment. Their names are derived from the template.
fn expand(key: &ObjectKey, deployment: &Deployment) -> (ReplicaSet, Vec<Pod>) {
    let spec = deployment.spec.as_ref();
    let template = spec.map(|spec| spec.template.clone()).unwrap_or_default();
    let replicas = spec.and_then(|spec| spec.replicas).unwrap_or(1).max(0);
    let hash = digest::short(&digest::of_json(&template), 9);
    let name = format!("{}-{hash}", key.name);
    let uid = digest::uuid(&format!("ReplicaSet {}/{name}", key.namespace));
    let mut labels = template
        .metadata
        .as_ref()
        .and_then(|meta| meta.labels.clone())
        .unwrap_or_default();
    labels.insert(TEMPLATE_HASH.into(), hash);
    let replica_set = ReplicaSet {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(key.namespace.clone()),
            uid: Some(uid.clone()),
            labels: Some(labels.clone()),
            owner_references: Some(vec![controller(
                "Deployment",
                &key.name,
                digest::uuid(&format!("Deployment {key}")),
            )]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            ..ReplicaSetSpec::default()
        }),
        status: None,
    };
    let pods = (0..replicas).map(|ordinal| {
        let suffix = digest::short(&digest::of_text(&format!("{name} {ordinal}")), 5);
        let meta = template.metadata.clone().unwrap_or_default();
        Pod {
            metadata: ObjectMeta {
                name: Some(format!("{name}-{suffix}")),
                namespace: Some(key.namespace.clone()),
                labels: Some(labels.clone()),
                owner_references: Some(vec![controller("ReplicaSet", &name, uid.clone())]),
                ..meta
            },
            spec: template.spec.clone(),
            status: None,
        }
    });
    let pods = pods.collect();
    (replica_set, pods)
}

/// Returns the ConfigMaps and Secrets of a pod. The node replaces the pod when they change; unlike
/// the kubelet, it does not update files of running pods.
fn referenced(
    manifests: &Manifests,
    namespace: &str,
    pod: &Pod,
) -> Vec<(Option<ConfigMap>, Option<Secret>)> {
    let text = serde_json::to_value(&pod.spec).unwrap_or_default();
    let mut names = BTreeSet::new();
    collect_references(&text, &mut names);
    let look_up = |name: &String| {
        let key = ObjectKey::new(namespace, name);
        let map = manifests.config_maps.get(&key).cloned();
        (map, manifests.secrets.get(&key).cloned())
    };
    names.iter().map(look_up).collect()
}

/// Collects the names of all ConfigMap and Secret references in a pod's spec.
fn collect_references(value: &serde_json::Value, names: &mut BTreeSet<String>) {
    const REFERENCES: [&str; 6] = [
        "configMap",
        "secret",
        "configMapRef",
        "secretRef",
        "configMapKeyRef",
        "secretKeyRef",
    ];
    match value {
        serde_json::Value::Object(map) => {
            for (field, inner) in map {
                if REFERENCES.contains(&field.as_str()) {
                    let name = inner.get("name").or_else(|| inner.get("secretName"));
                    names.extend(name.and_then(|name| name.as_str()).map(str::to_owned));
                }
                collect_references(inner, names);
            }
        }
        serde_json::Value::Array(list) => {
            for inner in list {
                collect_references(inner, names);
            }
        }
        _ => {}
    }
}

fn controller(kind: &str, name: &str, uid: String) -> OwnerReference {
    OwnerReference {
        api_version: "apps/v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid,
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// Sets the defaults of the API server that the mesh uses.
fn fill_in_defaults(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_with(PodSpec::default);
    let account = spec
        .service_account_name
        .take()
        .filter(|name| !name.is_empty());
    spec.service_account_name = Some(account.unwrap_or_else(|| "default".to_owned()));
    pod.status = None;
}

/// Applies the patches of the injectors to a pod, and returns it with the warnings.
fn inject_pod(
    manifests: &Manifests,
    values: &Values,
    replica_sets: &BTreeMap<ObjectKey, ReplicaSet>,
    pod: &Pod,
) -> Result<(Pod, Vec<String>), String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    observer::check_account(namespace, mesh_k8s::pod::service_account(pod))?;
    let meta = manifests.namespace_meta(namespace);
    let owner = owner::resolve(pod, |kind, name| {
        let found =
            (kind == "replicaset").then(|| replica_sets.get(&ObjectKey::new(namespace, name)));
        found.flatten().map(|set| &set.metadata)
    });
    let outcome = inject::patch(values, &meta, pod, &owner).map_err(|error| error.to_string())?;
    let pod = patched(pod, &outcome.patch)?;
    let observer = observer::identity(values);
    let patch = inject::tap_patch(&meta, &pod, &observer).map_err(|error| error.to_string())?;
    Ok((patched(&pod, &patch)?, outcome.warnings))
}

fn patched(pod: &Pod, patch: &inject::Patch) -> Result<Pod, String> {
    let mut document = serde_json::to_value(pod).map_err(|error| error.to_string())?;
    patch.apply(&mut document).map_err(|error| chain(&error))?;
    serde_json::from_value(document).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
