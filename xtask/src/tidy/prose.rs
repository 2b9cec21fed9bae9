//! House rule about prose: limits on constructions that make a reader go back in the sentence, per
//! 1,000 lines of comments or of Markdown. A construction is counted and not forbidden, because
//! each has its place in good English; linkerd2-proxy's comments hold every limit. docs/adr/0198
//! says why.

use std::collections::BTreeMap;

use super::Finding;
use super::tree::{File, Tree};

/// A construction, its limit in tenths per 1,000 lines, and the remedy.
struct Construction {
    name: &'static str,
    limit: usize,
    remedy: &'static str,
    /// Whether an occurrence ends at the last of these words.
    ends: fn(&[Word<'_>]) -> bool,
}

const CONSTRUCTIONS: [Construction; 5] = [
    Construction {
        name: "that of",
        limit: 10,
        remedy: "repeat the noun, or use a possessive",
        ends: is_that_of,
    },
    Construction {
        name: "what X is",
        limit: 20,
        remedy: "use a noun",
        ends: is_what_is,
    },
    Construction {
        name: "preposition + which",
        limit: 30,
        remedy: "make two sentences, or use `where`, `when` or an active verb",
        ends: is_preposition_which,
    },
    Construction {
        name: "`Of` or `Those` as the first word",
        limit: 10,
        remedy: "begin with a subject",
        ends: is_fragment,
    },
    Construction {
        name: "so many",
        limit: 3,
        remedy: "name the number: `count`, `n`",
        ends: is_so_many,
    },
];

/// Words before `which`.
const PREPOSITIONS: [&str; 36] = [
    "about", "above", "across", "after", "against", "along", "among", "around", "as", "at",
    "before", "behind", "below", "beside", "between", "beyond", "by", "during", "for", "from",
    "in", "into", "of", "on", "over", "per", "since", "than", "through", "to", "towards", "under",
    "until", "upon", "with", "within",
];

/// Places that are shown of a construction.
const SHOWN: usize = 20;

/// The longest subject in `what X is`.
const SUBJECT_WORDS: usize = 3;

/// Reports places with more of a construction than its limit.
pub(crate) fn prose(tree: &Tree) -> Vec<Finding> {
    let mut places: BTreeMap<&str, Place<'_>> = BTreeMap::new();
    for file in &tree.files {
        if let Some(paragraphs) = paragraphs(file) {
            let place = places.entry(place(&file.path)).or_default();
            place.add(file, &paragraphs);
        }
    }
    let mut findings = Vec::new();
    for (name, place) in &places {
        for (index, construction) in CONSTRUCTIONS.iter().enumerate() {
            let found = &place.found[index];
            if found.len() * 10_000 <= construction.limit * place.lines {
                continue;
            }
            let advice = format!(
                "{}: {}; {name} has {} in {} lines, at most {} per 1,000 are allowed",
                construction.name,
                construction.remedy,
                found.len(),
                place.lines,
                tenths(construction.limit),
            );
            let finding = |(file, line): &(&File, usize)| file.finding(*line, "prose", &advice);
            findings.extend(found.iter().take(SHOWN).map(finding));
        }
    }
    findings
}

fn tenths(value: usize) -> String {
    format!("{}.{}", value / 10, value % 10)
}

/// Files that are counted together: a package with its tests, the decisions, all other documents.
fn place(path: &str) -> &str {
    let decision = path.strip_prefix("docs/adr/").map(|_| "docs/adr");
    if let Some(place) = decision {
        return place;
    }
    if path.ends_with(".md") {
        return "documents";
    }
    path.split_once('/').map_or(path, |(place, _)| place)
}

#[derive(Default)]
struct Place<'a> {
    lines: usize,
    /// The occurrences of each construction.
    found: [Vec<(&'a File, usize)>; 5],
}

impl<'a> Place<'a> {
    fn add(&mut self, file: &'a File, paragraphs: &[Paragraph<'a>]) {
        for paragraph in paragraphs {
            self.lines += paragraph.len();
            let words = words(paragraph);
            for end in 1..=words.len() {
                let until = &words[..end];
                for (found, construction) in self.found.iter_mut().zip(&CONSTRUCTIONS) {
                    if (construction.ends)(until) {
                        found.push((file, words[end - 1].line));
                    }
                }
            }
        }
    }
}

/// Lines that belong together, each with its number.
type Paragraph<'a> = Vec<(usize, &'a str)>;

/// Returns the comment or the text in a trimmed line, if there is one.
type TextOf = for<'a> fn(&'a str) -> Option<&'a str>;

/// How the text of a file is marked. `None` for a file without prose.
fn text_of(file: &File) -> Option<TextOf> {
    let has_end = |ends: &[&str]| ends.iter().any(|end| file.path.ends_with(end));
    if file.is_rust() {
        Some(|line| line.strip_prefix("//"))
    } else if has_end(&[".ts", ".tsx"]) {
        Some(|line| {
            let marks = ["//", "/**", "/*", "*"];
            let text = marks.iter().find_map(|mark| line.strip_prefix(mark))?;
            Some(text.trim_end_matches("*/"))
        })
    } else if has_end(&["/values.yaml"]) {
        Some(|line| Some(line.strip_prefix('#')?.trim().trim_start_matches("--")))
    } else if has_end(&[".md"]) {
        Some(whole)
    } else {
        None
    }
}

/// A document is all text.
fn whole(line: &str) -> Option<&str> {
    Some(line)
}

/// The comments of a file with code, or the text of a document. `None` for a file without prose.
fn paragraphs(file: &File) -> Option<Vec<Paragraph<'_>>> {
    let text_of = text_of(file)?;
    let mut paragraphs: Vec<Paragraph<'_>> = vec![Vec::new()];
    let mut fenced = false;
    for (index, line) in file.text.lines().enumerate() {
        let text = text_of(line.trim()).unwrap_or_default();
        let text = text.trim_start_matches(['/', '!']).trim();
        let fence = text.starts_with("```");
        fenced ^= fence;
        if text.is_empty() || fence || begins_paragraph(text) {
            paragraphs.push(Vec::new());
        }
        if !text.is_empty()
            && !fence
            && !fenced
            && let Some(paragraph) = paragraphs.last_mut()
        {
            paragraph.push((index + 1, text));
        }
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    Some(paragraphs)
}

/// List items, rows of a table and headings do not continue the line before.
fn begins_paragraph(text: &str) -> bool {
    let numbered = text.split_once(". ").is_some_and(|(number, _)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    numbered
        || ["* ", "- ", "|", "#"]
            .iter()
            .any(|mark| text.starts_with(mark))
}

struct Word<'a> {
    text: &'a str,
    line: usize,
    /// Whether no punctuation separates it from the word before.
    continues: bool,
}

impl Word<'_> {
    fn is(&self, word: &str) -> bool {
        self.text.eq_ignore_ascii_case(word)
    }

    fn is_one_of(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.is(word))
    }
}

/// The words of a paragraph without their punctuation. Each word of inline code is a backtick.
fn words<'a>(paragraph: &Paragraph<'a>) -> Vec<Word<'a>> {
    let mut words = Vec::new();
    let mut continues = false;
    let mut in_code = false;
    for (line, text) in paragraph {
        for part in text.split_whitespace() {
            let is_letter = |c: char| c.is_alphanumeric() || matches!(c, '`' | '_' | '\'');
            let ticks = part.matches('`').count();
            let is_code = in_code || ticks > 0;
            in_code ^= ticks % 2 == 1;
            let text = if is_code {
                "`"
            } else {
                part.trim_matches(|c: char| !is_letter(c))
            };
            if text.is_empty() {
                continues = false;
                continue;
            }
            words.push(Word {
                text,
                line: *line,
                continues: continues && part.starts_with(is_letter),
            });
            continues = part.ends_with(is_letter);
        }
    }
    words
}

fn is_that_of(words: &[Word<'_>]) -> bool {
    matches!(words, [.., that, of]
        if that.is_one_of(&["that", "those"]) && of.is("of") && of.continues)
}

/// `what is`, `what the caller was` and the like, within one clause.
fn is_what_is(words: &[Word<'_>]) -> bool {
    let [before @ .., verb] = words else {
        return false;
    };
    if !verb.is_one_of(&["is", "are", "was", "were"]) || !verb.continues {
        return false;
    }
    for (distance, word) in before.iter().rev().enumerate() {
        if word.is("what") {
            return true;
        }
        if distance == SUBJECT_WORDS || !word.continues {
            return false;
        }
    }
    false
}

fn is_preposition_which(words: &[Word<'_>]) -> bool {
    matches!(words, [.., preposition, which]
        if preposition.is_one_of(&PREPOSITIONS) && which.is("which") && which.continues)
}

fn is_fragment(words: &[Word<'_>]) -> bool {
    matches!(words, [first] if matches!(first.text, "Of" | "Those"))
}

fn is_so_many(words: &[Word<'_>]) -> bool {
    matches!(words, [.., so, many]
        if so.is_one_of(&["so", "as"]) && many.is("many") && many.continues)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    /// Returns the names of the constructions in a comment.
    fn found(comment: &str) -> Vec<&'static str> {
        let paragraph = vec![(1, comment)];
        let words = words(&paragraph);
        let ends = (1..=words.len()).map(|end| &words[..end]);
        let found = ends.flat_map(|until| {
            let mut all = CONSTRUCTIONS.iter();
            all.by_ref()
                .filter(|construction| (construction.ends)(until))
                .map(|construction| construction.name)
                .collect::<Vec<_>>()
        });
        found.collect()
    }

    #[test]
    fn each_construction_is_found_and_its_neighbours_are_not() {
        for (comment, expected) in [
            ("The limit is that of the API server.", vec!["that of"]),
            ("Ports, those of Services first.", vec!["that of"]),
            ("A request after that. Of course it ends.", vec![]),
            ("Returns what is missing.", vec!["what X is"]),
            ("What the peer's proxy was asked.", vec!["what X is"]),
            ("Says what to do. It is read once.", vec![]),
            ("What a client sends, is read.", vec![]),
            ("The port on which it listens.", vec!["preposition + which"]),
            ("Tells which one listens, which is rare.", vec![]),
            ("Come in. Which port it has, is logged.", vec![]),
            ("Of the server.", vec!["`Of` or `Those` as the first word"]),
            (
                "Those that end early.",
                vec!["`Of` or `Those` as the first word"],
            ),
            ("Often. Of ten requests, one fails.", vec![]),
            ("Runs so many requests.", vec!["so many"]),
            ("As many threads as CPUs.", vec!["so many"]),
            ("Not so, many clients retry.", vec![]),
            ("The header `that of`, and `so many`.", vec![]),
            ("What `a b` is.", vec!["what X is"]),
        ] {
            assert_eq!(found(comment), expected, "{comment}");
        }
    }

    #[test]
    fn comments_and_documents_are_read_without_code() {
        let script = "/** Head,\n * more. */\nlet x = 1 /* trailing */\n  // One.\n";
        let values = "# -- Head,\n# more\nx: 1 # trailing\n\n  # -- Item\n";
        let code = "//! Head,\n//! more.\nlet x = 1; // trailing\n    // One.\n    //\n    // Two.\n/// ```\n/// code\n/// ```\n";
        let document = "# Title\n\nText\nof two lines.\n- item\n```\ncode\n```\n| cell |\n";
        let tree = Tree::of(&[
            ("a/b.rs", code),
            ("c.md", document),
            ("d.yaml", "# e"),
            ("e.tsx", script),
            ("f/values.yaml", values),
        ]);
        let lines = |file: &File| -> Vec<Vec<usize>> {
            let paragraphs = paragraphs(file).unwrap_or_default();
            let numbers = paragraphs
                .iter()
                .map(|lines| lines.iter().map(|(line, _)| *line));
            numbers.map(Iterator::collect).collect()
        };
        assert_eq!(lines(&tree.files[0]), [vec![1, 2], vec![4], vec![6]]);
        assert_eq!(
            lines(&tree.files[1]),
            [vec![1], vec![3, 4], vec![5], vec![9]]
        );
        assert_eq!(lines(&tree.files[2]), [[0; 0]; 0]);
        assert_eq!(lines(&tree.files[3]), [vec![1, 2], vec![4]]);
        assert_eq!(lines(&tree.files[4]), [vec![1, 2], vec![5]]);
    }

    /// A package with `lines` lines of comments besides the one given.
    fn package(comment: &str, lines: usize) -> String {
        format!("// {comment}\n{}", "//\n// A line.\n".repeat(lines))
    }

    #[test]
    fn planted_construction_above_the_limit_is_reported() {
        let comment = "The limit is that of the API server.";
        let few = package(comment, 998);
        let enough = package(comment, 999);
        let exceeding = |text: &str| places(&prose(&Tree::of(&[("a/src/b.rs", text)]))).len();
        assert_eq!(exceeding(&few), 1);
        assert_eq!(exceeding(&enough), 0);
    }
}
