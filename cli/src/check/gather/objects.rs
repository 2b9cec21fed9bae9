//! The objects of a cluster, every kind at the same time.

use std::collections::BTreeSet;

use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use mesh_k8s::kinds::{ConfigMap, Lease, Pod};
use serde_json::Value;

use super::{
    super::{
        facts::{Facts, Seen},
        identity::TRUST_ROOTS,
        webhook,
    },
    seen, within,
};
use crate::{
    cluster::{Cluster, error},
    mesh::Scope,
};

/// The groups whose kinds the mesh reads.
const GROUPS: [&str; 4] = [
    "policy.linkerd.io",
    "linkerd.io",
    "workload.linkerd.io",
    "gateway.networking.k8s.io",
];

/// Which kinds the API server serves, in which versions; asked of discovery, which everybody may
/// read.
pub(super) async fn served(cluster: &Cluster) -> Seen<BTreeSet<String>> {
    let what = "ask which kinds are served";
    let groups = seen(what, cluster.client.list_api_groups().await)?;
    let mut served = BTreeSet::new();
    for group in groups
        .groups
        .iter()
        .filter(|group| GROUPS.contains(&group.name.as_str()))
    {
        for version in &group.versions {
            let version = &version.group_version;
            match cluster.client.list_api_group_resources(version).await {
                Ok(list) => served.extend(
                    list.resources
                        .iter()
                        .map(|resource| format!("{version}/{}", resource.kind)),
                ),
                // A definition that was made or deleted this moment is in the one list and not in
                // the other.
                Err(error) if error::is_missing(&error) => {}
                Err(error) => return seen(what, Err(error)),
            }
        }
    }
    Ok(served)
}

pub(super) async fn look(cluster: &Cluster, facts: &mut Facts) {
    let control = facts.control_namespace.clone();
    let (own, all) = (within(&control), (Scope::All, ListParams::default()));
    let by_name = ListParams::default().fields(&format!("metadata.name={TRUST_ROOTS}"));
    let objects = &mut facts.objects;
    let configuration = Api::all(cluster.client.clone());
    let first = async {
        let (namespaces, nodes, leases, pods, services, webhooks) = tokio::join!(
            cluster.list_all(),
            cluster.list_all(),
            leases(cluster),
            pods(cluster),
            cluster.list(&all.0, all.1.clone()),
            configuration.get_opt(webhook::CONFIGURATION),
        );
        objects.namespaces = seen("list the namespaces", namespaces);
        objects.nodes = seen("list the nodes", nodes);
        objects.leases = leases;
        objects.pods = pods;
        objects.services = seen("list the Services", services);
        objects.webhooks = seen("read the injector's webhook", webhooks);
    };
    Box::pin(first).await;
    let second = async {
        let (events, slices, deployments, daemon_sets, accounts, config) = tokio::join!(
            cluster.list(&own.0, own.1.clone().fields("type=Warning")),
            cluster.list(&own.0, own.1.clone()),
            cluster.list(&own.0, own.1.clone()),
            cluster.list(&own.0, own.1.clone()),
            cluster.list(&own.0, own.1.clone()),
            config(cluster),
        );
        objects.events = seen("list the control plane's events", events);
        objects.slices = seen("list the control plane's EndpointSlices", slices);
        objects.deployments = seen("list the control plane's Deployments", deployments);
        objects.daemon_sets = seen("list the control plane's DaemonSets", daemon_sets);
        objects.accounts = seen("list the control plane's ServiceAccounts", accounts);
        objects.config = config;
    };
    let third = async {
        let (trust_roots, secret, cilium, policies) = tokio::join!(
            cluster.list(&all.0, by_name),
            cluster.control_object(webhook::SECRET),
            cilium(cluster),
            policies(cluster),
        );
        (
            seen("list the ConfigMaps of trust roots", trust_roots),
            seen("read the injector's Secret", secret),
            cilium,
            policies,
        )
    };
    let ((), (trust_roots, secret, cilium, policies)) =
        tokio::join!(Box::pin(second), Box::pin(third));
    objects.trust_roots = trust_roots;
    objects.webhook_secret = secret;
    objects.cilium = cilium;
    objects.policies = policies;
}

pub(super) async fn pods(cluster: &Cluster) -> Seen<Vec<Pod>> {
    seen(
        "list the pods",
        cluster.list(&Scope::All, ListParams::default()).await,
    )
}

/// Where nodes renew their heartbeats.
pub(super) async fn leases(cluster: &Cluster) -> Seen<Vec<Lease>> {
    let (scope, params) = within("kube-node-lease");
    seen("list the nodes' leases", cluster.list(&scope, params).await)
}

pub(super) async fn config(cluster: &Cluster) -> Seen<Option<ConfigMap>> {
    seen(
        "read ConfigMap linkerd-config",
        cluster.control_object("linkerd-config").await,
    )
}

pub(super) async fn cilium(cluster: &Cluster) -> Seen<Option<ConfigMap>> {
    let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "kube-system");
    seen(
        "read Cilium's configuration",
        api.get_opt("cilium-config").await,
    )
}

/// Group, version, kind and plural of what policies are made of.
const POLICIES: [(&str, &str, &str, &str); 9] = [
    ("policy.linkerd.io", "v1beta3", "Server", "servers"),
    (
        "policy.linkerd.io",
        "v1beta1",
        "ServerAuthorization",
        "serverauthorizations",
    ),
    (
        "policy.linkerd.io",
        "v1alpha1",
        "AuthorizationPolicy",
        "authorizationpolicies",
    ),
    (
        "policy.linkerd.io",
        "v1alpha1",
        "MeshTLSAuthentication",
        "meshtlsauthentications",
    ),
    (
        "policy.linkerd.io",
        "v1alpha1",
        "NetworkAuthentication",
        "networkauthentications",
    ),
    ("policy.linkerd.io", "v1beta3", "HTTPRoute", "httproutes"),
    (
        "policy.linkerd.io",
        "v1alpha1",
        "HTTPLocalRateLimitPolicy",
        "httplocalratelimitpolicies",
    ),
    ("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes"),
    ("gateway.networking.k8s.io", "v1", "GRPCRoute", "grpcroutes"),
];

/// As they are, so that one that cannot be read is an object with a name and not the end of the
/// list.
pub(super) async fn policies(cluster: &Cluster) -> Seen<Vec<Value>> {
    let mut all = Vec::new();
    for (group, version, kind, plural) in POLICIES {
        let kind_of = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&kind_of, plural);
        let api: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &resource);
        match api.list(&ListParams::default()).await {
            Ok(list) => {
                for object in list.items {
                    let mut value =
                        serde_json::to_value(object).map_err(|error| error.to_string())?;
                    value["apiVersion"] = Value::from(format!("{group}/{version}"));
                    value["kind"] = Value::from(kind);
                    all.push(value);
                }
            }
            // Not served: a check of its own says so.
            Err(error) if error::is_missing(&error) => {}
            Err(error) => return seen(&format!("list {plural}.{group}"), Err(error)),
        }
    }
    Ok(all)
}
