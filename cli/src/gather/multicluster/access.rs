//! Which permissions a mirror controller lacks in its own cluster.

use mesh_core::annotation::MIRRORED_CLUSTER;
use mesh_core::rights::{Right, service_mirror};
use mesh_k8s::crd::Link;
use mesh_k8s::kinds::authorization::ResourceAttributes;
use mesh_k8s::kinds::{Deployment, ResourceExt};

use super::super::access;
use crate::clients;
use crate::cluster::Cluster;
use crate::cluster::mirrors::lease_name;
use crate::facts::Fact;

/// The flag of controllers that create the namespaces of mirrors.
const CREATES_NAMESPACES: &str = "enable-namespace-creation";

/// Returns the permissions that the controller of a Link lacks. A Link without a controller lacks
/// none.
pub(super) async fn denied(
    cluster: &Cluster,
    link: &Link,
    controllers: &[Deployment],
) -> Fact<Vec<String>> {
    let namespace = link.namespace().unwrap_or_default();
    let target = &link.spec.target_cluster_name;
    let of_link = |controller: &&Deployment| {
        controller.namespace().as_ref() == Some(&namespace)
            && controller.labels().get(MIRRORED_CLUSTER) == Some(target)
    };
    let Some(controller) = controllers.iter().find(of_link) else {
        return Ok(Vec::new());
    };
    let pod = controller.spec.as_ref();
    let pod = pod.and_then(|spec| spec.template.spec.as_ref());
    let account = pod.and_then(|pod| pod.service_account_name.as_deref());
    let account = account.unwrap_or("default");
    let needs = service_mirror::everywhere(creates_namespaces(controller));
    let needs = needs.map(|right| (right, None));
    let credentials = link.spec.cluster_credentials_secret.clone();
    let own = service_mirror::in_namespace_of_link(credentials, lease_name(target));
    let own = own.map(|right| (right, Some(&*namespace)));
    let reviews = needs.chain(own).map(|(right, within)| {
        let namespace = &namespace;
        async move {
            let attributes = attributes(&right, within);
            let allowed = access::may(cluster, namespace, account, attributes).await?;
            Ok((!allowed).then(|| right.to_string()))
        }
    });
    let denied: Fact<Vec<Option<String>>> =
        clients::concurrently(reviews).await.into_iter().collect();
    Ok(denied?.into_iter().flatten().collect())
}

fn creates_namespaces(controller: &Deployment) -> bool {
    let pod = controller.spec.as_ref();
    let pod = pod.and_then(|spec| spec.template.spec.as_ref());
    let mut arguments = pod
        .into_iter()
        .flat_map(|pod| &pod.containers)
        .flat_map(|container| container.args.iter().flatten());
    arguments.any(|argument| {
        let flag = argument.trim_start_matches('-');
        flag == CREATES_NAMESPACES || flag.strip_prefix(CREATES_NAMESPACES) == Some("=true")
    })
}

/// Returns the question about a right, in all namespaces or in one.
pub(super) fn attributes(right: &Right, namespace: Option<&str>) -> ResourceAttributes {
    let (resource, subresource) = match right.resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource)),
        None => (right.resource.as_ref(), None),
    };
    ResourceAttributes {
        group: Some(right.group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource: subresource.map(str::to_owned),
        verb: Some(right.verb.to_owned()),
        namespace: namespace.map(str::to_owned),
        name: right.name.as_deref().map(str::to_owned),
        ..ResourceAttributes::default()
    }
}
