//! Which permissions a mirror controller lacks in its own cluster.

use mesh_core::annotation::MIRRORED_CLUSTER;
use mesh_k8s::crd::Link;
use mesh_k8s::kinds::authorization::ResourceAttributes;
use mesh_k8s::kinds::{Deployment, ResourceExt};

use super::super::access;
use crate::clients;
use crate::cluster::Cluster;
use crate::cluster::mirrors::lease_name;
use crate::facts::Fact;

/// What a controller does, in all namespaces or in its own.
#[derive(Clone, Copy)]
struct Need {
    group: &'static str,
    resource: &'static str,
    subresource: Option<&'static str>,
    verbs: &'static [&'static str],
    only_own_namespace: bool,
    object: Object,
}

/// The objects that a permission is needed for.
#[derive(Clone, Copy)]
enum Object {
    All,
    /// The Secret with the credentials of the Link.
    Credentials,
    /// The Lease of the Link's controllers.
    Lease,
}

const FOLLOW: &[&str] = &["list", "watch"];
const WRITE: &[&str] = &["list", "watch", "create", "update", "delete"];

/// What a controller fails without. The roles of Linkerd's charts grant more.
const NEEDS: [Need; 8] = [
    everywhere("services", WRITE),
    everywhere("endpoints", WRITE),
    everywhere("namespaces", FOLLOW),
    Need {
        object: Object::Credentials,
        ..own("", "secrets", FOLLOW)
    },
    own("multicluster.linkerd.io", "links", FOLLOW),
    Need {
        subresource: Some("status"),
        ..own("multicluster.linkerd.io", "links", &["patch"])
    },
    own("coordination.k8s.io", "leases", &["create"]),
    Need {
        object: Object::Lease,
        ..own("coordination.k8s.io", "leases", &["get", "patch"])
    },
];

/// The flag of controllers that create the namespaces of mirrors.
const CREATES_NAMESPACES: &str = "enable-namespace-creation";

const fn everywhere(resource: &'static str, verbs: &'static [&'static str]) -> Need {
    Need {
        group: "",
        resource,
        subresource: None,
        verbs,
        only_own_namespace: false,
        object: Object::All,
    }
}

const fn own(group: &'static str, resource: &'static str, verbs: &'static [&'static str]) -> Need {
    Need {
        group,
        only_own_namespace: true,
        ..everywhere(resource, verbs)
    }
}

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
    let create = creates_namespaces(controller).then(|| everywhere("namespaces", &["create"]));
    let needs = NEEDS.into_iter().chain(create);
    let reviews = needs.flat_map(|need| need.verbs.iter().map(move |verb| (need, *verb)));
    let reviews = reviews.map(|(need, verb)| {
        let attributes = attributes(need, verb, link, &namespace);
        let namespace = &namespace;
        async move {
            let allowed = access::may(cluster, namespace, account, attributes).await?;
            Ok((!allowed).then(|| text(need, verb)))
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

fn attributes(need: Need, verb: &str, link: &Link, namespace: &str) -> ResourceAttributes {
    let name = match need.object {
        Object::All => None,
        Object::Credentials => Some(link.spec.cluster_credentials_secret.clone()),
        Object::Lease => Some(lease_name(&link.spec.target_cluster_name)),
    };
    ResourceAttributes {
        group: Some(need.group.to_owned()),
        resource: Some(need.resource.to_owned()),
        subresource: need.subresource.map(str::to_owned),
        verb: Some(verb.to_owned()),
        namespace: need.only_own_namespace.then(|| namespace.to_owned()),
        name,
        ..ResourceAttributes::default()
    }
}

fn text(need: Need, verb: &str) -> String {
    let subresource = need.subresource.map(|name| format!("/{name}"));
    format!(
        "{verb} {}{}",
        need.resource,
        subresource.unwrap_or_default()
    )
}
