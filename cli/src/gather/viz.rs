//! Gathers the facts about the viz extension.

use std::collections::BTreeSet;

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Resource};
use mesh_core::annotation::{EXTENSION, EXTERNAL_PROMETHEUS, VIZ};
use mesh_k8s::kinds::{
    ClusterRole, ClusterRoleBinding, MutatingWebhookConfiguration, Namespace, ResourceExt, Secret,
};
use mesh_k8s::pod;
use serde::de::DeserializeOwned;

use super::objects::{self, within};
use crate::clients::metrics_api::MetricsApi;
use crate::cluster::Cluster;
use crate::cluster::error::to_fact;
use crate::facts::names::{TAP_API, TAP_INJECTOR, TAP_INJECTOR_SECRET, TAP_SECRET};
use crate::facts::{Fact, Facts, SelfCheck};

/// Reads the objects of the extension and asks the metrics API about itself.
pub(super) async fn query(cluster: &Cluster, facts: &mut Facts) {
    let (namespaces, pods, config, policies) = tokio::join!(
        cluster.list_all::<Namespace>(),
        objects::pods(cluster),
        objects::config(cluster),
        objects::policies(cluster),
    );
    facts.objects.namespaces = to_fact("list the namespaces", namespaces);
    facts.objects.pods = pods;
    facts.objects.config = config;
    facts.objects.policies = policies;
    facts.viz.namespace = find_namespace(facts);
    let Ok(namespace) = facts.viz.namespace.clone() else {
        return;
    };
    let found = facts.namespace(&namespace);
    facts.viz.external_prometheus = found
        .and_then(|found| pod::meta_annotation(&found.metadata, EXTERNAL_PROMETHEUS))
        .map(str::to_owned);
    read_objects(cluster, facts, &namespace).await;
    match cluster.metrics_api(Some(&namespace)).await {
        Ok(api) => ask(&api, facts).await,
        Err(error) => {
            let error = format!("{error:#}");
            facts.viz.scraped = Err(error.clone());
            facts.viz.self_checks = Err(error);
        }
    }
}

/// Returns the namespace with the label of the extension.
fn find_namespace(facts: &Facts) -> Fact<String> {
    let namespaces = facts.objects.namespaces.as_ref().map_err(Clone::clone)?;
    let labelled = namespaces.iter().filter(|namespace| {
        let label = namespace.labels().get(EXTENSION);
        label.is_some_and(|extension| extension == VIZ)
    });
    let names: Vec<String> = labelled.map(ResourceExt::name_any).collect();
    match names.as_slice() {
        [name] => Ok(name.clone()),
        [] => Err(format!("no namespace has the label {EXTENSION}={VIZ}")),
        several => Err(format!(
            "several namespaces have the label {EXTENSION}={VIZ}: {}",
            several.join(", ")
        )),
    }
}

async fn read_objects(cluster: &Cluster, facts: &mut Facts, namespace: &str) {
    let api_services = ApiResource::from_gvk(&GroupVersionKind::gvk(
        "apiregistration.k8s.io",
        "v1",
        "APIService",
    ));
    let api_services: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &api_services);
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(cluster.client.clone());
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), namespace);
    let own = within(namespace);
    let first = async {
        tokio::join!(
            names::<ClusterRole>(cluster),
            names::<ClusterRoleBinding>(cluster),
            cluster.list(&own.0, own.1.clone()),
        )
    };
    let (roles, bindings, deployments) = Box::pin(first).await;
    let second = async {
        tokio::join!(
            api_services.get_opt(TAP_API),
            webhooks.get_opt(TAP_INJECTOR),
            secrets.get_opt(TAP_SECRET),
            secrets.get_opt(TAP_INJECTOR_SECRET),
        )
    };
    let (api_service, webhook, tap_secret, injector_secret) = Box::pin(second).await;
    let viz = &mut facts.viz;
    viz.cluster_roles = to_fact("list the ClusterRoles", roles);
    viz.cluster_role_bindings = to_fact("list the ClusterRoleBindings", bindings);
    viz.deployments = to_fact("list the Deployments of the extension", deployments);
    viz.api_service = to_fact(&format!("read APIService {TAP_API}"), api_service);
    viz.webhook = to_fact("read the tap injector's webhook", webhook);
    viz.tap_secret = to_fact("read the Secret of the tap API", tap_secret);
    viz.injector_secret = to_fact("read the Secret of the tap injector", injector_secret);
}

/// Returns the names of the cluster-scoped objects of the extension.
async fn names<K>(cluster: &Cluster) -> kube::Result<BTreeSet<String>>
where
    K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::all(cluster.client.clone());
    let labelled = ListParams::default().labels(&format!("{EXTENSION}={VIZ}"));
    let found = api.list_metadata(&labelled).await?;
    Ok(found.iter().map(ResourceExt::name_any).collect())
}

async fn ask(api: &MetricsApi, facts: &mut Facts) {
    let (checks, pods) = tokio::join!(api.self_check(), api.scraped_pods());
    facts.viz.self_checks = checks
        .map(|checks| {
            let checks = checks.into_iter();
            checks
                .map(|(description, problem)| SelfCheck {
                    description,
                    problem,
                })
                .collect()
        })
        .map_err(|error| format!("{error:#}"));
    facts.viz.scraped = pods.map_err(|error| format!("{error:#}"));
}
