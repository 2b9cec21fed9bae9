//! Compares the number of instructions of the workloads with the figures on record, to detect small
//! regressions on any machine, however busy it is. `cargo xtask bench` measures speed; the programs
//! here are not optimised.
//!
//! For the C library, calls are counted instead: which implementation of functions like memcpy it
//! uses depends on the CPU, and some execute an instruction per byte.

#![expect(
    clippy::unwrap_used,
    reason = "a test panics when its requirements are not met"
)]

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::ops::Sub;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use mesh_fuzz::{WORKLOADS, Workload};

/// If set, the figures are written instead of compared.
const WRITE: &str = "MESH_WRITE_INSTRUCTIONS";

/// Set by `cargo xtask test`. Built separately, this package would have dependencies with other
/// features and other numbers of instructions.
const WORKSPACE: &str = "MESH_TEST_WORKSPACE";

const PROGRAM: &str = env!("CARGO_BIN_EXE_mesh-count");

/// In percent. The counts of a program in one checkout differ by less than 0.01%. In another
/// checkout, rustc may use generic functions from another package, optimised or not, depending on
/// the path of the wrapper in `.cargo/config.toml`: two checkouts differed by 9%.
const TOLERANCE: u64 = 15;

/// Both counts include the start of the program, so their difference does not.
const FEW: u32 = 100;
const MANY: u32 = FEW + COUNTED;
const COUNTED: u32 = 1000;

#[test]
fn work_takes_as_many_instructions_as_on_record() {
    if env::var_os(WORKSPACE).is_none() {
        println!("skipped: instructions are counted by `cargo xtask test` only");
        return;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return;
    }
    let record = Record::read();
    let compiler = compiler();
    if env::var_os(WRITE).is_none() && record.compiler != compiler {
        println!("skipped: the figures on record are for {}", record.compiler);
        return;
    }
    let counted: BTreeMap<String, Cost> = on_record()
        .map(|work| (work.name.to_owned(), count(work, MANY) - count(work, FEW)))
        .collect();
    let now = Record { compiler, counted };
    if env::var_os(WRITE).is_some() {
        fs::write(Record::file(), now.to_text()).unwrap();
        return;
    }
    let wrong: Vec<String> = on_record()
        .filter_map(|work| {
            let was = record.counted.get(work.name).copied().unwrap_or_default();
            let is = now.counted[work.name];
            let Workload { name, each, .. } = work;
            is.differs(was)
                .then(|| format!("{name}: {is} per {each}; on record: {was}"))
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "{}\nto update the record: {WRITE}=1 cargo xtask test --filter on_record",
        wrong.join("\n")
    );
}

fn on_record() -> impl Iterator<Item = &'static Workload> {
    WORKLOADS.iter().filter(|work| work.is_on_record)
}

/// The cost of all repetitions of a workload.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// Instructions of the program.
    instructions: u64,
    /// Calls of the C library.
    calls: u64,
}

impl Cost {
    fn differs(self, was: Self) -> bool {
        let differ = |is: u64, was: u64| is.abs_diff(was) > was * TOLERANCE / 100;
        differ(self.instructions, was.instructions) || differ(self.calls, was.calls)
    }

    /// Parses a callgrind profile: blocks of lines per function, which name its object file when it
    /// changes (<https://valgrind.org/docs/manual/cl-format.html>).
    fn read(profile: &str) -> Self {
        let mut cost = Self::default();
        let (mut object, mut callee, mut is_of_call) = ("", None, false);
        for line in profile.lines() {
            if let Some(name) = line.strip_prefix("ob=") {
                object = name;
            } else if let Some(name) = line.strip_prefix("cob=") {
                callee = Some(name);
            } else if let Some(call) = line.strip_prefix("calls=") {
                let is_call = callee.take().is_some_and(is_c_library) && !is_c_library(object);
                cost.calls += if is_call { number(call, 0).unwrap() } else { 0 };
                is_of_call = true;
            } else if line.starts_with(|first: char| first.is_ascii_digit()) {
                // The line after a call contains the callee's inclusive cost, which the callee's
                // own lines contain as well.
                let is_own = !is_of_call && object == PROGRAM;
                cost.instructions += if is_own { number(line, 1).unwrap() } else { 0 };
                is_of_call = false;
            }
        }
        cost
    }
}

impl Sub for Cost {
    type Output = Self;

    fn sub(self, less: Self) -> Self {
        Self {
            instructions: self.instructions - less.instructions,
            calls: self.calls - less.calls,
        }
    }
}

impl Display for Cost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = |total: u64| total / u64::from(COUNTED);
        let (instructions, calls) = (each(self.instructions), each(self.calls));
        write!(
            out,
            "{instructions} instructions and {calls} calls of the C library"
        )
    }
}

fn is_c_library(object: &str) -> bool {
    let file = object.rsplit('/').next().unwrap_or_default();
    file.starts_with("libc.") || file.starts_with("libc-")
}

/// Parses a number in a line of numbers.
fn number(line: &str, index: usize) -> Option<u64> {
    line.split(' ').nth(index)?.parse().ok()
}

/// The figures on record. They are totals, so that fractions of a call per repetition count.
struct Record {
    compiler: String,
    counted: BTreeMap<String, Cost>,
}

impl Record {
    fn file() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.txt")
    }

    fn read() -> Self {
        let text = fs::read_to_string(Self::file()).unwrap_or_default();
        let mut lines = text.lines();
        Self {
            compiler: lines.next().unwrap_or_default().to_owned(),
            counted: lines
                .filter_map(|line| {
                    let (name, cost) = line.split_once(' ')?;
                    let cost = Cost {
                        instructions: number(cost, 0)?,
                        calls: number(cost, 1)?,
                    };
                    Some((name.to_owned(), cost))
                })
                .collect(),
        }
    }

    fn to_text(&self) -> String {
        let lines = self.counted.iter().map(|(name, cost)| {
            let Cost {
                instructions,
                calls,
            } = cost;
            format!("{name} {instructions} {calls}\n")
        });
        format!("{}\n{}", self.compiler, lines.collect::<String>())
    }
}

fn count(work: &Workload, times: u32) -> Cost {
    let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).join("instructions");
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--compress-strings=no",
            "--compress-pos=no",
        ])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(PROGRAM)
        .args([work.name, &times.to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    Cost::read(&fs::read_to_string(profile).unwrap())
}

/// Returns the version and target of the compiler: the figures depend on them.
fn compiler() -> String {
    let output = Command::new("rustc").arg("-vV").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let value = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    };
    format!("rustc {} {}", value("release:"), value("host:"))
}
