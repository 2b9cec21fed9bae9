//! Reads the objects of a cluster, all kinds concurrently.

use std::collections::BTreeSet;

use kube::Api;
use kube::api::ListParams;
use mesh_k8s::denied_identities::CONFIG_MAP as DENIED_IDENTITIES;
use mesh_k8s::kinds::{ConfigMap, Lease, Pod, ValidatingWebhookConfiguration};
use serde_json::Value;

use crate::analyze::kinds::{Kind, POLICIES, WORKLOADS};
use crate::clients;
use crate::cluster::Cluster;
use crate::cluster::error::{self, to_fact};
use crate::facts::names::{
    DNS_CONFIG, INJECTOR_REGISTRATION, INJECTOR_SECRET, SYSTEM_NAMESPACE, TRUST_BUNDLE,
    TRUST_ROOTS, VALIDATORS, ValidatorNames,
};
use crate::facts::{Fact, Facts, Mode, ValidatorObjects};
use crate::resource::Scope;

/// The API groups that the mesh uses.
const GROUPS: [&str; 5] = [
    "policy.linkerd.io",
    "linkerd.io",
    "workload.linkerd.io",
    "multicluster.linkerd.io",
    "gateway.networking.k8s.io",
];

/// Returns the list parameters for all objects of a namespace.
pub(super) fn within(namespace: &str) -> (Scope, ListParams) {
    (
        Scope::Namespace(namespace.to_owned()),
        ListParams::default(),
    )
}

/// Returns the kinds and versions that the API server serves. Any user may read discovery.
pub(super) async fn served(cluster: &Cluster) -> Fact<BTreeSet<String>> {
    let what = "query which kinds are served";
    let groups = to_fact(what, cluster.client.list_api_groups().await)?;
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
                // A definition that is created or deleted concurrently may be in one of the lists
                // only.
                Err(error) if error::is_missing(&error) => {}
                Err(error) => return to_fact(what, Err(error)),
            }
        }
    }
    Ok(served)
}

pub(super) async fn read(cluster: &Cluster, facts: &mut Facts) {
    let control = facts.control_namespace.clone();
    let (own, all) = (within(&control), (Scope::All, ListParams::default()));
    let objects = &mut facts.objects;
    let configuration = Api::all(cluster.client.clone());
    let first = async {
        let (namespaces, nodes, leases, pods, services, webhooks, config) = tokio::join!(
            cluster.list_all(),
            cluster.list_all(),
            leases(cluster),
            pods(cluster),
            cluster.list(&all.0, all.1.clone()),
            configuration.get_opt(INJECTOR_REGISTRATION),
            config(cluster),
        );
        objects.namespaces = to_fact("list the namespaces", namespaces);
        objects.nodes = to_fact("list the nodes", nodes);
        objects.leases = leases;
        objects.pods = pods;
        objects.services = to_fact("list the Services", services);
        objects.webhooks = to_fact("read the injector's webhook", webhooks);
        objects.config = config;
    };
    Box::pin(first).await;
    let mut namespaces = vec![control.clone()];
    namespaces.extend(facts.has_agents().then(|| facts.agent_namespace()));
    namespaces.dedup();
    let objects = &mut facts.objects;
    let second = async {
        let (events, slices, deployments, daemon_sets, cron_jobs, accounts) = tokio::join!(
            cluster.list_within(&namespaces, own.1.clone().fields("type=Warning")),
            cluster.list(&own.0, own.1.clone()),
            cluster.list(&own.0, own.1.clone()),
            cluster.list_within(&namespaces, own.1.clone()),
            cluster.list(&own.0, own.1.clone()),
            cluster.list_within(&namespaces, own.1.clone()),
        );
        objects.events = to_fact("list the control plane's events", events);
        objects.slices = to_fact("list the control plane's EndpointSlices", slices);
        objects.deployments = to_fact("list the control plane's Deployments", deployments);
        objects.daemon_sets = to_fact("list the control plane's DaemonSets", daemon_sets);
        objects.cron_jobs = to_fact("list the control plane's CronJobs", cron_jobs);
        objects.accounts = to_fact("list the control plane's ServiceAccounts", accounts);
    };
    let third = async {
        let (trust_roots, trust_bundle, denied, secret, cilium, policies, validators) = tokio::join!(
            trust_roots(cluster, &all.0),
            trust_bundle(cluster),
            cluster.control_object(DENIED_IDENTITIES),
            cluster.control_object(INJECTOR_SECRET),
            cilium(cluster),
            policies(cluster),
            clients::concurrently(VALIDATORS.map(|names| validator(cluster, names))),
        );
        (
            trust_roots,
            trust_bundle,
            to_fact("read the list of denied identities", denied),
            to_fact("read the injector's Secret", secret),
            cilium,
            policies,
            validators,
        )
    };
    let ((), (trust_roots, trust_bundle, denied, secret, cilium, policies, validators)) =
        tokio::join!(Box::pin(second), Box::pin(third));
    objects.trust_roots = trust_roots;
    objects.trust_bundle = trust_bundle;
    objects.denied_identities = denied;
    objects.webhook_secret = secret;
    objects.cilium = cilium;
    objects.policies = policies;
    objects.validators = validators.into_iter().collect();
    let system = within(SYSTEM_NAMESPACE);
    let (own_leases, system_leases, slices, network_policies, cluster_dns) = tokio::join!(
        cluster.list(&own.0, own.1.clone()),
        cluster.list(&system.0, system.1.clone()),
        cluster.list(&system.0, system.1.clone()),
        cluster.list_all(),
        config_map(cluster, DNS_CONFIG),
    );
    objects.network_policies = to_fact("list the NetworkPolicies", network_policies);
    objects.cluster_dns = to_fact("read the configuration of CoreDNS", cluster_dns);
    objects.leader_leases = to_fact("list the control plane's Leases", own_leases);
    let system_leases: Fact<Vec<Lease>> = to_fact("list the Leases of kube-system", system_leases);
    if let Ok(leases) = &mut objects.leader_leases {
        leases.extend(system_leases.unwrap_or_default());
    }
    objects.system_slices = to_fact("list the EndpointSlices of kube-system", slices);
    // Only the rows about applications' objects use them.
    if facts.mode == (Mode::Installed { proxies: true }) {
        let failed = all.1.fields("type=Warning,reason=FailedCreate");
        let (workloads, failed) = tokio::join!(
            Box::pin(json(cluster, &WORKLOADS)),
            cluster.list(&all.0, failed),
        );
        objects.workloads = workloads;
        objects.failed_creates = to_fact("list the events of pods that were not created", failed);
    }
}

async fn validator(cluster: &Cluster, names: ValidatorNames) -> (&'static str, ValidatorObjects) {
    let registrations: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
    let (registration, secret) = tokio::join!(
        registrations.get_opt(names.registration),
        cluster.control_object(names.secret),
    );
    let objects = ValidatorObjects {
        registration: to_fact("read a validator's webhook", registration),
        secret: to_fact("read a validator's Secret", secret),
    };
    (names.container, objects)
}

pub(super) async fn pods(cluster: &Cluster) -> Fact<Vec<Pod>> {
    to_fact(
        "list the pods",
        cluster.list(&Scope::All, ListParams::default()).await,
    )
}

/// Returns the leases that nodes renew as their heartbeat.
pub(super) async fn leases(cluster: &Cluster) -> Fact<Vec<Lease>> {
    let (scope, params) = within("kube-node-lease");
    to_fact("list the nodes' leases", cluster.list(&scope, params).await)
}

pub(super) async fn config(cluster: &Cluster) -> Fact<Option<ConfigMap>> {
    to_fact(
        "read ConfigMap linkerd-config",
        cluster.control_object("linkerd-config").await,
    )
}

/// Returns the ConfigMaps with trust anchors.
pub(super) async fn trust_roots(cluster: &Cluster, scope: &Scope) -> Fact<Vec<ConfigMap>> {
    let by_name = ListParams::default().fields(&format!("metadata.name={TRUST_ROOTS}"));
    let found = cluster.list(scope, by_name).await;
    to_fact("list the ConfigMaps of trust roots", found)
}

/// Returns the ConfigMap with the anchors that the identity service sends.
pub(super) async fn trust_bundle(cluster: &Cluster) -> Fact<Option<ConfigMap>> {
    let found = cluster.control_object(TRUST_BUNDLE).await;
    to_fact("read ConfigMap linkerd-identity-trust-bundle", found)
}

pub(super) async fn cilium(cluster: &Cluster) -> Fact<Option<ConfigMap>> {
    let config = config_map(cluster, "cilium-config").await;
    to_fact("read Cilium's configuration", config)
}

/// Returns a ConfigMap of kube-system.
async fn config_map(cluster: &Cluster, name: &str) -> kube::Result<Option<ConfigMap>> {
    let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    api.get_opt(name).await
}

/// Returns policies, routes, ServiceProfiles and ExternalWorkloads in JSON, so that an invalid
/// object does not fail the list and can be named. A kind that is not served has none, which
/// `l5d-existence-crd` or `gateway-api-crd` reports.
pub(super) async fn policies(cluster: &Cluster) -> Fact<Vec<Value>> {
    json(cluster, &POLICIES).await
}

pub(super) async fn json(cluster: &Cluster, kinds: &[Kind]) -> Fact<Vec<Value>> {
    let read = cluster.list_json(kinds.iter().copied()).await;
    read.map(|objects| objects.items)
        .map_err(|error| format!("{error:#}"))
}
