//! Queries the permissions of the user and of the controllers. The API server evaluates them,
//! because roles alone do not show what its authorizers allow.

use kube::Api;
use kube::api::PostParams;
use mesh_core::identity::account_subject;
use mesh_k8s::heartbeat;
use mesh_k8s::kinds::authorization::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};

use crate::clients;
use crate::cluster::error::to_fact;
use crate::cluster::{Cluster, agent};
use crate::facts::{AccessReview, Fact, Facts, Permission, permission};

/// The permissions that each controller requires. Their roles grant more; the mesh fails without
/// these.
#[rustfmt::skip] // a table, one row a line
const CONTROLLERS: [(&str, Permission); 14] = [
    ("linkerd-identity", cluster_wide("create", "authentication.k8s.io", "tokenreviews")),
    ("linkerd-destination", cluster_wide("list", "", "pods")),
    ("linkerd-destination", cluster_wide("watch", "", "pods")),
    ("linkerd-destination", cluster_wide("list", "", "services")),
    ("linkerd-destination", cluster_wide("list", "discovery.k8s.io", "endpointslices")),
    ("linkerd-destination", cluster_wide("list", "apps", "replicasets")),
    ("linkerd-destination", cluster_wide("list", "policy.linkerd.io", "servers")),
    ("linkerd-destination", cluster_wide("list", "policy.linkerd.io", "authorizationpolicies")),
    ("linkerd-proxy-injector", cluster_wide("list", "", "namespaces")),
    ("linkerd-proxy-injector", cluster_wide("get", "apps", "replicasets")),
    ("mesh-agent", cluster_wide("list", "", "pods")),
    ("mesh-agent", cluster_wide("watch", "", "pods")),
    (heartbeat::NAME, cluster_wide("list", "", "namespaces")),
    (heartbeat::NAME, cluster_wide("list", "linkerd.io", "serviceprofiles")),
];

const fn cluster_wide(
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
) -> Permission {
    Permission {
        verb,
        group,
        resource,
        namespaced: false,
    }
}

pub(super) async fn of_user(cluster: &Cluster) -> Vec<AccessReview> {
    let reviews = permission::FOR_INSTALLATION
        .into_iter()
        .map(|permission| async move {
            AccessReview {
                account: None,
                permission,
                allowed: is_user_allowed(cluster, permission).await,
            }
        });
    clients::concurrently(reviews).await
}

pub(super) async fn of_controllers(cluster: &Cluster, facts: &Facts) -> Vec<AccessReview> {
    let reviews = CONTROLLERS
        .into_iter()
        .filter(|(account, _)| is_installed(facts, account))
        .map(|(account, permission)| async move {
            AccessReview {
                account: Some(account),
                permission,
                allowed: is_account_allowed(cluster, facts, account, permission).await,
            }
        });
    clients::concurrently(reviews).await
}

fn is_installed(facts: &Facts, account: &str) -> bool {
    match account {
        agent::NAME => facts.has_agents(),
        heartbeat::NAME => facts.sends_heartbeat(),
        _ => true,
    }
}

async fn is_user_allowed(cluster: &Cluster, permission: Permission) -> Fact<bool> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes(cluster, permission)),
            ..Default::default()
        },
        ..Default::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let created = api.create(&PostParams::default(), &review).await;
    let review = to_fact("query your permissions", created)?;
    Ok(review.status.is_some_and(|status| status.allowed))
}

async fn is_account_allowed(
    cluster: &Cluster,
    facts: &Facts,
    account: &str,
    permission: Permission,
) -> Fact<bool> {
    let namespace = match account {
        agent::NAME => facts.agent_namespace(),
        _ => cluster.control_namespace.clone(),
    };
    let attributes = attributes(cluster, permission);
    may(cluster, &namespace, account, attributes).await
}

/// Returns whether a ServiceAccount has a permission.
pub(super) async fn may(
    cluster: &Cluster,
    namespace: &str,
    account: &str,
    attributes: ResourceAttributes,
) -> Fact<bool> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(account_subject(namespace, account)),
            groups: Some(vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ]),
            resource_attributes: Some(attributes),
            ..Default::default()
        },
        ..Default::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(cluster.client.clone());
    let created = api.create(&PostParams::default(), &review).await;
    let review = to_fact("query the permissions of the controllers", created)?;
    Ok(review.status.is_some_and(|status| status.allowed))
}

fn attributes(cluster: &Cluster, permission: Permission) -> ResourceAttributes {
    ResourceAttributes {
        verb: Some(permission.verb.to_owned()),
        group: Some(permission.group.to_owned()),
        resource: Some(permission.resource.to_owned()),
        namespace: permission
            .namespaced
            .then(|| cluster.control_namespace.clone()),
        ..Default::default()
    }
}
