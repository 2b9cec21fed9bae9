//! Implication between the conditions of routes of a ServiceProfile.

use mesh_k8s::crd::service_profile::RequestCondition;
use regex::{Regex, RegexBuilder};

/// A condition has at most this many levels that are compared.
const MAX_DEPTH: usize = 8;
/// The size of a compiled regular expression in bytes; larger ones are not compared.
const MAX_REGEX: usize = 1 << 20;

/// A requirement of a condition.
#[derive(Clone, Copy, PartialEq)]
enum Atom<'a> {
    Method(&'a str),
    Path(&'a str),
    Not(&'a RequestCondition),
    Any(&'a [RequestCondition]),
}

/// Returns whether each request that satisfies `one` certainly satisfies `other`. `false` means
/// that it is unknown: regular expressions are only compared with literal paths.
pub(super) fn implies(one: &RequestCondition, other: &RequestCondition) -> bool {
    depth_implies(one, other, MAX_DEPTH)
}

fn depth_implies(one: &RequestCondition, other: &RequestCondition, depth: usize) -> bool {
    let mut given = Vec::new();
    let mut required = Vec::new();
    if !atoms(one, &mut given, depth) || !atoms(other, &mut required, depth) {
        return false;
    }
    // Empty conditions are invalid.
    !required.is_empty() && required.iter().all(|atom| is_given(*atom, &given, depth))
}

/// Collects the requirements of a condition; `false` if it has too many levels.
fn atoms<'a>(condition: &'a RequestCondition, into: &mut Vec<Atom<'a>>, depth: usize) -> bool {
    if depth == 0 {
        return false;
    }
    let method = condition.method.as_deref().filter(|text| !text.is_empty());
    into.extend(method.map(Atom::Method));
    let path = condition.path_regex.as_deref();
    let path = path.filter(|text| !text.is_empty());
    into.extend(path.map(Atom::Path));
    into.extend(condition.not.as_deref().map(Atom::Not));
    into.extend(condition.any.as_deref().map(Atom::Any));
    let mut all = condition.all.iter().flatten();
    all.all(|condition| atoms(condition, into, depth - 1))
}

fn is_given(atom: Atom<'_>, given: &[Atom<'_>], depth: usize) -> bool {
    let known = given.iter().any(|given| match (given, atom) {
        (Atom::Method(given), Atom::Method(method)) => given.eq_ignore_ascii_case(method),
        (Atom::Path(given), Atom::Path(path)) => *given == path || is_literal_of(given, path),
        (given, atom) => *given == atom,
    });
    if known {
        return true;
    }
    let implied = match atom {
        // Each path has this form.
        Atom::Path(path) => matches!(path, ".*" | "/.*"),
        Atom::Any(alternatives) => alternatives.iter().any(|condition| {
            let mut required = Vec::new();
            atoms(condition, &mut required, depth - 1)
                && !required.is_empty()
                && required
                    .iter()
                    .all(|atom| is_given(*atom, given, depth - 1))
        }),
        Atom::Method(_) | Atom::Not(_) => false,
    };
    implied || by_cases(atom, given, depth)
}

/// Returns whether each alternative of a given requirement implies the atom.
fn by_cases(atom: Atom<'_>, given: &[Atom<'_>], depth: usize) -> bool {
    let mut choices = given.iter().filter_map(|given| match given {
        Atom::Any(alternatives) if !alternatives.is_empty() => Some(*alternatives),
        _ => None,
    });
    choices.any(|alternatives| {
        alternatives.iter().all(|condition| {
            let mut of_case = Vec::new();
            atoms(condition, &mut of_case, depth - 1) && is_given(atom, &of_case, depth - 1)
        })
    })
}

/// Returns whether a regular expression stands for one path, which the other one matches.
fn is_literal_of(literal: &str, regex: &str) -> bool {
    let Some(path) = unescape(literal) else {
        return false;
    };
    compile(regex).is_some_and(|regex| regex.is_match(&path))
}

fn compile(regex: &str) -> Option<Regex> {
    // As the proxies do, the whole path is compared.
    RegexBuilder::new(&format!("^(?:{regex})$"))
        .size_limit(MAX_REGEX)
        .build()
        .ok()
}

/// Returns the text of a regular expression without operators.
fn unescape(regex: &str) -> Option<String> {
    let mut text = String::new();
    let mut characters = regex.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => text.push(characters.next().filter(char::is_ascii_punctuation)?),
            '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '^' | '$' => {
                return None;
            }
            character => text.push(character),
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implication_holds_only_if_it_is_certain() {
        let condition = |text: &str| serde_norway::from_str::<RequestCondition>(text).unwrap();
        for (one, other, expect) in [
            ("{method: GET}", "{method: get}", true),
            ("{method: GET}", "{method: PUT}", false),
            ("{method: GET, pathRegex: /a}", "{method: GET}", true),
            ("{method: GET}", "{method: GET, pathRegex: /a}", false),
            ("{pathRegex: /a}", "{pathRegex: /.*}", true),
            ("{method: GET}", "{pathRegex: .*}", true),
            ("{pathRegex: '/a\\.b'}", "{pathRegex: '/a.*'}", true),
            ("{pathRegex: '/b'}", "{pathRegex: '/a.*'}", false),
            ("{pathRegex: '/a/b'}", "{pathRegex: '/a'}", false),
            ("{pathRegex: '/a.*'}", "{pathRegex: '/[ab].*'}", false),
            (
                "{all: [{method: GET}, {pathRegex: /a}]}",
                "{pathRegex: /a}",
                true,
            ),
            (
                "{pathRegex: /a}",
                "{any: [{method: GET}, {pathRegex: /a}]}",
                true,
            ),
            (
                "{any: [{method: GET}, {method: PUT}]}",
                "{any: [{method: PUT}, {method: GET}]}",
                true,
            ),
            (
                "{any: [{method: GET}, {method: PUT}]}",
                "{method: GET}",
                false,
            ),
            (
                "{any: [{method: GET, pathRegex: /a}, {method: GET}]}",
                "{method: GET}",
                true,
            ),
            ("{not: {method: GET}}", "{not: {method: GET}}", true),
            ("{not: {method: GET}}", "{method: GET}", false),
            ("{method: GET}", "{}", false),
            ("{any: []}", "{method: GET}", false),
        ] {
            assert_eq!(
                implies(&condition(one), &condition(other)),
                expect,
                "{one} {other}"
            );
        }
        let mut deep = condition("{method: GET}");
        for _ in 0..2 * MAX_DEPTH {
            deep = RequestCondition {
                all: Some(vec![deep]),
                ..RequestCondition::default()
            };
        }
        assert!(!implies(&deep, &condition("{method: GET}")));
    }
}
