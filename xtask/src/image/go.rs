//! Prometheus, built from the Go module of its release: Debian's package cannot discover the pods
//! of a cluster.
//!
//! `xtask/prometheus/go.mod` pins the version of every module and `go.sum` their contents, so a
//! build gives the same bytes with the same version of Go.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::command::captured_stdout;
use crate::workspace::find_program;
use crate::{go_build, stage};

/// The directory of the module, below the checkout.
const DIRECTORY: &str = "xtask/prometheus";
const PACKAGE: &str = "github.com/prometheus/prometheus/cmd/prometheus";

/// Without the discovery of clouds, whose libraries are most of the program.
const TAGS: &str = "netgo,remove_all_sd,enable_kubernetes_sd";

/// A program and the modules that are linked into it.
pub(crate) struct GoProgram {
    pub(crate) program: Vec<u8>,
    pub(crate) modules: Vec<Module>,
}

/// A Go module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Module {
    pub(crate) path: String,
    pub(crate) version: String,
    /// Where its sources are.
    pub(crate) directory: PathBuf,
}

/// Builds Prometheus. Go's cache makes a repetition cheap.
pub(crate) fn prometheus(root: &Path) -> anyhow::Result<GoProgram> {
    if find_program("go").is_none() {
        bail!(
            "Go is required to build Prometheus; install a release of the last year from https://go.dev/dl"
        );
    }
    let sources = root.join(DIRECTORY);
    let output = root.join("target/prometheus");
    stage::run("prometheus", "from its sources", || {
        go_build::build(&sources, PACKAGE, TAGS, "-s -w -buildid=", &output)
    })?;
    let program = fs::read(&output).with_context(|| format!("read {}", output.display()))?;
    Ok(GoProgram {
        program,
        modules: modules(&sources, &output)?,
    })
}

/// Returns the modules that are linked into a program, sorted by path.
fn modules(sources: &Path, program: &Path) -> anyhow::Result<Vec<Module>> {
    let linked = captured_stdout(Command::new("go").args(["version", "-m"]).arg(program))
        .context("go cannot tell which modules Prometheus is linked with")?;
    let format = "{{.Path}} {{.Version}} {{.Dir}}";
    let mut list = Command::new("go");
    list.current_dir(sources)
        .args(["list", "-mod=readonly", "-m", "-f", format, "all"]);
    let directories = captured_stdout(&mut list).context("go cannot tell where the modules are")?;
    let mut modules = Vec::new();
    for (path, version) in linked_modules(&linked) {
        let line = format!("{path} {version} ");
        let directory = directories.lines().find_map(|it| it.strip_prefix(&line));
        let directory = directory.filter(|directory| !directory.is_empty());
        modules.push(Module {
            path: path.to_owned(),
            version: version.to_owned(),
            directory: directory
                .with_context(|| format!("go has no sources of {path} {version}"))?
                .into(),
        });
    }
    if modules.is_empty() {
        bail!("go lists no module of {}", program.display());
    }
    modules.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(modules)
}

/// Returns path and version of each module that `go version -m` prints: a line with `mod` or `dep`,
/// path, version and checksum.
fn linked_modules(printed: &str) -> impl Iterator<Item = (&str, &str)> {
    printed.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        matches!(words.next()?, "mod" | "dep").then_some(())?;
        Some((words.next()?, words.next()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linked_modules_are_read_from_build_information() {
        let printed = "prometheus: go1.26.8\n\
            \tpath\tgithub.com/prometheus/prometheus/cmd/prometheus\n\
            \tmod\tgithub.com/prometheus/prometheus\tv0.316.0\th1:a=\n\
            \tdep\tgithub.com/a/b/v2\tv2.4.0\th1:b=\n\
            \tbuild\t-tags=netgo\n";
        let modules: Vec<(&str, &str)> = linked_modules(printed).collect();
        assert_eq!(
            modules,
            [
                ("github.com/prometheus/prometheus", "v0.316.0"),
                ("github.com/a/b/v2", "v2.4.0"),
            ]
        );
    }
}
