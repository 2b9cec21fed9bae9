//! [`RawTarget`]: request targets with bytes that a URI must not contain, but that clients send and
//! applications accept: `<`, `>`, a backquote in the path, a double quote in the query, and bytes
//! beyond ASCII in any encoding.
//!
//! Inside the proxy such a target is represented by a URI that escapes these bytes. The application
//! receives the client's bytes, unless the proxy has changed the URI. Other implementations of
//! HTTP/2 refuse them, so that an HTTP/1 request stays in HTTP/1 between proxies. Where a rule
//! distinguishes paths, such a path matches no rule, because servers interpret it differently
//! (docs/adr/0041).

use std::borrow::Cow;

use bytes::Bytes;
use http::Uri;

/// The path and query of a request target, as the client has sent them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawTarget {
    raw: Bytes,
    /// Their representation in the request's URI.
    escaped: Bytes,
}

impl RawTarget {
    /// Returns a target whose path or query contains bytes that a URI must not contain, and the
    /// target with these bytes escaped. `None` for all other targets, and for those that no URI can
    /// represent: with a space, a control, DEL or `#`.
    pub fn parse(target: &Bytes) -> Option<(Self, Bytes)> {
        let (start, path) = target.split_at_checked(path_start(target)?)?;
        let is_forbidden = |byte: &u8| matches!(byte, 0..=b' ' | 0x7f | b'#');
        if start.iter().any(|byte| is_raw(*byte, false)) || path.iter().any(is_forbidden) {
            return None;
        }
        let Cow::Owned(escaped) = escape(path) else {
            return None;
        };
        let whole = [start, &escaped].concat();
        // A path that begins with its query has a slash in the URI.
        let slash: &[u8] = if path.starts_with(b"/") { b"" } else { b"/" };
        let escaped = [slash, &escaped].concat().into();
        let raw = [slash, path].concat().into();
        Some((Self { raw, escaped }, whole.into()))
    }

    /// Whether a path contains a byte that some part of a URI must not contain.
    pub(crate) fn is_possible(path: &[u8]) -> bool {
        let mut bytes = path.iter();
        bytes.any(|byte| is_raw(*byte, false) || is_raw(*byte, true))
    }

    /// Returns the path and query that the client has sent, if `uri` still represents them.
    pub fn of_uri(&self, uri: &Uri) -> Option<&Bytes> {
        let path = uri.path_and_query()?;
        let begins_with_query = path.as_str().starts_with('?');
        let escaped = &self.escaped[usize::from(begins_with_query)..];
        (path.as_str().as_bytes() == escaped).then_some(&self.raw)
    }
}

/// Returns where the path of a target in origin-form or absolute-form begins.
fn path_start(target: &[u8]) -> Option<usize> {
    if target.starts_with(b"/") {
        return Some(0);
    }
    let scheme = target.windows(3).position(|bytes| bytes == b"://")? + 3;
    let rest = &target[scheme..];
    let authority = rest.iter().position(|byte| matches!(byte, b'/' | b'?'))?;
    Some(scheme + authority)
}

/// Whether a URI must not contain the byte in its path or query, but a raw target may. A double
/// quote is valid in the path of a URI, and a backquote in its query.
fn is_raw(byte: u8, in_query: bool) -> bool {
    match byte {
        b'<' | b'>' | 0x80.. => true,
        b'"' => in_query,
        b'`' => !in_query,
        _ => false,
    }
}

fn escape(path: &[u8]) -> Cow<'_, [u8]> {
    let query = path.iter().position(|byte| *byte == b'?');
    let is_escaped = |(index, byte): (usize, &u8)| is_raw(*byte, query.is_some_and(|q| index > q));
    if !path.iter().enumerate().any(is_escaped) {
        return Cow::Borrowed(path);
    }
    let mut escaped = Vec::with_capacity(3 * path.len());
    for (index, byte) in path.iter().enumerate() {
        if is_escaped((index, byte)) {
            escaped.push(b'%');
            for digit in [byte >> 4, byte & 15] {
                escaped.push(b"0123456789ABCDEF"[usize::from(digit)]);
            }
        } else {
            escaped.push(*byte);
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_a_uri_must_not_contain_are_escaped_in_path_and_query() {
        let check = |target: &[u8], escaped: &str, raw: &[u8]| {
            let target = Bytes::copy_from_slice(target);
            let (parsed, whole) = RawTarget::parse(&target).unwrap();
            assert_eq!(whole, escaped);
            let uri = Uri::from_maybe_shared(whole).unwrap();
            assert_eq!(parsed.of_uri(&uri).unwrap(), raw);
            assert_eq!(parsed.of_uri(&Uri::from_static("/other")), None);
        };
        check(b"/a<b>?c=<d>", "/a%3Cb%3E?c=%3Cd%3E", b"/a<b>?c=<d>");
        check(b"/caf\xe9\"", "/caf%E9\"", b"/caf\xe9\"");
        check(
            "/caf\u{e9}<".as_bytes(),
            "/caf%C3%A9%3C",
            "/caf\u{e9}<".as_bytes(),
        );
        check(b"http://web:80/<", "http://web:80/%3C", b"/<");
        check(b"http://web?<", "http://web?%3C", b"/?<");
        check(b"/a`\"?`=\"b\"", "/a%60\"?`=%22b%22", b"/a`\"?`=\"b\"");
        check(b"/?q={\"a\":1}", "/?q={%22a%22:1}", b"/?q={\"a\":1}");
    }

    #[test]
    fn other_targets_are_not_raw() {
        for target in [
            &b"/a"[..],
            b"*",
            b"web:80",
            b"/a b<",
            b"/a\t<",
            b"/a\x7f<",
            b"/a\0<",
            b"/a<#b",
            b"http://w<b/",
            b"http://w\xe9b/<",
            b"w<b",
        ] {
            assert_eq!(RawTarget::parse(&Bytes::copy_from_slice(target)), None);
        }
    }
}
