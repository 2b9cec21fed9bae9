//! The command line of xtask. `main` dispatches it; `tidy::readme` parses the commands of the
//! documents with it.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::{duration, image::ImageName};

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
    /// Run every check and every test: setup, ebpf, fmt, tidy, clippy, unit tests, integration
    /// tests
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
    /// Make the container images of the mesh, without Docker
    Image(ImageOptions),
    /// Start a whole mesh on this machine, show it at work, and take it down again
    Demo(DemoOptions),
    /// Measure what the proxy costs, beside Envoy, HAProxy and nothing at all
    #[command(disable_help_flag = true)]
    Bench(MeasurementOptions),
    /// Load our proxies for an hour while their certificates and trust anchors change; nothing may
    /// fail or grow
    #[command(disable_help_flag = true)]
    Soak(MeasurementOptions),
    /// Search for inputs that the proxy mishandles, guided by coverage
    Fuzz(FuzzOptions),
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
    /// On a cluster instead of this machine: that of a context of the kubeconfig, or the current
    /// one
    #[arg(long, value_name = "CONTEXT", num_args = 0..=1, require_equals = true)]
    pub(crate) kubernetes: Option<Option<String>>,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ImageOptions {
    /// Which images are written; all when none is named. The programs of all of them are built
    /// either way
    pub(crate) images: Vec<ImageName>,
    /// Unoptimised programs, as the tests start them: for a cluster on this machine
    #[arg(long)]
    pub(crate) dev: bool,
    /// Take the programs as they are in target/debug
    #[arg(long, requires = "dev", conflicts_with = "check")]
    pub(crate) no_build: bool,
    /// Where the images are written to [default: target/images/dev or target/images/release]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Also push them: below this registry or part of one, as in ghcr.io/example
    #[arg(long, value_name = "REGISTRY")]
    pub(crate) push: Option<String>,
    /// Build everything a second time from nothing, and fail unless the images are the same bytes
    #[arg(long)]
    pub(crate) check: bool,
}

/// Handed over to `mesh-bench`, which explains them with `--help`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct MeasurementOptions {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) options: Vec<String>,
}

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct FuzzOptions {
    /// Which targets; all when none is named
    pub(crate) targets: Vec<String>,
    /// How long each runs, as in 90s, 5m or 1h [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) time: Option<u64>,
    /// How many inputs each runs, instead of a time
    #[arg(long, value_name = "N", conflicts_with = "time")]
    pub(crate) runs: Option<u64>,
    /// Processes that work on a target beside each other
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) jobs: u64,
    /// Be guided by the edges taken only, not by what is compared: two to three times as many
    /// executions, in a build of its own
    #[arg(long)]
    pub(crate) edges: bool,
    /// Add the inputs found that reach something new to fuzz/corpus, as few as possible
    #[arg(long)]
    pub(crate) keep: bool,
    /// Only run this input, once, and show all that is said; may be given several times
    #[arg(long, value_name = "FILE", conflicts_with_all = ["time", "runs", "keep"])]
    pub(crate) input: Vec<PathBuf>,
    /// Only name the targets
    #[arg(long)]
    pub(crate) list: bool,
}

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TestOptions {
    /// Formatting, tidy, clippy and unit tests only: no setup, no kernel programs, no integration
    /// tests
    #[arg(long)]
    pub(crate) quick: bool,
    /// Run only the tests whose name contains this
    #[arg(long, value_name = "NAME")]
    pub(crate) filter: Option<String>,
    /// Run only the end-to-end tests, on the cluster whose context MESH_TEST_CLUSTER names. Without
    /// this they are part of all tests, and skipped when there is no cluster
    #[arg(long, conflicts_with = "quick")]
    pub(crate) e2e: bool,
    /// Make a cluster of two nodes with kind for them, and delete it at the end
    #[arg(long, requires = "e2e")]
    pub(crate) kind: bool,
    /// Also run the long tests (soak and volume)
    #[arg(long, conflicts_with = "quick")]
    pub(crate) long: bool,
    /// Run only the suites against the proxy, these or all: installs them, and needs root
    #[arg(long, value_name = "NAME", num_args = 0.., conflicts_with_all = ["quick", "filter", "e2e", "long"])]
    pub(crate) suites: Option<Vec<String>>,
    /// Test the programs as they are in target/debug, or target/release for the suite that measures
    #[arg(long, requires = "suites")]
    pub(crate) no_build: bool,
}
