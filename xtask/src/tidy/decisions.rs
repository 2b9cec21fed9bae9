//! House rule about decisions: the code that they name exists. A decision whose status is dated
//! (`Status: accepted, names of 2026-11-28`) or superseded keeps the names of its time.

use super::Finding;
use super::source::has_word;
use super::tree::{File, Tree};

const DIRECTORY: &str = "docs/adr/";

/// Reports inline code of decisions that names a Rust file, a function or a member of a type that
/// does not exist. Plain words are not checked, except after a file: (`a/b.rs`, `name`).
pub(crate) fn names_exist(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let decisions = tree.files.iter().filter(|file| {
        file.path.starts_with(DIRECTORY) && file.path.ends_with(".md") && !keeps_old_names(file)
    });
    for decision in decisions {
        let mut fenced = false;
        for (index, line) in decision.text.lines().enumerate() {
            fenced ^= line.trim_start().starts_with("```");
            if fenced {
                continue;
            }
            for missing in missing(tree, line) {
                let advice = format!(
                    "`{missing}` does not exist; name the code of today, or date the status"
                );
                findings.push(decision.finding(index + 1, "decision-names", advice));
            }
        }
    }
    findings
}

fn keeps_old_names(decision: &File) -> bool {
    let mut lines = decision.text.lines();
    let status = lines.find(|line| line.starts_with("Status")).unwrap_or("");
    status.contains("superseded") || status.contains("names of 20")
}

/// Returns the names in a line that do not exist.
fn missing<'a>(tree: &Tree, line: &'a str) -> Vec<&'a str> {
    let mut missing = Vec::new();
    let mut file: Option<&File> = None;
    let parts: Vec<&str> = line.split('`').collect();
    for (index, code) in parts
        .iter()
        .copied()
        .enumerate()
        .filter(|(at, _)| at % 2 == 1)
    {
        let follows_file = parts[index - 1] == ", ";
        let before = file.take().filter(|_| follows_file);
        let exists = if code.ends_with(".rs") && code.contains('/') && is_path(code) {
            file = find(tree, code);
            file.is_some()
        } else if code.contains("::") && is_path(code) {
            is_member(tree, code)
        } else if let Some(file) = before.filter(|_| is_name(code)) {
            contains_word(file, code)
        } else {
            true
        };
        if !exists {
            missing.push(code);
        }
    }
    missing
}

/// Whether it has the characters of a path of a file or of Rust, with parentheses at its end.
fn is_path(code: &str) -> bool {
    let code = code.trim_end_matches("()");
    let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/' | '.' | ':');
    code.chars().all(part)
}

fn is_name(code: &str) -> bool {
    code.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn find<'a>(tree: &'a Tree, path: &str) -> Option<&'a File> {
    let end = format!("/{path}");
    let mut files = tree.files.iter();
    files.find(|file| file.path == path || file.path.ends_with(&end))
}

/// Whether `Type::member`, or any other path of Rust, is found in one file. A type of this
/// repository must define the member where it is declared or implemented. All parts of another path
/// must occur in one file, whose own path counts too.
fn is_member(tree: &Tree, code: &str) -> bool {
    let code = code.trim_end_matches("()").replace('-', "_");
    let parts: Vec<&str> = code.split("::").collect();
    let [.., of, name] = parts[..] else {
        return true;
    };
    let is_type = of.starts_with(|c: char| c.is_ascii_uppercase());
    let homes = || tree.rust_files().filter(move |file| is_home(file, of));
    if is_type && homes().next().is_some() {
        return homes().any(|file| defines(file, name));
    }
    let is_in_path = |file: &File, part: &str| {
        let path = file.path.replace('-', "_");
        path.split(['/', '.']).any(|it| it == part)
    };
    let mut files = tree.rust_files();
    files.any(|file| {
        let mut parts = parts.iter();
        parts.all(|part| is_in_path(file, part) || contains_word(file, part))
    })
}

/// Whether the file declares or implements the type.
fn is_home(file: &File, name: &str) -> bool {
    // Most files do not contain it: a search of the text is faster than one of each line.
    file.text.contains(name)
        && file.code.iter().any(|line| {
            let code = line.code.as_str();
            let declares = ["struct ", "enum ", "trait ", "type ", "impl", "for "];
            has_word(code, name) && declares.iter().any(|keyword| code.contains(keyword))
        })
}

/// Whether the file has a function, a field, a variant or a constant of this name.
fn defines(file: &File, name: &str) -> bool {
    let keywords = [format!("fn {name}"), format!("{name}:")];
    let is_function = name.starts_with(|c: char| c.is_ascii_lowercase());
    file.code.iter().any(|line| {
        has_word(&line.code, name)
            && (!is_function
                || keywords
                    .iter()
                    .any(|start| line.code.contains(start.as_str())))
    })
}

/// Whether the code of the file has the word.
pub(super) fn contains_word(file: &File, word: &str) -> bool {
    file.text.contains(word) && file.code.iter().any(|line| has_word(&line.code, word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    const CODE: &str = "pub struct Pool { size: u32 }\nimpl Pool {\n    fn take(&self) { tokio::task::spawn(other::put()) }\n}\nfn lone() {}\n";

    fn found(text: &str) -> Vec<usize> {
        let tree = Tree::of(&[("a-b/src/pool.rs", CODE), ("docs/adr/0001-x.md", text)]);
        places(&names_exist(&tree))
            .into_iter()
            .map(|(_, line)| line)
            .collect()
    }

    #[test]
    fn names_that_do_not_exist_are_reported() {
        for (line, is_reported) in [
            (
                "`Pool::take`, `Pool::size`, `a-b::pool` and `tokio::task::spawn`",
                false,
            ),
            ("`a-b/src/pool.rs` and `src/pool.rs`", false),
            ("(`src/pool.rs`, `lone`), then `anything_else`", false),
            ("`Pool::put`", true),
            ("`Pool::gone()`", true),
            ("`tokio::task::yield_now`", true),
            ("`src/gone.rs`", true),
            ("(`src/pool.rs`, `gone`)", true),
        ] {
            assert_eq!(!found(line).is_empty(), is_reported, "{line}");
        }
    }

    #[test]
    fn decision_with_old_names_is_left_alone() {
        let stale = "`Pool::gone`\n";
        assert_eq!(found(&format!("Status: accepted\n{stale}")), [2]);
        let dated = format!("Status: accepted, names of 2026-11-28\n{stale}");
        assert_eq!(found(&dated), [0; 0]);
        assert_eq!(
            found(&format!("Status: superseded by 0002\n{stale}")),
            [0; 0]
        );
        assert_eq!(found(&format!("```\n{stale}```\n")), [0; 0]);
    }
}
