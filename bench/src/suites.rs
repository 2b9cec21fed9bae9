//! `cargo xtask test --suites`: runs public test suites and an in-house one against the proxy, each
//! in the applicable positions, and against the server alone.
//!
//! `topology` sets up the pair of pods with the servers of the suites. Each suite is a module that
//! runs the suite and parses its report. A case that also fails against the server alone is marked
//! in the output.

mod grpc_interop;
mod h2spec;
mod honest_client;
mod hostile;
mod jaeger;
mod kosoku;
pub(crate) mod outcome;
mod slowhttptest;
mod smugglex;
mod suite;
mod suite_run;
mod tools;
mod topology;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::ValueEnum;
use xtask::interrupt::Interrupt;
use xtask::{stage, workspace};

use crate::testbed::{Cpus, Programs, Testbed};
use outcome::Outcome;
use suite_run::Run;
use tools::Tools;
use topology::{Application, Position, Topology};

pub(crate) use suite::Suite;
pub(crate) use tools::DIRECTORY;

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct SuitesOptions {
    /// Suites to run; all by default
    pub(crate) suites: Vec<Suite>,
    /// Positions to run besides the server alone; all of the suite by default. May be repeated
    #[arg(long = "position", value_name = "NAME", value_enum)]
    pub(crate) positions: Vec<Position>,
    /// Use the existing programs in target/debug, or in target/release for the suite that measures
    #[arg(long)]
    pub(crate) no_build: bool,
}

/// Installs, builds and runs the named suites, or all. A failed case sets the exit status and is
/// not an error.
pub(crate) fn run(root: &Path, options: &SuitesOptions) -> anyhow::Result<ExitCode> {
    let build = !options.no_build;
    if !workspace::is_root() {
        bail!(
            "the suites create network namespaces, cgroups and BPF programs and need root: run them with sudo"
        );
    }
    let suites = chosen(&options.suites);
    let cpus = Cpus::choose()?;
    let tools = Tools::prepare(root, &suites)?;
    let interrupt = Interrupt::watch()?;
    let mut all_held = true;
    // Functional suites run against programs with debug assertions.
    for measures in [false, true] {
        let wants = |suite: &Suite| suite.measures() == measures;
        let suites: Vec<Suite> = suites.iter().copied().filter(wants).collect();
        if suites.is_empty() {
            continue;
        }
        let programs = if measures {
            Programs::optimised(root, build)?
        } else {
            Programs::checked(root, build)?
        };
        let testbed = Testbed::new(programs, cpus, interrupt.clone())?;
        all_held &= run_suites(root, &testbed, &tools, &suites, &options.positions)?;
    }
    Ok(if all_held {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the suites in one topology. Returns whether every case through the proxies passed.
fn run_suites(
    root: &Path,
    testbed: &Testbed,
    tools: &Tools,
    suites: &[Suite],
    positions: &[Position],
) -> anyhow::Result<bool> {
    let mut topology = Topology::start(testbed, tools, suites)?;
    let mut all_held = true;
    for suite in suites {
        // The run continues after a suite that could not be run, but not after the exit of a proxy.
        let held = suite.run_in_positions(testbed, &mut topology, tools, root, positions);
        topology.check()?;
        testbed.check_interrupt()?;
        all_held &= match held {
            Ok(held) => held,
            Err(error) => {
                println!("{:<13} could not be run: {error:#}", suite.name());
                false
            }
        };
    }
    Ok(all_held)
}

/// Returns the named suites once each, in declaration order.
fn chosen(named: &[Suite]) -> Vec<Suite> {
    let wanted = |suite: &&Suite| named.is_empty() || named.contains(suite);
    Suite::value_variants()
        .iter()
        .filter(wanted)
        .copied()
        .collect()
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Self::H2spec => "h2spec",
            Self::GrpcInterop => "grpc-interop",
            Self::Kosoku => "kosoku",
            Self::Jaeger => "jaeger",
            Self::Smugglex => "smugglex",
            Self::Slowhttptest => "slowhttptest",
            Self::Hostile => "hostile",
        }
    }

    /// Returns the positions of the suite, first the server alone, which is the reference for the
    /// others.
    fn positions(self) -> &'static [Position] {
        use Position::{Both, Direct, Inbound, InboundTls, Outbound};
        match self {
            Self::H2spec => &[Direct, Outbound, Inbound, InboundTls, Both],
            Self::Jaeger | Self::Smugglex => &[Direct, Outbound, Inbound, Both],
            Self::Hostile => &[Direct, Outbound, Inbound, Both],
            Self::GrpcInterop | Self::Kosoku | Self::Slowhttptest => &[Direct, Both],
        }
    }

    /// Returns the named positions of the suite, or all, after the server alone.
    fn chosen_positions(self, named: &[Position]) -> impl Iterator<Item = Position> {
        let is_chosen = |position: &&Position| {
            named.is_empty() || **position == Position::Direct || named.contains(*position)
        };
        self.positions().iter().filter(is_chosen).copied()
    }

    /// Returns whether the suite measures CPU cost, which requires optimised programs.
    fn measures(self) -> bool {
        self == Self::Hostile
    }

    /// Returns the application that the suite connects to.
    fn application(self) -> Application {
        match self {
            Self::H2spec => Application::Http2,
            Self::GrpcInterop => Application::Grpc,
            Self::Kosoku => Application::WebSocket,
            Self::Jaeger => Application::Traced,
            Self::Smugglex | Self::Slowhttptest | Self::Hostile => Application::Web,
        }
    }

    /// Returns all applications that the suite needs.
    fn applications(self) -> Vec<Application> {
        let mut all = vec![self.application()];
        if self == Self::Hostile {
            all.extend([Application::Http2, Application::Sink]);
        }
        all
    }

    /// Runs the suite in the named ones of its positions, or in all, and prints the outcomes.
    /// Returns whether every case through the proxies passed.
    fn run_in_positions(
        self,
        testbed: &Testbed,
        topology: &mut Topology<'_>,
        tools: &Tools,
        root: &Path,
        named: &[Position],
    ) -> anyhow::Result<bool> {
        let results = root.join(DIRECTORY).join("results");
        fs::create_dir_all(&results).with_context(|| format!("create {}", results.display()))?;
        let mut held = true;
        let mut alone = None;
        for position in self.chosen_positions(named) {
            testbed.check_interrupt()?;
            let outcome = stage::run(self.name(), position.what(), || {
                self.run(topology, tools, position, &results)
            });
            let outcome = outcome.with_context(|| format!("against {}", position.what()))?;
            topology.check()?;
            let outcome = match &alone {
                Some(alone) => self.relative_to_direct(outcome, alone),
                None => outcome,
            };
            outcome.print(root, self.name(), position.name(), alone.as_ref());
            held &= position == Position::Direct || outcome.holds();
            alone.get_or_insert(outcome);
        }
        Ok(held)
    }

    fn run(
        self,
        topology: &Topology<'_>,
        tools: &Tools,
        position: Position,
        results: &Path,
    ) -> anyhow::Result<Outcome> {
        let name = format!("{}-{}", self.name(), position.name().replace(' ', "-"));
        let extension = match self {
            Self::H2spec => ".xml",
            Self::GrpcInterop => ".txt",
            Self::Smugglex => ".json",
            Self::Kosoku | Self::Jaeger | Self::Slowhttptest | Self::Hostile => "",
        };
        let run = Run {
            topology,
            position,
            target: topology.target(self.application(), position),
            report: results.join(format!("{name}{extension}")),
            name,
        };
        match self {
            Self::H2spec => h2spec::run(run, &tools.h2spec()?),
            Self::GrpcInterop => grpc_interop::run(run, &tools.grpc_client()?),
            Self::Kosoku => kosoku::run(run, &tools.kosoku()?),
            Self::Jaeger => jaeger::run(run, &tools.opentelemetry()?),
            Self::Smugglex => smugglex::run(run, &tools.smugglex()?),
            Self::Slowhttptest => slowhttptest::run(&run),
            Self::Hostile => hostile::run(&run),
        }
    }

    /// Evaluates the outcome of a position relative to the server alone. The proxies only forward
    /// WebSocket messages, so that each Autobahn case must have the same outcome as without them.
    fn relative_to_direct(self, outcome: Outcome, alone: &Outcome) -> Outcome {
        match self {
            Self::Kosoku => outcome.compared_with_direct(alone),
            _ => outcome.with_missing_cases_failed(alone),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_suites_are_selected_once_in_table_order() {
        assert_eq!(chosen(&[]).len(), Suite::value_variants().len());
        let twice = [Suite::Kosoku, Suite::H2spec, Suite::Kosoku];
        assert_eq!(chosen(&twice), [Suite::H2spec, Suite::Kosoku]);
    }

    #[test]
    fn server_alone_is_always_among_chosen_positions() {
        let chosen = |named: &[Position]| -> Vec<Position> {
            Suite::Smugglex.chosen_positions(named).collect()
        };
        assert_eq!(chosen(&[]), Suite::Smugglex.positions());
        let one = [Position::Direct, Position::Both];
        assert_eq!(chosen(&[Position::Both]), one);
        assert_eq!(chosen(&[Position::InboundTls]), [Position::Direct]);
    }

    #[test]
    fn every_suite_starts_direct_and_ends_with_both_proxies() {
        for suite in Suite::value_variants() {
            assert_eq!(suite.positions().first(), Some(&Position::Direct));
            assert_eq!(suite.positions().last(), Some(&Position::Both));
            let value = suite.to_possible_value().expect("none is hidden");
            assert_eq!(value.get_name(), suite.name());
        }
    }
}
