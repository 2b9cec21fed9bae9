//! Programs of Go modules in pinned versions, which `go install` builds below `target/suites`, each
//! in a directory named after its version.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;
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
        if self.path(tools).exists() {
            return Ok(());
        }
        require_go(self.directory)?;
        stage::run(self.directory, self.version, || {
            let mut install = Command::new("go");
            install
                .arg("install")
                .arg(format!("{}@{}", self.package, self.version))
                .env("CGO_ENABLED", "0")
                .env("GOBIN", self.directory(tools));
            command::run("go install", &mut install)
        })
    }
}

/// Fails without Go, which is required to build `what`.
pub(crate) fn require_go(what: &str) -> anyhow::Result<()> {
    if find_program("go").is_none() {
        bail!(
            "Go is required to build {what}; install a release of the last year from https://go.dev/dl"
        );
    }
    Ok(())
}
