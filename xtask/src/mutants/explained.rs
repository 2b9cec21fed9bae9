//! Mutants that no test should find, because they behave as the code does:
//! `xtask/mutants/explained` has one a line, with the reason.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use super::modules::Module;
use super::tool::Mutant;

const FILE: &str = "xtask/mutants/explained";

/// Between the fields of a line.
const SEPARATOR: &str = " -- ";

/// The entries of the file.
pub(super) struct Explained(Vec<Entry>);

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    file: String,
    /// As cargo-mutants shows it, without line and column, which other changes move.
    change: String,
    /// Part of the line that it changes.
    code: String,
}

impl Explained {
    pub(super) fn read(root: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(root.join(FILE)).with_context(|| format!("read {FILE}"))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let lines = text.lines().zip(1..);
        let entries = lines.filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#'));
        let entries = entries.map(|(line, number)| {
            Entry::parse(line).with_context(|| {
                format!("{FILE}:{number}: a line is FILE: CHANGE{SEPARATOR}CODE{SEPARATOR}REASON")
            })
        });
        entries.collect::<anyhow::Result<_>>().map(Self)
    }

    /// Whether an entry is about this mutant of `line`.
    pub(super) fn has(&self, mutant: &Mutant, line: &str) -> bool {
        self.0.iter().any(|entry| entry.is_about(mutant, line))
    }

    /// Fails if an entry about a file of the module has no mutant, so that outdated lines are
    /// removed.
    pub(super) fn check(
        &self,
        module: &Module,
        root: &Path,
        mutants: &[Mutant],
    ) -> anyhow::Result<()> {
        let of_module = |entry: &&Entry| mutants.iter().any(|it| it.file == entry.file);
        for entry in self.0.iter().filter(of_module) {
            let has_mutant = |it: &Mutant| entry.is_about(it, &it.source_line(root));
            if !mutants.iter().any(has_mutant) {
                bail!(
                    "{FILE}: module {} has no mutant {:?} of {:?} in {}; remove or correct the line",
                    module.name,
                    entry.change,
                    entry.code,
                    entry.file
                );
            }
        }
        Ok(())
    }
}

impl Entry {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(3, SEPARATOR);
        let (file, change) = fields.next()?.split_once(": ")?;
        let (code, reason) = (fields.next()?, fields.next()?);
        (!code.trim().is_empty() && !reason.trim().is_empty()).then(|| Self {
            file: file.to_owned(),
            change: change.to_owned(),
            code: code.to_owned(),
        })
    }

    fn is_about(&self, mutant: &Mutant, line: &str) -> bool {
        self.file == mutant.file && self.change == mutant.change && line.contains(&self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::super::modules::MODULES;
    use super::*;

    const LINE: &str =
        "src/a.rs: replace > with >= in A::b -- if left > 0 -- zero has no effect here";

    #[test]
    fn explanation_holds_for_one_change_of_one_line() {
        let explained = Explained::parse(&format!("# a comment\n\n{LINE}\n")).expect("an entry");
        let name = "src/a.rs:3:9: replace > with >= in A::b";
        let mutant = |name| Mutant::new(name, "BinaryOperator", ">=").expect("a mutant");
        assert!(explained.has(&mutant(name), "if left > 0 {"));
        assert!(!explained.has(&mutant(name), "if right > 0 {"));
        for other in [
            "src/b.rs:3:9: replace > with >= in A::b",
            "src/a.rs:3:9: replace > with < in A::b",
        ] {
            assert!(!explained.has(&mutant(other), "if left > 0 {"));
        }
    }

    #[test]
    fn line_without_reason_is_rejected() {
        for line in [
            "src/a.rs: replace > with >= in A::b -- if left > 0",
            "src/a.rs: replace > with >= in A::b -- if left > 0 --  ",
            "replace > with >= in A::b -- if left > 0 -- why",
        ] {
            assert!(Explained::parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn explanation_of_code_that_is_gone_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("src")).expect("a directory");
        let file = directory.path().join("src/a.rs");
        let explained = Explained::parse(LINE).expect("an entry");
        let name = "src/a.rs:1:9: replace > with >= in A::b";
        let mutants = [Mutant::new(name, "BinaryOperator", ">=").expect("a mutant")];
        for (text, is_current) in [("if left > 0 {\n", true), ("if left > 1 {\n", false)] {
            fs::write(&file, text).expect("write");
            let checked = explained.check(&MODULES[0], directory.path(), &mutants);
            assert_eq!(checked.is_ok(), is_current, "{text}");
        }
        // Entries of other modules are not checked.
        assert!(explained.check(&MODULES[0], directory.path(), &[]).is_ok());
    }

    #[test]
    fn file_is_read() {
        let root = crate::workspace::root().expect("a checkout");
        Explained::read(&root).expect("the file of the repository");
    }
}
