//! `cargo xtask tidy`: the house rules that no compiler checks. Part of `test`. Each rule is a pure
//! function from the checkout's files (or packages) to findings, in a module named for its subject;
//! this file only lists them.

mod charts;
mod cycles;
mod decisions;
mod documents;
mod index;
mod language;
mod module_paths;
mod packages;
mod prose;
mod repeatable;
mod requirements;
mod rust_files;
mod source;
mod text_files;
mod tree;
mod workflows;

use std::fmt;
use std::path::Path;

use anyhow::bail;

use packages::Package;
use tree::Tree;

/// A place that breaks a rule, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    file: String,
    /// Counted from one.
    line: usize,
    rule: &'static str,
    advice: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}: {}: {}",
            self.file, self.line, self.rule, self.advice
        )
    }
}

type FileRule = fn(&Tree) -> Vec<Finding>;
type PackageRule = fn(&[Package]) -> Vec<Finding>;

const FILE_RULES: [FileRule; 31] = [
    rust_files::module_docs,
    rust_files::length,
    rust_files::file_names,
    rust_files::test_modules,
    rust_files::printing,
    rust_files::unsafe_code,
    rust_files::seams,
    rust_files::open_ends,
    repeatable::seams,
    text_files::machine_paths,
    text_files::size,
    documents::xtask_commands,
    documents::adr_index,
    language::words,
    language::widths,
    language::habits,
    language::sources,
    language::imports,
    prose::prose,
    decisions::names_exist,
    module_paths::exist,
    index::answers_exist,
    requirements::requirements,
    cycles::import_cycles,
    cycles::folder_cycles,
    workflows::only_xtask,
    workflows::only_known_actions,
    charts::white_space,
    charts::documented_values,
    charts::versions,
    charts::steady_templates,
];

const PACKAGE_RULES: [PackageRule; 4] = [
    packages::direction,
    packages::confined_crates,
    packages::barred_crates,
    packages::licences,
];

/// Returns the files and lines of findings.
#[cfg(test)]
fn places(findings: &[Finding]) -> Vec<(&str, usize)> {
    let findings = findings.iter();
    let places = findings.map(|finding| (finding.file.as_str(), finding.line));
    places.collect()
}

/// Prints all places that break a rule; fails if there are any.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let tree = Tree::read(root)?;
    let packages = packages::read(root)?;
    let mut findings: Vec<Finding> = FILE_RULES.iter().flat_map(|rule| rule(&tree)).collect();
    findings.extend(PACKAGE_RULES.iter().flat_map(|rule| rule(&packages)));
    settle(findings)
}

/// The commands of `meshctl` that the documents name, asked of the program itself. Not part of
/// `run`, because it needs the program: `test` calls it after the build.
pub(crate) fn check_meshctl_commands(root: &Path) -> anyhow::Result<()> {
    settle(documents::meshctl_commands(
        &Tree::read(root)?,
        &root.join("target/debug/meshctl"),
    ))
}

fn settle(mut findings: Vec<Finding>) -> anyhow::Result<()> {
    findings.sort();
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        1 => bail!("one place breaks a rule"),
        many => bail!("{many} places break a rule"),
    }
}
