//! The request target that the kubelet makes of a probe's path: it parses the path as a reference
//! by the rules of Go's `net/url`, sets scheme and host, and writes the URL again. It escapes an
//! unparsable path as a whole, its query included.

use std::fmt::Write as _;

/// Returns the target of the kubelet's request, path and query, as its bytes are sent; `None` if
/// the kubelet cannot send one.
pub fn request_target(path: &str) -> Option<String> {
    let Ok(reference) = parse(path) else {
        return Some(rooted(&escape(path.as_bytes())));
    };
    let Reference::Path { path, query } = reference else {
        return None;
    };
    let decoded = unescape(path).unwrap_or_default();
    let sent = if path.bytes().all(is_valid) {
        path.to_owned()
    } else {
        escape(&decoded)
    };
    Some(rooted(&sent) + query)
}

enum Reference<'a> {
    /// A path; the query has its question mark.
    Path { path: &'a str, query: &'a str },
    /// A scheme without path, such as `mailto:a`.
    Opaque,
}

struct Unparsable;

fn parse(text: &str) -> Result<Reference<'_>, Unparsable> {
    let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
    let has_control = text.bytes().any(|byte| byte < b' ' || byte == 0x7f);
    if has_control || unescape(fragment).is_none() {
        return Err(Unparsable);
    }
    let (scheme, rest) = scheme(text)?;
    let query_at = rest.find('?').unwrap_or(rest.len());
    let (hierarchy, query) = rest.split_at(query_at);
    if !hierarchy.starts_with('/') {
        if scheme {
            return Ok(Reference::Opaque);
        }
        let segment = hierarchy.split('/').next().unwrap_or_default();
        if segment.contains(':') {
            return Err(Unparsable);
        }
    }
    let has_authority = hierarchy.starts_with("//") && (scheme || !hierarchy.starts_with("///"));
    let path = if has_authority {
        let rest = &hierarchy[2..];
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if !is_authority(authority) {
            return Err(Unparsable);
        }
        path
    } else {
        hierarchy
    };
    unescape(path).ok_or(Unparsable)?;
    Ok(Reference::Path { path, query })
}

/// Returns whether the text begins with a scheme, and what follows it.
fn scheme(text: &str) -> Result<(bool, &str), Unparsable> {
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' if at == 0 => return Err(Unparsable),
            b':' => return Ok((true, &text[at + 1..])),
            _ => break,
        }
    }
    Ok((false, text))
}

/// Whether Go accepts the user, host and port, which the kubelet replaces.
fn is_authority(authority: &str) -> bool {
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    if host.starts_with('[') && !host.contains(']') {
        return false;
    }
    let after_literal = host.rsplit_once(']').map_or(host, |(_, port)| port);
    let port = after_literal.rsplit_once(':').map_or("", |(_, port)| port);
    let is_allowed = |byte: u8| !byte.is_ascii() || !b" \\^`{|}%#/?".contains(&byte);
    port.bytes().all(|byte| byte.is_ascii_digit()) && authority.bytes().all(is_allowed)
}

/// Whether the byte is sent in a path as it is.
fn is_valid(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:@[]%/".contains(&byte)
}

/// Returns the path with a slash before it, which a URL with a host needs.
fn rooted(path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    format!("/{path}")
}

/// Returns the bytes without escapes; `None` if one is invalid.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(if byte == b'%' {
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            u8::try_from(digit()? * 16 + digit()?).ok()?
        } else {
            byte
        });
    }
    Some(decoded)
}

/// Escapes a path like Go, which escapes more than it must.
fn escape(path: &[u8]) -> String {
    let mut escaped = String::with_capacity(path.len());
    for &byte in path {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string never fails.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kubelet's code gives the expected targets.
    #[test]
    fn target_is_that_of_the_kubelet() {
        for (path, expect) in [
            ("", "/"),
            ("/", "/"),
            ("healthz", "/healthz"),
            ("a/b", "/a/b"),
            ("./a", "/./a"),
            ("/ready?a=1&b=%2F", "/ready?a=1&b=%2F"),
            ("ready?", "/ready?"),
            ("?a=1", "/?a=1"),
            ("/a#b?c", "/a"),
            // Escapes and the bytes of RFC 3986 stay as they are.
            ("/%61%2fb", "/%61%2fb"),
            ("/a;b=(c)*[d]!'", "/a;b=(c)*[d]!'"),
            ("*", "/*"),
            // Otherwise the whole path is escaped, and decoded before.
            ("/a b", "/a%20b"),
            ("/%41 (b)", "/A%20%28b%29"),
            ("/grün", "/gr%C3%BCn"),
            ("/a\"<b>", "/a%22%3Cb%3E"),
            // An unparsable text is taken as the path.
            ("/100%", "/100%25"),
            ("/100%?a=1", "/100%25%3Fa=1"),
            ("/a\tb", "/a%09b"),
            ("/a#%", "/a%23%25"),
            ("1a:b/c", "/1a:b/c"),
            (":8080/a", "/:8080/a"),
            // Scheme and host are replaced.
            ("http://other:1/a?b", "/a?b"),
            ("http://other", "/"),
            ("ftp:/a", "/a"),
            ("//other/a", "/a"),
            ("//ready", "/"),
            ("//user:secret@other/a", "/a"),
            ("//[::1]:80/a", "/a"),
            ("///a", "///a"),
            ("//a b/c", "//a%20b/c"),
            ("//other:port/a", "//other:port/a"),
            ("//[::1/a", "//%5B::1/a"),
        ] {
            assert_eq!(request_target(path).as_deref(), Some(expect), "{path}");
        }
        assert_eq!(request_target("mailto:a"), None);
    }
}
