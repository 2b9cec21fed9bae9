//! Repairs of the agent: pods that started before it, and a CNI configuration or plugin that
//! another program changed.

use std::collections::BTreeMap;

use mesh_test_support::cluster::installation::Installation;
use mesh_test_support::cluster::{Cluster, contains};
use mesh_test_support::eventually::eventually;

use crate::node::Nodes;
use crate::shop::{self, Shop};

/// Saves the original files of the CNI configuration directory.
const KEEP: &str = "rm -rf /host/run/node-look && mkdir /host/run/node-look && cp -a /host/etc/cni/net.d/. /host/run/node-look/";
/// Rewrites the CNI configuration like its owner.
const REWRITE: &str = "cp -a /host/run/node-look/. /host/etc/cni/net.d/";
const CHAINED: &str = "cat /host/etc/cni/net.d/*conflist | grep -c mesh-cni || true";
const FORGET: &str = "rm -rf /host/run/node-look";

#[test]
fn rewritten_cni_configuration_is_chained_again() {
    let Some(cluster) = Cluster::acquire("a rewritten CNI configuration") else {
        return;
    };
    let nodes = Nodes::observe(&cluster);
    on_all(&nodes, KEEP);
    let mesh = Installation::by_helm(&cluster, &[]);
    on_all(&nodes, REWRITE);
    eventually("the plugin is in every node's configuration again", || {
        let counts = on_all(&nodes, CHAINED);
        let all = counts.values().all(|count| count.trim() == "1");
        all.then_some(()).ok_or(format!("{counts:?}"))
    });
    let shop = Shop::open(&cluster);
    shop.assert_works();
    shop.assert_redirected("full");
    mesh.remove();
    on_all(&nodes, FORGET);
}

#[test]
fn plugin_execute_permission_is_repaired_with_event() {
    let Some(cluster) = Cluster::acquire("a CNI plugin that cannot be executed") else {
        return;
    };
    let nodes = Nodes::observe(&cluster);
    let mesh = Installation::by_helm(&cluster, &[]);
    let of_repairs = [
        "events",
        "-n",
        "default",
        "--field-selector",
        "reason=CniPluginNotExecutable",
    ];
    // Deletes events of other tests.
    cluster.kubectl([&["delete"][..], &of_repairs].concat());
    on_all(&nodes, "chmod 644 /host/opt/cni/bin/mesh-cni");
    eventually("every node's plugin can be executed again", || {
        let modes = on_all(&nodes, "stat -c %a /host/opt/cni/bin/mesh-cni");
        let all = modes.values().all(|mode| mode.trim() == "755");
        all.then_some(()).ok_or(format!("{modes:?}"))
    });
    eventually("every node has an event of the repair", || {
        let events = cluster.kubectl([&["get"][..], &of_repairs].concat());
        let missing = |node: &String| !events.contains(&format!("node/{node}"));
        match nodes.names().iter().find(|node| missing(node)) {
            None => Ok(()),
            Some(node) => Err(format!("none of {node} in {events}")),
        }
    });
    let shop = Shop::open(&cluster);
    shop.assert_works();
    mesh.remove();
}

#[test]
fn pod_started_without_plugin_is_enrolled_in_place() {
    let Some(cluster) = Cluster::acquire("pods that started without the plugin") else {
        return;
    };
    let nodes = Nodes::observe(&cluster);
    on_all(&nodes, KEEP);
    for (node, count) in on_all(&nodes, CHAINED) {
        // A test that failed without agents may have left the plugin.
        assert_eq!(count.trim(), "0", "{node} has the plugin without a mesh");
    }
    let mesh = Installation::by_helm(&cluster, &[]);
    mesh.remove_agents();
    on_all(&nodes, REWRITE);

    cluster.apply(&pod());
    eventually("the pod's containers run", || {
        let pod = cluster.json("get pod first -n shop");
        let proxy = &pod["status"]["initContainerStatuses"][0];
        if proxy["state"]["running"].is_null() {
            return Err(pod["status"].to_string());
        }
        // The redirection check fails, so that the proxy holds back the application.
        assert!(proxy["started"] != true, "it runs unredirected: {pod}");
        Ok(())
    });

    mesh.restore_agents();
    cluster.kubectl("wait -n shop pod/first --for=condition=Ready --timeout=60s");
    let told = [
        "get",
        "events",
        "-n",
        shop::NAMESPACE,
        "--field-selector",
        "reason=Repaired",
    ];
    eventually("the pod's events say that it was repaired", || {
        let events = cluster.kubectl(told);
        contains(events, "pod/first")
    });
    cluster.delete_namespace(shop::NAMESPACE);
    on_all(&nodes, FORGET);
}

fn on_all(nodes: &Nodes<'_>, script: &str) -> BTreeMap<String, String> {
    let run = |node: String| {
        let output = nodes.run(&node, script);
        (node, output)
    };
    nodes.names().into_iter().map(run).collect()
}

fn pod() -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {0}}}\n---\n\
         apiVersion: v1\nkind: Pod\nmetadata:\n  name: first\n  namespace: {0}\n  annotations: {{linkerd.io/inject: enabled}}\nspec:\n  \
           terminationGracePeriodSeconds: 1\n  \
           containers: [{{name: main, image: mesh/test-apps:dev, imagePullPolicy: IfNotPresent, command: [sleep, infinity]}}]\n",
        shop::NAMESPACE
    )
}
