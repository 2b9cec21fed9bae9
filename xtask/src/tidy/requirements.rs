//! House rule about the requirements of RFCs: each row of docs/requirements names code and a test
//! that exist, or a reason. docs/requirements/README.md defines the format.

use std::collections::BTreeMap;

use super::Finding;
use super::source::{Line, has_word};
use super::tree::{File, Tree};

const DIRECTORY: &str = "docs/requirements/";
const FORMAT: &str = "docs/requirements/README.md";

/// Where the links of a page lead, below the repository.
const ROOT: &str = "../../";

const LEVELS: [&str; 4] = ["MUST", "MUST NOT", "SHOULD", "SHOULD NOT"];

/// How the reason of a row without code or test begins.
const REASONS: [&str; 2] = ["Deviation:", "No test:"];

/// What may precede a declared name.
const DECLARATIONS: [&str; 9] = [
    "fn", "const", "static", "struct", "enum", "trait", "type", "mod", "union",
];

/// Reports rows whose level is unknown, whose names do not exist, or that have neither a test nor a
/// reason.
pub(crate) fn requirements(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let pages = tree.files.iter().filter(|file| {
        file.path.starts_with(DIRECTORY) && file.path.ends_with(".md") && file.path != FORMAT
    });
    for page in pages {
        let files = link_definitions(page);
        let rows = page.text.lines().enumerate();
        for (index, line) in rows.filter(|(_, line)| is_row(line)) {
            let advice = faults(tree, &files, line).into_iter();
            findings.extend(advice.map(|it| page.finding(index + 1, "requirements", it)));
        }
    }
    findings
}

/// The path of each label: `[label]: ../../path`.
fn link_definitions(page: &File) -> BTreeMap<&str, &str> {
    let lines = page.text.lines();
    let definitions = lines.filter_map(|line| {
        let (label, path) = line.strip_prefix('[')?.split_once("]: ")?;
        Some((label, path.strip_prefix(ROOT)?))
    });
    definitions.collect()
}

/// Whether a line is a row of a table other than its heading.
fn is_row(line: &str) -> bool {
    line.starts_with('|') && !line.starts_with("|--") && !line.starts_with("| section ")
}

/// Returns advice for each fault of a row.
fn faults(tree: &Tree, files: &BTreeMap<&str, &str>, row: &str) -> Vec<String> {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [section, level, requirement, code, test, reason] = cells[..] else {
        return vec![format!("a row has six cells, this one {}", cells.len())];
    };
    let mut faults = Vec::new();
    let number = section.strip_prefix("App. ").unwrap_or(section);
    let is_number = |c: char| c.is_ascii_digit() || c == '.' || c.is_ascii_uppercase();
    if number.is_empty() || !number.chars().all(is_number) {
        faults.push(format!("`{section}` is not the number of a section"));
    }
    if !LEVELS.contains(&level) {
        faults.push(format!("`{level}` is not one of {}", LEVELS.join(", ")));
    }
    if requirement.is_empty() {
        faults.push("state the requirement".to_owned());
    }
    for (column, cell) in [("code", code), ("test", test)] {
        let names = names(cell);
        if names.is_empty() && !REASONS.iter().any(|it| reason.starts_with(it)) {
            let reasons = REASONS.join(" or ");
            faults.push(format!("name the {column}, or say why not after {reasons}"));
        }
        if cell.matches('`').count() != 2 * names.len() {
            faults.push(format!("write each {column} as [`name`][label]"));
        }
        for (name, label) in names {
            let Some(path) = files.get(label) else {
                faults.push(format!("[{label}] is not defined at the end of the page"));
                continue;
            };
            let exists = tree.file(path).is_some_and(|file| {
                if column == "test" {
                    has_test(file, name)
                } else {
                    declares(file, name)
                }
            });
            if !exists {
                faults.push(format!("{path} has no {column} `{name}`"));
            }
        }
    }
    faults
}

/// The names of a cell with their labels: [`name`][label].
fn names(cell: &str) -> Vec<(&str, &str)> {
    let links = cell.split("[`").skip(1);
    let names = links.filter_map(|link| {
        let (name, rest) = link.split_once("`][")?;
        let (label, _) = rest.split_once(']')?;
        Some((name, label))
    });
    names.collect()
}

/// Whether test code of the file has a test of this name. A helper of tests cannot fail by itself.
fn has_test(file: &File, name: &str) -> bool {
    let is_test_file = file.is_test();
    let mut lines = file.code.iter().enumerate();
    lines.any(|(at, line)| {
        (is_test_file || line.test)
            && is_declared(&line.code, name, &["fn"])
            && ends_with_test_attribute(&file.code[..at])
    })
}

/// Whether one of the attributes at the end of these lines makes the next function a test.
fn ends_with_test_attribute(above: &[Line]) -> bool {
    let lines = above.iter().rev().map(|line| line.code.trim());
    let mut of_function = lines.take_while(|code| !code.ends_with(['{', '}', ';']));
    of_function.any(|code| {
        let path = code
            .strip_prefix("#[")
            .and_then(|rest| rest.split(['(', ']']).next());
        path.is_some_and(|path| path == "test" || path.ends_with("::test"))
    })
}

/// Whether the file declares a name outside of its tests. Its type must occur too, if one is given.
fn declares(file: &File, name: &str) -> bool {
    let (of, name) = name
        .rsplit_once("::")
        .map_or((None, name), |(of, name)| (Some(of), name));
    let has_type = of.is_none_or(|of| file.production_code().any(|(_, code)| has_word(code, of)));
    has_type
        && file
            .production_code()
            .any(|(_, code)| is_declared(code, name, &DECLARATIONS) || is_variant(code, name))
}

fn is_declared(code: &str, name: &str, keywords: &[&str]) -> bool {
    let words: Vec<&str> = code
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    let mut pairs = words.windows(2);
    pairs.any(|pair| keywords.contains(&pair[0]) && pair[1] == name)
}

/// Whether a line begins with the name of a variant or a field, and ends as one does. A call ends
/// otherwise, unless it is an argument.
fn is_variant(code: &str, name: &str) -> bool {
    let code = code.trim();
    let code = code.strip_prefix("pub").map_or(code, |rest| {
        rest.split_once(' ').map_or(rest, |(_, field)| field)
    });
    code.strip_prefix(name).is_some_and(|rest| {
        let follows = rest.starts_with([',', '(', ' ', ':']) && !rest.starts_with("::");
        follows && rest.ends_with([',', '{'])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "pub enum Kind {\n    Odd,\n    Even(u8),\n}\nimpl Kind {\n    pub(super) fn new() {\n        helper(1);\n    }\n}\nconst MAX: u8 = 1;\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn zero_is_rejected() {}\n    /// Time is paused.\n    #[tokio::test(start_paused = true)]\n    async fn one_is_accepted() {}\n    fn decode() {}\n    #[cfg(test)]\n    fn encode() {}\n}\n";
    const LINKS: &str = "\n[a]: ../../p/src/a.rs\n[b]: ../../p/src/b.rs\n";

    fn advice(row: &str) -> Vec<String> {
        let page = format!("| section | level |\n|---|---|\n{row}\n{LINKS}");
        let tree = Tree::of(&[
            ("p/src/a.rs", CODE),
            ("docs/requirements/README.md", "| example | of a table |\n"),
            ("docs/requirements/rfc1.md", &page),
        ]);
        let findings = requirements(&tree).into_iter();
        findings.map(|finding| finding.advice).collect()
    }

    #[test]
    fn rows_with_names_that_exist_or_a_reason_are_accepted() {
        for row in [
            "| 1.2 | MUST | x | [`Kind::new`][a] | [`zero_is_rejected`][a] | |",
            "| App. A.1 | MUST NOT | x | [`MAX`][a] [`Odd`][a], [`Even`][a] | [`zero_is_rejected`][a] | |",
            "| 1 | MUST | x | [`MAX`][a] | [`one_is_accepted`][a] | |",
            "| 1 | SHOULD | x | | | No test: never sent |",
            "| 1 | SHOULD | x | [`MAX`][a] | | Deviation: it is not |",
        ] {
            assert_eq!(advice(row), [""; 0], "{row}");
        }
    }

    #[test]
    fn faults_of_rows_are_reported() {
        let test = "[`zero_is_rejected`][a]";
        for (row, expected) in [
            (
                format!("| 1 | MAY | x | [`MAX`][a] | {test} | |"),
                "`MAY` is not one of MUST, MUST NOT, SHOULD, SHOULD NOT",
            ),
            (
                format!("| x | MUST | x | [`MAX`][a] | {test} | |"),
                "`x` is not the number of a section",
            ),
            (
                format!("| 1 | MUST | | [`MAX`][a] | {test} | |"),
                "state the requirement",
            ),
            (
                format!("| 1 | MUST | x | [`MIN`][a] | {test} | |"),
                "p/src/a.rs has no code `MIN`",
            ),
            // A call does not declare, and a test is not code.
            (
                format!("| 1 | MUST | x | [`helper`][a] | {test} | |"),
                "p/src/a.rs has no code `helper`",
            ),
            (
                format!("| 1 | MUST | x | [`zero_is_rejected`][a] | {test} | |"),
                "p/src/a.rs has no code `zero_is_rejected`",
            ),
            (
                format!("| 1 | MUST | x | [`Other::new`][a] | {test} | |"),
                "p/src/a.rs has no code `Other::new`",
            ),
            (
                "| 1 | MUST | x | [`MAX`][a] | [`new`][a] | |".to_owned(),
                "p/src/a.rs has no test `new`",
            ),
            (
                format!("| 1 | MUST | x | [`MAX`][b] | {test} | |"),
                "p/src/b.rs has no code `MAX`",
            ),
            (
                format!("| 1 | MUST | x | [`MAX`][c] | {test} | |"),
                "[c] is not defined at the end of the page",
            ),
            (
                format!("| 1 | MUST | x | `MAX` | {test} | Deviation: why |"),
                "write each code as [`name`][label]",
            ),
            (
                "| 1 | MUST | x | [`MAX`][a] | [`decode`][a] | |".to_owned(),
                "p/src/a.rs has no test `decode`",
            ),
            (
                "| 1 | MUST | x | [`MAX`][a] | [`encode`][a] | |".to_owned(),
                "p/src/a.rs has no test `encode`",
            ),
            (
                "| 1 | MUST | x | [`MAX`][a] | | |".to_owned(),
                "name the test, or say why not after Deviation: or No test:",
            ),
            (
                "| 1 | MUST | x | [`MAX`][a] | | none covers it |".to_owned(),
                "name the test, or say why not after Deviation: or No test:",
            ),
            (
                format!("| 1 | MUST | x | | {test} | |"),
                "name the code, or say why not after Deviation: or No test:",
            ),
            (
                "| 1 | MUST | x |".to_owned(),
                "a row has six cells, this one 3",
            ),
        ] {
            assert_eq!(advice(&row), [expected], "{row}");
        }
    }
}
