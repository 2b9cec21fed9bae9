//! The selectors of a PromQL expression. A tokenizer, not a parser: Prometheus itself checks the
//! syntax in the tests.

/// A selector: `name{matchers}[range]`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Selector<'a> {
    /// Empty if the matchers select the name.
    pub(super) name: &'a str,
    pub(super) matchers: &'a str,
    pub(super) range: Option<&'a str>,
}

/// Words that are neither metrics nor functions with their parenthesis.
const WORDS: [&str; 19] = [
    "and", "atan2", "avg", "bool", "bottomk", "count", "group", "inf", "max", "min", "nan",
    "offset", "or", "quantile", "stddev", "stdvar", "sum", "topk", "unless",
];

/// Words whose parenthesis contains labels.
const GROUPINGS: [&str; 6] = [
    "by",
    "group_left",
    "group_right",
    "ignoring",
    "on",
    "without",
];

/// Returns the selectors in the order of the expression.
pub(super) fn selectors(expression: &str) -> Vec<Selector<'_>> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(next) = rest.chars().next() {
        let (token, after) = token(rest, next);
        let at_token = std::mem::replace(&mut rest, after);
        let opens = rest.trim_start().starts_with('(');
        if GROUPINGS.contains(&token) {
            rest = enclosed(rest, '(', ')').map_or(rest, |(_, after)| after);
        } else if next == '{' {
            let (matchers, after) = enclosed(at_token, '{', '}').unwrap_or_default();
            let (range, after) = range(after);
            found.push(Selector {
                name: "",
                matchers,
                range,
            });
            rest = after;
        } else if is_name_start(next) && !opens && !WORDS.contains(&token) {
            let (matchers, after) = enclosed(rest, '{', '}').unwrap_or(("", rest));
            let (range, after) = range(after);
            found.push(Selector {
                name: token,
                matchers,
                range,
            });
            rest = after;
        }
    }
    found
}

/// Returns the token at the beginning of `text`, whose first character is `next`, and the rest.
fn token(text: &str, next: char) -> (&str, &str) {
    if next == '"' {
        let end = text[1..].find('"').map_or(text.len(), |end| end + 2);
        return text.split_at(end);
    }
    if is_name_start(next) || next.is_ascii_digit() {
        let end = text.find(|c: char| !is_name(c)).unwrap_or(text.len());
        return text.split_at(end);
    }
    text.split_at(next.len_utf8())
}

fn is_name_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

fn range(text: &str) -> (Option<&str>, &str) {
    match enclosed(text, '[', ']') {
        Some((range, after)) => (Some(range), after),
        None => (None, text),
    }
}

/// Returns the text between the brackets that `text` begins with, and the rest. Quoted brackets do
/// not count.
fn enclosed(text: &str, open: char, close: char) -> Option<(&str, &str)> {
    let inner = text.trim_start().strip_prefix(open)?;
    let mut quoted = false;
    for (index, c) in inner.char_indices() {
        quoted ^= c == '"';
        if c == close && !quoted {
            return Some((&inner[..index], &inner[index + close.len_utf8()..]));
        }
    }
    None
}

mod tests {
    use super::*;

    #[test]
    fn selectors_are_found_between_functions_and_operators() {
        let expression = r#"topk(5, 1 - sum by (le, pod) (rate(a_total{x="}(", y=~"b"}[5m])) / min(b) or c:d:e offset 10m) > bool 60 * 1d unless {__name__=~"f"} and g[1h]"#;
        let found = selectors(expression);
        let selector = |name, matchers, range| Selector {
            name,
            matchers,
            range,
        };
        assert_eq!(
            found,
            [
                selector("a_total", r#"x="}(", y=~"b""#, Some("5m")),
                selector("b", "", None),
                selector("c:d:e", "", None),
                selector("", r#"__name__=~"f""#, None),
                selector("g", "", Some("1h")),
            ]
        );
    }
}
