//! Installs the suites in pinned versions below `target/suites`, each in a directory named after
//! its version. Debian packages are used where they exist.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use xtask::workspace::{self, find_program};
use xtask::{command, setup, stage};

use super::suite::Suite;
use crate::go_program::GoProgram;

/// Directory of installed tools and of results, below the checkout.
pub(crate) const DIRECTORY: &str = "target/suites";

/// Release 2.6.0, named by its commit, since Go rejects a v2 tag for a module path without `/v2`.
const H2SPEC: GoProgram = GoProgram {
    package: "github.com/summerwind/h2spec/cmd/h2spec",
    version: "v0.0.0-20200804131034-70ac22940108",
    directory: "h2spec",
    name: "h2spec",
};
const GRPC_VERSION: &str = "v1.83.0";
const GRPC_CLIENT: GoProgram = GoProgram {
    package: "google.golang.org/grpc/interop/client",
    version: GRPC_VERSION,
    directory: "grpc-interop-client",
    name: "client",
};
const GRPC_SERVER: GoProgram = GoProgram {
    package: "google.golang.org/grpc/interop/server",
    version: GRPC_VERSION,
    directory: "grpc-interop-server",
    name: "server",
};
/// Jaeger 2, by the last tag of the first major version: Go rejects a v2 tag for a module path
/// without `/v2`.
const JAEGER: GoProgram = GoProgram {
    package: "github.com/jaegertracing/jaeger/cmd/jaeger",
    version: "v1.76.0",
    directory: "jaeger",
    name: "jaeger",
};
const OPENTELEMETRY_VERSION: &str = "1.45.1";
const OPENTELEMETRY: [&str; 3] = ["sdk", "exporter-otlp-proto-http", "propagator-b3"];
const KOSOKU_VERSION: &str = "0.1.0";
const SMUGGLEX_VERSION: &str = "0.4.0";

/// Program or path that proves the installation, package, purpose, and the suites that need it.
#[rustfmt::skip] // a table, one row a line
const PACKAGED: [(&str, &str, &str, &[Suite]); 4] = [
    ("haproxy", "haproxy", "speaks the mesh's TLS for h2spec and Jaeger", &[Suite::H2spec, Suite::Jaeger]),
    ("nginx", "nginx-light", "the web server behind the proxies", &[Suite::Smugglex, Suite::Slowhttptest, Suite::Hostile]),
    ("slowhttptest", "slowhttptest", "slow clients", &[Suite::Slowhttptest]),
    ("/usr/lib/python3/dist-packages/wsproto", "python3-wsproto", "the WebSocket server behind the proxies", &[Suite::Kosoku]),
];

/// The installed tools.
pub(super) struct Tools {
    directory: PathBuf,
}

impl Tools {
    /// Installs the missing tools of these suites.
    pub(super) fn prepare(root: &Path, suites: &[Suite]) -> anyhow::Result<Self> {
        let tools = Self {
            directory: root.join(DIRECTORY),
        };
        fs::create_dir_all(&tools.directory)
            .with_context(|| format!("create {}", tools.directory.display()))?;
        install_packages(suites)?;
        for suite in suites {
            match suite {
                Suite::H2spec => H2SPEC.install(&tools.directory)?,
                Suite::GrpcInterop => {
                    GRPC_CLIENT.install(&tools.directory)?;
                    GRPC_SERVER.install(&tools.directory)?;
                }
                Suite::Kosoku => tools.install_kosoku()?,
                Suite::Smugglex => tools.install_smugglex(root)?,
                Suite::Jaeger => {
                    JAEGER.install_as_tool(&tools.directory)?;
                    tools.install_opentelemetry()?;
                }
                Suite::Slowhttptest | Suite::Hostile => (),
            }
        }
        Ok(tools)
    }

    pub(super) fn h2spec(&self) -> anyhow::Result<PathBuf> {
        require_installed(H2SPEC.path(&self.directory))
    }

    pub(super) fn grpc_client(&self) -> anyhow::Result<PathBuf> {
        require_installed(GRPC_CLIENT.path(&self.directory))
    }

    pub(super) fn grpc_server(&self) -> anyhow::Result<PathBuf> {
        require_installed(GRPC_SERVER.path(&self.directory))
    }

    pub(super) fn kosoku(&self) -> anyhow::Result<PathBuf> {
        require_installed(self.kosoku_directory().join("bin/kosoku"))
    }

    pub(super) fn smugglex(&self) -> anyhow::Result<PathBuf> {
        require_installed(self.smugglex_directory().join("bin/smugglex"))
    }

    pub(super) fn jaeger(&self) -> anyhow::Result<PathBuf> {
        require_installed(JAEGER.path(&self.directory))
    }

    /// Returns a Python that has OpenTelemetry.
    pub(super) fn opentelemetry(&self) -> anyhow::Result<PathBuf> {
        require_installed(self.opentelemetry_directory().join("bin/python"))
    }

    fn opentelemetry_directory(&self) -> PathBuf {
        let name = format!("opentelemetry-{OPENTELEMETRY_VERSION}");
        self.directory.join(name)
    }

    fn kosoku_directory(&self) -> PathBuf {
        self.directory.join(format!("kosoku-{KOSOKU_VERSION}"))
    }

    fn smugglex_directory(&self) -> PathBuf {
        self.directory.join(format!("smugglex-{SMUGGLEX_VERSION}"))
    }

    fn install_kosoku(&self) -> anyhow::Result<()> {
        let directory = self.kosoku_directory();
        if directory.join("bin/kosoku").exists() {
            return Ok(());
        }
        stage::run("kosoku", KOSOKU_VERSION, || {
            let package = format!("kosoku=={KOSOKU_VERSION}");
            python_environment(&directory, &["--no-deps", &package])
        })
    }

    fn install_opentelemetry(&self) -> anyhow::Result<()> {
        let directory = self.opentelemetry_directory();
        // Written at the end, since an environment exists before it has the packages.
        let done = directory.join("installed");
        if done.exists() {
            return Ok(());
        }
        let packages = OPENTELEMETRY
            .map(|package| format!("opentelemetry-{package}=={OPENTELEMETRY_VERSION}"));
        stage::run("opentelemetry", OPENTELEMETRY_VERSION, || {
            let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
            python_environment(&directory, &packages)?;
            fs::write(&done, "").with_context(|| format!("write {}", done.display()))
        })
    }

    fn install_smugglex(&self, root: &Path) -> anyhow::Result<()> {
        let directory = self.smugglex_directory();
        if directory.join("bin/smugglex").exists() {
            return Ok(());
        }
        stage::run("smugglex", SMUGGLEX_VERSION, || {
            let mut cargo = workspace::cargo(root);
            cargo
                .args(["install", "smugglex", "--locked", "--version"])
                .arg(SMUGGLEX_VERSION)
                .arg("--root")
                .arg(&directory);
            command::run("cargo install", &mut cargo).context("install smugglex")
        })
    }
}

/// Makes a virtual environment, isolated from the machine's Python packages, and installs the
/// arguments of `pip install` into it.
fn python_environment(directory: &Path, packages: &[&str]) -> anyhow::Result<()> {
    let mut make = Command::new("python3");
    make.args(["-m", "venv", "--clear"]).arg(directory);
    command::run("python3 -m venv", &mut make).context(
        "create a virtual environment for Python; venv is in Debian's package python3-venv",
    )?;
    let mut pip = Command::new(directory.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet"])
        .arg("--disable-pip-version-check")
        .args(packages);
    command::run("pip install", &mut pip).with_context(|| format!("install {packages:?}"))
}

fn require_installed(program: PathBuf) -> anyhow::Result<PathBuf> {
    if !program.exists() {
        bail!(
            "{} does not exist although it was installed",
            program.display()
        );
    }
    Ok(program)
}

fn install_packages(suites: &[Suite]) -> anyhow::Result<()> {
    let is_there = |proof: &str| {
        if proof.starts_with('/') {
            Path::new(proof).exists()
        } else {
            find_program(proof).is_some()
        }
    };
    let missing: Vec<_> = PACKAGED
        .iter()
        .filter(|(proof, _, _, whose)| {
            whose.iter().any(|suite| suites.contains(suite)) && !is_there(proof)
        })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    for (_, package, why, _) in &missing {
        eprintln!("    missing  {package:<20} {why}");
    }
    let names: Vec<&str> = missing.iter().map(|(_, package, ..)| *package).collect();
    setup::install(&names).context("install the packages of the suites")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_directory_contains_version() {
        let tools = Tools {
            directory: "/mesh/target/suites".into(),
        };
        assert_eq!(
            GRPC_CLIENT.path(&tools.directory),
            Path::new("/mesh/target/suites/grpc-interop-client-v1.83.0/client")
        );
        assert!(tools.kosoku_directory().ends_with("kosoku-0.1.0"));
    }

    #[test]
    fn missing_tool_is_named_in_error() {
        let error =
            require_installed("/mesh/target/suites/x".into()).expect_err("it does not exist");
        assert!(error.to_string().contains("/mesh/target/suites/x"));
    }
}
