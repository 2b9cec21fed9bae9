//! Scans Rust source text for comments, literals and test modules, so that rules apply to code
//! only. Constructs that a full parser would be needed for (macros that look like code) count as
//! code.

/// One line of a Rust file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// The line with comments and the content of literals replaced by spaces.
    pub(crate) code: String,
    /// Whether it belongs to an item under `#[cfg(test)]`.
    pub(crate) test: bool,
}

/// Splits a file into lines of code.
pub(crate) fn lines(text: &str) -> Vec<Line> {
    let code = Blanker::new(text).run();
    let test = test_lines(&code);
    code.lines()
        .zip(test)
        .map(|(code, test)| Line {
            code: code.to_owned(),
            test,
        })
        .collect()
}

/// Whether `word` stands in the line as a word of its own.
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    })
}

/// Replaces comments and literals by spaces, keeping every line where it is.
struct Blanker<'a> {
    rest: &'a str,
    out: String,
}

impl<'a> Blanker<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            out: String::with_capacity(text.len()),
        }
    }

    fn run(mut self) -> String {
        while let Some(c) = self.rest.chars().next() {
            if self.rest.starts_with("//") {
                self.blank(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("/*") {
                self.blank(block_comment_length(self.rest));
            } else if let Some(length) = self.raw_string_length() {
                self.blank(length);
            } else if c == '"' {
                self.blank(quoted_length(self.rest, '"'));
            } else if c == '\'' && is_char_literal(self.rest) {
                self.blank(quoted_length(self.rest, '\''));
            } else {
                self.out.push(c);
                self.rest = &self.rest[c.len_utf8()..];
            }
        }
        self.out
    }

    fn blank(&mut self, length: usize) {
        let (gone, rest) = self.rest.split_at(length);
        self.out
            .extend(gone.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        self.rest = rest;
    }

    /// `r"…"`, `r#"…"#` and so on; an `r` at the end of a longer word (as in `for"`) begins no
    /// literal.
    fn raw_string_length(&self) -> Option<usize> {
        let after = self.rest.strip_prefix('r')?;
        let previous = self.out.chars().next_back();
        let prefix = matches!(previous, Some('b' | 'c'));
        if !prefix && previous.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            return None;
        }
        let hashes = after.len() - after.trim_start_matches('#').len();
        let content = after[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let content_length = content
            .find(&end)
            .map_or(content.len(), |at| at + end.len());
        Some(1 + hashes + 1 + content_length)
    }
}

/// The length of a literal including its quotes; an unfinished one reaches to the end.
fn quoted_length(text: &str, quote: char) -> usize {
    let mut characters = text.char_indices().skip(1);
    while let Some((at, c)) = characters.next() {
        if c == '\\' {
            characters.next();
        } else if c == quote {
            return at + c.len_utf8();
        }
    }
    text.len()
}

/// Tells `'a'` and `'\n'` from the lifetime `'a`.
fn is_char_literal(text: &str) -> bool {
    let mut characters = text.chars().skip(1);
    match characters.next() {
        Some('\\') => true,
        Some(_) => characters.next() == Some('\''),
        None => false,
    }
}

/// Rust's block comments nest.
fn block_comment_length(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// For each line, whether it lies in an item that only tests compile.
fn test_lines(code: &str) -> Vec<bool> {
    const ATTRIBUTE: &str = "#[cfg(test)]";
    let mut test = vec![false; code.lines().count()];
    let line_of = |at: usize| code[..at].matches('\n').count();
    for (start, _) in code.match_indices(ATTRIBUTE) {
        let end = start + ATTRIBUTE.len() + item_length(&code[start + ATTRIBUTE.len()..]);
        for flag in test.iter_mut().take(line_of(end) + 1).skip(line_of(start)) {
            *flag = true;
        }
    }
    test
}

/// The length of the item at the beginning: to the `;` or the closing brace that ends it.
fn item_length(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && c == '}' {
                    return at;
                }
            }
            ';' if depth == 0 => return at,
            _ => (),
        }
    }
    code.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        let lines: Vec<String> = lines(text)
            .into_iter()
            .map(|line| line.code.trim_end().to_owned())
            .collect();
        lines.join("\n")
    }

    #[test]
    fn comments_and_literals_are_blanked() {
        for (given, expected) in [
            ("a // b", "a"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("println!", x)"#, "f(          , x)"),
            (r#"f("a\"b", x)"#, "f(      , x)"),
            (r##"f(r#"a"b"#, x)"##, "f(        , x)"),
            ("f('\"', x)", "f(   , x)"),
            ("f('\\'', x)", "f(    , x)"),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("b\"a\" + br\"c\"", "b    + b"),
            ("\"ä\" + 1", "    + 1"),
        ] {
            assert_eq!(code(given), expected, "{given}");
        }
    }

    #[test]
    fn blanking_preserves_line_numbers() {
        assert_eq!(code("a /* x\n y */ b\n\"1\n2\" c"), "a\n      b\n\n   c");
    }

    #[test]
    fn items_under_cfg_test_are_test_lines() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { \"}\"; }\n}\nfn c() {}\n#[cfg(test)]\nuse x::{y, z};\nfn d() {}\n#[cfg(test)]\nmod more;\nfn e() {}";
        let test: Vec<bool> = lines(text).iter().map(|line| line.test).collect();
        assert_eq!(
            test,
            [
                false, true, true, true, true, false, true, true, false, true, true, false
            ]
        );
    }

    #[test]
    fn word_match_requires_boundaries() {
        assert!(has_word("unsafe { x }", "unsafe"));
        assert!(has_word("x(unsafe)", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe"));
        assert!(!has_word("my_unsafe", "unsafe"));
    }
}
