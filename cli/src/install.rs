//! Code of `install`, `upgrade` and `prune`: the charts, the flags that become values, and the
//! manifests that Helm renders. The program `helm` renders the embedded charts. There is no Helm
//! release in the cluster; the Secret `linkerd-config-overrides` has the configured values, which
//! `upgrade` starts from.

mod chart;
pub(crate) mod flags;
mod helm;
pub(crate) mod inventory;
pub(crate) mod manifest;
pub(crate) mod multicluster;
pub(crate) mod overrides;
pub(crate) mod preflight;
pub(crate) mod viz;

use std::path::PathBuf;

use anyhow::Context;
use mesh_k8s::values::Values;
use mesh_k8s::values::reading::{IgnoredKey, ignored_keys};
use serde_json::Value;

pub(crate) use self::chart::Chart;
use self::flags::{HelmFlags, ValueFlags};
use self::manifest::Manifest;
use self::overrides::Overrides;
use self::preflight::PreflightResult;
use crate::exit::Failure;
use crate::global::Global;
use crate::output;

/// The chart to render and its values.
pub(crate) struct RenderRequest<'a> {
    pub(crate) chart: Chart,
    pub(crate) namespace: &'a str,
    /// The API server's version, if known; charts support certain versions.
    pub(crate) kubernetes_version: Option<&'a str>,
    /// Values of the existing installation; `flags` override them.
    pub(crate) stored: Option<&'a Overrides>,
    /// Values detected from the cluster; all others override them.
    pub(crate) detected: Option<&'a Value>,
    pub(crate) flags: &'a ValueFlags,
}

impl<'a> RenderRequest<'a> {
    /// Creates the request of a command. The chart of the custom resource definitions has no values
    /// of an installation or of a cluster.
    pub(crate) fn new(
        crds: bool,
        global: &'a Global,
        cluster: Option<&'a PreflightResult>,
        stored: Option<&'a Overrides>,
        flags: &'a ValueFlags,
    ) -> Self {
        let detected = cluster.and_then(|cluster| cluster.values.as_ref());
        Self {
            chart: if crds {
                Chart::Crds
            } else {
                Chart::ControlPlane
            },
            namespace: &global.linkerd_namespace,
            kubernetes_version: cluster.map(|cluster| cluster.version.as_str()),
            stored: stored.filter(|_| !crds),
            detected: detected.filter(|_| !crds),
            flags,
        }
    }

    /// Returns the values that the flags override.
    fn values_below(&self) -> anyhow::Result<Vec<String>> {
        let mut below = Vec::new();
        if let Some(detected) = self.detected {
            below.push(serde_norway::to_string(detected)?);
        }
        below.extend(self.stored.map(|stored| stored.text().to_owned()));
        Ok(below)
    }
}

/// Renders the manifests in the order of their application. The control plane's manifests begin
/// with its namespace and end with the Secret of its values.
pub(crate) fn render(request: &RenderRequest<'_>) -> anyhow::Result<Vec<Manifest>> {
    let mut manifests = render_chart(
        request.chart,
        request.namespace,
        request.kubernetes_version,
        &LayeredValues {
            below: request.values_below()?,
            high_availability: request.flags.ha,
            helm: &request.flags.helm,
            above: &request.flags.overlay()?,
        },
    )?;
    if request.chart == Chart::ControlPlane {
        add_namespace_and_overrides(&mut manifests, request.namespace)?;
    }
    Ok(manifests)
}

/// The values of a rendering. The fields are in ascending order of precedence, but the values of
/// `--set`, in `helm`, override all.
pub(crate) struct LayeredValues<'a> {
    /// YAML texts that values files override.
    pub(crate) below: Vec<String>,
    /// Whether the chart's `values-ha.yaml` is used.
    pub(crate) high_availability: bool,
    pub(crate) helm: &'a HelmFlags,
    /// Values that override all files.
    pub(crate) above: &'a Value,
}

/// Renders a chart without contacting a cluster.
pub(crate) fn render_chart(
    chart: Chart,
    namespace: &str,
    kubernetes_version: Option<&str>,
    values: &LayeredValues<'_>,
) -> anyhow::Result<Vec<Manifest>> {
    let directory = tempfile::Builder::new()
        .prefix("meshctl-")
        .tempdir()
        .context("create a directory for the chart")?;
    let root = chart.write_to(directory.path())?;
    let write = |name: &str, text: &str| -> anyhow::Result<PathBuf> {
        let path = directory.path().join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    };
    let mut files = Vec::new();
    for (number, text) in values.below.iter().enumerate() {
        files.push(write(&format!("below-{number}.yaml"), text)?);
    }
    if values.high_availability {
        files.push(root.join("values-ha.yaml"));
    }
    files.extend(values.helm.values.iter().cloned());
    files.push(write(
        "flags.yaml",
        &serde_norway::to_string(values.above)?,
    )?);
    let text = helm::template(&helm::Template {
        release: chart.name(),
        chart: &root,
        namespace,
        kubernetes: kubernetes_version,
        files: &files,
        settings: &values.helm.settings(),
    })?;
    manifest::split(&text)
}

/// Adds the namespace before and the Secret of values after the control plane's manifests.
fn add_namespace_and_overrides(
    manifests: &mut Vec<Manifest>,
    namespace: &str,
) -> anyhow::Result<()> {
    let all = overrides::extract_values(manifests)?;
    let mut values = Values::read(all.clone())
        .map_err(|error| Failure::Input(format!("invalid values: {error}")))?;
    namespace.clone_into(&mut values.namespace);
    for IgnoredKey { path, reason } in ignored_keys::<Values>(&all) {
        output::note(&format!("the value {path} has no effect: {reason}"));
    }
    manifest::hooks_first(manifests);
    manifests.insert(0, manifest::namespace(&values)?);
    manifests.push(Overrides::from_values(&all)?.secret(namespace)?);
    Ok(())
}
