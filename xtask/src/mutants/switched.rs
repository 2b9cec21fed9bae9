//! Builds all mutants of a sample at once, each behind a switch (`bin/mutant-switches`), and runs
//! the tests once for each. A build for each mutant would take hours in a large package.
//!
//! A mutant without a switch, such as one of a constant, is left to cargo-mutants (`tool`).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, bail};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::modules::Module;
use super::tool::{Mutant, Verdict};
use super::tree;
use crate::progress::Progress;
use crate::workspace;

/// The directories of the copy with the switches, of its build, and of the program that writes the
/// switches, below the root.
const COPY: &str = "target/mutants/switched";
const BUILD: &str = "target/mutants/switched-build";
const PROGRAM: &str = "target/mutants/switches";

/// The variable with the number of the mutant that is switched on.
const VARIABLE: &str = "MESH_MUTANT";

/// The function behind the switches, which the copy of the package gets.
const SWITCH: &str = r#"
#[doc(hidden)]
pub(crate) fn mutant_switch(number: u64) -> bool {
    static ON: std::sync::LazyLock<Option<u64>> =
        std::sync::LazyLock::new(|| std::env::var("MESH_MUTANT").ok()?.parse().ok());
    *ON == Some(number)
}
"#;

/// A run of the tests that does not end may sleep: it ends after this many times the CPU time.
const WALL_TIME: u32 = 5;

/// KiB of memory for one run of the tests, several times what they take. A mutant that appends in a
/// loop would take all memory of the machine before its CPU time is over.
const MEMORY: u32 = 4 << 20;

/// The verdicts about mutants with a switch, and the others.
pub(super) struct Switched {
    pub(super) verdicts: Vec<(String, Verdict)>,
    pub(super) others: Vec<Mutant>,
}

/// The tests with all mutants, and the mutants that do not compile or have no switch.
struct Build {
    program: PathBuf,
    unviable: BTreeSet<usize>,
    unplaced: BTreeSet<usize>,
}

/// Runs the tests of the module with each of these mutants that can have a switch.
pub(super) fn test(root: &Path, module: &Module, mutants: &[Mutant]) -> anyhow::Result<Switched> {
    let build = build(root, module, mutants)?;
    let directory = root.join(COPY).join(module.package);
    let tests = Tests {
        program: &build.program,
        directory: &directory,
        module,
    };
    if tests.run(None)? != Verdict::Survived {
        bail!(
            "tests of module {} fail without a mutant; run `cargo test -p {} --lib -- {}`",
            module.name,
            module.package,
            module.tests.join(" ")
        );
    }
    let is_switched = |at: &usize| !build.unviable.contains(at) && !build.unplaced.contains(at);
    let switched: Vec<usize> = (0..mutants.len()).filter(is_switched).collect();
    let tested = tests.run_all(&switched)?;
    let named = |at: usize, verdict| (mutants[at].name.clone(), verdict);
    let unviable = build
        .unviable
        .iter()
        .map(|at| named(*at, Verdict::Unviable));
    let tested = tested.into_iter().map(|(at, verdict)| named(at, verdict));
    Ok(Switched {
        verdicts: unviable.chain(tested).collect(),
        others: build
            .unplaced
            .iter()
            .map(|at| mutants[*at].clone())
            .collect(),
    })
}

/// Builds the tests, again without the mutants that the compiler refuses until it refuses none.
fn build(root: &Path, module: &Module, mutants: &[Mutant]) -> anyhow::Result<Build> {
    let (mut unviable, mut unclear) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let copy = tree::copy(root, COPY).context("copy the checkout")?;
        let without = |at: &usize| !unviable.contains(at) && !unclear.contains(at);
        let wanted: Vec<usize> = (0..mutants.len()).filter(without).collect();
        let mut unplaced = write_switches(root, &copy, module, mutants, &wanted)?;
        let messages = compile(root, &copy, module)?;
        let errors: Vec<&Value> = messages.iter().filter(|it| is_error(it)).collect();
        if errors.is_empty() {
            let program = messages.iter().find_map(test_program);
            unplaced.append(&mut unclear);
            return Ok(Build {
                program: program.context("cargo built no tests")?.into(),
                unviable,
                unplaced,
            });
        }
        let before = unviable.len() + unclear.len();
        for error in &errors {
            unviable.extend(attributed(&copy, error, within)?);
        }
        if unviable.len() + unclear.len() == before {
            // An arm without which a match does not compile is after the place of the error.
            for error in &errors {
                unclear.extend(attributed(&copy, error, next)?);
            }
        }
        if unviable.len() + unclear.len() == before {
            let texts = errors
                .iter()
                .filter_map(|it| it["message"]["rendered"].as_str());
            bail!("the mutants do not compile:\n{}", texts.collect::<String>());
        }
    }
}

/// Writes the mutants into the copy, and returns the ones without a switch.
fn write_switches(
    root: &Path,
    copy: &Path,
    module: &Module,
    mutants: &[Mutant],
    wanted: &[usize],
) -> anyhow::Result<BTreeSet<usize>> {
    let list: Vec<Value> = wanted
        .iter()
        .map(|at| {
            let mutant = &mutants[*at];
            json!({
                "number": at, "file": mutant.file, "genre": mutant.genre,
                "line": mutant.line, "column": mutant.column, "replacement": mutant.replacement,
            })
        })
        .collect();
    let mut cargo = workspace::cargo(root);
    let mut child = cargo
        .args([
            "run",
            "--quiet",
            "--package",
            "xtask",
            "--bin",
            "mutant-switches",
        ])
        .args(["--features", "switches", "--target-dir", PROGRAM, "--"])
        .arg(copy)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start cargo")?;
    let mut input = child.stdin.take().context("standard input is a pipe")?;
    input.write_all(&serde_json::to_vec(&list)?)?;
    drop(input);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("mutant-switches: {}", output.status);
    }
    let library = copy.join(module.package).join("src/lib.rs");
    let text = fs::read_to_string(&library)?;
    fs::write(&library, text + SWITCH)?;
    serde_json::from_slice(&output.stdout).context("parse the numbers of mutants")
}

/// Builds the unit tests of the package, and returns the messages of cargo.
fn compile(root: &Path, copy: &Path, module: &Module) -> anyhow::Result<Vec<Value>> {
    let output = workspace::cargo(copy)
        .env("CARGO_TARGET_DIR", root.join(BUILD))
        .env("CARGO_INCREMENTAL", "1")
        .args(["test", "--no-run", "--lib", "--package", module.package])
        .arg("--message-format=json")
        .output()
        .context("start cargo")?;
    let lines = String::from_utf8_lossy(&output.stdout);
    let messages: Vec<Value> = lines
        .lines()
        .filter_map(|it| serde_json::from_str(it).ok())
        .collect();
    if !output.status.success() && !messages.iter().any(is_error) {
        bail!("cargo: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(messages)
}

fn is_error(message: &Value) -> bool {
    // The last error counts the others, and has no place.
    let has_place = |it: &Value| it.as_array().is_some_and(|spans| !spans.is_empty());
    let message = &message["message"];
    message["level"] == "error" && has_place(&message["spans"])
}

fn test_program(message: &Value) -> Option<String> {
    let is_test = message["profile"]["test"].as_bool()?;
    let program = message["executable"].as_str()?;
    is_test.then(|| program.to_owned())
}

/// Returns the mutants that `find` finds at the places of an error.
fn attributed(
    copy: &Path,
    error: &Value,
    find: fn(&str, usize) -> Option<usize>,
) -> anyhow::Result<Vec<usize>> {
    let mut found = Vec::new();
    for span in error["message"]["spans"].as_array().into_iter().flatten() {
        let file = copy.join(span["file_name"].as_str().unwrap_or_default());
        if let (Ok(text), Some(at)) = (fs::read_to_string(file), span["byte_start"].as_u64()) {
            found.extend(find(&text, usize::try_from(at)?));
        }
    }
    Ok(found)
}

/// Returns the mutant whose code is at `at`: between `/*[7*/` and `/*]7*/`.
fn within(text: &str, at: usize) -> Option<usize> {
    let mut open = Vec::new();
    for (place, _) in text.get(..at)?.match_indices("/*") {
        let comment = &text[place + 2..];
        let number = |comment: &str| comment.split_once("*/")?.0.parse::<usize>().ok();
        if let Some(number) = comment.strip_prefix('[').and_then(number) {
            open.push(number);
        } else if let Some(number) = comment.strip_prefix(']').and_then(number) {
            open.retain(|it| *it != number);
        }
    }
    open.pop()
}

/// Returns the mutant of the first deleted arm after `at`.
fn next(text: &str, at: usize) -> Option<usize> {
    let (_, number) = text.get(at..)?.split_once("if !crate::mutant_switch(")?;
    number.split_once(')')?.0.parse().ok()
}

/// The tests of a module, built with mutants.
struct Tests<'a> {
    program: &'a Path,
    directory: &'a Path,
    module: &'a Module,
}

impl Tests<'_> {
    /// Runs the tests with each of these mutants, some at a time.
    fn run_all(&self, mutants: &[usize]) -> anyhow::Result<BTreeMap<usize, Verdict>> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let (next, verdicts) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
        let progress = Mutex::new(Progress::new(self.module.name));
        thread::scope(|scope| {
            let work = || {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verdict = self.run(Some(*mutant))?;
                    let mut verdicts = verdicts.lock();
                    verdicts.insert(*mutant, verdict);
                    let mut progress = progress.lock();
                    progress.line(&format!("{} of {}", verdicts.len(), mutants.len()));
                    progress.tick();
                }
                anyhow::Ok(())
            };
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            for worker in workers {
                match worker.join() {
                    Ok(done) => done?,
                    Err(_) => bail!("a thread that runs tests panicked"),
                }
            }
            Ok(())
        })?;
        Ok(verdicts.into_inner())
    }

    /// Runs the tests with one mutant, up to the first that fails.
    fn run(&self, mutant: Option<usize>) -> anyhow::Result<Verdict> {
        let mut command = limited(self.program, self.module.timeout, MEMORY);
        command
            .args(self.module.tests)
            .current_dir(self.directory)
            .env("CARGO_MANIFEST_DIR", self.directory)
            .env("CARGO_PKG_NAME", self.module.package)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some(mutant) = mutant {
            command.env(VARIABLE, mutant.to_string());
        }
        let child = command.spawn().context("start sh")?;
        let limit = Duration::from_secs(u64::from(self.module.timeout * WALL_TIME));
        first_failure(child, Instant::now() + limit)
    }
}

/// Returns a command that runs a program until it has used these seconds of CPU time, however busy
/// the machine is, and refuses it more than these KiB of memory.
fn limited(program: &Path, seconds: u32, memory: u32) -> Command {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!(
            "ulimit -t {seconds} && ulimit -d {memory} && exec \"$0\" \"$@\""
        ))
        .arg(program);
    command
}

/// Waits for the tests to end or the first to fail, at most until `deadline`.
fn first_failure(mut child: Child, deadline: Instant) -> anyhow::Result<Verdict> {
    let output = child.stdout.take().context("standard output is a pipe")?;
    // The reader ends with the output; a test that fails is sent, and the end closes the channel.
    let (sender, receiver) = mpsc::channel();
    let reader = thread::spawn(move || {
        let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
        for line in lines {
            if line.starts_with(b"test ") && line.ends_with(b"FAILED") && sender.send(()).is_err() {
                return;
            }
        }
    });
    let left = deadline.saturating_duration_since(Instant::now());
    let has_ended = receiver.recv_timeout(left) == Err(RecvTimeoutError::Disconnected);
    if !has_ended {
        child.kill().context("end the tests")?;
    }
    let status = child.wait()?;
    drop(receiver);
    if reader.join().is_err() {
        bail!("the reader of the tests panicked");
    }
    Ok(if has_ended && status.success() {
        Verdict::Survived
    } else {
        Verdict::Found
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_attributed_to_the_mutant_around_them() {
        let text = "a /*[1*/ b /*[12*/ c /*]12*/ d /*]1*/ e /* f */ match g { h if !crate::mutant_switch(3)  => i";
        let at = |part: &str| text.find(part).expect("a part");
        for (part, expected) in [
            (" b", Some(1)),
            (" c", Some(12)),
            (" d", Some(1)),
            (" e", None),
            (" g", None),
        ] {
            assert_eq!(within(text, at(part)), expected, "{part}");
        }
        assert_eq!(next(text, at("match")), Some(3));
        assert_eq!(next(text, at("=> i")), None);
    }

    #[test]
    fn tests_end_by_themselves_with_a_failure_or_at_the_deadline() {
        let run = |script: &str, seconds| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdout(Stdio::piped());
            let child = command.spawn().expect("sh runs");
            let deadline = Instant::now() + Duration::from_secs(seconds);
            first_failure(child, deadline).expect("a verdict")
        };
        assert_eq!(run("echo test a ... ok", 60), Verdict::Survived);
        assert_eq!(run("exit 101", 60), Verdict::Found);
        // Neither is waited for.
        assert_eq!(
            run("echo 'test a ... FAILED'; exec sleep 1000", 60),
            Verdict::Found
        );
        assert_eq!(run("exec sleep 1000", 0), Verdict::Found);
    }

    #[test]
    fn memory_beyond_the_limit_is_refused() {
        let has_memory = |memory| {
            let mut command = limited(Path::new("dd"), 60, memory);
            command.args(["if=/dev/zero", "of=/dev/null", "bs=64M", "count=1"]);
            let output = command.output().expect("sh runs");
            output.status.success()
        };
        assert!(has_memory(MEMORY));
        assert!(!has_memory(32 << 10));
    }

    #[test]
    fn switch_reads_the_variable_of_the_runs() {
        assert!(SWITCH.contains(VARIABLE));
    }
}
