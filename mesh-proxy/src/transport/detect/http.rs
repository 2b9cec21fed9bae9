//! Recognises HTTP by its first line. Does no I/O.

use super::{HttpDetected, Sniff};

/// The start of the connection preface (RFC 9113, section 3.4), by which Linkerd decides as well.
/// The HTTP/2 server checks the rest: otherwise the decision would depend on how much of it has
/// arrived.
const PREFACE: &[u8] = b"PRI * HTTP/2.0";

/// The longest method. Registered ones have up to 17 characters (UPDATEREDIRECTREF).
const MAX_METHOD: usize = 24;

/// The longest request target, as in hyper.
const MAX_LINE: usize = 64 * 1024;

pub(super) fn sniff(bytes: &[u8]) -> Sniff<HttpDetected> {
    let length = bytes.len().min(PREFACE.len());
    if bytes[..length] == PREFACE[..length] {
        return if length == PREFACE.len() {
            Sniff::Decided(HttpDetected::Http2)
        } else {
            Sniff::NeedMore
        };
    }
    // A server skips empty lines before the request line (RFC 9112, section 2.2).
    let mut line = bytes;
    while let Some(rest) = line
        .strip_prefix(b"\r\n")
        .or_else(|| line.strip_prefix(b"\n"))
    {
        line = rest;
    }
    request_line(line)
}

/// Parses `METHOD SP target SP HTTP/1.x`. Stops at the first byte that cannot be part of it, so
/// that binary protocols are recognised by their first bytes.
fn request_line(line: &[u8]) -> Sniff<HttpDetected> {
    if line.is_empty() || line == b"\r" {
        return Sniff::NeedMore;
    }
    let Some(space) = line.iter().position(|&b| !is_token(b)) else {
        return more_unless(line.len() > MAX_METHOD);
    };
    if space == 0 || space > MAX_METHOD || line[space] != b' ' {
        return Sniff::Decided(HttpDetected::NotHttp);
    }
    let rest = &line[space + 1..];
    let Some(end) = rest.iter().position(|&b| b <= b' ' || b == 0x7f) else {
        return more_unless(rest.len() > MAX_LINE);
    };
    if end == 0 || rest[end] != b' ' {
        return Sniff::Decided(HttpDetected::NotHttp);
    }
    version(&rest[end + 1..])
}

fn version(bytes: &[u8]) -> Sniff<HttpDetected> {
    const NAME: &[u8] = b"HTTP/1.";
    let length = bytes.len().min(NAME.len());
    if bytes[..length] != NAME[..length] {
        return Sniff::Decided(HttpDetected::NotHttp);
    }
    match bytes.get(NAME.len()) {
        Some(b'0' | b'1') => Sniff::Decided(HttpDetected::Http1),
        Some(_) => Sniff::Decided(HttpDetected::NotHttp),
        None => Sniff::NeedMore,
    }
}

fn more_unless(is_too_long: bool) -> Sniff<HttpDetected> {
    if is_too_long {
        Sniff::Decided(HttpDetected::NotHttp)
    } else {
        Sniff::NeedMore
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_decides_protocol() {
        let check = |bytes: &[u8], expect| {
            assert_eq!(sniff(bytes), expect, "{:?}", String::from_utf8_lossy(bytes));
        };
        let (http1, http2, other) = (
            Sniff::Decided(HttpDetected::Http1),
            Sniff::Decided(HttpDetected::Http2),
            Sniff::Decided(HttpDetected::NotHttp),
        );
        check(b"GET / HTTP/1.1\r\n", http1.clone());
        check(b"GET /x?y=z HTTP/1.0", http1.clone());
        check(b"CONNECT a:443 HTTP/1.1\r\n", http1.clone());
        check(b"OPTIONS * HTTP/1.1\r\n", http1.clone());
        check(b"\r\n\r\nGET / HTTP/1.1\r\n", http1.clone());
        check(b"PROPFIND http://a/b HTTP/1.1\r\n", http1.clone());
        check("GET /ä HTTP/1.1\r\n".as_bytes(), http1);
        check(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", http2.clone());
        check(b"PRI * HTTP/2.0", http2.clone());
        check(b"PRI * HTTP/2.0\r\nx", http2);
        // Redis, SSH, MySQL's login, PostgreSQL's SSLRequest, TLS, SMTP.
        check(b"*1\r\n$4\r\nPING\r\n", other.clone());
        check(b"PING\r\n", other.clone());
        check(b"SSH-2.0-x\r\n", other.clone());
        check(&[0x20, 0, 0, 1, 0x85], other.clone());
        check(&[0, 0, 0, 8, 4, 210, 22, 47], other.clone());
        check(&[0x16, 3, 1, 2, 0], other.clone());
        check(b"EHLO a b\r\n", other.clone());
        check(b"GET key\r\n", other.clone());
        check(b"GET  / HTTP/1.1", other.clone());
        check(b"GET / HTTP/2.0\r\n", other.clone());
        check(b"GET / HTTP/1.2\r\n", other.clone());
        check(b"PRI * HTTP/2.1", other.clone());
        check(&[b'A'; MAX_METHOD + 1], other);
    }

    #[test]
    fn prefixes_of_http_are_never_detected_as_other() {
        for whole in [&b"DELETE /a/b HTTP/1.1\r\n"[..], PREFACE] {
            let mut decided = false;
            for end in 0..=whole.len() {
                match sniff(&whole[..end]) {
                    Sniff::NeedMore => assert!(!decided, "undecided again at {end}"),
                    Sniff::Decided(HttpDetected::NotHttp) => panic!("not HTTP at {end}"),
                    Sniff::Decided(_) => decided = true,
                }
            }
            assert!(decided);
        }
    }
}
