//! The first process of the virtual machine: prepares it as a node has it, runs the tests of the
//! plan one after the other, reports on the second serial line, and turns the machine off.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::mount::{MsFlags, mount};
use nix::sys::resource::{Resource, setrlimit};

use crate::initramfs::{PATH, PLAN};
use crate::plan::{Plan, Test};
use crate::report::Event;

const REPORT: &str = "/dev/ttyS1";
/// A test that takes longer is ended. Emulated processors are slow.
const LIMIT: Duration = Duration::from_mins(20);
/// `mesh-agent/tests/privileged` compares the agent's choice with it.
const TIER_VARIABLE: &str = "MESH_TEST_TIER";
const OPEN_FILES: u64 = 1 << 20;
/// Source, mount point and type of the file systems.
const MOUNTS: [(&str, &str, &str); 7] = [
    ("proc", "/proc", "proc"),
    ("sysfs", "/sys", "sysfs"),
    ("devtmpfs", "/dev", "devtmpfs"),
    ("tmpfs", "/tmp", "tmpfs"),
    ("tmpfs", "/run", "tmpfs"),
    ("cgroup2", "/sys/fs/cgroup", "cgroup2"),
    ("bpf", "/sys/fs/bpf", "bpf"),
];

/// Runs the tests and does not return: the kernel has no other first process.
pub(crate) fn run() -> ! {
    if let Err(error) = run_tests() {
        // To the console, which the host shows if the report has no end.
        let _ = writeln!(io::stderr(), "mesh-kernels: {error:#}");
    }
    // The host starts qemu such that a restart ends it.
    let _ = fs::write("/proc/sys/kernel/sysrq", "1");
    let _ = fs::write("/proc/sysrq-trigger", "b");
    loop {
        thread::park();
    }
}

fn run_tests() -> anyhow::Result<()> {
    for (source, place, kind) in MOUNTS {
        let none = None::<&str>;
        mount(Some(source), place, Some(kind), MsFlags::empty(), none)
            .with_context(|| format!("mount {place}"))?;
    }
    setrlimit(Resource::RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES).context("allow open files")?;
    run_tool(&["ip", "link", "set", "lo", "up"])?;
    let mut report = File::options().write(true).open(REPORT).context(REPORT)?;
    let plan = fs::read(format!("/{PLAN}")).context("read the plan")?;
    let plan: Plan = serde_json::from_slice(&plan).context("parse the plan")?;
    for (number, test) in plan.tests.iter().enumerate() {
        write_event(&mut report, &Event::Begun(number))?;
        let started = Instant::now();
        let outcome = run_test(test, &plan)?;
        let millis = started.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
        write_event(
            &mut report,
            &Event::Ended {
                number,
                outcome,
                millis,
            },
        )?;
    }
    write_event(&mut report, &Event::Finished)
}

fn write_event(report: &mut File, event: &Event) -> anyhow::Result<()> {
    // A test may have ended in the middle of a line.
    write!(report, "\n{event}\n").context("report")
}

/// Runs a test with the report as its output. Returns `None` if it passed, or how it ended.
fn run_test(test: &Test, plan: &Plan) -> anyhow::Result<Option<String>> {
    let open = || OpenOptions::new().write(true).open(REPORT).context(REPORT);
    let mut command = test.command();
    command
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", "/root")
        .env("CARGO_MANIFEST_DIR", &test.directory)
        .env(TIER_VARIABLE, plan.tier.as_str())
        .stdin(Stdio::null())
        .stdout(open()?)
        .stderr(open()?);
    let child = command.spawn();
    let mut child = child.with_context(|| format!("start {}", test.program.display()))?;
    Ok(match wait(&mut child)? {
        None => Some(format!(
            "did not end within {} minutes",
            LIMIT.as_secs() / 60
        )),
        Some(status) if status.success() => None,
        Some(status) => Some(match status.signal() {
            Some(signal) => format!("ended by signal {signal}"),
            None => status.to_string(),
        }),
    })
}

/// Waits for the end, or ends the child after the limit.
fn wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    while started.elapsed() < LIMIT {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::park_timeout(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

fn run_tool(words: &[&str]) -> anyhow::Result<()> {
    let (program, arguments) = words.split_first().context("a program")?;
    let status = Command::new(program)
        .env("PATH", PATH)
        .args(arguments)
        .status()
        .with_context(|| format!("start {program}"))?;
    anyhow::ensure!(status.success(), "{}: {status}", words.join(" "));
    Ok(())
}
