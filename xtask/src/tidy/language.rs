//! House rules about language and style: words that have a plainer one, widths of comments and
//! documents, and a few habits of code. docs/adr and CONTRIBUTING say why.

use super::Finding;
use super::source::has_word;
use super::tree::{File, Tree};

/// This file contains the discouraged words.
const THIS_FILE: &str = "xtask/src/tidy/language.rs";

/// Texts of other projects: licences, and the descriptions in Linkerd's custom resources.
const FOREIGN_PLACES: [&str; 5] = [
    "LICENSE",
    "mesh-ebpf/LICENSE",
    "helm/linkerd-crds/templates/",
    "mesh-k8s/testdata/",
    "fuzz/corpus/",
];

/// A word or phrase, in lower case, and its replacement.
#[rustfmt::skip] // a table, one row a line
const WORDS: [(&str, &str); 17] = [
    ("nobody", "name the actor: the client, the server, no caller"),
    ("nobodys", "name the actor"),
    ("somebody", "name the actor: another process, another replica"),
    ("whoever", "name the actor: the caller, the reader"),
    ("everybody", "name the actor: every client, every process"),
    ("he", "name the actor"),
    ("she", "name the actor"),
    ("shall", "use must, will or the present tense"),
    ("lately", "use recently, or name the interval"),
    ("goodbye", "use close_notify or GOAWAY"),
    ("greeter", "use server-first"),
    ("the other side", "use the peer"),
    ("the other end", "use the peer"),
    ("for ever", "use indefinitely"),
    ("in vain", "use without success"),
    ("now and then", "use periodically, or name the interval"),
    ("somebody else", "name the actor"),
];

/// A line of `/etc/passwd` for the account that programs without rights use.
const ACCOUNT: &str = "nobody:x:";

/// `is no X` is `is not an X`; these are ordinary English.
const AFTER_IS_NO: [&str; 9] = [
    "longer", "more", "less", "later", "earlier", "greater", "smaller", "other", "better",
];

const COMMENT_WIDTH: usize = 100;
const MARKDOWN_WIDTH: usize = 120;

/// Words and phrases with a plainer one.
pub(crate) fn words(tree: &Tree) -> Vec<Finding> {
    let meant = |file: &File| has_language(file) && file.path != THIS_FILE;
    tree.each_line("words", meant, |line| {
        let line = line.to_lowercase().replace('_', " ");
        if line.contains(ACCOUNT) {
            return None;
        }
        if let Some((word, instead)) = WORDS.iter().find(|(word, _)| has_word(&line, word)) {
            return Some(format!("`{word}`: {instead}"));
        }
        let (before, rest) = line.split_once("is no ")?;
        if before.ends_with("there ") {
            return None;
        }
        let next = rest.split(|c: char| !c.is_alphanumeric()).next()?;
        let ordinary = next.is_empty() || AFTER_IS_NO.contains(&next);
        (!ordinary).then(|| format!("`is no {next}`: use `is not a`, `is invalid` or `has no`"))
    })
}

/// Comments of Rust files and prose of documents have a width that is easy to read.
pub(crate) fn widths(tree: &Tree) -> Vec<Finding> {
    let meant = |file: &File| file.is_rust() && file.path != THIS_FILE;
    let mut findings = tree.each_line("widths", meant, |line| {
        let text = line.trim_start();
        let wide = text.starts_with("//") && line.chars().count() > COMMENT_WIDTH;
        (wide && can_be_broken(text)).then(|| format!("fill comments at {COMMENT_WIDTH} columns"))
    });
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        let mut fenced = false;
        for (index, line) in file.text.lines().enumerate() {
            fenced ^= line.trim_start().starts_with("```");
            let wide = !fenced && line.chars().count() > MARKDOWN_WIDTH && can_be_broken(line);
            if wide {
                let advice = format!("fill prose at {MARKDOWN_WIDTH} columns");
                findings.push(file.finding(index + 1, "widths", advice));
            }
        }
    }
    findings
}

/// `drop(map.insert(…))` hides that there was a value; `match` on a boolean is an `if`.
pub(crate) fn habits(tree: &Tree) -> Vec<Finding> {
    code_lines(tree, |code| {
        let code = code.trim();
        let dropped = code.strip_prefix("drop(").and_then(|rest| {
            let (path, _) = rest.split_once(".insert(")?;
            path.chars()
                .all(|c| c.is_alphanumeric() || "._&*".contains(c))
                .then_some(())
        });
        if dropped.is_some() {
            return Some((
                "drop-insert",
                "bind the value that was there: `let _previous = …`",
            ));
        }
        let arm = ["true =>", "false =>"]
            .iter()
            .any(|arm| code.starts_with(arm));
        arm.then_some(("match-bool", "use `if` and `else`"))
    })
}

/// An error whose message contains its source must not return it as its source too: a chain of
/// causes would print it twice.
pub(crate) fn sources(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_files() {
        let lines: Vec<&str> = file.text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            if !line.trim_start().starts_with("#[error(\"") {
                continue;
            }
            // The variant or struct that the message is of: up to the next message, or its end.
            let item = lines[index + 1..]
                .iter()
                .take_while(|line| {
                    !line.trim_start().starts_with("#[error(") && !line.starts_with('}')
                })
                .take(12);
            let mut is_next = false;
            for part in item {
                let part = part.trim();
                let attribute = part.contains("#[source]") || part.contains("#[from]");
                let field = part
                    .trim_start_matches("#[source]")
                    .trim_start_matches("#[from]")
                    .trim()
                    .trim_start_matches("pub ")
                    .split(':')
                    .next()
                    .unwrap_or_default();
                let positional = attribute && part.contains('(');
                let printed = if positional {
                    line.contains("{0")
                } else {
                    (attribute || is_next || field == "source")
                        && field.chars().all(|c| c.is_alphanumeric() || c == '_')
                        && !field.is_empty()
                        && (line.contains(&format!("{{{field}}}"))
                            || line.contains(&format!("{{{field}:")))
                };
                if printed {
                    let advice = "the message prints its source, which `source` returns too";
                    findings.push(file.finding(index + 1, "error-source", advice));
                    break;
                }
                is_next = attribute && field.is_empty();
            }
        }
    }
    findings
}

/// One statement imports everything that a file uses of one module: `use std::sync::{Arc, Mutex};`.
pub(crate) fn imports(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_files() {
        let mut modules: Vec<String> = Vec::new();
        let mut at = 0;
        for (index, line) in file.text.lines().enumerate() {
            let start = at;
            at += line.len() + 1;
            let Some(path) = line.strip_prefix("use ") else {
                continue;
            };
            let statement = &file.text[start + "use ".len()..];
            let statement = statement.split(';').next().unwrap_or(path);
            let is_conditional = file.text[..start].trim_end_matches('\n').ends_with(']');
            let (module, names) = match statement.split_once('{') {
                Some((module, names)) => (module.trim_end_matches("::"), names),
                None => (
                    statement.rsplit_once("::").map_or("", |(module, _)| module),
                    "",
                ),
            };
            if names.contains("::") {
                let advice = "import from one module in each statement: `use a::b::{C, D};`";
                findings.push(file.finding(index + 1, "imports", advice));
            }
            if modules.iter().any(|known| known == module) && !is_conditional && !module.is_empty()
            {
                let advice = format!("import all of `{module}` in one statement");
                findings.push(file.finding(index + 1, "imports", advice));
            }
            modules.push(module.to_owned());
        }
    }
    findings
}

/// A table, a link definition or a line without a space cannot be filled.
fn can_be_broken(line: &str) -> bool {
    let text = line.trim_start_matches(['/', '!', ' ', '*', '-']);
    !text.starts_with('|') && !text.starts_with('[') && !text.starts_with('#') && text.contains(' ')
}

fn has_language(file: &File) -> bool {
    let known = [
        ".rs", ".md", ".yaml", ".yml", ".tpl", ".txt", ".toml", ".json", ".sh", ".py", "/run",
    ];
    known.iter().any(|end| file.path.ends_with(end)) && !file.is_below(&FOREIGN_PLACES)
}

fn code_lines(
    tree: &Tree,
    find: impl Fn(&str) -> Option<(&'static str, &'static str)>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_files() {
        for (index, line) in file.code.iter().enumerate() {
            findings.extend(
                find(&line.code).map(|(rule, advice)| file.finding(index + 1, rule, advice)),
            );
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rule: fn(&Tree) -> Vec<Finding>, path: &str, text: &str) -> Vec<usize> {
        let findings = rule(&Tree::of(&[(path, text)]));
        findings.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn discouraged_words_are_found() {
        let text = "// Nobody reads it.\n// The handshake.\nfn sent_by_whoever() {}\n// It is no name.\n// There is no longer one.\n";
        assert_eq!(found(words, "a.rs", text), [1, 3, 4]);
        assert_eq!(found(words, "values.yaml", "# for ever\n"), [1]);
        assert_eq!(found(words, "LICENSE", "shall\n"), [0_usize; 0]);
    }

    #[test]
    fn wide_lines_are_found_where_they_can_be_broken() {
        let wide = "word ".repeat(30);
        let text = format!("// {wide}\n// {}\nlet x = \"{wide}\";\n", "x".repeat(150));
        assert_eq!(found(widths, "a.rs", &text), [1]);
        let text = format!("{wide}\n| {wide} |\n```\n{wide}\n```\n");
        assert_eq!(found(widths, "a.md", &text), [1]);
    }

    #[test]
    fn habits_are_found_in_code_only() {
        let text = "drop(self.map.insert(1, 2));\n// drop(map.insert(1))\nmatch x {\n    true => 1,\n    false => 2,\n}\n";
        assert_eq!(found(habits, "a.rs", text), [1, 4, 5]);
    }

    #[test]
    fn printed_sources_are_found() {
        let text = "#[error(\"read {path}: {source}\")]\nRead {\n    path: String,\n    source: Error,\n},\n#[error(\"write {path}\")]\nWrite {\n    path: String,\n    source: Error,\n},\n#[error(\"{0}\")]\nOther(#[source] Error),\n";
        assert_eq!(found(sources, "a.rs", text), [1, 11]);
    }

    #[test]
    fn imports_have_one_statement_for_each_module() {
        let text = "use std::sync::Arc;\nuse std::sync::Mutex;\nuse std::{fs, io};\nuse tokio::{\n    net::TcpStream,\n    time,\n};\nuse super::*;\n";
        assert_eq!(found(imports, "a.rs", text), [2, 4]);
    }
}
