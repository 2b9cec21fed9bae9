//! House rules about documents: the commands they show exist, and the index of decisions is
//! complete.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::Finding;
use super::tree::{File, Tree};
use crate::args::Args;

/// The documents whose commands are checked.
const DOCUMENTS: [&str; 2] = ["README.md", "CONTRIBUTING.md"];

const ADR_DIRECTORY: &str = "docs/adr/";
const ADR_INDEX: &str = "docs/adr/README.md";
const ADR_TEMPLATE: &str = "docs/adr/template.md";

/// Reports `cargo xtask …` commands in documents that do not parse.
pub(crate) fn xtask_commands(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, line, words) in commands(tree, &["cargo", "xtask"]) {
        let parsed = Args::command()
            .try_get_matches_from(["xtask"].into_iter().chain(words.iter().copied()));
        if let Err(error) = parsed.map_err(|error| error.kind()).map(drop)
            && !matches!(error, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
        {
            let advice = format!(
                "`cargo xtask {}` is not a command; see `cargo xtask --help`",
                words.join(" ")
            );
            findings.push(file.finding(line, "document-commands", advice));
        }
    }
    findings
}

/// Reports `meshctl …` commands in documents that the program at `meshctl` rejects.
pub(crate) fn meshctl_commands(tree: &Tree, meshctl: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, line, words) in commands(tree, &["meshctl"]) {
        // With `--help`, meshctl parses all preceding arguments and exits without further action.
        // Arguments after `--` belong to another program and are omitted.
        let own = words.iter().take_while(|word| **word != "--");
        let mut command = Command::new(meshctl);
        command
            .args(own)
            .arg("--help")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let advice = match command.status() {
            Ok(status) if status.success() => continue,
            Ok(_) => format!(
                "`meshctl {}` is not a command; see `meshctl --help`",
                words.join(" ")
            ),
            Err(error) => format!(
                "cannot ask {} whether `meshctl {}` exists: {error}",
                meshctl.display(),
                words.join(" ")
            ),
        };
        findings.push(file.finding(line, "document-commands", advice));
    }
    findings
}

/// The commands in fenced blocks that begin with `program`: where they stand, and their arguments.
fn commands<'a>(tree: &'a Tree, program: &'a [&'a str]) -> Vec<(&'a File, usize, Vec<&'a str>)> {
    let mut commands = Vec::new();
    for file in DOCUMENTS.iter().filter_map(|path| tree.file(path)) {
        let mut fenced = false;
        for (index, line) in file.text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if fenced {
                let parts = line.split(['|', ';', '&', '#', '>']);
                commands.extend(
                    parts
                        .filter_map(|part| arguments(part, program))
                        .map(|words| (file, index + 1, words)),
                );
            }
        }
    }
    commands
}

/// The words after the program's name, where this is a call of it. Settings (`A=b`), `sudo` and a
/// prompt may precede.
fn arguments<'a>(command: &'a str, program: &[&str]) -> Option<Vec<&'a str>> {
    let words: Vec<&str> = command
        .split_whitespace()
        .skip_while(|word| matches!(*word, "$" | "sudo") || word.contains('='))
        .collect();
    let (name, arguments) = words.split_at_checked(program.len())?;
    (name == program).then(|| arguments.to_vec())
}

/// Reports decisions that are not indexed, have a duplicate number or have no status.
pub(crate) fn adr_index(tree: &Tree) -> Vec<Finding> {
    let index = tree.file(ADR_INDEX).map_or("", |file| file.text.as_str());
    let mut findings = Vec::new();
    let mut numbers: BTreeMap<&str, &str> = BTreeMap::new();
    let in_directory = tree
        .files
        .iter()
        .filter_map(|file| Some((file, file.path.strip_prefix(ADR_DIRECTORY)?)));
    for (file, name) in in_directory.filter(|(file, name)| {
        ![ADR_INDEX, ADR_TEMPLATE].contains(&file.path.as_str()) && name.ends_with(".md")
    }) {
        let mut add = |advice: String| findings.push(file.finding(1, "adr-index", advice));
        let number = name
            .split('-')
            .next()
            .filter(|number| number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit()));
        match number {
            None => add("name it `NNNN-title.md`".to_owned()),
            Some(number) => {
                if let Some(other) = numbers.insert(number, name) {
                    add(format!(
                        "{other} has the same number; take the next free one"
                    ));
                }
            }
        }
        if !index.contains(&format!("]({name})")) {
            add(format!("not in {ADR_INDEX}: add a line that links to it"));
        }
        if !file.text.lines().any(|line| {
            line.trim_start_matches(['#', '*', '-', ' '])
                .starts_with("Status")
        }) {
            add(
                "say its status: a line `Status: accepted`, `superseded by …` or `proposed`"
                    .to_owned(),
            );
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(findings: &[Finding]) -> Vec<(usize, &str)> {
        findings
            .iter()
            .map(|finding| (finding.line, finding.advice.as_str()))
            .collect()
    }

    #[test]
    fn commands_are_extracted_from_fenced_blocks_only() {
        let text = "cargo xtask nothing\n```\n$ cargo xtask test --quick   # all\nA=1 sudo cargo xtask tidy | tee log && cargo xtask fmt\n```\n";
        let tree = Tree::of(&[("README.md", text)]);
        let found = commands(&tree, &["cargo", "xtask"]).into_iter();
        let found: Vec<_> = found
            .map(|(_, line, words)| format!("{line}: {}", words.join(" ")))
            .collect();
        assert_eq!(found, ["3: test --quick", "4: tidy", "4: fmt"]);
    }

    #[test]
    fn invalid_xtask_commands_in_documents_are_reported() {
        let tree = Tree::of(&[(
            "README.md",
            "```\ncargo xtask test --quick\ncargo xtask --help\ncargo xtask tset\ncargo xtask test --fast\n```\n",
        )]);
        let tset = "`cargo xtask tset` is not a command; see `cargo xtask --help`";
        let fast = "`cargo xtask test --fast` is not a command; see `cargo xtask --help`";
        assert_eq!(advice(&xtask_commands(&tree)), [(4, tset), (5, fast)]);
    }

    #[test]
    fn invalid_meshctl_commands_in_documents_are_reported() {
        let tree = Tree::of(&[("README.md", "```\nmeshctl check\n```\n")]);
        assert_eq!(meshctl_commands(&tree, Path::new("/bin/true")), []);
        assert_eq!(
            advice(&meshctl_commands(&tree, Path::new("/bin/false"))),
            [(2, "`meshctl check` is not a command; see `meshctl --help`")]
        );
        let without = meshctl_commands(&tree, Path::new("/no/such/program"));
        assert_eq!(without.len(), 1);
    }

    #[test]
    fn unindexed_decision_is_reported() {
        let tree = Tree::of(&[
            ("docs/adr/README.md", "* [0001](0001-good.md)\n"),
            ("docs/adr/template.md", "# NNNN\n"),
            ("docs/adr/0001-good.md", "# Good\n\nStatus: accepted\n"),
            ("docs/adr/0001-twice.md", "# Twice\n\n## Status\n"),
            ("docs/adr/notes.md", "# Notes\n"),
        ]);
        let findings = adr_index(&tree);
        assert_eq!(
            findings
                .iter()
                .map(|finding| format!("{}: {}", finding.file, finding.advice))
                .collect::<Vec<_>>(),
            [
                "docs/adr/0001-twice.md: 0001-good.md has the same number; take the next free one",
                "docs/adr/0001-twice.md: not in docs/adr/README.md: add a line that links to it",
                "docs/adr/notes.md: name it `NNNN-title.md`",
                "docs/adr/notes.md: not in docs/adr/README.md: add a line that links to it",
                "docs/adr/notes.md: say its status: a line `Status: accepted`, `superseded by …` or `proposed`",
            ]
        );
    }
}
