//! The reference control plane: Istio's pilot-discovery, built from its Go module.
//!
//! It runs with its defaults, with these exceptions in its favour: its webhooks and the watches for
//! them are off, it logs warnings only, and two limits do not hold it up: new connections (20 a
//! second on one CPU), and its requests to the API server (80 a second).

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use xtask::workspace;

use super::command::on_cpu;
use crate::go_program::GoProgram;
use crate::testbed::{ANCHOR, DIRECTORY, Testbed};

pub(super) const PROGRAM: GoProgram = GoProgram {
    package: "istio.io/istio/pilot/cmd/pilot-discovery",
    version: "v0.0.0-20260827124520-eed52ebb66ad",
    directory: "pilot-discovery",
    name: "pilot-discovery",
};

/// So much that no limit of requests is reached.
const UNLIMITED: &str = "100000";

/// Returns the directory of programs that the benchmark installs.
pub(super) fn tools(root: &Path) -> PathBuf {
    root.join("target/tools")
}

/// Returns the command that runs it.
pub(super) fn command(
    testbed: &Testbed,
    kubeconfig: &Path,
    grpc: SocketAddr,
    http: SocketAddr,
) -> anyhow::Result<Command> {
    let program = PROGRAM.path(&tools(&workspace::root()?));
    // It looks for its configuration below the working directory, and finds none there.
    let directory = Path::new(DIRECTORY).join("istio");
    let issuer = directory.join("cacerts");
    copy_issuer(&testbed.authority(), &issuer).context("copy the issuer for Istio")?;
    let mut command = on_cpu(testbed, testbed.cpus.proxies, &program)?;
    command
        .current_dir(directory)
        .arg("discovery")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg(format!("--grpcAddr={grpc}"))
        .arg(format!("--httpAddr={http}"))
        .args(["--secureGRPCAddr=", "--httpsAddr=", "--monitoringAddr="])
        .args(["--ctrlz_port=0", "--log_output_level=default:warn"])
        .arg(format!("--kubernetesApiQPS={UNLIMITED}"))
        .arg(format!("--kubernetesApiBurst={UNLIMITED}"))
        .env("PILOT_MAX_REQUESTS_PER_SECOND", UNLIMITED)
        // The protocol of the API server's front.
        .env("ISTIO_KUBE_CLIENT_CONTENT_TYPE", "json")
        // Our controllers have the same issuer. Its own would have an RSA key, which costs more.
        .env("ROOT_CA_DIR", issuer)
        .env("INJECT_ENABLED", "false")
        .env("INJECTION_WEBHOOK_CONFIG_NAME", "")
        .env("VALIDATION_WEBHOOK_CONFIG_NAME", "");
    Ok(command)
}

/// Copies the files of an authority to those that Istio reads.
fn copy_issuer(authority: &Path, directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    for (from, to) in [
        (ANCHOR, "root-cert.pem"),
        ("issuer.pem", "ca-cert.pem"),
        ("issuer.pem", "cert-chain.pem"),
        ("issuer-key.pem", "ca-key.pem"),
    ] {
        fs::copy(authority.join(from), directory.join(to))?;
    }
    Ok(())
}
