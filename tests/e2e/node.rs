//! The state of the nodes, read by a privileged pod on each.

use std::collections::BTreeMap;

use mesh_test_support::cluster::Cluster;
use mesh_test_support::eventually::eventually;
use serde_json::Value;

/// Privileged pods on all nodes, in a namespace without injection.
pub(crate) struct Nodes<'a> {
    cluster: &'a Cluster,
}

const NAMESPACE: &str = "node-look";

const MANIFEST: &str = "
apiVersion: v1
kind: Namespace
metadata:
  name: node-look
  labels: {pod-security.kubernetes.io/enforce: privileged}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: look, namespace: node-look}
spec:
  selector: {matchLabels: {app: look}}
  template:
    metadata: {labels: {app: look}}
    spec:
      hostPID: true
      hostNetwork: true
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: mesh/test-apps:dev
        imagePullPolicy: IfNotPresent
        command: [sleep, infinity]
        securityContext: {privileged: true}
        volumeMounts: [{name: host, mountPath: /host, mountPropagation: HostToContainer}]
      volumes: [{name: host, hostPath: {path: /}}]
";

/// Prints everything that a mesh might leave on a node.
const LOOK: &str = "
cd /host
for directory in etc/cni/net.d opt/cni/bin run/mesh sys/fs/bpf; do
  find $directory -mindepth 1 2>/dev/null | sort
done
cat etc/cni/net.d/*
nsenter -t 1 -n nft list tables | sort
find sys/fs/cgroup -name '*mesh*' | sort
";

/// The parts of the lines that only a mesh makes.
const PARTS: [&str; 3] = ["mesh-cni", "run/mesh/", "sys/fs/bpf/mesh"];

impl<'a> Nodes<'a> {
    pub(crate) fn observe(cluster: &'a Cluster) -> Self {
        cluster.apply(MANIFEST);
        cluster.rolled_out(NAMESPACE, "daemonset/look");
        Self { cluster }
    }

    /// Returns the current state of each node.
    pub(crate) fn state(&self) -> BTreeMap<String, String> {
        let names = self.names();
        let look = |node: &String| (node.clone(), self.run(node, LOOK));
        names.iter().map(look).collect()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let pods = self.cluster.list(format!("pods -n {NAMESPACE}"));
        let node = |pod: &Value| pod["spec"]["nodeName"].as_str().map(str::to_owned);
        pods.iter().filter_map(node).collect()
    }

    /// Runs a script on a node as root, in the node's namespaces except for the mount namespace
    /// (its file system is at /host).
    pub(crate) fn run(&self, node: &str, script: &str) -> String {
        let (ok, output) = self.try_run(node, script);
        assert!(ok, "on node {node}: {output}");
        output
    }

    fn try_run(&self, node: &str, script: &str) -> (bool, String) {
        let selector = format!("spec.nodeName={node}");
        let pods = self
            .cluster
            .list(format!("pods -n {NAMESPACE} --field-selector {selector}"));
        let pod = pods.iter().find_map(|pod| pod["metadata"]["name"].as_str());
        let pod = pod.unwrap_or_else(|| panic!("no pod looks at node {node}"));
        self.cluster
            .exec(NAMESPACE, &format!("pod/{pod}"), ["sh", "-c", script])
    }

    /// Kills all processes of a pod, the one of its sandbox included.
    pub(crate) fn kill(&self, pod: &Value) {
        let node = pod["spec"]["nodeName"].as_str().expect("a pod on a node");
        let uid = pod["metadata"]["uid"].as_str().expect("a pod with a UID");
        // The cgroup driver of systemd writes underscores.
        let systemd = uid.replace('-', "_");
        let cgroups = format!("-path '*pod{uid}*' -o -path '*pod{systemd}*'");
        self.run(node, &kill(&cgroups));
    }

    /// Kills the processes of all pods at once, as when the machines restart. The pods that look
    /// at the nodes are among them.
    pub(crate) fn kill_all(&self) {
        for node in self.names() {
            let _killed = self.try_run(&node, &kill("-path '*kubepods*'"));
        }
    }

    /// Returns the guard's non-zero counters of connections that bypassed a proxy.
    pub(crate) fn bypasses(&self) -> Vec<String> {
        let read = |node: &String| self.run(node, "curl -sS --fail http://127.0.0.1:9993/metrics");
        let metrics: Vec<String> = self.names().iter().map(read).collect();
        assert!(
            metrics
                .iter()
                .all(|text| text.contains("mesh_agent_guard_info{mode=\"count\"} 1")),
            "the guard is not enabled: {metrics:?}"
        );
        let counts = metrics.iter().flat_map(|text| text.lines());
        counts
            .filter(|line| {
                line.starts_with("mesh_agent_guard_bypasses_total") && !line.ends_with(" 0")
            })
            .map(str::to_owned)
            .collect()
    }

    /// Waits until no node has anything of a mesh that was uninstalled.
    pub(crate) fn assert_without_mesh(&self) {
        eventually("no node has a part of an earlier mesh", || {
            let state = self.state();
            let left = state.values().flat_map(|state| state.lines());
            let is_ours = |line: &&str| PARTS.iter().any(|part| line.contains(part));
            let left: Vec<&str> = left.filter(is_ours).collect();
            if left.is_empty() {
                Ok(())
            } else {
                Err(left.join("\n"))
            }
        });
    }

    /// Waits until the state of every node is as before.
    pub(crate) fn assert_unchanged_since(&self, before: &BTreeMap<String, String>) {
        eventually("the state of every node is as before the mesh", || {
            let now = self.state();
            if now == *before {
                return Ok(());
            }
            Err(difference(before, &now))
        });
    }
}

impl Drop for Nodes<'_> {
    fn drop(&mut self) {
        self.cluster.delete_namespace(NAMESPACE);
    }
}

/// Returns the script that kills the processes of some cgroups, which `find` selects. It must not
/// kill its shell before the others.
fn kill(cgroups: &str) -> String {
    let found =
        format!("find /host/sys/fs/cgroup -name cgroup.procs \\( {cgroups} \\) -exec cat {{}} +");
    format!("kill -9 $({found} | sort -u | grep -vx $$)")
}

fn difference(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    for (node, state) in now {
        let old = before.get(node).map_or("", String::as_str);
        let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
        let (old, new) = (lines(old), lines(state));
        for line in old.iter().filter(|line| !new.contains(line)) {
            text += &format!("{node}: - {line}\n");
        }
        for line in new.iter().filter(|line| !old.contains(line)) {
            text += &format!("{node}: + {line}\n");
        }
    }
    text
}
