//! The program `helm`, as far as it is needed: `helm template`.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};

use crate::exit::Failure;

pub(super) struct Template<'a> {
    pub(super) release: &'a str,
    pub(super) chart: &'a Path,
    pub(super) namespace: &'a str,
    pub(super) kubernetes: Option<&'a str>,
    /// Files of values, the later over the earlier.
    pub(super) files: &'a [PathBuf],
    /// Single values as Helm's own flags, over all files.
    pub(super) settings: &'a [(&'static str, String)],
}

/// The rendered documents. Helm asks no cluster for this.
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
            "the program helm renders the charts and is not on the PATH: install Helm 3.14 or newer (https://helm.sh/docs/intro/install), or \
             use the charts in helm/ of the source with the tool of your choice"
        ),
        other => other.context("start helm")?,
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::Input(reason(&said)).into());
    }
    String::from_utf8(output.stdout).context("helm's output is not UTF-8")
}

/// What Helm said, without the places in our own temporary files around what the chart itself said.
fn reason(said: &str) -> String {
    let said = said.trim().trim_start_matches("Error: ");
    let said = said.split("\n\nUse --debug").next().unwrap_or(said);
    let own_words = said
        .strip_prefix("execution error at (")
        .and_then(|rest| rest.split_once("): "));
    own_words.map_or(said, |(_place, words)| words).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_s_own_words_come_alone() {
        let said = "Error: execution error at (linkerd-control-plane/templates/validate.yaml:9:4): clusterDomain is empty\n\nUse --debug flag to render out invalid YAML\n";
        assert_eq!(reason(said), "clusterDomain is empty");
        let said = "Error: values don't meet the specifications";
        assert_eq!(reason(said), "values don't meet the specifications");
    }
}
