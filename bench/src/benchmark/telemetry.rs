//! Measures the share of telemetry in the CPU time of the proxies, which cannot run without it.
//!
//! perf samples both proxies with their stacks, under load and at the defaults: metrics, no tap, no
//! tracing, no access log. The innermost function of this project on the stack of a sample decides,
//! inlined functions included: a function that telemetry calls counts for telemetry (the clock, the
//! allocator), and one that it wraps does not (the response whose body it observes).

mod segments;
mod source;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use xtask::command::captured_stdout;

use self::segments::Segments;
use self::source::SourceFiles;
use super::metric::{Metric, SystemUnderTest};
use super::row::{Round, Row, Sample};
use super::system::System;
use super::traffic::rounds;
use super::workload::{Load, Service};
use super::{Run, load, profile};
use crate::testbed::process::{Process, wait_until};
use crate::testbed::{DIRECTORY, ProxyPair, Testbed, pod};

const LOAD: Load = Load::Wrk { connections: 64 };
/// Sampling rate. It is prime to avoid sampling in lockstep with a timer.
const RATE: u32 = 997;
/// Bytes of the stack that a sample contains. The functions of interest are the innermost ones.
const STACK: u32 = 4096;

/// Samples of one proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Shares {
    telemetry: u32,
    /// Samples whose stack has a function of this project.
    attributed: u32,
    all: u32,
}

/// One sample: the process, and the functions in the program of the proxy by their offsets in its
/// file, innermost first.
#[derive(Debug, PartialEq)]
struct Stack {
    process: u32,
    offsets: Vec<u64>,
}

pub(super) fn row(run: Run<'_>) -> anyhow::Result<Row> {
    if !profile::is_possible() {
        bail!("the share of telemetry needs perf; Debian's package is linux-perf");
    }
    let mut system = System::start(run.testbed, SystemUnderTest::MeshProxy)?;
    load::measure(run.testbed, &mut system, Service::Http1, LOAD, 1)?;
    // The kernel and perf name the program without symbolic links.
    let program = std::fs::canonicalize(&run.testbed.programs.proxy)?;
    let segments = Segments::read(&program)?;
    let mut files = SourceFiles::new(&program, segments);
    let mut total = Shares::default();
    let row = rounds(run, |_, _| {
        let mut round = Round::default();
        let (samples, (mut sample, failed)) = record(run, &mut system)?;
        let shares = shares(run.testbed, &system, &samples, &mut files)?;
        for (metric, shares) in [
            (Metric::TelemetryOut, shares.outbound),
            (Metric::TelemetryIn, shares.inbound),
        ] {
            total.add(shares);
            sample.insert(metric, shares.of_telemetry()?);
        }
        round.samples.insert(SystemUnderTest::MeshProxy, sample);
        round.failed.insert(SystemUnderTest::MeshProxy, failed);
        Ok(round)
    })?;
    let note = format!(
        "of {} samples {:.0} % have a function of this project on their stack",
        total.all,
        100.0 * f64::from(total.attributed) / f64::from(total.all)
    );
    Ok(Row {
        note: Some(note),
        ..row
    })
}

/// Samples both proxies under load.
fn record(run: Run<'_>, system: &mut System) -> anyhow::Result<(PathBuf, (Sample, u64))> {
    let processes = system.processes().context("the system has proxies")?;
    let samples = Path::new(DIRECTORY).join("telemetry.data");
    // A file of an earlier round would look like one of this.
    if samples.exists() {
        std::fs::remove_file(&samples)?;
    }
    let mut command = tool(run.testbed, "perf")?;
    command
        .args(["record", "--quiet", "--event", "cpu-clock"])
        .args(["--freq", &RATE.to_string()])
        .args(["--call-graph", &format!("dwarf,{STACK}")])
        .arg("--pid")
        .arg(format!("{},{}", processes.outbound, processes.inbound))
        .arg("--output")
        .arg(&samples)
        .args(["--", "sleep", &run.plan.seconds.to_string()]);
    let perf = Process::start("perf", &mut command)?;
    wait_until("perf writes samples", || Ok(samples.exists().then_some(())))
        .with_context(|| perf.command_and_log())?;
    let measured = load::measure(run.testbed, system, Service::Http1, LOAD, run.plan.seconds)?;
    perf.output()?;
    Ok((samples, measured))
}

/// Returns a command whose CPU time counts as the benchmark's own, not as the proxies'.
fn tool(testbed: &Testbed, program: &str) -> anyhow::Result<Command> {
    let cgroup = testbed.cgroup.join("perf");
    std::fs::create_dir_all(&cgroup)?;
    let mut command = pod::within(&cgroup);
    command.args(["taskset", "-c", &testbed.cpus.load.to_string(), program]);
    Ok(command)
}

fn shares(
    testbed: &Testbed,
    system: &System,
    samples: &Path,
    files: &mut SourceFiles,
) -> anyhow::Result<ProxyPair<Shares>> {
    let processes = system.processes().context("the system has proxies")?;
    let mut script = tool(testbed, "perf")?;
    script
        .args([
            "script",
            "--no-inline",
            "--fields",
            "pid,ip,sym,dso",
            "--input",
        ])
        .arg(samples);
    let text = captured_stdout(&mut script).context("read the samples with perf script")?;
    let program = files.program().display().to_string();
    let stacks = stacks(&text, &program);
    let offsets = stacks.iter().flat_map(|stack| &stack.offsets).copied();
    files.find(tool(testbed, "addr2line")?, offsets)?;
    Ok(processes.map(|process| {
        let mut shares = Shares::default();
        for stack in stacks.iter().filter(|stack| stack.process == process) {
            shares.count(&stack.offsets, files);
        }
        shares
    }))
}

/// Parses the output of perf: for each sample a line with the process, then one line for each
/// function, `OFFSET SYMBOL (OBJECT)`, then an empty line.
fn stacks(text: &str, program: &str) -> Vec<Stack> {
    let mut stacks: Vec<Stack> = Vec::new();
    for sample in text.split("\n\n") {
        let mut lines = sample.lines().filter(|line| !line.trim().is_empty());
        let process = lines.next().and_then(|line| line.trim().parse().ok());
        let Some(process) = process else { continue };
        let offset = |line: &str| {
            let (offset, rest) = line.trim().split_once(' ')?;
            let (_, object) = rest.rsplit_once('(')?;
            let is_in_program = object.strip_suffix(')')? == program;
            is_in_program.then(|| u64::from_str_radix(offset, 16).ok())?
        };
        stacks.push(Stack {
            process,
            offsets: lines.filter_map(offset).collect(),
        });
    }
    stacks
}

impl Shares {
    /// Counts a sample by the innermost function of this project.
    fn count(&mut self, offsets: &[u64], files: &SourceFiles) {
        self.all += 1;
        let Some(file) = offsets.iter().find_map(|offset| files.innermost(*offset)) else {
            return;
        };
        self.attributed += 1;
        if source::is_telemetry(file) {
            self.telemetry += 1;
        }
    }

    fn add(&mut self, other: Self) {
        self.telemetry += other.telemetry;
        self.attributed += other.attributed;
        self.all += other.all;
    }

    fn of_telemetry(self) -> anyhow::Result<f64> {
        if self.attributed == 0 {
            bail!(
                "perf has no stack with a function of the proxy, in {} samples",
                self.all
            );
        }
        Ok(f64::from(self.telemetry) / f64::from(self.all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "    7 \n\tffffffff81 tcp_ack+0x12 ([kernel.kallsyms])\n\t    5500 mesh_proxy::a+0x3 (/x/mesh-proxy)\n\t    7f01 memmove (/lib/libc.so.6)\n\n    8 \n\t    5510 core::ptr::drop_in_place<(A, B)> (/x/mesh-proxy)\n\n";

    #[test]
    fn stacks_have_the_offsets_in_the_program() {
        let stack = |process, offset| Stack {
            process,
            offsets: vec![offset],
        };
        let found = stacks(TEXT, "/x/mesh-proxy");
        assert_eq!(found, [stack(7, 0x5500), stack(8, 0x5510)]);
    }

    #[test]
    fn innermost_function_of_the_project_decides() {
        let mut files = SourceFiles::new(Path::new("/x/mesh-proxy"), Segments::default());
        for (offset, file) in [
            (1, None),
            (2, Some("/src/mesh-proxy/src/telemetry/http.rs")),
            (3, Some("/src/mesh-proxy/src/http/body.rs")),
        ] {
            files.insert(offset, file.map(str::to_owned));
        }
        let mut shares = Shares::default();
        for offsets in [&[1, 2, 3][..], &[1, 3, 2], &[1], &[9]] {
            shares.count(offsets, &files);
        }
        let expected = Shares {
            telemetry: 1,
            attributed: 2,
            all: 4,
        };
        assert_eq!(shares, expected);
        assert_eq!(shares.of_telemetry().expect("a share"), 0.25);
        assert!(Shares::default().of_telemetry().is_err());
    }
}
