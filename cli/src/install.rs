//! Code of `install`, `upgrade` and `prune`: the charts, the flags that become values, and the
//! manifests that Helm renders. The program `helm` renders the embedded charts. There is no Helm
//! release in the cluster; the Secret `linkerd-config-overrides` has the configured values, on
//! which `upgrade` is based.

mod chart;
pub(crate) mod flags;
mod helm;
pub(crate) mod inventory;
pub(crate) mod manifest;
pub(crate) mod overrides;
pub(crate) mod preflight;

use anyhow::Context;
use mesh_k8s::values::Values;
use mesh_k8s::values::reading::{IgnoredKey, ignored_keys};
use serde_json::Value;

use self::chart::Chart;
use self::flags::ValueFlags;
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
}

/// Renders the manifests in the order in which they are to be applied. Those of the control plane
/// begin with its namespace and end with the Secret of its values.
pub(crate) fn render(request: &RenderRequest<'_>) -> anyhow::Result<Vec<Manifest>> {
    let directory = tempfile::Builder::new()
        .prefix("meshctl-")
        .tempdir()
        .context("create a directory for the chart")?;
    let chart = request.chart.write_to(directory.path())?;
    let mut files = Vec::new();
    let mut add = |name: &str, text: &str| -> anyhow::Result<()> {
        let path = directory.path().join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        files.push(path);
        Ok(())
    };
    if let Some(detected) = request.detected {
        add("detected.yaml", &serde_norway::to_string(detected)?)?;
    }
    if let Some(stored) = request.stored {
        add("stored.yaml", stored.text())?;
    }
    if request.flags.ha {
        files.push(chart.join("values-ha.yaml"));
    }
    files.extend(request.flags.values.iter().cloned());
    let overlay = request.flags.overlay()?;
    let path = directory.path().join("flags.yaml");
    std::fs::write(&path, serde_norway::to_string(&overlay)?).context("write the flags' values")?;
    files.push(path);

    let text = helm::template(&helm::Template {
        release: request.chart.name(),
        chart: &chart,
        namespace: request.namespace,
        kubernetes: request.kubernetes_version,
        files: &files,
        settings: &request.flags.settings(),
    })?;
    let mut manifests = manifest::split(&text)?;
    if request.chart == Chart::ControlPlane {
        add_namespace_and_overrides(&mut manifests, request.namespace)?;
    }
    Ok(manifests)
}

/// Adds the namespace before and the Secret of values after the control plane's manifests.
fn add_namespace_and_overrides(
    manifests: &mut Vec<Manifest>,
    namespace: &str,
) -> anyhow::Result<()> {
    let all = overrides::extract_values(manifests)?;
    let values = Values::read(all.clone())
        .map_err(|error| Failure::Input(format!("invalid values: {error}")))?;
    for IgnoredKey { path, reason } in ignored_keys::<Values>(&all) {
        output::note(&format!("the value {path} has no effect: {reason}"));
    }
    manifest::hooks_first(manifests);
    manifests.insert(0, manifest::namespace(namespace, values.redirection())?);
    manifests.push(Overrides::from_values(&all)?.secret(namespace)?);
    Ok(())
}
