//! The pods of a workload or a Service, for the pages that show each of them.

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use mesh_api::linkerd2::viz::pod::Owner;
use mesh_api::linkerd2::viz::{Pod as Listed, Resource};
use mesh_k8s::pod::{control_plane_namespace, is_terminal};

use super::client::Failure;
use super::json::owner_field;
use super::sources::Sources;
use super::{endpoints, objects};

/// Some of the pods of a workload.
#[derive(Debug)]
pub(super) struct PodsOf {
    /// Running ones first, then by name. Terminated pods and those that have gone in the meantime
    /// are left out.
    pub(super) pods: Vec<Pod>,
    /// The number of further pods, including terminated ones.
    pub(super) omitted: usize,
}

/// The pods that are read. Pods of one workload differ during a rollout only.
pub(super) const MAX_PODS: usize = 20;

/// Calls to the API server at a time.
const CONCURRENT_CALLS: usize = 8;

/// The status of a pod whose containers run, in the metrics API and in `kubectl get pods`.
const RUNNING: &str = "Running";

/// Reads the pods of a resource.
pub(super) async fn pods_of(sources: &Sources, resource: &Resource) -> Result<PodsOf, Failure> {
    let names = names(sources, resource).await?;
    let omitted = names.len().saturating_sub(MAX_PODS);
    let read = stream::iter(names.into_iter().take(MAX_PODS))
        .map(|name| read(sources, &resource.namespace, name))
        .buffered(CONCURRENT_CALLS);
    let pods: Vec<Option<Pod>> = read.try_collect().await?;
    let pods = pods.into_iter().flatten().filter(|pod| !is_terminal(pod));
    Ok(PodsOf {
        pods: pods.collect(),
        omitted,
    })
}

pub(super) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub(super) fn is_meshed(pod: &Pod) -> bool {
    control_plane_namespace(pod).is_some()
}

async fn names(sources: &Sources, resource: &Resource) -> Result<Vec<String>, Failure> {
    match resource.r#type.as_str() {
        "pod" => Ok(vec![resource.name.clone()]),
        "service" => endpoints::pods(sources, resource).await,
        kind => {
            let listed = sources.metrics.pods(&resource.namespace).await?;
            let full = format!("{}/{}", resource.namespace, resource.name);
            Ok(names_of(&listed, kind, &full))
        }
    }
}

/// Returns the names of the pods of an owner, running ones first: a Job has many that are not.
fn names_of(pods: &[Listed], kind: &str, full: &str) -> Vec<String> {
    let owned = pods.iter().filter(|pod| {
        let owner = pod.owner.as_ref();
        owner.is_some_and(|owner| is_named(owner, kind, full))
    });
    let mut names: Vec<(bool, &str)> = owned
        .filter_map(|pod| Some((pod.status != RUNNING, pod.name.split_once('/')?.1)))
        .collect();
    names.sort_unstable();
    names.into_iter().map(|(_, name)| name.to_owned()).collect()
}

/// Whether an owner has this type, and this namespace and name.
fn is_named(owner: &Owner, kind: &str, full: &str) -> bool {
    let (field, name) = owner_field(owner);
    // Types of resources are written without capitals.
    field.to_ascii_lowercase() == kind && name == full
}

/// Reads a pod; `None` if it does not exist.
async fn read(sources: &Sources, namespace: &str, name: String) -> Result<Option<Pod>, Failure> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let object = match objects::get(&sources.cluster, &path).await {
        Ok(object) => object,
        Err(failure) if failure.status == StatusCode::NOT_FOUND => return Ok(None),
        Err(failure) => return Err(failure),
    };
    serde_json::from_value(object)
        .map(Some)
        .map_err(|error| Failure {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            error: format!("the pod {namespace}/{name} of the API server is not a pod: {error}"),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_pods_of_an_owner_come_first() {
        let listed = |name: &str, status: &str, owner| Listed {
            name: name.to_owned(),
            status: status.to_owned(),
            owner: Some(owner),
            ..Listed::default()
        };
        let job = || Owner::Job("shop/nightly".to_owned());
        let pods = [
            listed("shop/a", "Completed", job()),
            listed("shop/c", RUNNING, job()),
            listed("shop/b", RUNNING, job()),
            listed("shop/d", RUNNING, Owner::Job("other/nightly".to_owned())),
            listed(
                "shop/e",
                RUNNING,
                Owner::Deployment("shop/nightly".to_owned()),
            ),
        ];
        assert_eq!(names_of(&pods, "job", "shop/nightly"), ["b", "c", "a"]);
    }
}
