//! Outages: of the API server, of the agent, and of the agent's state on a node.

use mesh_test_support::cluster::installation::Installation;
use mesh_test_support::cluster::{Cluster, contains};
use mesh_test_support::eventually::eventually;
use serde_json::Value;

use crate::load::{HttpVersion, Load, STEADY};
use crate::node::Nodes;
use crate::shop::Shop;

/// Two minutes without an API server, and the time to detect it.
const SECONDS: u32 = 170;

/// kubeadm's manifest of the API server; the kubelet stops the server when the file is removed, and
/// starts it when it is restored.
const MANIFEST: &str = "/host/etc/kubernetes/manifests/kube-apiserver.yaml";

#[test]
fn traffic_survives_api_server_outage() {
    let test = "two minutes without the API server";
    let Some(cluster) = Cluster::acquire_for_long_test(test) else {
        return;
    };
    let nodes = Nodes::observe(&cluster);
    let is_here = |node: &String| {
        nodes
            .run(node, &format!("test -e {MANIFEST} && echo yes || echo no"))
            .contains("yes")
    };
    let Some(node) = nodes.names().into_iter().find(is_here) else {
        println!("skipped: {test}: no node of this cluster has {MANIFEST}");
        return;
    };
    let before = nodes.state();
    let mesh = Installation::by_helm(&cluster, &[]);
    let shop = Shop::open(&cluster);
    shop.assert_works();
    let load = Load::start(&cluster, "http://web/", HttpVersion::Http1, STEADY, SECONDS);
    nodes.run(
        &node,
        &format!("mv {MANIFEST} /host/etc/kubernetes/gone.yaml && setsid sh -c 'sleep 125; mv /host/etc/kubernetes/gone.yaml {MANIFEST}' > /dev/null 2>&1 < /dev/null &"),
    );
    let answers = || {
        cluster
            .try_kubectl("get --raw /readyz --request-timeout=2s")
            .0
    };
    eventually("the API server is stopped", || !answers());
    eventually("the API server is back", answers);
    let load_report = load.finish();
    assert_eq!(load_report.failed, 0, "{}", load_report.report);
    assert!(load_report.succeeded > 0, "{}", load_report.report);
    // All watches of the API server are re-established.
    shop.restart();
    shop.assert_works();
    shop.assert_authenticated();
    shop.assert_redirected("full");
    // The agents detect that they are uninstalled, not only restarted.
    drop(shop);
    mesh.remove();
    nodes.assert_unchanged_since(&before);
}

#[test]
fn meshed_pods_never_run_unredirected_without_agent() {
    let Some(cluster) = Cluster::acquire("pods that start without the agent") else {
        return;
    };
    let nodes = Nodes::observe(&cluster);
    let mesh = Installation::by_helm(&cluster, &[]);
    let shop = Shop::open(&cluster);
    shop.assert_works();

    mesh.remove_agents();
    // The pinned state suffices: new pods are redirected without an agent.
    shop.restart();
    shop.assert_works();
    shop.assert_authenticated();

    // Without the pinned state, meshed pods do not start, and other pods do.
    for node in nodes.names() {
        nodes.run(
            &node,
            "rm -rf /host/run/mesh && find /host/sys/fs/bpf/mesh -depth -delete 2>/dev/null; true",
        );
    }
    cluster.apply(&pod("asks", "enabled"));
    cluster.apply(&pod("asks-not", "disabled"));
    cluster.kubectl("wait -n shop pod/asks-not --for=condition=Ready --timeout=60s");
    eventually("the runtime has tried to start the meshed pod", || {
        let events =
            cluster.kubectl("get events -n shop --field-selector involvedObject.name=asks");
        contains(events, "FailedCreatePodSandBox")
    });
    let asks = cluster.json("get pod asks -n shop");
    assert!(!has_running_container(&asks), "it runs: {asks}");

    mesh.restore_agents();
    cluster.kubectl("wait -n shop pod/asks --for=condition=Ready --timeout=120s");
    cluster.kubectl("delete pod asks asks-not -n shop");
    shop.restart();
    shop.assert_works();
    shop.assert_redirected("full");
}

/// Returns whether any container of the pod runs.
fn has_running_container(pod: &Value) -> bool {
    let of = |kind: &str| pod["status"][kind].as_array().cloned().unwrap_or_default();
    [of("initContainerStatuses"), of("containerStatuses")]
        .concat()
        .iter()
        .any(|status| !status["state"]["running"].is_null())
}

fn pod(name: &str, inject: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: shop\n  annotations: {{linkerd.io/inject: {inject}}}\nspec:\n  \
           terminationGracePeriodSeconds: 1\n  \
           containers: [{{name: main, image: mesh/test-apps:dev, imagePullPolicy: IfNotPresent, command: [sleep, infinity]}}]\n"
    )
}
