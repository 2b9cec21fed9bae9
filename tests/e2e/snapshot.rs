//! The state of a cluster before a test. Uninstalling must return to it.

use std::collections::{BTreeMap, BTreeSet};

use mesh_test_support::cluster::Cluster;

use crate::node::Nodes;

/// The state of the cluster before the installation.
pub(crate) struct ClusterSnapshot<'a> {
    cluster: &'a Cluster,
    nodes: Nodes<'a>,
    state: BTreeMap<String, String>,
    objects: BTreeSet<String>,
}

impl<'a> ClusterSnapshot<'a> {
    pub(crate) fn capture(cluster: &'a Cluster) -> Self {
        let nodes = Nodes::observe(cluster);
        // Otherwise this test would report the leftovers of the one before.
        nodes.assert_without_mesh();
        Self {
            cluster,
            state: nodes.state(),
            nodes,
            objects: objects(cluster),
        }
    }

    /// Asserts that nodes and objects are as before, and that pods start and stop.
    pub(crate) fn assert_restored(&self) {
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
