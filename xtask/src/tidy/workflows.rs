//! Conventions for workflows: each step is one xtask command, which also runs on a developer's
//! machine.

use super::Finding;
use super::tree::{File, Tree};

const DIRECTORY: &str = ".github/workflows/";

/// A workflow's steps are commands of xtask, nothing else.
pub(crate) fn only_xtask(tree: &Tree) -> Vec<Finding> {
    findings(
        tree,
        "run:",
        "workflow-commands",
        "call `cargo xtask …`, and put what is new into xtask",
        // `shell:` follows in the defaults of a job's steps. It is the shell of the commands and
        // not a command.
        |command| command.starts_with("cargo xtask ") || command.starts_with("shell:"),
    )
}

/// Reports third-party actions, which would run with the repository's permissions.
pub(crate) fn only_known_actions(tree: &Tree) -> Vec<Finding> {
    findings(
        tree,
        "uses:",
        "workflow-actions",
        "use only the forge's own actions (`actions/…`)",
        |action| action.starts_with("actions/"),
    )
}

/// One finding for each value of `key` that is not `allowed`. A value that continues on the next
/// lines (`|`, `>`) is never allowed: a script in a workflow runs nowhere else.
fn findings(
    tree: &Tree,
    key: &str,
    rule: &'static str,
    advice: &str,
    allowed: impl Fn(&str) -> bool,
) -> Vec<Finding> {
    let workflows = tree
        .files
        .iter()
        .filter(|file| file.path.starts_with(DIRECTORY));
    workflows
        .flat_map(|file| values(file, key))
        .filter(|(_, _, value)| !allowed(value))
        .map(|(file, line, _)| file.finding(line, rule, advice))
        .collect()
}

/// The values of a key, each with its line. If there is none on the line of the key, the next line
/// is the value.
fn values<'a>(file: &'a File, key: &'a str) -> impl Iterator<Item = (&'a File, usize, &'a str)> {
    let lines: Vec<&str> = file.text.lines().map(str::trim_start).collect();
    let numbered = lines.clone().into_iter().enumerate();
    numbered.filter_map(move |(index, line)| {
        let line = line.trim_start_matches("- ").trim_start();
        let mut value = line.strip_prefix(key)?.trim();
        if value.is_empty() {
            let mut after = lines[index + 1..].iter().copied();
            value = after.find(|line| !line.is_empty() && !line.starts_with('#'))?;
        }
        Some((file, index + 1, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    const WORKFLOW: &str = "\
jobs:
  test:
    defaults:
      run:
        shell: bash
    steps:
      - uses: actions/checkout@v4
      - uses: someone/else@v1
      - run: cargo xtask test
      - name: more
        run: cargo test
      - run: |
          cargo xtask tidy
      - run:
          cargo test
";

    #[test]
    fn steps_call_xtask() {
        let tree = Tree::of(&[
            (".github/workflows/ci.yml", WORKFLOW),
            ("docs/example.yml", WORKFLOW),
        ]);
        let file = ".github/workflows/ci.yml";
        let expected = [(file, 11), (file, 12), (file, 14)];
        assert_eq!(places(&only_xtask(&tree)), expected);
    }

    #[test]
    fn only_official_actions_are_allowed() {
        let tree = Tree::of(&[(".github/workflows/ci.yml", WORKFLOW)]);
        let found = only_known_actions(&tree);
        assert_eq!(places(&found), [(".github/workflows/ci.yml", 8)]);
    }
}
