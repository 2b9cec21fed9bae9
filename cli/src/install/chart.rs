//! The embedded charts.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Paths below `helm/` and the contents of the files.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/charts.rs"));

/// A template that is added to a chart and renders the merged values.
const VALUES_TEMPLATE: &str = "apiVersion: meshctl/v1\nkind: Values\nmetadata:\n  name: values\nvalues: {{ toJson .Values }}\n";

/// The kind of the document that [`VALUES_TEMPLATE`] renders.
pub(super) const VALUES_KIND: &str = "Values";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chart {
    Crds,
    ControlPlane,
    Viz,
    Multicluster,
    /// The service mirror of one Link.
    MulticlusterLink,
}

impl Chart {
    /// Returns the name of the chart and of its release.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Crds => "linkerd-crds",
            Self::ControlPlane => "linkerd-control-plane",
            Self::Viz => "linkerd-viz",
            Self::Multicluster => "linkerd-multicluster",
            Self::MulticlusterLink => "linkerd-multicluster-link",
        }
    }

    /// Writes the chart below a directory and returns its path.
    pub(super) fn write_to(self, directory: &Path) -> anyhow::Result<PathBuf> {
        let chart = directory.join(self.name());
        for (path, text) in self.files() {
            write(&directory.join(path), text)?;
        }
        if matches!(self, Self::ControlPlane | Self::Multicluster) {
            write(
                &chart.join("templates/meshctl-values.yaml"),
                VALUES_TEMPLATE,
            )?;
        }
        Ok(chart)
    }

    fn files(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let belongs = move |path: &str| {
            path.strip_prefix(self.name())
                .is_some_and(|rest| rest.starts_with('/'))
        };
        FILES.iter().copied().filter(move |(path, _)| belongs(path))
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    }
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_are_embedded() {
        for chart in [
            Chart::Crds,
            Chart::ControlPlane,
            Chart::Viz,
            Chart::Multicluster,
            Chart::MulticlusterLink,
        ] {
            let names: Vec<&str> = chart.files().map(|(path, _)| path).collect();
            for file in [
                "Chart.yaml",
                "values.yaml",
                "values.schema.json",
                "templates/_helpers.tpl",
            ] {
                assert!(
                    names.contains(&format!("{}/{file}", chart.name()).as_str()),
                    "{names:?}"
                );
            }
        }
    }
}
