//! The demo on a cluster: the mesh installed by Helm, the application applied by kubectl, its
//! programs from the test image.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use mesh_test_support::command::Words;
use serde_json::Value;
use xtask::cluster;

use super::{Environment, INJECT_DISABLED, INJECT_ENABLED, NAMESPACE, succeed};

/// The namespace of the control plane; the chart's default.
const CONTROL_PLANE: &str = "linkerd";
const CHARTS: [&str; 2] = ["linkerd-crds", "linkerd-control-plane"];

/// Label of every namespace that the demo created. The demo deletes no other namespace.
const DEMO_LABEL: &str = "mesh-demo";

/// Contains every program of the application, so that no registry is needed.
const IMAGE: &str = "mesh/test-apps:dev";

pub(crate) struct Cluster {
    context: String,
    root: PathBuf,
    meshctl: PathBuf,
    /// The manifests of the application, written by `prepare`.
    manifests: PathBuf,
}

impl Cluster {
    /// The cluster of this context, or of the current one.
    pub(crate) fn new(
        root: &Path,
        meshctl: &Path,
        context: Option<String>,
    ) -> anyhow::Result<Self> {
        let context = match context {
            Some(context) => context,
            None => {
                let current = succeed(Command::new("kubectl").args(["config", "current-context"]));
                let current = current.context(
                    "no current context: name one with --kubernetes=CONTEXT or select one in the kubeconfig",
                )?;
                current.trim().to_owned()
            }
        };
        Ok(Self {
            context,
            root: root.to_owned(),
            meshctl: meshctl.to_owned(),
            manifests: root.join("target/demo-kubernetes.yaml"),
        })
    }

    fn kubectl(&self, args: impl Words) -> anyhow::Result<String> {
        succeed(
            Command::new("kubectl")
                .args(["--context", &self.context])
                .args(args.words())
                .stdin(Stdio::null()),
        )
    }

    fn helm(&self, args: impl Words) -> anyhow::Result<String> {
        succeed(
            Command::new("helm")
                .args(["--kube-context", &self.context, "-n", CONTROL_PLANE])
                .args(args.words())
                .stdin(Stdio::null()),
        )
    }

    fn meshctl(&self, args: impl Words) -> anyhow::Result<String> {
        let mut command = Command::new(&self.meshctl);
        self.select_mesh(&mut command);
        succeed(command.args(args.words()).stdin(Stdio::null()))
    }

    /// Applies the application and waits until all of it is ready.
    fn apply(&self) -> anyhow::Result<()> {
        let path = self.manifests.display().to_string();
        self.kubectl(["apply", "-f", &path])?;
        let ready = "--for=condition=Ready pods --all --timeout=120s";
        self.kubectl(format!("wait -n {NAMESPACE} {ready}"))?;
        let web = format!("rollout status -n {NAMESPACE} deployment/web --timeout=120s");
        self.kubectl(web).map(drop)
    }

    /// Creates a namespace of the demo. An existing one was not created by the demo.
    fn create_namespace(&self, name: &str) -> anyhow::Result<()> {
        if self.namespace(name)?.is_some() {
            bail!(
                "cluster {} has a namespace {name} already, and the demo would change what is in it; \
                 choose another cluster, or delete the namespace if it is not needed",
                self.context
            );
        }
        self.kubectl(["create", "namespace", name])?;
        let mark = format!("{DEMO_LABEL}=true");
        self.kubectl(["label", "namespace", name, &mark]).map(drop)
    }

    fn namespace(&self, name: &str) -> anyhow::Result<Option<Value>> {
        let text = self.kubectl(["get", "namespace", name, "--ignore-not-found", "-o", "json"])?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        serde_json::from_str(&text)
            .map(Some)
            .context("parse the output of kubectl")
    }

    fn has_demo_label(&self, namespace: &str) -> anyhow::Result<bool> {
        let found = self.namespace(namespace)?;
        Ok(found.is_some_and(|found| found["metadata"]["labels"][DEMO_LABEL] == "true"))
    }

    fn delete_namespace(&self, name: &str) -> anyhow::Result<()> {
        self.kubectl(["delete", "namespace", name, "--timeout=3m"])
            .map(drop)
    }

    fn release(&self, chart: &str) -> anyhow::Result<bool> {
        let filter = format!("^{chart}$");
        let releases = self.helm(["list", "-q", "--filter", &filter])?;
        Ok(releases.lines().any(|release| release == chart))
    }
}

impl Environment for Cluster {
    fn prepare(&self, manifests: &Path) -> anyhow::Result<()> {
        for namespace in [CONTROL_PLANE, NAMESPACE] {
            self.create_namespace(namespace)?;
        }
        cluster::load_images(&self.root, &self.context)?;
        for chart in CHARTS {
            let path = self.root.join("helm").join(chart).display().to_string();
            self.helm(["install", chart, &path, "--wait", "--timeout", "5m"])?;
        }
        self.meshctl(["check", "--wait", "2m"])?;
        let mut text = String::new();
        let mut paths = std::fs::read_dir(manifests)
            .with_context(|| format!("read {}", manifests.display()))?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<_>, _>>()?;
        paths.sort();
        for path in paths {
            let manifest = std::fs::read_to_string(&path)
                .with_context(|| format!("read {}", path.display()))?;
            text += &with_test_image(&manifest.replace(INJECT_ENABLED, INJECT_DISABLED));
            text += "\n---\n";
        }
        std::fs::write(&self.manifests, text)
            .with_context(|| format!("write {}", self.manifests.display()))
    }

    fn up(&self) -> anyhow::Result<()> {
        self.apply()
    }

    fn enable_injection(&self) -> anyhow::Result<()> {
        let inject = "linkerd.io/inject=enabled";
        self.kubectl(format!(
            "annotate --overwrite namespace {NAMESPACE} {inject}"
        ))?;
        let text = std::fs::read_to_string(&self.manifests)?;
        std::fs::write(
            &self.manifests,
            text.replace(INJECT_DISABLED, INJECT_ENABLED),
        )?;
        // The proxy is injected when a pod is created.
        self.kubectl(["delete", "pods", "--all", "-n", NAMESPACE])?;
        self.apply()
    }

    fn add_policy(&self, manifest: &Path) -> anyhow::Result<()> {
        let path = manifest.display().to_string();
        self.kubectl(["apply", "-f", &path]).map(drop)
    }

    fn remove_policy(&self, manifest: &Path) -> anyhow::Result<()> {
        let path = manifest.display().to_string();
        self.kubectl(["delete", "-f", &path]).map(drop)
    }

    fn pods(&self) -> anyhow::Result<Vec<String>> {
        let text = self.kubectl(["get", "pods", "-n", NAMESPACE, "-o", "json"])?;
        let pods: Value = serde_json::from_str(&text).context("parse the output of kubectl")?;
        let pods = pods["items"].as_array().context("kubectl lists pods")?;
        let names = pods
            .iter()
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            .filter_map(|pod| pod["metadata"]["name"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    fn exec(&self, pod: &str, command: &[&str]) -> Command {
        let mut kubectl = Command::new("kubectl");
        kubectl
            .args(["--context", &self.context, "exec", "-n", NAMESPACE, pod])
            .arg("--")
            .args(command);
        kubectl
    }

    fn select_mesh(&self, meshctl: &mut Command) {
        meshctl.args(["--context", &self.context, "-n", NAMESPACE]);
    }

    fn down(&self) -> anyhow::Result<()> {
        if self.has_demo_label(NAMESPACE)? {
            self.delete_namespace(NAMESPACE)?;
        }
        if !self.has_demo_label(CONTROL_PLANE)? {
            return Ok(());
        }
        for chart in CHARTS.iter().rev() {
            if self.release(chart)? {
                self.helm(["uninstall", chart, "--wait", "--timeout", "3m"])?;
            }
        }
        self.delete_namespace(CONTROL_PLANE)
    }

    fn inspection_hints(&self, meshctl: &str) -> String {
        let context = &self.context;
        format!(
            "  {meshctl} --context {context} check --proxy\n  \
             {meshctl} --context {context} status\n  \
             {meshctl} --context {context} stat -n {NAMESPACE} --watch\n  \
             {meshctl} --context {context} identity -n {NAMESPACE} client\n  \
             kubectl --context {context} exec -it -n {NAMESPACE} client -- bash"
        )
    }
}

/// Replaces the public images of the manifests with the loaded test image, which contains every
/// program.
fn with_test_image(manifest: &str) -> String {
    let lines = manifest.lines().map(|line| {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start().starts_with("image: ") {
            format!(
                "{space}image: {IMAGE}\n{space}imagePullPolicy: IfNotPresent\n",
                space = &line[..indent]
            )
        } else {
            format!("{line}\n")
        }
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_images_are_replaced_by_test_image() {
        let manifest =
            "spec:\n  containers:\n    - name: web\n      image: nginx:1.22\n      env: []\n";
        let expected = "spec:\n  containers:\n    - name: web\n      image: mesh/test-apps:dev\n      imagePullPolicy: IfNotPresent\n      env: []\n";
        assert_eq!(with_test_image(manifest), expected);
    }
}
