//! An application of several services in a new mesh, installed by Helm or `meshctl install`, on
//! each tier; uninstalling leaves no remains.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::Cluster;
use crate::installation::Installation;
use crate::node::Nodes;
use crate::shop::Shop;

#[test]
fn helm_installation_works_on_every_tier_and_uninstalls_cleanly() {
    let Some(cluster) = Cluster::acquire("an application in a mesh installed by Helm") else {
        return;
    };
    let before = ClusterSnapshot::capture(&cluster);
    let mesh = Installation::by_helm(&cluster, &[]);
    {
        let shop = open_meshed_shop(&cluster);
        let mut tier = "full";
        for next in ["nft", "iptables", "full"] {
            let setting = format!("meshAgent.tier={next}");
            mesh.upgrade(&[&setting]);
            // A pod keeps its tier until it is deleted.
            shop.assert_redirected(tier);
            shop.assert_works();
            shop.restart();
            shop.assert_works();
            shop.assert_authenticated();
            shop.assert_redirected(next);
            tier = next;
        }
    }
    mesh.remove();
    before.assert_restored();
}

#[test]
fn meshctl_installation_works_and_uninstalls_cleanly() {
    let Some(cluster) = Cluster::acquire("an application in a mesh installed by meshctl") else {
        return;
    };
    let before = ClusterSnapshot::capture(&cluster);
    let mesh = Installation::by_meshctl(&cluster);
    drop(open_meshed_shop(&cluster));
    mesh.remove();
    before.assert_restored();
}

/// Without agents, an init container redirects each pod.
#[test]
fn init_containers_redirect_pods_without_agent() {
    let Some(cluster) = Cluster::acquire("an application redirected by init containers") else {
        return;
    };
    let _mesh = Installation::by_helm(&cluster, &["meshAgent.enabled=false"]);
    let shop = Shop::open(&cluster);
    shop.assert_works();
    shop.assert_authenticated();
    for pod in shop.pods() {
        assert_eq!(
            pod["spec"]["initContainers"][0]["name"], "linkerd-init",
            "of {}",
            pod["metadata"]["name"]
        );
    }
}

/// Deploys the application and asserts that the agent redirects it.
fn open_meshed_shop(cluster: &Cluster) -> Shop<'_> {
    let shop = Shop::open(cluster);
    shop.assert_works();
    shop.assert_unprivileged();
    shop.assert_authenticated();
    shop.assert_redirected("full");
    let (green, output) = cluster.try_meshctl("check --proxy --wait 30s");
    assert!(green, "meshctl check --proxy:\n{output}");
    shop
}

/// The state of the cluster before the installation.
struct ClusterSnapshot<'a> {
    cluster: &'a Cluster,
    nodes: Nodes<'a>,
    state: BTreeMap<String, String>,
    objects: BTreeSet<String>,
}

impl<'a> ClusterSnapshot<'a> {
    fn capture(cluster: &'a Cluster) -> Self {
        let nodes = Nodes::observe(cluster);
        Self {
            cluster,
            state: nodes.state(),
            nodes,
            objects: objects(cluster),
        }
    }

    /// Asserts that nodes and objects are as before, and that pods start and stop.
    fn assert_restored(&self) {
        self.nodes.assert_unchanged_since(&self.state);
        assert_eq!(
            objects(self.cluster),
            self.objects,
            "objects of the cluster"
        );
        assert_pods_start_and_stop(self.cluster);
    }
}

/// Returns kind and name of all cluster-scoped objects, namespaces included, except for those that
/// the cluster recreates.
fn objects(cluster: &Cluster) -> BTreeSet<String> {
    let kinds = cluster.kubectl("api-resources --namespaced=false --verbs=list -o name");
    let watched = kinds
        .lines()
        .filter(|kind| !matches!(*kind, "componentstatuses" | "nodes" | "persistentvolumes"));
    let watched: Vec<&str> = watched.collect();
    let watched = watched.join(",");
    let list = cluster.kubectl(format!("get {watched} -o name --ignore-not-found"));
    list.lines().map(str::to_owned).collect()
}

/// Asserts that a pod starts and stops on every node.
fn assert_pods_start_and_stop(cluster: &Cluster) {
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
