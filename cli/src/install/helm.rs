//! Runs the program `helm template`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::exit::Failure;

pub(super) struct Template<'a> {
    pub(super) release: &'a str,
    pub(super) chart: &'a Path,
    pub(super) namespace: &'a str,
    pub(super) kubernetes: Option<&'a str>,
    /// Values files; later ones override earlier ones.
    pub(super) files: &'a [PathBuf],
    /// Single values as flags of Helm, which override all files.
    pub(super) settings: &'a [(&'static str, String)],
}

/// Renders a chart without contacting a cluster.
pub(super) fn template(template: &Template<'_>) -> anyhow::Result<String> {
    let mut command = Command::new("helm");
    command
        .args(["template", template.release])
        .arg(template.chart)
        .args(["--namespace", template.namespace, "--skip-tests"]);
    if let Some(version) = template.kubernetes {
        command.args(["--kube-version", version]);
    }
    for file in template.files {
        command.arg("--values").arg(file);
    }
    for (flag, value) in template.settings {
        command.args([*flag, value.as_str()]);
    }
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "the program helm, which renders the charts, is not on the PATH: install Helm 3.14 or newer (https://helm.sh/docs/intro/install), or \
             use the charts in helm/ of the source with another tool"
        ),
        other => other.context("start helm")?,
    };
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::Input(reason(&stderr)).into());
    }
    String::from_utf8(output.stdout).context("helm's output is not UTF-8")
}

/// Extracts the message of the chart from Helm's error output, without the names of temporary files
/// around it.
fn reason(stderr: &str) -> String {
    let stderr = stderr.trim().trim_start_matches("Error: ");
    let stderr = stderr.split("\n\nUse --debug").next().unwrap_or(stderr);
    let chart_message = stderr
        .strip_prefix("execution error at (")
        .and_then(|rest| rest.split_once("): "));
    chart_message
        .map_or(stderr, |(_place, message)| message)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_the_chart_is_extracted() {
        let stderr = "Error: execution error at (linkerd-control-plane/templates/validate.yaml:9:4): clusterDomain is empty\n\nUse --debug flag to render out invalid YAML\n";
        assert_eq!(reason(stderr), "clusterDomain is empty");
        let stderr = "Error: values don't meet the specifications";
        assert_eq!(reason(stderr), "values don't meet the specifications");
    }
}
