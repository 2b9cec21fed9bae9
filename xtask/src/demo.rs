//! `cargo xtask demo`: builds the mesh and `mesh-demo`, and runs that.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::bail;

use crate::{binaries, command, workspace};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DemoOptions {
    /// Keep the mesh running and print commands to inspect it
    #[arg(long)]
    pub(crate) keep: bool,
    /// Only remove the mesh that --keep left running
    #[arg(long, conflicts_with = "keep")]
    pub(crate) down: bool,
    /// Run on a cluster instead of this machine: the cluster of a kubeconfig context, or of the
    /// current one
    #[arg(long, value_name = "CONTEXT", num_args = 0..=1, require_equals = true)]
    pub(crate) kubernetes: Option<Option<String>>,
}

const PROGRAM: &str = "mesh-demo";

pub(crate) fn run(root: &Path, options: &DemoOptions) -> anyhow::Result<ExitCode> {
    if options.kubernetes.is_none() && !workspace::is_root() {
        bail!(
            "the demo makes network namespaces, cgroups and BPF programs, which needs root: run it with sudo. \
             Without root, `cargo xtask test` still runs every test that needs no privileges, and `--kubernetes` shows the demo on a cluster"
        );
    }
    if !options.down {
        binaries::build(root, true, &[PROGRAM])?;
    }
    let mut demo = Command::new(binaries::directory(root, true).join(PROGRAM));
    demo.args(options.keep.then_some("--keep"));
    demo.args(options.down.then_some("--down"));
    demo.args(options.kubernetes.as_ref().map(|context| match context {
        None => "--kubernetes".to_owned(),
        Some(context) => format!("--kubernetes={context}"),
    }));
    command::run_to_exit(&mut demo)
}
