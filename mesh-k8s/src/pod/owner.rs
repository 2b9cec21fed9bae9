//! The workload that owns a pod, for metrics and labels.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// A workload that owns pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The kind, in lower case.
    pub kind: String,
    /// The name of the workload.
    pub name: String,
}

/// Returns the workload that owns a pod.
///
/// `lookup` returns the metadata of a ReplicaSet or Job (kind in lower case, name) of the pod's
/// namespace if it is known. A pod without owner reference, or with several, is its own owner. A
/// ReplicaSet whose controller is of another kind (an Argo Rollout, for example) is the owner.
pub fn resolve<'a>(pod: &Pod, lookup: impl FnOnce(&str, &str) -> Option<&'a ObjectMeta>) -> Owner {
    let Some(reference) = single(&pod.metadata) else {
        return Owner {
            kind: "pod".into(),
            name: pod.metadata.name.clone().unwrap_or_default(),
        };
    };
    let direct = Owner {
        kind: reference.kind.to_ascii_lowercase(),
        name: reference.name.clone(),
    };
    let known_parents: &[&str] = match direct.kind.as_str() {
        "replicaset" => &["deployment", "statefulset", "daemonset", "job"],
        "job" => &["cronjob"],
        _ => return direct,
    };
    let parent = lookup(&direct.kind, &direct.name).and_then(single);
    match parent {
        Some(parent) if known_parents.contains(&parent.kind.to_ascii_lowercase().as_str()) => {
            Owner {
                kind: parent.kind.to_ascii_lowercase(),
                name: parent.name.clone(),
            }
        }
        _ => direct,
    }
}

fn single(meta: &ObjectMeta) -> Option<&OwnerReference> {
    match meta.owner_references.as_deref() {
        Some([one]) => Some(one),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(owners: &[(&str, &str)]) -> ObjectMeta {
        ObjectMeta {
            name: Some("web-7f9c-x".into()),
            owner_references: Some(
                owners
                    .iter()
                    .map(|(kind, name)| OwnerReference {
                        kind: (*kind).into(),
                        name: (*name).into(),
                        ..Default::default()
                    })
                    .collect(),
            ),
            ..Default::default()
        }
    }

    fn check(owners: &[(&str, &str)], parent: Option<&[(&str, &str)]>, expect: (&str, &str)) {
        let pod = Pod {
            metadata: meta(owners),
            ..Default::default()
        };
        let parent = parent.map(meta);
        let owner = resolve(&pod, |_, _| parent.as_ref());
        assert_eq!((owner.kind.as_str(), owner.name.as_str()), expect);
    }

    #[test]
    fn owner_is_controller_of_known_kind_or_pod_itself() {
        let rs = [("ReplicaSet", "web-7f9c")];
        check(&[], None, ("pod", "web-7f9c-x"));
        check(&[("A", "a"), ("B", "b")], None, ("pod", "web-7f9c-x"));
        check(&rs, None, ("replicaset", "web-7f9c"));
        check(&rs, Some(&[("Deployment", "web")]), ("deployment", "web"));
        check(&rs, Some(&[("Rollout", "web")]), ("replicaset", "web-7f9c"));
        check(
            &[("Job", "nightly-1")],
            Some(&[("CronJob", "nightly")]),
            ("cronjob", "nightly"),
        );
        check(&[("Job", "once")], Some(&[]), ("job", "once"));
        check(&[("StatefulSet", "db")], None, ("statefulset", "db"));
    }
}
