//! The environment as JSON, for debugging.
//!
//! The environment may contain secrets, so only clients in the pod receive it; Linkerd's proxy
//! responds to any client.

use std::collections::BTreeMap;

use http::header::ACCEPT;
use http::{Method, StatusCode};
use mesh_runtime::admin::{Call, Response, empty, typed};

use super::{not_allowed, only_local};

/// Returns the variables that a query like `?A&B` selects, with `null` for unset ones, or all
/// without a query.
pub(super) fn respond(call: &Call) -> Response {
    if call.method != Method::GET {
        return not_allowed("GET");
    }
    if !call.is_local() {
        return only_local();
    }
    if !accepts_json(call) {
        return empty(StatusCode::NOT_ACCEPTABLE);
    }
    let selected = match call.uri.query().filter(|query| !query.is_empty()) {
        None => std::env::vars_os()
            .map(|(name, value)| {
                let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
                (text(name), Some(text(value)))
            })
            .collect(),
        Some(query) if query.contains('=') => {
            let error = BTreeMap::from([
                (
                    "error".to_owned(),
                    Some("query parameters must not have values".to_owned()),
                ),
                (
                    "status".to_owned(),
                    Some(StatusCode::BAD_REQUEST.to_string()),
                ),
            ]);
            return json(StatusCode::BAD_REQUEST, &error);
        }
        Some(query) => query
            .split('&')
            .map(|name| (name.to_owned(), std::env::var(name).ok()))
            .collect(),
    };
    json(StatusCode::OK, &selected)
}

fn accepts_json(call: &Call) -> bool {
    let mut accepts = call.headers.get_all(ACCEPT).iter().peekable();
    accepts.peek().is_none()
        || accepts.any(|value| {
            value.to_str().is_ok_and(|value| {
                value.split(',').any(|item| {
                    let media = item.split(';').next().unwrap_or_default().trim();
                    matches!(media, "*/*" | "application/*" | "application/json")
                })
            })
        })
}

fn json(status: StatusCode, object: &BTreeMap<String, Option<String>>) -> Response {
    let fields: Vec<String> = object
        .iter()
        .map(|(name, value)| {
            let value = value.as_deref().map_or("null".to_owned(), quoted);
            format!("{}:{value}", quoted(name))
        })
        .collect();
    typed(
        status,
        "application/json",
        format!("{{{}}}", fields.join(",")),
    )
}

/// Formats a JSON string. The proxy does not need a JSON library otherwise.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_as_json() {
        assert_eq!(quoted("a\"b\\c\n\u{7f}é"), "\"a\\\"b\\\\c\\u000a\\u007fé\"");
    }
}
