//! An application of several services in a mesh that was just installed: by Helm, by
//! `meshctl install`, on each tier; and nothing is left when it goes.

use std::collections::{BTreeMap, BTreeSet};

use crate::{cluster::Cluster, installation::Installation, node::Nodes, shop::Shop};

#[test]
fn installed_by_helm_on_every_tier() {
    let Some(cluster) = Cluster::given("an application in a mesh installed by Helm") else {
        return;
    };
    let before = Before::look_at(&cluster);
    let mesh = Installation::by_helm(&cluster, &[]);
    {
        let shop = opened(&cluster);
        let mut tier = "full";
        for next in ["nft", "iptables", "full"] {
            let setting = format!("meshAgent.tier={next}");
            mesh.upgrade(&[&setting]);
            // A pod keeps its tier as long as it lives.
            shop.is_redirected(tier);
            shop.works();
            shop.restart();
            shop.works();
            shop.is_authenticated();
            shop.is_redirected(next);
            tier = next;
        }
    }
    mesh.remove();
    before.is_all_there_is();
}

#[test]
fn installed_by_meshctl() {
    let Some(cluster) = Cluster::given("an application in a mesh installed by meshctl") else {
        return;
    };
    let before = Before::look_at(&cluster);
    let mesh = Installation::by_meshctl(&cluster);
    drop(opened(&cluster));
    mesh.remove();
    before.is_all_there_is();
}

/// Where nodes can run no agent, each pod's own init container redirects it.
#[test]
fn with_init_containers() {
    let Some(cluster) = Cluster::given("an application redirected by init containers") else {
        return;
    };
    let _mesh = Installation::by_helm(&cluster, &["meshAgent.enabled=false"]);
    let shop = Shop::open(&cluster);
    shop.works();
    shop.is_authenticated();
    for pod in shop.pods() {
        assert_eq!(
            pod["spec"]["initContainers"][0]["name"], "linkerd-init",
            "of {}",
            pod["metadata"]["name"]
        );
    }
}

/// The application, meshed by the agent as it should be.
fn opened(cluster: &Cluster) -> Shop<'_> {
    let shop = Shop::open(cluster);
    shop.works();
    shop.asks_for_nothing();
    shop.is_authenticated();
    shop.is_redirected("full");
    let (green, said) = cluster.try_meshctl(&["check", "--proxy", "--wait", "30s"]);
    assert!(green, "meshctl check --proxy:\n{said}");
    shop
}

/// The cluster as it was without the mesh.
struct Before<'a> {
    cluster: &'a Cluster,
    nodes: Nodes<'a>,
    state: BTreeMap<String, String>,
    objects: BTreeSet<String>,
}

impl<'a> Before<'a> {
    fn look_at(cluster: &'a Cluster) -> Self {
        let nodes = Nodes::look_at(cluster);
        Self {
            cluster,
            state: nodes.state(),
            nodes,
            objects: objects(cluster),
        }
    }

    /// On the nodes and among the objects, and pods start and end there.
    fn is_all_there_is(&self) {
        self.nodes.are_as_before(&self.state);
        assert_eq!(
            objects(self.cluster),
            self.objects,
            "objects of the cluster"
        );
        pods_still_come_and_go(self.cluster);
    }
}

/// Everything of the cluster that belongs to no namespace, and every namespace, by kind and name;
/// without what the cluster itself makes anew.
fn objects(cluster: &Cluster) -> BTreeSet<String> {
    let kinds = cluster.kubectl(&[
        "api-resources",
        "--namespaced=false",
        "--verbs=list",
        "-o",
        "name",
    ]);
    let watched = kinds
        .lines()
        .filter(|kind| !matches!(*kind, "componentstatuses" | "nodes" | "persistentvolumes"));
    let watched: Vec<&str> = watched.collect();
    let list = cluster.kubectl(&[
        "get",
        &watched.join(","),
        "-o",
        "name",
        "--ignore-not-found",
    ]);
    list.lines().map(str::to_owned).collect()
}

/// On every node a pod starts and ends.
fn pods_still_come_and_go(cluster: &Cluster) {
    cluster.apply(
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: after}\n---\n\
         apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: after, namespace: after}\nspec:\n  \
           selector: {matchLabels: {app: after}}\n  template:\n    metadata: {labels: {app: after}}\n    spec:\n      \
           tolerations: [{operator: Exists}]\n      terminationGracePeriodSeconds: 1\n      \
           containers: [{name: main, image: mesh/test-apps:dev, imagePullPolicy: IfNotPresent, command: [sleep, infinity]}]\n",
    );
    cluster.rolled_out("after", "daemonset/after");
    cluster.delete_namespace("after");
}
