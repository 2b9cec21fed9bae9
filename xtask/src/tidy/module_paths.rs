//! House rule about comments of Rust files: a path of modules that they name exists.
//!
//! A comment names its callers, and module paths have no compiler to follow a move.

use super::Finding;
use super::decisions::contains_word;
use super::tree::{File, Tree};

/// A file and the path of its module, which begins with the name of its package.
struct Module<'a> {
    file: &'a File,
    path: Vec<String>,
}

/// Reports inline code of comments that is a path of modules (`a::b::name`) whose first part is a
/// module of this repository, if no module `a::b` has or uses `name`. The path may leave out outer
/// modules.
pub(crate) fn exist(tree: &Tree) -> Vec<Finding> {
    let modules: Vec<Module<'_>> = tree.rust_files().map(Module::of).collect();
    let mut findings = Vec::new();
    for file in tree.rust_files() {
        for (index, line) in file.text.lines().enumerate() {
            let Some((_, comment)) = line.split_once("//") else {
                continue;
            };
            for path in comment.split('`').skip(1).step_by(2) {
                if !is_found(&modules, path) {
                    let advice = format!("`{path}` does not exist; name the module of today");
                    findings.push(file.finding(index + 1, "module-paths", advice));
                }
            }
        }
    }
    findings
}

fn is_found(modules: &[Module<'_>], path: &str) -> bool {
    let Some(parts) = parts(path) else {
        return true;
    };
    let [parents @ .., name] = parts.as_slice() else {
        return true;
    };
    let is_known = |part: &str| modules.iter().any(|module| module.has(part));
    if parents.first().is_some_and(|first| !is_known(first)) {
        return true;
    }
    modules
        .iter()
        .any(|module| module.is(&parts) || (module.is(parents) && contains_word(module.file, name)))
}

/// The parts of a path whose parents are modules, without `crate`, `self` and `super`. `None` if it
/// is none.
fn parts(path: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> = path.trim_end_matches("()").split("::").collect();
    let (name, parents) = parts.split_last()?;
    let is_word = |part: &str| {
        let letters = part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        letters && part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    };
    let is_module = |part: &&str| is_word(part) && !part.contains(|c: char| c.is_ascii_uppercase());
    if parents.is_empty() || !parents.iter().all(is_module) || !is_word(name) {
        return None;
    }
    let is_relative = |part: &&&str| matches!(**part, "crate" | "self" | "super");
    Some(parts.iter().skip_while(is_relative).copied().collect())
}

impl<'a> Module<'a> {
    fn of(file: &'a File) -> Self {
        let parts = file.path.trim_end_matches(".rs").split('/');
        let parts = parts.filter(|part| *part != "src");
        let mut path: Vec<String> = parts.map(|part| part.replace('-', "_")).collect();
        path.pop_if(|last| matches!(last.as_str(), "lib" | "main"));
        Self { file, path }
    }

    fn has(&self, part: &str) -> bool {
        self.path.iter().any(|own| own == part)
    }

    /// Whether the path ends with these parts.
    fn is(&self, parts: &[&str]) -> bool {
        let Some(skipped) = self.path.len().checked_sub(parts.len()) else {
            return false;
        };
        self.path[skipped..].iter().eq(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    #[test]
    fn module_paths_of_comments_that_do_not_exist_are_reported() {
        for (comment, is_reported) in [
            (
                "`retry::attempts`, `crate::retry` and `super::retry::attempts::Attempt`",
                false,
            ),
            ("`a_b::retry::attempts::make()`", false),
            (
                "`tokio::time::sleep`, `usize::MAX`, `Attempt::gone`, `a: b::c`",
                false,
            ),
            ("`outbound::attempts`", true),
            ("`retry::gone`", true),
            ("`crate::gone`", true),
            ("`a_b::retry::attempts::gone()`", true),
        ] {
            let text = format!("//! {comment}\nfn kept() {{}}\n");
            let tree = Tree::of(&[
                ("a-b/src/lib.rs", "mod retry;\nmod outbound;\n"),
                ("a-b/src/retry.rs", "mod attempts;\n"),
                (
                    "a-b/src/retry/attempts.rs",
                    "struct Attempt;\nfn make() {}\n",
                ),
                ("a-b/src/outbound.rs", &text),
            ]);
            let findings = exist(&tree);
            let found = places(&findings);
            assert_eq!(!found.is_empty(), is_reported, "{comment}: {found:?}");
        }
    }
}
