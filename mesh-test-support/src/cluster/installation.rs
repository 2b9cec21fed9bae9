//! A mesh installed into the cluster, by Helm or by `meshctl install`, and uninstalled on drop.

use std::path::PathBuf;

use super::Cluster;
use crate::command::{Words as _, succeed};
use crate::eventually::eventually;

/// The namespace of the control plane; the default of chart and CLI.
pub const NAMESPACE: &str = "linkerd";

/// The namespace of the agents; the default of the chart.
pub const AGENT_NAMESPACE: &str = "linkerd-agent";

pub const AGENT: &str = "daemonset/mesh-agent";

/// Values that make pods of the control plane's namespace privileged.
const PRIVILEGED: [&str; 2] = ["meshAgent.enabled=false", "meshAgent.namespace="];

const CRDS: &str = "linkerd-crds";
const CONTROL_PLANE: &str = "linkerd-control-plane";

pub struct Installation<'a> {
    cluster: &'a Cluster,
    method: InstallMethod,
    removed: bool,
}

enum InstallMethod {
    Helm,
    Meshctl,
}

impl<'a> Installation<'a> {
    /// `helm install`, with these values (`name=value`).
    pub fn by_helm(cluster: &'a Cluster, values: &[&str]) -> Self {
        helm(cluster, "install", CRDS, &[]);
        enforce(cluster, is_privileged(values));
        helm(cluster, "install", CONTROL_PLANE, values);
        Self::wait_ready(cluster, InstallMethod::Helm)
    }

    /// `meshctl install --crds | kubectl apply -f -`, then the same without `--crds`.
    pub fn by_meshctl(cluster: &'a Cluster) -> Self {
        let crds = cluster.meshctl("install --crds");
        cluster.apply(&crds);
        let rest = cluster.meshctl("install");
        cluster.apply(&rest);
        Self::wait_ready(cluster, InstallMethod::Meshctl)
    }

    fn wait_ready(cluster: &'a Cluster, method: InstallMethod) -> Self {
        let installation = Self {
            cluster,
            method,
            removed: false,
        };
        installation.wait_until_ready();
        installation
    }

    /// Waits until all workloads of the mesh are ready and `meshctl check` succeeds.
    pub fn wait_until_ready(&self) {
        // The agents' DaemonSet is optional.
        for kind in ["deployment", "daemonset"] {
            for namespace in [NAMESPACE, AGENT_NAMESPACE] {
                let workloads = self
                    .cluster
                    .kubectl(format!("get {kind} -n {namespace} -o name"));
                for workload in workloads.lines() {
                    self.cluster.rolled_out(namespace, workload);
                }
            }
        }
        let (green, output) = self.cluster.try_meshctl("check --wait 60s");
        assert!(green, "meshctl check:\n{output}");
    }

    pub fn upgrade(&self, values: &[&str]) {
        // Before the pods that need it start, and after they have gone.
        if is_privileged(values) {
            enforce(self.cluster, true);
        }
        helm(self.cluster, "upgrade", CONTROL_PLANE, values);
        enforce(self.cluster, is_privileged(values));
        self.wait_until_ready();
    }

    /// Uninstalls the mesh as a user would, and waits until the namespace is deleted.
    pub fn remove(mut self) {
        self.uninstall();
    }

    fn uninstall(&mut self) {
        if std::mem::replace(&mut self.removed, true) {
            return;
        }
        match &self.method {
            InstallMethod::Helm => {
                for chart in [CONTROL_PLANE, CRDS] {
                    let line = format!("uninstall {chart} -n {NAMESPACE} --wait --timeout 3m");
                    succeed(self.cluster.program("helm").args(line.words()));
                }
                // Helm keeps the definitions, and with them the policies of users.
                self.cluster.kubectl(format!(
                    "delete crd -l linkerd.io/control-plane-ns={NAMESPACE}"
                ));
            }
            InstallMethod::Meshctl => {
                let resources = self.cluster.meshctl("uninstall --crds --force");
                self.cluster.delete(&resources);
            }
        }
        self.cluster.delete_namespace(NAMESPACE);
    }

    /// Removes every agent with a node selector that matches no node.
    pub fn remove_agents(&self) {
        self.select_nodes(
            r#"{"op":"add","path":"/spec/template/spec/nodeSelector/absent","value":"everywhere"}"#,
        );
        eventually("the agents are gone", || {
            let pods = self
                .cluster
                .kubectl(format!("get pods -n {AGENT_NAMESPACE} -o name"));
            (!pods.contains("pod/mesh-agent-"))
                .then_some(())
                .ok_or(pods)
        });
    }

    pub fn restore_agents(&self) {
        self.select_nodes(r#"{"op":"remove","path":"/spec/template/spec/nodeSelector/absent"}"#);
        self.cluster.rolled_out(AGENT_NAMESPACE, AGENT);
    }

    fn select_nodes(&self, change: &str) {
        let patch = format!("[{change}]");
        self.cluster.kubectl(format!(
            "patch -n {AGENT_NAMESPACE} {AGENT} --type=json -p {patch}"
        ));
    }

    /// Deletes all pods of the control plane at the same time.
    pub fn delete_control_plane_pods(&self) {
        self.cluster.kubectl(format!(
            "delete pods -n {NAMESPACE} -l linkerd.io/control-plane-component --wait=false"
        ));
        eventually("the old pods of the control plane are gone", || {
            let pods = self.cluster.list(format!(
                "pods -n {NAMESPACE} -l linkerd.io/control-plane-component"
            ));
            pods.iter()
                .all(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        });
    }
}

impl Drop for Installation<'_> {
    fn drop(&mut self) {
        // A failed test keeps the installation only on request, since the next test needs a clean
        // cluster.
        if std::thread::panicking() && std::env::var_os("MESH_TEST_KEEP").is_some() {
            return;
        }
        self.uninstall();
    }
}

fn is_privileged(values: &[&str]) -> bool {
    values.iter().any(|value| PRIVILEGED.contains(value))
}

/// Has the namespace of the control plane enforce a Pod Security level, as the notes of the chart
/// say.
fn enforce(cluster: &Cluster, is_privileged: bool) {
    let level = if is_privileged {
        "privileged"
    } else {
        "restricted"
    };
    cluster.kubectl(format!(
        "label namespace {NAMESPACE} --overwrite pod-security.kubernetes.io/enforce={level}"
    ));
}

fn helm(cluster: &Cluster, verb: &str, chart: &str, values: &[&str]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../helm")
        .join(chart);
    let mut command = cluster.program("helm");
    command
        .args([verb, chart])
        .arg(path)
        .args(["-n", NAMESPACE, "--wait", "--timeout", "5m"]);
    // Without `--reset-values`, Helm reuses the previous values if none are given.
    command.arg(match verb {
        "install" => "--create-namespace",
        _ => "--reset-values",
    });
    for value in values {
        command.args(["--set", value]);
    }
    succeed(&mut command);
}
