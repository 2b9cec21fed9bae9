//! Builds programs of Go modules that the checkout pins: Helm, Prometheus, and the server of the
//! SPIFFE Workload API that tests have.

use std::path::Path;
use std::process::Command;

use crate::command;

/// Builds a package of the module in `sources`: its `go.mod` pins every version, its `go.sum` the
/// contents. The same version of Go gives the same bytes.
pub(crate) fn build(
    sources: &Path,
    package: &str,
    tags: &str,
    linker_flags: &str,
    output: &Path,
) -> anyhow::Result<()> {
    let mut build = Command::new("go");
    build
        .current_dir(sources)
        .args(["build", "-mod=readonly", "-trimpath", "-buildvcs=false"])
        .args(["-tags", tags, "-ldflags", linker_flags])
        .arg("-o")
        .arg(output)
        .arg(package)
        .env("CGO_ENABLED", "0");
    command::run("go build", &mut build)
}
