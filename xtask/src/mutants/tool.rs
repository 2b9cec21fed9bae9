//! Installs cargo-mutants, lists the mutants of a module, and runs its tests with some of them, one
//! build for each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::Value;

use super::modules::Module;
use super::tree;
use crate::command::{self, captured_stdout};
use crate::{stage, workspace};

/// The release that is installed. With another one, which makes other mutants, a seed would draw
/// others.
const VERSION: &str = "27.1.0";

/// The directories of its results, of the copy that it changes and of the build, below the root.
/// The build is incremental, since each mutant changes one function.
const RESULTS: &str = "target/mutants/results";
const COPY: &str = "target/mutants/tree";
const BUILD: &str = "target/mutants/build";

/// One change of the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mutant {
    /// As cargo-mutants shows it: `FILE:LINE:COLUMN: CHANGE`.
    pub(super) name: String,
    pub(super) file: String,
    /// The change and its function: `replace > with >= in Flood::count`.
    pub(super) change: String,
    /// Its kind, as cargo-mutants names it.
    pub(super) genre: String,
    /// The place of the text that `replacement` replaces, from 1.
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) replacement: String,
}

/// Whether the tests found a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A test failed or did not end.
    Found,
    Survived,
    /// It does not compile.
    Unviable,
}

/// The installed program.
pub(super) struct Tool {
    root: PathBuf,
    program: PathBuf,
}

impl Mutant {
    /// A mutant by its name, kind and replacement.
    pub(super) fn new(name: &str, genre: &str, replacement: &str) -> Option<Self> {
        let (place, change) = name.split_once(": ")?;
        let mut place = place.rsplitn(3, ':');
        let (column, line, file) = (place.next()?, place.next()?, place.next()?);
        Some(Self {
            name: name.to_owned(),
            file: file.to_owned(),
            change: change.to_owned(),
            genre: genre.to_owned(),
            line: line.parse().ok()?,
            column: column.parse().ok()?,
            replacement: replacement.to_owned(),
        })
    }

    /// The line of the source that it changes.
    pub(super) fn source_line(&self, root: &Path) -> String {
        let text = fs::read_to_string(root.join(&self.file)).unwrap_or_default();
        let line = text.lines().nth(self.line.saturating_sub(1));
        line.unwrap_or_default().trim().to_owned()
    }
}

impl Tool {
    /// Installs the program if it is missing or another release.
    pub(super) fn ready(root: &Path) -> anyhow::Result<Self> {
        let directory = workspace::tools(root);
        let program = directory.join("bin/cargo-mutants");
        let version = captured_stdout(Command::new(&program).args(["mutants", "--version"]));
        if version.is_none_or(|version| version.trim() != format!("cargo-mutants {VERSION}")) {
            stage::run("setup", "cargo-mutants (several minutes)", || {
                let mut install = workspace::cargo(root);
                install.args(["install", "cargo-mutants", "--locked", "--force"]);
                install
                    .args(["--version", VERSION, "--root"])
                    .arg(&directory);
                command::run("cargo-mutants", &mut install).context("install cargo-mutants")
            })?;
        }
        Ok(Self {
            root: root.to_path_buf(),
            program,
        })
    }

    /// Lists the mutants of a module, in the order of files and lines.
    pub(super) fn list(&self, module: &Module) -> anyhow::Result<Vec<Mutant>> {
        let mut command = self.command(&self.root, module);
        let output = command.args(["--list", "--json"]).output();
        let output = output.context("start cargo-mutants")?;
        if !output.status.success() {
            bail!(
                "`{}`: {}",
                command::shown(&command),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        parse_list(&serde_json::from_slice(&output.stdout).context("parse the list of mutants")?)
    }

    /// Runs the tests of the module with each of these mutants.
    pub(super) fn test(
        &self,
        module: &Module,
        mutants: &[Mutant],
    ) -> anyhow::Result<Vec<(String, Verdict)>> {
        if mutants.is_empty() {
            return Ok(Vec::new());
        }
        let results = self.root.join(RESULTS).join(module.name);
        fs::create_dir_all(&results)?;
        let copy = tree::copy(&self.root, COPY).context("copy the checkout")?;
        let mut command = self.command(&copy, module);
        command
            .env("CARGO_TARGET_DIR", self.root.join(BUILD))
            .env("CARGO_INCREMENTAL", "1")
            .args(["--in-place", "--cargo-arg=--lib", "--no-times"])
            .args(["--timeout", &module.timeout.to_string(), "--output"])
            .arg(&results);
        for mutant in mutants {
            command.args(["--re", &format!("^{}$", escaped(&mutant.name))]);
        }
        command.args(["--", "--"]).args(module.tests);
        let finished = command::observe(module.name, &mut command, |_| ())?;
        // 0: all found, 2: some survived, 3: some tests did not end.
        if !matches!(finished.status.code(), Some(0 | 2 | 3)) {
            for line in &finished.lines {
                eprintln!("{line}");
            }
            bail!("cargo-mutants: {}", finished.status);
        }
        let outcomes = results.join("mutants.out/outcomes.json");
        let text = fs::read(&outcomes).with_context(|| format!("read {}", outcomes.display()))?;
        parse_outcomes(&serde_json::from_slice(&text).context("parse the outcomes")?)
    }

    fn command(&self, directory: &Path, module: &Module) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(["mutants", "--no-config", "--colors", "never", "--dir"])
            .arg(directory)
            .args(["--package", module.package]);
        for file in module.files {
            command.args(["--file", file]);
        }
        for file in module.without {
            command.args(["--exclude", file]);
        }
        command
    }
}

fn parse_list(list: &Value) -> anyhow::Result<Vec<Mutant>> {
    let list = list.as_array().context("the list is an array")?;
    let mutants = list.iter().map(|mutant| {
        let text = |field: &str| mutant[field].as_str();
        Mutant::new(text("name")?, text("genre")?, text("replacement")?)
    });
    let mutants: Option<Vec<Mutant>> = mutants.collect();
    mutants.context("each mutant has a name, a kind and a replacement")
}

fn parse_outcomes(outcomes: &Value) -> anyhow::Result<Vec<(String, Verdict)>> {
    let outcomes = outcomes["outcomes"].as_array();
    let outcomes = outcomes.context("the outcomes are an array")?.iter();
    let of_mutants = outcomes.filter_map(|outcome| {
        let name = outcome["scenario"]["Mutant"]["name"].as_str()?;
        Some((name, outcome["summary"].as_str().unwrap_or_default()))
    });
    of_mutants
        .map(|(name, summary)| {
            let verdict = match summary {
                "CaughtMutant" | "Timeout" => Verdict::Found,
                "MissedMutant" => Verdict::Survived,
                "Unviable" => Verdict::Unviable,
                other => bail!("cargo-mutants reports {other:?} for {name}"),
            };
            Ok((name.to_owned(), verdict))
        })
        .collect()
}

/// Returns a regular expression that matches this text.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_and_outcomes_are_parsed() {
        let name = "src/a.rs:3:9: replace > with >= in A::b";
        let entry = json!({"name": name, "genre": "BinaryOperator", "replacement": ">="});
        let mutants = parse_list(&json!([entry])).expect("a list");
        let expected = Mutant {
            name: name.to_owned(),
            file: "src/a.rs".to_owned(),
            change: "replace > with >= in A::b".to_owned(),
            genre: "BinaryOperator".to_owned(),
            line: 3,
            column: 9,
            replacement: ">=".to_owned(),
        };
        assert_eq!(mutants, [expected]);
        assert!(parse_list(&json!([{"name": name}])).is_err());

        let outcome = |summary: &str| {
            json!({"outcomes": [
                {"scenario": "Baseline", "summary": "Success"},
                {"scenario": {"Mutant": {"name": name}}, "summary": summary},
            ]})
        };
        for (summary, expected) in [
            ("CaughtMutant", Verdict::Found),
            ("Timeout", Verdict::Found),
            ("MissedMutant", Verdict::Survived),
            ("Unviable", Verdict::Unviable),
        ] {
            let verdicts = parse_outcomes(&outcome(summary)).expect("outcomes");
            assert_eq!(verdicts, [(name.to_owned(), expected)]);
        }
        assert!(parse_outcomes(&outcome("Failure")).is_err());
    }

    #[test]
    fn names_of_mutants_are_escaped_in_expressions() {
        let name = "a-b.rs:1:2: replace f -> Option<&[u8]> with Some(\\) in <a as B>::c";
        let expected =
            r"a\-b\.rs:1:2: replace f \-> Option<\&\[u8\]> with Some\(\\\) in <a as B>::c";
        assert_eq!(escaped(name), expected);
    }
}
