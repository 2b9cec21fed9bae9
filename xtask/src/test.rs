//! `cargo xtask test`: every check and every test, cheapest first, so that a mistake is known early. Ends with one
//! plain line: how many tests passed, failed and were skipped.

mod summary;

use std::{path::Path, process::ExitCode};

use anyhow::{Context, bail};

use crate::{args::TestOptions, clippy, command, ebpf, fmt, setup, stage, tidy, workspace};
use summary::{Summary, Tally};

/// Tells the tests to run at full volume (`--long`).
const LONG_VARIABLE: &str = "MESH_TEST_LONG";

/// Runs everything. Failed tests are no error here but an exit status, so that the counts are the last line.
pub(crate) fn run(root: &Path, options: &TestOptions) -> anyhow::Result<ExitCode> {
    check(root, options)?;

    let mut tally = Tally::default();
    let unit = ["--lib", "--bins"];
    let tests = stage::run("unit tests", "the tests beside the code", || {
        run_tests(root, &unit, options, &mut tally)
    });
    let tests = match tests {
        Ok(()) if !options.quick => {
            let integration = ["--test", "*"];
            stage::run("integration tests", "the tests that start programs", || {
                run_tests(root, &integration, options, &mut tally)
            })
        }
        ended => ended,
    };
    if let Err(error) = &tests {
        eprintln!("error: {error:#}");
    }
    report(&tally);
    Ok(if tests.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Everything that must hold before tests are worth running.
fn check(root: &Path, options: &TestOptions) -> anyhow::Result<()> {
    if !options.quick {
        let missing = stage::run("setup", "what this machine lacks", || setup::ready(root))?;
        if let Some(reason) = missing.bpf {
            // The agent then embeds no object, says so, and its eBPF tests are skipped with the same reason.
            eprintln!("==> ebpf: skipped, {reason}");
        } else {
            stage::run("ebpf", "the kernel programs", || {
                ebpf::build(root).context("build the kernel programs")
            })?;
        }
    }
    stage::run("fmt", "formatting of both workspaces", || {
        fmt::run(root, true)
    })?;
    stage::run("tidy", "the house rules", || tidy::run(root))?;
    stage::run(
        "clippy",
        "the workspace with its tests, warnings are errors",
        || clippy::run(root),
    )?;
    if options.quick {
        return Ok(());
    }
    // One build with the features that the tests see, so that the programs they start are of the same build.
    stage::run("build", "every program and test", || {
        let mut command = workspace::cargo(root);
        command::run(
            "build",
            command.args(["build", "--workspace", "--all-targets"]),
        )
    })?;
    stage::run(
        "documents",
        "the meshctl commands of the documents exist",
        || tidy::check_meshctl_commands(root),
    )
}

fn run_tests(
    root: &Path,
    targets: &[&str],
    options: &TestOptions,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let mut command = workspace::cargo(root);
    // --show-output: a test that cannot run here passes and prints why; that line is what the summary counts.
    command
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(targets)
        .args(["--", "--show-output"]);
    command.args(&options.filter);
    if options.long {
        command.env(LONG_VARIABLE, "1");
    }
    let mut summary = Summary::default();
    let finished = command::observe("tests", &mut command, |line| summary.line(line))?;
    let ended_well = finished.status.success();
    let seen = summary.finish(ended_well);
    let failed = seen.tally.failed;
    tally.add(seen.tally);
    if ended_well {
        return Ok(());
    }
    for line in &seen.failure_output {
        eprintln!("{line}");
    }
    bail!("{failed} failed")
}

fn report(tally: &Tally) {
    for (reason, count) in tally.reasons() {
        println!("    skipped ({count}): {reason}");
    }
    println!("{tally}");
}
