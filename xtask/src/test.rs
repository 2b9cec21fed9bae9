//! `cargo xtask test`: runs every check, the cheapest first, so that errors show early, and then
//! every test. The last line has the numbers of passed, failed and skipped tests.

mod dashboard;
mod summary;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::{env, thread};

use anyhow::{Context, bail};

use crate::args::{Skippable, TestOptions};
use crate::cluster::{self, Kind};
use crate::{clippy, command, ebpf, fmt, measurement, setup, stage, tidy, workspace};
use summary::{Summary, Tally};

/// Set when tests are built with the features of the whole workspace: the counts of some tests
/// depend on them.
const WORKSPACE_VARIABLE: &str = "MESH_TEST_WORKSPACE";
/// Set for tests at full volume (`--long`).
const LONG_VARIABLE: &str = "MESH_TEST_LONG";
/// Runs another kernel. Only `--kernel` needs it, and it is large.
const QEMU: &str = "qemu-system-x86_64";
const QEMU_PACKAGE: &str = "qemu-system-x86";
/// Prints the names of kernels and runs none.
const KERNEL_LIST: &str = "list";
/// The suite of `mesh-bench` that runs on a cluster.
const CLUSTER_SUITE: &str = "gateway-api";

/// Runs everything. Failed tests only set the exit status, so that the counts are the last line.
pub(crate) fn run(root: &Path, options: &TestOptions) -> anyhow::Result<ExitCode> {
    if let Some(kernel) = &options.kernel {
        if kernel != KERNEL_LIST && workspace::find_program(QEMU).is_none() {
            setup::install(&[QEMU_PACKAGE]).context("install qemu, which boots the kernel")?;
        }
        let arguments = Vec::from_iter([kernel].into_iter().chain(&options.filter).cloned());
        return measurement::check(root, "mesh-kernels", &arguments);
    }
    if let Some(suites) = &options.suites {
        return run_suites(root, suites, options);
    }
    let mut tally = Tally::default();
    let ended = if options.e2e {
        end_to_end(root, options, &mut tally)
    } else {
        check(root, options).and_then(|()| everything(root, options, &mut tally))
    };
    let Err(error) = ended else {
        report(&tally);
        return Ok(ExitCode::SUCCESS);
    };
    if tally == Tally::default() {
        return Err(error);
    }
    eprintln!("error: {error:#}");
    report(&tally);
    Ok(ExitCode::FAILURE)
}

/// Runs the named suites, or all: those against a pair of proxies, then the one on a cluster.
fn run_suites(root: &Path, named: &[String], options: &TestOptions) -> anyhow::Result<ExitCode> {
    let all = named.is_empty();
    let mut on_machine = named.to_vec();
    on_machine.retain(|name| name != CLUSTER_SUITE);
    let on_cluster = on_machine.len() < named.len();
    if on_machine.is_empty() && on_cluster && !options.positions.is_empty() {
        bail!("--position has no effect on {CLUSTER_SUITE}: leave it out, or name another suite");
    }
    let no_build = options.no_build.then(|| "--no-build".to_owned());
    if no_build.is_none() {
        build_kernel_programs(root)?;
    }
    let mut status = ExitCode::SUCCESS;
    if all || !on_machine.is_empty() {
        let positions = options.positions.iter();
        on_machine.extend(positions.flat_map(|name| ["--position".to_owned(), name.clone()]));
        on_machine.extend(no_build.clone());
        status = measurement::run(root, "suites", &on_machine)?;
    }
    if on_cluster || (all && cluster::given().is_some()) {
        if let (Some(context), false) = (cluster::given(), options.no_build) {
            build(root)?;
            load_images(root, &context)?;
        }
        let passed = measurement::run(root, CLUSTER_SUITE, &Vec::from_iter(no_build))?;
        if passed != ExitCode::SUCCESS {
            status = passed;
        }
    } else if all {
        eprintln!(
            "==> {CLUSTER_SUITE}: skipped, no cluster: set {} to the context of one",
            cluster::CONTEXT_VARIABLE
        );
    }
    Ok(status)
}

/// Runs the unit tests and the tests that start programs. The latter mostly wait, for the cluster
/// above all, so the unit tests and the page's tests run at the same time.
fn everything(root: &Path, options: &TestOptions, tally: &mut Tally) -> anyhow::Result<()> {
    let unit = |tally: &mut Tally| {
        stage::run("unit tests", "the tests beside the code", || {
            run_tests("unit", root, &["--lib", "--bins"], options, None, tally)
        })
    };
    if options.quick {
        return unit(tally);
    }
    setup::helm(root);
    let context = cluster::given();
    if let Some(context) = &context {
        load_images(root, context)?;
    }
    let mut beside = Tally::default();
    let ended = thread::scope(|scope| {
        let beside = scope.spawn(|| unit(&mut beside).and(page(root, options, &mut beside)));
        let what = "the tests that start programs";
        let integration = stage::run("integration tests", what, || {
            let targets = ["--test", "*"];
            run_tests("tests", root, &targets, options, context.as_deref(), tally)
        });
        let beside = beside.join().unwrap_or_else(|_| bail!("the unit tests"));
        integration.and(beside)
    });
    tally.add(beside);
    ended
}

/// Checks the dashboard's page.
fn page(root: &Path, options: &TestOptions, tally: &mut Tally) -> anyhow::Result<()> {
    if options.filter.is_some() {
        eprintln!("==> dashboard: left out, --filter selects tests in Rust");
        return Ok(());
    }
    if options.skip.contains(&Skippable::Dashboard) {
        dashboard::skip(tally, "--skip dashboard");
        return Ok(());
    }
    let what = "its page is the build of its sources, and works in a browser";
    stage::run("dashboard", what, || dashboard::run(root, tally))
}

/// Runs only the end-to-end tests, with their prerequisites.
fn end_to_end(root: &Path, options: &TestOptions, tally: &mut Tally) -> anyhow::Result<()> {
    let create = || stage::run("kind", "a cluster of two nodes", || Kind::create(root));
    let made = options.kind.then(create).transpose()?;
    let context = match &made {
        Some(kind) => kind.context(),
        None => cluster::given().with_context(|| {
            format!(
                "which cluster? {} names the context of one on which nothing of the mesh is installed; --kind makes one",
                cluster::CONTEXT_VARIABLE
            )
        })?,
    };
    build_kernel_programs(root)?;
    setup::helm(root);
    build(root)?;
    load_images(root, &context)?;
    let tests = ["--test", "e2e"];
    stage::run("end-to-end tests", "the mesh on a cluster", || {
        run_tests("tests", root, &tests, options, Some(&context), tally)
    })
}

fn load_images(root: &Path, context: &str) -> anyhow::Result<()> {
    stage::run("images", &format!("into the cluster {context}"), || {
        cluster::load_images(root, context)
    })
}

/// Runs the checks that precede the tests.
fn check(root: &Path, options: &TestOptions) -> anyhow::Result<()> {
    if !options.quick {
        build_kernel_programs(root)?;
    }
    stage::run("fmt", "formatting of both workspaces", || {
        fmt::run(root, true)
    })?;
    stage::run("tidy", "the house rules", || tidy::run(root))?;
    stage::run(
        "clippy",
        "packages with their tests, warnings are errors",
        || clippy::run(root, options.since.as_deref()),
    )?;
    if options.quick {
        return Ok(());
    }
    build(root)?;
    stage::run(
        "documents",
        "the meshctl commands of the documents exist",
        || tidy::check_meshctl_commands(root),
    )
}

fn build_kernel_programs(root: &Path) -> anyhow::Result<()> {
    let missing = stage::run("setup", "what this machine lacks", || setup::ready(root))?;
    if let Some(reason) = missing.bpf {
        // The agent then embeds no object and reports that; its eBPF tests are skipped for the same
        // reason.
        eprintln!("==> ebpf: skipped, {reason}");
        return Ok(());
    }
    stage::run("ebpf", "the kernel programs", || {
        ebpf::build(root).context("build the kernel programs")?;
        ebpf::build_other(root).context("build the kernel programs a second time")
    })
    .map(drop)
}

/// Builds once with the features of the tests, so that the started programs are from the same
/// build.
fn build(root: &Path) -> anyhow::Result<()> {
    stage::run("build", "every program and test", || {
        let arguments = ["build", "--workspace", "--all-targets"];
        command::run("build", workspace::cargo(root).args(arguments))
    })
}

fn run_tests(
    title: &str,
    root: &Path,
    targets: &[&str],
    options: &TestOptions,
    context: Option<&str>,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let mut command = workspace::cargo(root);
    if let Some(path) = path_with_helm(root) {
        command.env("PATH", path);
    }
    // --show-output: a test that cannot run here passes and prints why; the summary counts that
    // line.
    command
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(targets)
        .args(["--", "--show-output"]);
    command.args(&options.filter);
    command.env(WORKSPACE_VARIABLE, "1");
    if options.long {
        command.env(LONG_VARIABLE, "1");
    }
    if let Some(context) = context {
        command.env(cluster::CONTEXT_VARIABLE, context);
    }
    let mut summary = Summary::default();
    let finished = command::observe(title, &mut command, |line| summary.line(line))?;
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

/// The `PATH` with the Helm that `setup` built, if there is one.
fn path_with_helm(root: &Path) -> Option<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain(setup::helm_directory(root));
    env::join_paths(directories).ok()
}

fn report(tally: &Tally) {
    for (reason, count) in tally.reasons() {
        println!("    skipped ({count}): {reason}");
    }
    println!("{tally}");
}
