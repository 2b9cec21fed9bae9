//! `cargo xtask fuzz`: searches for inputs that the proxy mishandles, guided by coverage. The
//! targets are in the package mesh-fuzz; docs/fuzzing.md describes the oracle of each. Ordinary
//! tests replay the inputs that are kept in `fuzz/corpus`.
//!
//! libFuzzer does the work, on the stable compiler: rustc's own copy of LLVM instruments the code,
//! and the crate libfuzzer-sys brings the rest (ADR 0015).

mod program;
mod run;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use crate::{command, duration, stage};
use program::{Guidance, Program};
use run::Budget;

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct FuzzOptions {
    /// Targets to run; all by default
    pub(crate) targets: Vec<String>,
    /// Duration of each, as in 90s, 5m or 1h [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) time: Option<u64>,
    /// Number of inputs of each, instead of a duration
    #[arg(long, value_name = "N", conflicts_with = "time")]
    pub(crate) runs: Option<u64>,
    /// Parallel processes per target
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) jobs: u64,
    /// Use edge coverage only, without comparison tracing: two to three times the executions, in a
    /// separate build
    #[arg(long)]
    pub(crate) edges: bool,
    /// Add a minimal set of found inputs with new coverage to fuzz/corpus
    #[arg(long)]
    pub(crate) keep: bool,
    /// Only run this input, once, and show the output; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with_all = ["time", "runs", "keep"])]
    pub(crate) input: Vec<PathBuf>,
    /// Only list the targets
    #[arg(long)]
    pub(crate) list: bool,
}

/// Default duration of each target.
const DEFAULT_SECONDS: u64 = 60;

/// Builds and runs the targets. A finding only sets the exit status, so that the other targets
/// still run.
pub(crate) fn run(root: &Path, options: &FuzzOptions) -> anyhow::Result<ExitCode> {
    let all = targets(root)?;
    if options.list {
        crate::print_lines(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = choose(&all, &options.targets)?;
    let guidance = if options.edges {
        Guidance::Edges
    } else {
        Guidance::Full
    };
    let program = stage::run("build", "the targets, with instrumentation", || {
        Program::build(root, guidance)
    })?;
    if !options.input.is_empty() {
        return replay(&program, &chosen, options);
    }
    let budget = Budget {
        runs: options.runs,
        seconds: options.time.unwrap_or(DEFAULT_SECONDS),
        jobs: options.jobs.max(1),
    };
    let width = chosen.iter().map(|name| name.len()).max().unwrap_or(0);
    let mut findings = Vec::new();
    for name in chosen {
        let outcome = run::target(&program, name, budget)?;
        println!("{name:width$}  {outcome}");
        findings.extend(outcome.findings.into_iter().map(|file| (name, file)));
        if options.keep {
            let kept = run::keep(&program, name)?;
            println!(
                "{:width$}  {kept} of the inputs found were added to fuzz/corpus/{name}",
                ""
            );
        }
    }
    for (name, file) in &findings {
        let file = file.strip_prefix(root).unwrap_or(file);
        println!(
            "to see it again: cargo xtask fuzz {name} --input {}",
            file.display()
        );
    }
    Ok(u8::from(!findings.is_empty()).into())
}

/// Lists targets from the directories of corpora, without a build; a test of mesh-fuzz keeps both
/// consistent.
fn targets(root: &Path) -> anyhow::Result<Vec<String>> {
    let directory = root.join("fuzz/corpus");
    let entries =
        fs::read_dir(&directory).with_context(|| format!("read {}", directory.display()))?;
    let mut names = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn choose<'a>(all: &'a [String], asked: &[String]) -> anyhow::Result<Vec<&'a str>> {
    if let Some(unknown) = asked.iter().find(|name| !all.contains(name)) {
        bail!(
            "there is no target {unknown:?}; there are {}",
            all.join(", ")
        );
    }
    let is_chosen = |name: &&String| asked.is_empty() || asked.contains(name);
    Ok(all.iter().filter(is_chosen).map(String::as_str).collect())
}

/// Runs single inputs and shows the output.
fn replay(program: &Program, chosen: &[&str], options: &FuzzOptions) -> anyhow::Result<ExitCode> {
    let [target] = chosen else {
        bail!("--input goes with exactly one target");
    };
    command::run_to_exit(program.command(target).args(&options.input))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_targets_are_selected_by_name() {
        let all = ["a", "b"].map(str::to_owned);
        assert_eq!(choose(&all, &[]).expect("all"), ["a", "b"]);
        assert_eq!(choose(&all, &["b".to_owned()]).expect("one"), ["b"]);
        assert!(choose(&all, &["c".to_owned()]).is_err());
    }

    #[test]
    fn fuzz_targets_are_listed_from_corpus() {
        let root = crate::workspace::root().expect("a checkout");
        let targets = targets(&root).expect("a corpus");
        assert!(targets.iter().any(|name| name == "http1-request"));
    }
}
