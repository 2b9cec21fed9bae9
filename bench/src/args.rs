//! The command line of `cargo xtask bench`, `soak` and `test --suites`, which hand it over as it is.

use std::path::PathBuf;

use xtask::duration;

use crate::{benchmark::Peer, suites::Suite};

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct BenchmarkOptions {
    /// Only this workload; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) workload: Vec<String>,
    /// Only this peer beside ours; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) peer: Vec<Peer>,
    /// A look in five minutes: few short rounds, and without the workloads that take long
    #[arg(long)]
    pub(crate) quick: bool,
    /// Count rounds too during which the machine did other things. Such results are no results;
    /// they show that everything works
    #[arg(long)]
    pub(crate) noisy: bool,
    /// Rounds that must count [default: 7, or 3 with --quick]
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<usize>,
    /// Seconds of load on each peer in a round [default: 3, or 1 with --quick]
    #[arg(long, value_name = "N")]
    pub(crate) seconds: Option<u32>,
    /// Also show where our proxies spend their time under each load, by perf
    #[arg(long)]
    pub(crate) profile: bool,
    /// Measure the programs as they are in target/release
    #[arg(long)]
    pub(crate) no_build: bool,
    /// Where table, raw numbers and chart are written to [default: target/bench]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Only name the workloads and what must hold
    #[arg(long)]
    pub(crate) list: bool,
}

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct SoakOptions {
    /// For how long, as in 600s, 30m or 1h [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) time: Option<u64>,
    /// Take the programs as they are in target/release
    #[arg(long)]
    pub(crate) no_build: bool,
}

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct SuitesOptions {
    /// Which suites; all when none is named
    pub(crate) suites: Vec<Suite>,
    /// Test the programs as they are in target/debug, or target/release for the suite that measures
    #[arg(long)]
    pub(crate) no_build: bool,
}
