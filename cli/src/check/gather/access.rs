//! What you, and the controllers, may do: asked of the API server, which knows better than any
//! reading of roles.

use futures_util::{StreamExt as _, stream};
use kube::{Api, api::PostParams};
use mesh_k8s::kinds::authorization::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};

use super::{
    super::{
        facts::{Access, Permission, Seen},
        setup::NEEDED,
    },
    seen,
};
use crate::{clients, cluster::Cluster};

/// What each controller cannot work without. Roles grant more; this is what breaks the mesh when it
/// is missing.
const CONTROLLERS: [(&str, Permission); 12] = [
    (
        "linkerd-identity",
        all("create", "authentication.k8s.io", "tokenreviews"),
    ),
    ("linkerd-destination", all("list", "", "pods")),
    ("linkerd-destination", all("watch", "", "pods")),
    ("linkerd-destination", all("list", "", "services")),
    (
        "linkerd-destination",
        all("list", "discovery.k8s.io", "endpointslices"),
    ),
    ("linkerd-destination", all("list", "apps", "replicasets")),
    (
        "linkerd-destination",
        all("list", "policy.linkerd.io", "servers"),
    ),
    (
        "linkerd-destination",
        all("list", "policy.linkerd.io", "authorizationpolicies"),
    ),
    ("linkerd-proxy-injector", all("list", "", "namespaces")),
    ("linkerd-proxy-injector", all("get", "apps", "replicasets")),
    ("mesh-agent", all("list", "", "pods")),
    ("mesh-agent", all("watch", "", "pods")),
];

const fn all(verb: &'static str, group: &'static str, resource: &'static str) -> Permission {
    Permission {
        verb,
        group,
        resource,
        namespaced: false,
    }
}

pub(super) async fn of_user(cluster: &Cluster) -> Vec<Access> {
    let asked = NEEDED.into_iter().map(|what| async move {
        Access {
            who: None,
            what,
            allowed: may_i(cluster, what).await,
        }
    });
    stream::iter(asked)
        .buffered(clients::MAX_CONCURRENT)
        .collect()
        .await
}

pub(super) async fn of_controllers(cluster: &Cluster, agents: bool) -> Vec<Access> {
    let asked = CONTROLLERS
        .into_iter()
        .filter(|(who, _)| agents || *who != crate::cluster::agent::NAME)
        .map(|(who, what)| async move {
            Access {
                who: Some(who),
                what,
                allowed: may(cluster, who, what).await,
            }
        });
    stream::iter(asked)
        .buffered(clients::MAX_CONCURRENT)
        .collect()
        .await
}

async fn may_i(cluster: &Cluster, what: Permission) -> Seen<bool> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes(cluster, what)),
            ..Default::default()
        },
        ..Default::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let answer = seen(
        "ask what you may do",
        api.create(&PostParams::default(), &review).await,
    )?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

async fn may(cluster: &Cluster, who: &str, what: Permission) -> Seen<bool> {
    let namespace = &cluster.control_namespace;
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{namespace}:{who}")),
            groups: Some(vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ]),
            resource_attributes: Some(attributes(cluster, what)),
            ..Default::default()
        },
        ..Default::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(cluster.client.clone());
    let answer = seen(
        "ask what the controllers may do",
        api.create(&PostParams::default(), &review).await,
    )?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

fn attributes(cluster: &Cluster, what: Permission) -> ResourceAttributes {
    ResourceAttributes {
        verb: Some(what.verb.to_owned()),
        group: Some(what.group.to_owned()),
        resource: Some(what.resource.to_owned()),
        namespace: what.namespaced.then(|| cluster.control_namespace.clone()),
        ..Default::default()
    }
}
