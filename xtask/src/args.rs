//! The command line of xtask. `main` dispatches it; `tidy::documents` parses the commands of the
//! documents with it.

use clap::{Parser, Subcommand};

use crate::demo::DemoOptions;
use crate::fuzz::FuzzOptions;
use crate::image::ImageOptions;
use crate::measurement::MeasurementOptions;
use crate::mutants::MutantsOptions;
use crate::package::PackageOptions;
use crate::setup::SetupOptions;

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
    /// Install everything that building, the tests and the demo need
    Setup(SetupOptions),
    /// Run every check and every test: setup, ebpf, fmt, tidy, clippy, unit tests, integration
    /// tests
    Test(TestOptions),
    /// Run CI's checks: the same as `test`
    Ci,
    /// Check the repository's conventions
    Tidy,
    /// Format the code of all workspaces
    Fmt {
        /// Only check; fail if a file is not formatted
        #[arg(long)]
        check: bool,
    },
    /// Build the kernel programs and print the path of the object
    Ebpf,
    /// Build the kernel programs and every program of the mesh
    Build {
        /// Build without optimisation
        #[arg(long)]
        dev: bool,
    },
    /// Build the container images of the mesh, without Docker
    Image(ImageOptions),
    /// Build the packages for machines outside Kubernetes, for dpkg and for rpm
    Package(PackageOptions),
    /// Start a whole mesh on this machine, measure its claims, and remove it
    Demo(DemoOptions),
    /// Compare the cost of the proxy with Envoy, HAProxy and a direct connection
    #[command(disable_help_flag = true)]
    Bench(MeasurementOptions),
    /// Load a pair of proxies for an hour while certificates and trust anchors rotate; no request
    /// may fail and no resource may grow
    #[command(disable_help_flag = true)]
    Soak(MeasurementOptions),
    /// Plant the faults of docs/reliability.md and judge the promises under them
    #[command(disable_help_flag = true)]
    Chaos(MeasurementOptions),
    /// Play scripts of a client and a server, and compare what they observe; with `--controllers`,
    /// run the controllers against an API server that fails (docs/simulation.md)
    #[command(disable_help_flag = true)]
    Simulate(MeasurementOptions),
    /// Search for inputs that the proxy mishandles, guided by coverage
    Fuzz(FuzzOptions),
    /// Change the code of a module in one place at a time, and count how many of these mutants its
    /// tests find
    Mutants(MutantsOptions),
    /// Check the dependencies: advisories, licences, duplicates, sources
    Audit {
        /// Skip the advisories, which need the network
        #[arg(long)]
        offline: bool,
    },
}

// Here, because `test` runs `tidy`, which imports this file.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TestOptions {
    /// Run only formatting, tidy, clippy and unit tests, without setup, kernel programs and
    /// integration tests
    #[arg(long)]
    pub(crate) quick: bool,
    /// With --quick: run clippy only on packages that changed since this revision of git
    #[arg(long, value_name = "REVISION", requires = "quick")]
    pub(crate) since: Option<String>,
    /// Run only the tests in Rust whose name contains this
    #[arg(long, value_name = "NAME")]
    pub(crate) filter: Option<String>,
    /// Run only the models of what threads share and of protocols between processes
    #[arg(long, conflicts_with_all = ["quick", "skip", "e2e", "long", "suites", "kernel"])]
    pub(crate) models: bool,
    /// Leave out a stage, whose tests then count as skipped
    #[arg(long, value_name = "STAGE", conflicts_with_all = ["quick", "filter", "e2e", "suites"])]
    pub(crate) skip: Vec<Skippable>,
    /// Run only the end-to-end tests, on the cluster whose context MESH_TEST_CLUSTER names. Without
    /// this they are part of all tests, and skipped when there is no cluster
    #[arg(long, conflicts_with = "quick")]
    pub(crate) e2e: bool,
    /// Create a cluster of two nodes with kind for the end-to-end tests, and delete it at the end
    #[arg(long, requires = "e2e")]
    pub(crate) kind: bool,
    /// Also run the long tests (soak and volume)
    #[arg(long, conflicts_with = "quick")]
    pub(crate) long: bool,
    /// Install and run only the public suites, the named ones or all; needs root, and for
    /// gateway-api the cluster of MESH_TEST_CLUSTER
    #[arg(long, value_name = "NAME", num_args = 0.., conflicts_with_all = ["quick", "filter", "e2e", "long"])]
    pub(crate) suites: Option<Vec<String>>,
    /// Run suites in these positions only, besides the server alone: outbound, inbound, inbound-tls
    /// or both. May be repeated
    #[arg(long = "position", value_name = "NAME", requires = "suites")]
    pub(crate) positions: Vec<String>,
    /// Run only the tests of redirection, on this kernel in qemu; `list` prints the names
    #[arg(long, value_name = "NAME", conflicts_with_all = ["quick", "e2e", "long", "suites", "skip"])]
    pub(crate) kernel: Option<String>,
    /// Use the existing programs and images, in target/debug or for measurements target/release
    #[arg(long, requires = "suites")]
    pub(crate) no_build: bool,
}

/// A stage of `test` that can be left out by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Skippable {
    /// The build of the dashboard's page, and its tests in a browser
    Dashboard,
}
