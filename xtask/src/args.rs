//! The command line of xtask. `main` dispatches it; `tidy::readme` parses the commands of the documents with it.

use clap::{Parser, Subcommand};

/// Every automation of this repository.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    disable_help_subcommand = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Install what building, the tests and the demo need
    Setup(SetupOptions),
    /// Run every check and every test: setup, ebpf, fmt, tidy, clippy, unit tests, integration tests
    Test(TestOptions),
    /// What CI runs: the same as `test`
    Ci,
    /// Check the house rules that no compiler checks
    Tidy,
    /// Format the code of both workspaces
    Fmt {
        /// Change nothing, fail when something is not formatted
        #[arg(long)]
        check: bool,
    },
    /// Build the kernel programs and print the path of the object
    Ebpf,
    /// Build the kernel programs and every program of the mesh
    Build {
        /// Unoptimised and quick to build
        #[arg(long)]
        dev: bool,
    },
    /// Start a whole mesh on this machine, show it at work, and take it down again
    Demo(DemoOptions),
    /// Check the dependencies: advisories, licences, duplicates, sources
    Audit {
        /// Leave out the advisories, which need the network
        #[arg(long)]
        offline: bool,
    },
}

#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct SetupOptions {
    /// Install nothing, list what is missing and fail when anything is
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DemoOptions {
    /// Leave the mesh up and say how to look around
    #[arg(long)]
    pub(crate) keep: bool,
    /// Only take down what --keep left up
    #[arg(long, conflicts_with = "keep")]
    pub(crate) down: bool,
    /// On a cluster instead of this machine: that of a context of the kubeconfig, or the current one
    #[arg(long, value_name = "CONTEXT", num_args = 0..=1, require_equals = true)]
    pub(crate) kubernetes: Option<Option<String>>,
}

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TestOptions {
    /// Formatting, tidy, clippy and unit tests only: no setup, no kernel programs, no integration tests
    #[arg(long)]
    pub(crate) quick: bool,
    /// Run only the tests whose name contains this
    #[arg(long, value_name = "NAME")]
    pub(crate) filter: Option<String>,
    /// Also run the long tests (soak and volume)
    #[arg(long, conflicts_with = "quick")]
    pub(crate) long: bool,
}
