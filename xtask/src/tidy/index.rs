//! House rule about the index of ARCHITECTURE.md: each question has one file, which defines the
//! names of its row, so that one search and one file answer it.

use super::Finding;
use super::source::has_word;
use super::tree::{File, Tree};

const DOCUMENT: &str = "ARCHITECTURE.md";
const INDEX: &str = "## Index";

/// The part of a path that the index omits.
const OMITTED: &str = "mesh-proxy/src/";

const KEYWORDS: [&str; 7] = ["fn", "struct", "enum", "trait", "type", "const", "static"];

/// Reports rows whose file does not exist, is not alone, or lacks a name.
pub(crate) fn answers_exist(tree: &Tree) -> Vec<Finding> {
    let Some(document) = tree.file(DOCUMENT) else {
        return Vec::new();
    };
    let lines = document.text.lines().enumerate();
    let index = lines.skip_while(|(_, line)| !line.starts_with(INDEX));
    // The header and the line below it are no questions.
    let rows = index.filter(|(_, line)| line.starts_with('|')).skip(2);
    let finding = |(at, row): (usize, &str)| {
        let advice = problem(tree, row)?;
        Some(document.finding(at + 1, "index", advice))
    };
    rows.filter_map(finding).collect()
}

fn problem(tree: &Tree, row: &str) -> Option<String> {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [_, names, path] = cells[..] else {
        return Some("a row is a question, names and one file".to_owned());
    };
    let file = tree.file(&format!("{OMITTED}{path}"));
    let Some(file) = file.or_else(|| tree.file(path)) else {
        return Some(format!("`{path}` is not one file; ask a question for each"));
    };
    let quoted = |mark: &str| names.split(mark).skip(1).step_by(2).collect::<Vec<_>>();
    let code = quoted("`").into_iter().filter(|name| !defines(file, name));
    let sections = quoted("**").into_iter();
    let sections = sections.filter(|title| !file.text.contains(title));
    let missing = code.chain(sections).next()?;
    Some(format!("{path} does not define `{missing}`"))
}

/// Whether the file defines the last part of a path of Rust, and has its type. Any other file needs
/// only the text.
fn defines(file: &File, name: &str) -> bool {
    if !file.is_rust() {
        return file.text.contains(name);
    }
    let mut parts = name.rsplit("::");
    let last = parts.next().unwrap_or(name);
    let of_type = parts
        .next()
        .filter(|part| part.starts_with(char::is_uppercase));
    let is_defined = |line: &str| {
        let definition = |keyword: &&str| line.contains(&format!("{keyword} {last}"));
        has_word(line, last) && KEYWORDS.iter().any(definition)
    };
    file.code.iter().any(|line| is_defined(&line.code))
        && of_type.is_none_or(|name| file.code.iter().any(|line| has_word(&line.code, name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    #[test]
    fn rows_that_one_file_does_not_answer_are_reported() {
        let pool = "impl Pool {\n    fn take() {}\n}\nfn other() { put() }\n";
        for (row, is_reported) in [
            ("`Pool::take` | pool.rs", false),
            ("`pool::take`, `other` | mesh-proxy/src/pool.rs", false),
            ("**Limits** and `SIZE` | docs/a.md", false),
            ("the whole | pool.rs", false),
            ("`Pool::put` | pool.rs", true),
            ("`Queue::take` | pool.rs", true),
            ("**Sizes** | docs/a.md", true),
            ("`take` | gone.rs", true),
            ("`take` | pool.rs; docs/a.md", true),
            ("pool.rs", true),
        ] {
            let text = format!("| x |\n## Index\n| q | n | f |\n|---|---|---|\n| Why? | {row} |\n");
            let tree = Tree::of(&[
                (DOCUMENT, &text),
                ("mesh-proxy/src/pool.rs", pool),
                ("docs/a.md", "## Limits\n`SIZE`\n"),
            ]);
            let expected = if is_reported {
                vec![(DOCUMENT, 5)]
            } else {
                Vec::new()
            };
            assert_eq!(places(&answers_exist(&tree)), expected, "{row}");
        }
    }
}
