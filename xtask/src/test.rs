//! `cargo xtask test`: runs every check, the cheapest first, so that errors show early, and then
//! every test. The last line has the numbers of passed, failed and skipped tests.

mod dashboard;
mod summary;

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, thread};

use anyhow::{Context, bail};
use cargo_metadata::{MetadataCommand, TargetKind};
use parking_lot::Mutex;

use crate::args::{Skippable, TestOptions};
use crate::cluster::{self, Kind};
use crate::{clippy, command, ebpf, fmt, image, measurement, setup, stage, tidy, workspace};
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
/// The end-to-end tests.
const END_TO_END: &str = "e2e";
/// The test programs that use the cluster, one or more of each name. They run one after the other.
const ON_CLUSTER: [&str; 2] = [END_TO_END, "cluster"];
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
    } else if options.models {
        models(root, options, &mut tally)
    } else {
        checks(root, options).and_then(|()| everything(root, options, &mut tally))
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

/// A part of the tests. It counts in the tally.
type Part<'a> = Box<dyn FnOnce(&mut Tally) -> anyhow::Result<()> + Send + 'a>;

/// Runs all tests, in two parts at any time. The end-to-end tests mostly wait for their cluster.
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
    setup::workload_api(root);
    let context = cluster::given();
    let context = context.as_deref();
    if let Some(context) = context {
        load_images(root, context)?;
    }
    let others = other_test_programs(root)?;
    let on_cluster = |tally: &mut Tally| {
        stage::run("end-to-end tests", "the mesh on a cluster", || {
            run_tests("e2e", root, &selected(ON_CLUSTER), options, context, tally)
        })
    };
    let integration = |tally: &mut Tally| {
        stage::run("integration tests", "the tests that start programs", || {
            let targets = selected(others.iter().map(String::as_str));
            run_tests("tests", root, &targets, options, None, tally)
        })
    };
    let models = |tally: &mut Tally| models(root, options, tally);
    let page = |tally: &mut Tally| page(root, options, tally);
    // The longest first.
    let parts: [Part<'_>; 5] = [
        Box::new(on_cluster),
        Box::new(integration),
        Box::new(unit),
        Box::new(models),
        Box::new(page),
    ];
    run_in_pairs(parts, tally)
}

/// Runs the parts in their order, two at any time. Returns the error of the first that fails.
fn run_in_pairs<'a>(
    parts: impl IntoIterator<Item = Part<'a>>,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let waiting = Mutex::new(VecDeque::from_iter(parts));
    let next = || waiting.lock().pop_front();
    let work = || {
        let mut tally = Tally::default();
        let mut ended = Ok(());
        while let Some(part) = next() {
            ended = ended.and(part(&mut tally));
        }
        (tally, ended)
    };
    thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        let mut ended = Ok(());
        for worker in workers {
            let Ok((counted, result)) = worker.join() else {
                bail!("a part of the tests panicked");
            };
            tally.add(counted);
            ended = ended.and(result);
        }
        ended
    })
}

/// Returns cargo's flags for these test programs.
fn selected<'a>(programs: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let flags = programs.into_iter().flat_map(|name| ["--test", name]);
    flags.collect()
}

/// Returns the names of the test programs that do not use the cluster.
fn other_test_programs(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let metadata = MetadataCommand::new()
        .current_dir(root)
        .no_deps()
        .exec()
        .context("ask cargo about the test programs")?;
    let targets = metadata.packages.into_iter().flat_map(|it| it.targets);
    let tests = targets.filter(|it| it.kind.contains(&TargetKind::Test));
    let names = tests.map(|it| it.name);
    Ok(names.filter(|it| !ON_CLUSTER.contains(&&**it)).collect())
}

/// Runs the models. Their workspace has build results of its own.
fn models(root: &Path, options: &TestOptions, tally: &mut Tally) -> anyhow::Result<()> {
    let what = "what threads share and protocols between processes, in every order of steps";
    stage::run("models", what, || {
        let mut command = workspace::cargo(root);
        command
            .args(["test", "--manifest-path", "models/Cargo.toml"])
            .args(["--target-dir", "target/models", "--no-fail-fast"])
            .args(["--", "--show-output"])
            .args(&options.filter);
        judge("models", &mut command, tally)
    })
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
    stage::run("end-to-end tests", "the mesh on a cluster", || {
        let tests = selected([END_TO_END]);
        run_tests("tests", root, &tests, options, Some(&context), tally)
    })
}

fn load_images(root: &Path, context: &str) -> anyhow::Result<()> {
    stage::run("images", &format!("into the cluster {context}"), || {
        cluster::load_images(root, context)
    })
}

/// Runs the checks that precede the tests. Prometheus is built beside them, since the download of
/// its modules waits for the network; its image reports what fails.
fn checks(root: &Path, options: &TestOptions) -> anyhow::Result<()> {
    thread::scope(|scope| {
        if !options.quick && cluster::given().is_some() {
            scope.spawn(|| image::prometheus(root).map(drop));
        }
        check(root, options)
    })
}

/// Checks the format, the house rules, the lints, the build and the commands of the documents.
fn check(root: &Path, options: &TestOptions) -> anyhow::Result<()> {
    if !options.quick {
        build_kernel_programs(root)?;
    }
    stage::run("fmt", "formatting of all workspaces", || {
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
    if let Some(path) = path_with_tools(root) {
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
    match context {
        Some(context) => command.env(cluster::CONTEXT_VARIABLE, context),
        // It belongs to the program that runs beside this one.
        None => command.env_remove(cluster::CONTEXT_VARIABLE),
    };
    judge(title, &mut command, tally)
}

/// Runs a command of cargo that tests, and counts its tests.
fn judge(title: &str, command: &mut Command, tally: &mut Tally) -> anyhow::Result<()> {
    let mut summary = Summary::default();
    let finished = command::observe(title, command, |line| summary.line(line))?;
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

/// The `PATH` with the programs that `setup` built.
fn path_with_tools(root: &Path) -> Option<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain(setup::directories(root));
    env::join_paths(directories).ok()
}

fn report(tally: &Tally) {
    for (reason, count) in tally.reasons() {
        println!("    skipped ({count}): {reason}");
    }
    println!("{tally}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part<'a>(passed: usize, error: Option<&'static str>) -> Part<'a> {
        Box::new(move |tally| {
            tally.passed += passed;
            error.map_or(Ok(()), |error| bail!(error))
        })
    }

    #[test]
    fn every_part_runs_and_counts_although_one_fails() {
        let mut tally = Tally::default();
        let parts = [part(1, None), part(2, Some("broken")), part(4, None)];
        let ended = run_in_pairs(parts, &mut tally);
        assert_eq!(ended.expect_err("a part fails").to_string(), "broken");
        assert_eq!(tally.passed, 7);
    }

    #[test]
    fn two_parts_run_at_the_same_time() {
        let (first, second) = std::sync::mpsc::channel();
        let parts: [Part<'_>; 2] = [
            Box::new(move |_| Ok(second.recv()?)),
            Box::new(move |_| Ok(first.send(())?)),
        ];
        run_in_pairs(parts, &mut Tally::default()).expect("the first part waits for the second");
    }
}
