//! The command line of xtask. `main` dispatches it; `tidy::readme` parses the commands of the
//! documents with it.

use clap::{Parser, Subcommand};

use crate::{
    demo::DemoOptions, fuzz::FuzzOptions, image::ImageOptions, measurement::MeasurementOptions,
    setup::SetupOptions, test::TestOptions,
};

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
