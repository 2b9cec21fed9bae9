//! Percent-decoding of paths, prefixes of segments, and the paths that servers interpret
//! differently.

use std::borrow::Cow;

/// Decodes all escapes of the path except `/` and `%`, which would make two different paths equal.
pub(super) fn decode(path: &str) -> Cow<'_, [u8]> {
    if !path.contains('%') {
        return Cow::Borrowed(path.as_bytes());
    }
    decode_escapes(path, |byte| byte != b'/' && byte != b'%')
}

/// Decodes a name or value of a query string; `+` is a blank.
pub(super) fn decode_form(text: &str) -> Cow<'_, [u8]> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text.as_bytes());
    }
    let blanks = text.replace('+', " ");
    Cow::Owned(decode_escapes(&blanks, |_| true).into_owned())
}

/// Decodes the `wanted` escapes, and writes the others in upper case.
fn decode_escapes(text: &str, wanted: impl Fn(u8) -> bool) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match escape(&bytes[at..]) {
            Some(byte) if wanted(byte) => {
                decoded.push(byte);
                at += 3;
            }
            Some(_) => {
                decoded.extend(bytes[at..at + 3].iter().map(u8::to_ascii_uppercase));
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    Cow::Owned(decoded)
}

/// Returns the byte of the escape at the start of `bytes`.
fn escape(bytes: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = bytes else {
        return None;
    };
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// Whether the path begins with the segments of the prefix, whose trailing slash is ignored. The
/// prefix `/` matches everything, also `*` and an empty path.
pub(super) fn has_prefix(path: &[u8], prefix: &[u8]) -> bool {
    let prefix = without_last_slash(prefix);
    path.strip_prefix(prefix)
        .is_some_and(|rest| prefix.is_empty() || rest.is_empty() || rest[0] == b'/')
}

/// Returns the length of a matching prefix in the undecoded path, in bytes.
pub(super) fn length_of_prefix(path: &str, prefix: &str) -> Option<usize> {
    let decoded = decode(prefix);
    let prefix = without_last_slash(&decoded);
    let slashes = prefix.iter().filter(|byte| **byte == b'/').count();
    if prefix.is_empty() {
        return Some(0);
    }
    // The prefix ends at the end of a segment, which an encoded slash is not: the undecoded path
    // has the same number of slashes up to there.
    let end = path
        .match_indices('/')
        .nth(slashes)
        .map_or(path.len(), |(at, _)| at);
    (*decode(&path[..end]) == *prefix).then_some(end)
}

fn without_last_slash(prefix: &[u8]) -> &[u8] {
    prefix.strip_suffix(b"/").unwrap_or(prefix)
}

/// Whether servers interpret the path differently: dot segments, empty segments, segment
/// parameters, backslashes, encoded slashes, invalid or nested escapes, NUL, and bytes that are not
/// UTF-8.
pub fn is_ambiguous(path: &str) -> bool {
    if path.is_empty() || path == "*" {
        return false;
    }
    let decoded = decode(path);
    let Ok(decoded) = std::str::from_utf8(&decoded) else {
        return true;
    };
    // Encoded slashes and percent signs are still escapes here, and so are invalid escapes.
    if decoded.contains(['\\', '\0', ';', '%', '#', '?']) {
        return true;
    }
    let Some(segments) = decoded.strip_prefix('/') else {
        return true;
    };
    let last = segments.matches('/').count();
    segments
        .split('/')
        .enumerate()
        .any(|(at, segment)| matches!(segment, "." | "..") || segment.is_empty() && at != last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escapes_are_decoded_except_slash_and_percent() {
        let check = |path: &str, expect: &[u8]| assert_eq!(&*decode(path), expect, "{path}");
        check("/a", b"/a");
        check("/%61%2f%2F%25%00", b"/a%2F%2F%25\0");
        check("/%C3%A9", "/é".as_bytes());
        check("/%", b"/%");
        check("/%4", b"/%4");
        check("/%zz%+1", b"/%zz%+1");
        assert_eq!(&*decode_form("a+b%2Bc%2f"), b"a b+c/");
    }

    #[test]
    fn prefixes_match_whole_segments() {
        let check = |path: &str, prefix: &str, expect: Option<usize>| {
            let found = has_prefix(&decode(path), &decode(prefix));
            assert_eq!(found, expect.is_some(), "{prefix} of {path}");
            if found {
                assert_eq!(length_of_prefix(path, prefix), expect, "{prefix} of {path}");
            }
        };
        check("/a", "/a", Some(2));
        check("/a/", "/a", Some(2));
        check("/a/b", "/a", Some(2));
        check("/ab", "/a", None);
        check("/a", "/a/", Some(2));
        check("/a/b", "/a/", Some(2));
        check("/", "/a", None);
        check("/A", "/a", None);
        check("/a", "/", Some(0));
        check("*", "/", Some(0));
        check("", "/", Some(0));
        check("/%61/b/c", "/a/b", Some(6));
        check("/%61/b/c", "/a/%62/", Some(6));
        check("/a%2Fb", "/a", None);
        check("/a%2Fb/c", "/a%2fb", Some(6));
    }

    #[test]
    fn ambiguous_paths_are_detected() {
        for plain in [
            "",
            "*",
            "/",
            "/a",
            "/a/",
            "/a/b.c/..d/e..",
            "/%C3%A9",
            "/a%20b",
            "/%41",
        ] {
            assert!(!is_ambiguous(plain), "{plain}");
        }
        for ambiguous in [
            "/.",
            "/..",
            "/a/../b",
            "/a/./b",
            "/%2e%2E/b",
            "/.%2e",
            "//",
            "//a",
            "/a//b",
            "/a//",
            "/a;x",
            "/..;/b",
            "/a%3bx",
            "/a\\b",
            "/a%5Cb",
            "/a%2Fb",
            "/a%252Fb",
            "/%",
            "/%zz",
            "/%00",
            "/%FF",
            "a",
            "/a%23b",
            "/a%3Fb",
        ] {
            assert!(is_ambiguous(ambiguous), "{ambiguous}");
        }
    }

    proptest! {
        /// An escaped path equals the plain one, and its prefix is found at the right position.
        #[test]
        fn escaping_does_not_change_matches(
            segments in prop::collection::vec("[a-c.é ]{1,3}", 1..4),
            keep in 0usize..4,
            escaped in any::<u64>(),
        ) {
            let join = |segments: &[String]| format!("/{}", segments.join("/"));
            let keep = keep.min(segments.len());
            let mut mask = escaped;
            let mut escape = |segment: &String| -> String {
                segment.bytes().map(|byte| {
                    mask = mask.rotate_left(1);
                    if mask & 1 == 1 || !byte.is_ascii_graphic() { format!("%{byte:02x}") } else { char::from(byte).to_string() }
                }).collect()
            };
            let written: Vec<String> = segments.iter().map(&mut escape).collect();
            let (plain, path) = (join(&segments), join(&written));
            prop_assert_eq!(&*decode(&path), plain.as_bytes());
            let prefix = join(&segments[..keep]);
            prop_assert!(has_prefix(&decode(&path), &decode(&prefix)));
            let expect = if keep == 0 { 0 } else { join(&written[..keep]).len() };
            prop_assert_eq!(length_of_prefix(&path, &prefix), Some(expect));
        }

        #[test]
        fn decoding_creates_no_slash(path in "/[%2fF/a5]{0,12}") {
            let slashes = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'/').count();
            prop_assert_eq!(slashes(&decode(&path)), slashes(path.as_bytes()));
        }
    }
}
