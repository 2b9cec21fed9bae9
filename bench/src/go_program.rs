//! Programs of Go modules in pinned versions, which are built below `target/suites`, each in a
//! directory named after its version.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use xtask::workspace::find_program;
use xtask::{command, stage};

pub(crate) struct GoProgram {
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    /// Name of the directory, without the version.
    pub(crate) directory: &'static str,
    /// Name of the file, which is the last element of the package.
    pub(crate) name: &'static str,
}

impl GoProgram {
    /// Returns its path below the directory of all tools.
    pub(crate) fn path(&self, tools: &Path) -> PathBuf {
        self.directory(tools).join(self.name)
    }

    fn directory(&self, tools: &Path) -> PathBuf {
        tools.join(format!("{}-{}", self.directory, self.version))
    }

    /// Builds the program if it is missing. It is static, so that it runs in any image.
    pub(crate) fn install(&self, tools: &Path) -> anyhow::Result<()> {
        self.build(tools, || {
            let mut install = Command::new("go");
            install
                .args(["install", &self.package_version()])
                .env("CGO_ENABLED", "0")
                .env("GOBIN", self.directory(tools));
            command::run("go install", &mut install)
        })
    }

    /// The same for a program whose module replaces others: `go install` refuses it. It is built as
    /// the tool of an empty module, where the replacements have no effect.
    pub(crate) fn install_as_tool(&self, tools: &Path) -> anyhow::Result<()> {
        self.build(tools, || {
            let module = self.directory(tools).join("module");
            fs::create_dir_all(&module).with_context(|| format!("create {}", module.display()))?;
            fs::write(module.join("go.mod"), "module tools\n").context("write go.mod")?;
            let go = |what: &str, arguments: &[&str]| {
                let mut go = Command::new("go");
                go.args(arguments)
                    .env("CGO_ENABLED", "0")
                    .current_dir(&module);
                command::run(what, &mut go)
            };
            go("go get", &["get", "-tool", &self.package_version()])?;
            let path = self.path(tools);
            let path = path.to_str().context("the path is not UTF-8")?;
            go("go build", &["build", "-o", path, self.package])
        })
    }

    fn build(
        &self,
        tools: &Path,
        build: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if self.path(tools).exists() {
            return Ok(());
        }
        require_go(self.directory)?;
        stage::run(self.directory, self.version, build)
    }

    fn package_version(&self) -> String {
        format!("{}@{}", self.package, self.version)
    }
}

/// Fails without Go. `what` requires it and is named in the error.
pub(crate) fn require_go(what: &str) -> anyhow::Result<()> {
    if find_program("go").is_none() {
        bail!(
            "Go is required to build {what}; install a release of the last year from https://go.dev/dl"
        );
    }
    Ok(())
}
