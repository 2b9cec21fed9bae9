//! `mesh-simulate-controllers`, which `cargo xtask simulate --controllers` builds and runs: plays
//! scripts from a seed on, and reports the ones that break a promise.

use std::process::ExitCode;

use clap::Parser;
use mesh_controller_simulator::generate::generate;
use mesh_controller_simulator::oracle::Problem;
use mesh_controller_simulator::report::{first_difference, timeline};
use mesh_controller_simulator::script::Script;
use mesh_controller_simulator::shrink::shrink;
use mesh_controller_simulator::world::{self, Run};
use xtask::{print_lines, seed};

/// Runs the controllers against an API server that fails (docs/simulation.md)
#[derive(Debug, Parser)]
#[command(name = "cargo xtask simulate --controllers", max_term_width = 100)]
struct Options {
    /// The seed of the first script; each one after it has the next number. Another one each time
    /// by default
    #[arg(long)]
    seed: Option<u64>,
    /// The number of scripts
    #[arg(long, default_value_t = 100)]
    count: u64,
    /// Play scripts for this time instead
    #[arg(long, value_name = "N", conflicts_with = "count")]
    minutes: Option<u64>,
    /// Print everything that happens in each run, also if no promise is broken
    #[arg(long)]
    replay: bool,
    /// Play each script twice, and compare the traces
    #[arg(long)]
    twice: bool,
    /// Do not shrink the scripts that fail
    #[arg(long)]
    brief: bool,
}

/// Failures beyond this many are counted, not shrunk and printed.
const MAX_REPORTS: usize = 5;

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    let first = options.seed.map_or_else(seed::of_the_clock, Ok)?;
    let (mut played, mut failed, mut requests) = (0, Vec::new(), 0);
    for seed in seed::campaign(first, options.count, options.minutes) {
        let script = generate(seed);
        let run = world::run(&script);
        played += 1;
        requests += run.record.requests.len();
        if options.replay {
            print_lines(&timeline(&script, &run.record))?;
        }
        if options.twice {
            let again = world::run(&script);
            let difference = first_difference(&script, [&run.record, &again.record]);
            anyhow::ensure!(
                run.hash == again.hash,
                "seed {seed} has two traces: {difference:?}"
            );
        }
        if run.problems.is_empty() {
            continue;
        }
        failed.push(script.seed.to_string());
        if failed.len() <= MAX_REPORTS {
            report(&script, &run, options.brief)?;
        }
    }
    let names = failed.join(", ");
    print_lines(&[format!(
        "seed {first}: {played} scripts, {requests} requests, {} break a promise{}{names}",
        failed.len(),
        if failed.is_empty() { "" } else { ": " }
    )])?;
    Ok(ExitCode::from(u8::from(!failed.is_empty())))
}

/// Shrinks the script of a failure and prints all about it.
fn report(script: &Script, failed: &Run, is_brief: bool) -> anyhow::Result<()> {
    let mut lines = vec![format!("✗ seed {}", script.seed)];
    lines.extend(failed.problems.iter().map(in_words));
    if !is_brief {
        let promises: Vec<_> = failed.problems.iter().map(|it| it.promise).collect();
        let is_same = |problem: &Problem| promises.contains(&problem.promise);
        let fails = |script: &Script| world::run(script).problems.iter().any(is_same);
        let smallest = shrink(script, fails);
        let run = world::run(&smallest);
        lines.push("--- the smallest script that breaks one of these promises".to_owned());
        lines.extend(smallest.steps.iter().map(ToString::to_string));
        lines.push("--- what it breaks".to_owned());
        lines.extend(run.problems.iter().map(in_words));
        lines.push("--- what happens".to_owned());
        lines.extend(timeline(&smallest, &run.record));
    }
    let seed = script.seed;
    lines.push(format!(
        "--- again: cargo xtask simulate --controllers --seed {seed} --count 1"
    ));
    print_lines(&lines)?;
    Ok(())
}

fn in_words(problem: &Problem) -> String {
    format!("  {:?}: {}", problem.promise, problem.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        use clap::CommandFactory as _;
        Options::command().debug_assert();
    }
}
