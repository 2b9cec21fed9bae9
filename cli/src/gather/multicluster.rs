//! Gathers the facts about linked clusters: the objects in this cluster, what the credentials of
//! each Link show of its target, and what mirror controllers know about gateways.

mod access;
mod bundles;
mod target;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::Api;
use kube::api::ListParams;
use mesh_core::annotation::{
    CLUSTER_DOMAIN, CLUSTER_NAME, EXTENSION, MIRRORED_CLUSTER, MIRRORED_GATEWAY, MIRRORED_SERVICE,
    MULTICLUSTER, TRUST_DOMAIN,
};
use mesh_k8s::crd::Link;
use mesh_k8s::crd::link::CREDENTIALS_TYPE;
use mesh_k8s::invalid;
use mesh_k8s::kinds::{Deployment, Namespace, ResourceExt, Secret, Service};
use serde_json::Value;

use super::{objects, trust};
use crate::analyze::kinds::Kind;
use crate::clients;
use crate::cluster::error::to_fact;
use crate::cluster::mirrors::GatewayStatus;
use crate::cluster::{Cluster, Namespaced};
use crate::facts::{Credentials, Fact, Facts, LinkFacts, fact_ref};
use crate::resource::Scope;

/// The label of the Deployments of controllers, as in Linkerd: of `multicluster link`, and of the
/// chart of the extension.
const CONTROLLERS: &str = "component in (service-mirror, controller)";

const LINKS: Kind = ("multicluster.linkerd.io", &["v1alpha3"], "Link");

/// The status of gateways by the namespace of the controllers and the cluster.
type Gateways = BTreeMap<String, Fact<BTreeMap<String, Fact<Option<GatewayStatus>>>>>;

pub(super) async fn query(cluster: &Cluster, facts: &mut Facts, timeout: Duration) {
    Box::pin(read_objects(cluster, facts)).await;
    facts.trust.anchors = trust::anchors(facts);
    let namespaces = namespaces(facts);
    let pods = cluster.list_within(&namespaces, ListParams::default());
    facts.objects.pods = to_fact("list the pods of the extension", pods.await);
    if facts
        .multicluster
        .trust_bundles
        .as_ref()
        .is_ok_and(|it| !it.is_empty())
    {
        facts.multicluster.replicas = Box::pin(bundles::replicas(cluster, timeout)).await;
    }
    let Ok(links) = &facts.multicluster.links else {
        return;
    };
    let controllers = facts.multicluster.controllers.as_deref();
    let controllers = controllers.unwrap_or_default();
    let with_links: BTreeSet<String> = links.iter().map(|link| link.namespace.clone()).collect();
    let gateways = Box::pin(gateways(cluster, &with_links, timeout)).await;
    let queries = links.iter().map(|link| async {
        let Ok(object) = &link.link else {
            let unknown = LinkFacts::new(&link.namespace, &link.name, link.link.clone());
            return unknown;
        };
        let (target, denied) = tokio::join!(
            Box::pin(target::query(cluster, object, timeout)),
            Box::pin(access::denied(cluster, object, controllers)),
        );
        LinkFacts {
            target,
            denied,
            gateway: gateway(&gateways, &link.namespace, &object.spec.target_cluster_name),
            ..LinkFacts::new(&link.namespace, &link.name, Ok(object.clone()))
        }
    });
    let known = clients::concurrently(queries).await;
    facts.multicluster.links = Ok(known);
}

async fn read_objects(cluster: &Cluster, facts: &mut Facts) {
    let labelled = |labels: &str| ListParams::default().labels(labels);
    let own = Scope::Namespace(cluster.control_namespace.clone());
    let first = async {
        tokio::join!(
            objects::config(cluster),
            objects::trust_roots(cluster, &own),
            objects::trust_bundle(cluster),
            extension_namespaces(cluster),
            links(cluster),
            bundles::config_maps(cluster),
        )
    };
    let (config, roots, bundle, namespaces, links, bundles) = Box::pin(first).await;
    facts.objects.config = config;
    facts.objects.trust_roots = roots;
    facts.objects.trust_bundle = bundle;
    let known = &mut facts.multicluster;
    known.namespaces = namespaces;
    known.links = links;
    known.trust_bundles = bundles;
    let controllers = labelled(&format!("{CONTROLLERS},{MIRRORED_CLUSTER}"));
    let only_gateways = format!("{MIRRORED_GATEWAY},!{MIRRORED_SERVICE}");
    let second = async {
        tokio::join!(
            cluster.list::<Deployment>(&Scope::All, controllers),
            cluster.list::<Service>(&Scope::All, labelled(MIRRORED_SERVICE)),
            cluster.list::<Service>(&Scope::All, labelled(&only_gateways)),
            cluster.list(&Scope::All, labelled(MIRRORED_CLUSTER)),
            discovered(cluster),
        )
    };
    let (controllers, mirrors, gateways, endpoints, discovered) = Box::pin(second).await;
    known.controllers = to_fact("list the Deployments of mirror controllers", controllers);
    let services = mirrors.and_then(|mut mirrors| {
        mirrors.extend(gateways?);
        Ok(mirrors)
    });
    known.services = to_fact("list the mirrors of other clusters' Services", services);
    known.endpoints = to_fact("list the Endpoints of mirrors", endpoints);
    known.discovered = discovered;
}

async fn extension_namespaces(cluster: &Cluster) -> Fact<Vec<String>> {
    let api: Api<Namespace> = Api::all(cluster.client.clone());
    let labelled = ListParams::default().labels(&format!("{EXTENSION}={MULTICLUSTER}"));
    let found = to_fact("list the namespaces", api.list_metadata(&labelled).await)?;
    Ok(found.iter().map(ResourceExt::name_any).collect())
}

/// Returns the Links, valid or not.
async fn links(cluster: &Cluster) -> Fact<Vec<LinkFacts>> {
    let found = cluster.list_json([LINKS]).await;
    let found = found.map_err(|error| format!("{error:#}"))?;
    let links = found.items.into_iter().map(|object| {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let (namespace, name) = (text("namespace").to_owned(), text("name").to_owned());
        LinkFacts::new(&namespace, &name, read_link(object))
    });
    Ok(links.collect())
}

fn read_link(object: Value) -> Fact<Link> {
    let link: Link = serde_json::from_value(object).map_err(|error| error.to_string())?;
    match link.spec.problems() {
        problems if problems.is_empty() => Ok(link),
        problems => Err(invalid::summary(&problems)),
    }
}

/// Returns the Secrets of the control plane's namespace for linked clusters.
async fn discovered(cluster: &Cluster) -> Fact<Vec<Credentials>> {
    let own = Scope::Namespace(cluster.control_namespace.clone());
    let labelled = ListParams::default().labels(CLUSTER_NAME);
    let typed = labelled.clone().fields(&format!("type={CREDENTIALS_TYPE}"));
    let what = "list the credentials of the destination controller";
    let (all, followed) = tokio::join!(
        metadata::<Secret>(cluster, &own, &labelled),
        metadata::<Secret>(cluster, &own, &typed),
    );
    let (all, followed) = (to_fact(what, all)?, to_fact(what, followed)?);
    let credentials = all.into_iter().filter_map(|meta| {
        let annotation = |key: &str| meta.annotations.as_ref()?.get(key).cloned();
        Some(Credentials {
            cluster: meta.labels.as_ref()?.get(CLUSTER_NAME)?.clone(),
            trust_domain: annotation(TRUST_DOMAIN),
            cluster_domain: annotation(CLUSTER_DOMAIN),
            is_followed: followed.iter().any(|it| it.name == meta.name),
            secret: meta.name?,
        })
    });
    Ok(credentials.collect())
}

async fn metadata<K: Namespaced>(
    cluster: &Cluster,
    scope: &Scope,
    params: &ListParams,
) -> kube::Result<Vec<mesh_k8s::kinds::ObjectMeta>> {
    let api: Api<K> = match scope.namespace() {
        Some(namespace) => Api::namespaced(cluster.client.clone(), namespace),
        None => Api::all(cluster.client.clone()),
    };
    let found = api.list_metadata(params).await?;
    Ok(found.items.into_iter().map(|it| it.metadata).collect())
}

/// Returns the namespaces with pods of the extension.
fn namespaces(facts: &Facts) -> Vec<String> {
    let known = &facts.multicluster;
    let labelled = known.namespaces.iter().flatten().cloned();
    let of_links = known.links.iter().flatten();
    let all = labelled.chain(of_links.map(|link| link.namespace.clone()));
    all.collect::<BTreeSet<String>>().into_iter().collect()
}

async fn gateways(cluster: &Cluster, namespaces: &BTreeSet<String>, timeout: Duration) -> Gateways {
    let queries = namespaces.iter().map(|namespace| async move {
        let found = cluster.gateways(namespace, None, timeout).await;
        let found = found.map_err(|error| format!("{error:#}")).map(|found| {
            let statuses = found.into_iter();
            statuses
                .map(|(name, status)| (name, status.map_err(|error| format!("{error:#}"))))
                .collect()
        });
        (namespace.clone(), found)
    });
    clients::concurrently(queries).await.into_iter().collect()
}

fn gateway(gateways: &Gateways, namespace: &str, name: &str) -> Fact<Option<GatewayStatus>> {
    let Some(found) = gateways.get(namespace) else {
        return Ok(None);
    };
    match fact_ref(found)?.get(name) {
        Some(status) => status.clone(),
        None => Err(format!(
            "namespace {namespace} has no mirror controller of {name}"
        )),
    }
}

#[cfg(test)]
mod tests;
