//! How many instructions pieces of the proxy's work take, against the figures on record: what makes each request a little more expensive, a change at a time, is seen when
//! it comes, on any machine and however busy it is. Speed is what `cargo xtask bench` is for; the programs here are not even optimised.

#![expect(
    clippy::unwrap_used,
    reason = "what a test cannot do without, it need not explain"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use mesh_fuzz::{WORKS, Work};

/// Written instead of compared when this is set.
const WRITE: &str = "MESH_WRITE_INSTRUCTIONS";

/// Set by `cargo xtask test`. Built by itself, this package has libraries with other features, whose instructions are others.
const WORKSPACE: &str = "MESH_TEST_WORKSPACE";

/// In a hundred. Below it is how long the library of TLS gathers entropy, which the programs do when they start.
const TOLERANCE: u64 = 3;

/// What starting takes is in both, and not in their difference.
const FEW: u32 = 100;
const MANY: u32 = 2100;

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
    let counted: BTreeMap<String, u64> = WORKS
        .iter()
        .map(|work| (work.name.to_owned(), instructions(work)))
        .collect();
    let now = Record { compiler, counted };
    if env::var_os(WRITE).is_some() {
        fs::write(Record::file(), now.to_text()).unwrap();
        return;
    }
    let wrong: Vec<String> = WORKS
        .iter()
        .filter_map(|work| {
            let was = record.counted.get(work.name).copied().unwrap_or(0);
            let is = now.counted[work.name];
            let differs = is.abs_diff(was) > was * TOLERANCE / 100;
            let Work { name, each, .. } = work;
            differs.then(|| format!("{name}: {is} instructions for each {each}; {was} on record"))
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "{}\nwhere that is wanted, {WRITE}=1 cargo xtask test --filter on_record puts it on record",
        wrong.join("\n")
    );
}

/// The figures on record.
struct Record {
    compiler: String,
    counted: BTreeMap<String, u64>,
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
                    let (name, count) = line.split_once(' ')?;
                    Some((name.to_owned(), count.trim().parse().ok()?))
                })
                .collect(),
        }
    }

    fn to_text(&self) -> String {
        let lines = self.counted.iter();
        let lines = lines.map(|(name, count)| format!("{name} {count}\n"));
        format!("{}\n{}", self.compiler, lines.collect::<String>())
    }
}

/// Of one piece of the work.
fn instructions(work: &Work) -> u64 {
    let (few, many) = (count(work, FEW), count(work, MANY));
    (many - few) / u64::from(MANY - FEW)
}

fn count(work: &Work, times: u32) -> u64 {
    let output = Command::new("valgrind")
        .args([
            "--tool=cachegrind",
            "--cache-sim=no",
            "--cachegrind-out-file=/dev/null",
        ])
        .arg(env!("CARGO_BIN_EXE_mesh-count"))
        .args([work.name, &times.to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // As in "==17== I   refs:      1,234,567".
    let line = said.lines().find(|line| line.contains("refs:")).unwrap();
    let digits = line.rsplit(':').next().unwrap().replace([',', ' '], "");
    digits.parse().unwrap()
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
