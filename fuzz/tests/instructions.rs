//! How many instructions pieces of the proxy's work take, against the figures on record: what makes
//! each request a little more expensive, a change at a time, is seen when it comes, on any machine
//! and however busy it is. Speed is what `cargo xtask bench` is for; the programs here are not even
//! optimised.
//!
//! What the C library does is counted in calls: which of its ways to copy or to compare bytes it
//! takes depends on the CPU, and some of them have an instruction for each byte.

#![expect(
    clippy::unwrap_used,
    reason = "what a test cannot do without, it need not explain"
)]

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::ops::Sub;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use mesh_fuzz::{WORKS, Work};

/// Written instead of compared when this is set.
const WRITE: &str = "MESH_WRITE_INSTRUCTIONS";

/// Set by `cargo xtask test`. Built by itself, this package has libraries with other features,
/// whose instructions are others.
const WORKSPACE: &str = "MESH_TEST_WORKSPACE";

const PROGRAM: &str = env!("CARGO_BIN_EXE_mesh-count");

/// In a hundred. The same program in the same checkout counts the same to a ten-thousandth. In
/// another checkout rustc may take generic functions from another package that has compiled them,
/// optimised or not: what it prefers depends on the path of the wrapper in `.cargo/config.toml`.
/// Two checkouts were 9 apart.
const TOLERANCE: u64 = 15;

/// What starting takes is in both, and not in their difference.
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
        println!("skipped: there is no valgrind here");
        return;
    }
    let record = Record::read();
    let compiler = compiler();
    if env::var_os(WRITE).is_none() && record.compiler != compiler {
        println!(
            "skipped: the instructions on record are those of {}",
            record.compiler
        );
        return;
    }
    let counted: BTreeMap<String, Cost> = WORKS
        .iter()
        .map(|work| (work.name.to_owned(), count(work, MANY) - count(work, FEW)))
        .collect();
    let now = Record { compiler, counted };
    if env::var_os(WRITE).is_some() {
        fs::write(Record::file(), now.to_text()).unwrap();
        return;
    }
    let wrong: Vec<String> = WORKS
        .iter()
        .filter_map(|work| {
            let was = record.counted.get(work.name).copied().unwrap_or_default();
            let is = now.counted[work.name];
            let Work { name, each, .. } = work;
            is.differs(was)
                .then(|| format!("{name}: for each {each} {is}; on record are {was}"))
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "{}\nwhere that is wanted, {WRITE}=1 cargo xtask test --filter on_record puts it on record",
        wrong.join("\n")
    );
}

/// What so many pieces of the work take.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// Of the program and the libraries in it.
    instructions: u64,
    /// Of functions of the C library, by anything else.
    calls: u64,
}

impl Cost {
    fn differs(self, was: Self) -> bool {
        let differ = |is: u64, was: u64| is.abs_diff(was) > was * TOLERANCE / 100;
        differ(self.instructions, was.instructions) || differ(self.calls, was.calls)
    }

    /// From what callgrind writes: blocks of lines for each function, which begin with where it is
    /// when that changes.
    /// <https://valgrind.org/docs/manual/cl-format.html>
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
                // The line after a call says what the callee took, which the callee's own lines say
                // again.
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

/// In a line of numbers.
fn number(line: &str, index: usize) -> Option<u64> {
    line.split(' ').nth(index)?.parse().ok()
}

/// The figures on record: not of one piece of the work but of all that are counted, so that a
/// fraction of a call is seen.
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

fn count(work: &Work, times: u32) -> Cost {
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

/// Its version and target, on which the figures depend.
fn compiler() -> String {
    let output = Command::new("rustc").arg("-vV").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let value = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    };
    format!("rustc {} {}", value("release:"), value("host:"))
}
