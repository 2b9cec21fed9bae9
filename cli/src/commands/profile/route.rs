//! Routes, from the paths of a document.

use mesh_k8s::crd::service_profile::{RequestCondition, Route};

/// Returns a route for a method and a path, whose parameters are in braces.
pub(super) fn route(name: String, method: &str, path: &str) -> Route {
    Route {
        name,
        condition: RequestCondition {
            method: Some(method.to_owned()),
            path_regex: Some(pattern(path)),
            ..RequestCondition::default()
        },
        ..Route::default()
    }
}

/// Returns the regular expression for a path: a parameter is anything up to the next slash.
fn pattern(path: &str) -> String {
    let mut pattern = String::new();
    let mut rest = path;
    while let Some((literal, after)) = rest.split_once('{') {
        let Some((_parameter, after)) = after.split_once('}') else {
            break;
        };
        quote(literal, &mut pattern);
        pattern += "[^/]*";
        rest = after;
    }
    quote(rest, &mut pattern);
    pattern
}

/// Quotes the characters that Go quotes, so that the expression equals `linkerd profile`'s.
fn quote(literal: &str, pattern: &mut String) {
    for c in literal.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_patterns_and_other_text_is_literal() {
        for (path, expect) in [
            ("/", "/"),
            ("/a-b/c.json", r"/a-b/c\.json"),
            ("/books/{id}/pages/{page}", "/books/[^/]*/pages/[^/]*"),
            ("/files/{name}.{extension}", r"/files/[^/]*\.[^/]*"),
            ("/a{b", r"/a\{b"),
            ("/a}b", r"/a\}b"),
            ("/(x)+", r"/\(x\)\+"),
        ] {
            assert_eq!(pattern(path), expect, "{path}");
            assert!(regex::Regex::new(&pattern(path)).is_ok());
        }
    }
}
