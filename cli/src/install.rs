//! What `install`, `upgrade` and `prune` share: the charts, the flags that become values, and the
//! manifests that Helm's own engine renders from them.
//!
//! There is no template engine here: the program `helm` renders the charts that this program
//! carries. Nothing of Helm's is left in the cluster; the values that were given are kept in the
//! Secret `linkerd-config-overrides`, from which `upgrade` starts.

mod chart;
pub(crate) mod flags;
mod helm;
pub(crate) mod inventory;
pub(crate) mod manifest;
pub(crate) mod overrides;
pub(crate) mod preflight;

use anyhow::Context;
use mesh_k8s::values::{
    Values,
    reading::{IgnoredKey, ignored_keys},
};
use serde_json::Value;

pub(crate) use self::chart::Chart;
use self::{flags::ValueFlags, manifest::Manifest, overrides::Overrides};
use crate::{exit::Failure, output};

/// What is to be rendered.
pub(crate) struct Order<'a> {
    pub(crate) chart: Chart,
    pub(crate) namespace: &'a str,
    /// The API server's version, where one was asked: a chart says which versions it is for.
    pub(crate) kubernetes: Option<&'a str>,
    /// Values of an earlier installation, weaker than everything in `flags`.
    pub(crate) stored: Option<&'a Overrides>,
    /// Values found out about the cluster, weaker than everything that was given.
    pub(crate) found: Option<&'a Value>,
    pub(crate) flags: &'a ValueFlags,
}

/// Everything to apply, in the order in which it is to be applied. For the control plane that
/// begins with its namespace and ends with the values given.
pub(crate) fn render(order: &Order<'_>) -> anyhow::Result<Vec<Manifest>> {
    let directory = tempfile::Builder::new()
        .prefix("meshctl-")
        .tempdir()
        .context("make a directory for the chart")?;
    let chart = order.chart.write_to(directory.path())?;
    let mut files = Vec::new();
    let mut add = |name: &str, text: &str| -> anyhow::Result<()> {
        let path = directory.path().join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        files.push(path);
        Ok(())
    };
    if let Some(found) = order.found {
        add("found.yaml", &serde_norway::to_string(found)?)?;
    }
    if let Some(stored) = order.stored {
        add("stored.yaml", stored.text())?;
    }
    if order.flags.ha {
        files.push(chart.join("values-ha.yaml"));
    }
    files.extend(order.flags.values.iter().cloned());
    let given = order.flags.overlay()?;
    let path = directory.path().join("flags.yaml");
    std::fs::write(&path, serde_norway::to_string(&given)?).context("write the flags' values")?;
    files.push(path);

    let text = helm::template(&helm::Template {
        release: order.chart.name(),
        chart: &chart,
        namespace: order.namespace,
        kubernetes: order.kubernetes,
        files: &files,
        settings: &order.flags.settings(),
    })?;
    let mut manifests = manifest::split(&text)?;
    if order.chart == Chart::ControlPlane {
        complete(&mut manifests, order.namespace)?;
    }
    Ok(manifests)
}

/// Puts the namespace before the control plane's manifests, and the values given behind them.
fn complete(manifests: &mut Vec<Manifest>, namespace: &str) -> anyhow::Result<()> {
    let complete = overrides::take_values(manifests)?;
    let values = Values::read(complete.clone())
        .map_err(|error| Failure::Input(format!("the values: {error}")))?;
    for IgnoredKey { path, reason } in ignored_keys(&complete) {
        output::note(&format!("the value {path} has no effect: {reason}"));
    }
    manifest::hooks_first(manifests);
    manifests.insert(0, manifest::namespace(namespace, values.redirection())?);
    manifests.push(Overrides::of(&complete)?.secret(namespace)?);
    Ok(())
}
