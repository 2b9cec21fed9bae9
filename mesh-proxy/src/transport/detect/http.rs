//! Recognises HTTP by its first line. Does no I/O.

use mesh_runtime::bounded_buffer::Scanner;

use super::HttpDetected;

/// Recognises the preface of HTTP/2 or a request line by the bytes received so far.
#[derive(Debug)]
pub(super) struct RequestScanner {
    /// How many bytes of the preface match; `None` when one does not.
    preface: Option<usize>,
    line: Position,
}

/// The position within `METHOD SP target SP HTTP/1.x`.
#[derive(Clone, Copy, Debug)]
enum Position {
    /// In front of the request line: the number of empty lines, and whether the last byte is a
    /// carriage return.
    Start {
        empty_lines: u8,
        after_cr: bool,
    },
    /// After this many bytes of the method.
    Method(usize),
    /// After this many bytes of the target.
    Target(usize),
    /// After this many bytes of the version.
    Version(usize),
    NotHttp,
}

/// The start of the connection preface (RFC 9113, section 3.4). Linkerd decides by it as well. The
/// HTTP/2 server checks the rest: otherwise the decision would depend on how much of it has
/// arrived.
const PREFACE: &[u8] = b"PRI * HTTP/2.0";

/// A server skips empty lines before the request line, at least one (RFC 9112, section 2.2).
/// Clients send one after a body; Apache httpd has the same limit (`DEFAULT_LIMIT_BLANK_LINES`).
pub(crate) const MAX_EMPTY_LINES: u8 = 10;

/// The longest method. Registered ones have up to 17 characters (UPDATEREDIRECTREF).
const MAX_METHOD: usize = 24;

/// The longest request target, as in hyper.
const MAX_TARGET: usize = 64 * 1024;

/// The start of a version, before its last digit.
const VERSION: &[u8] = b"HTTP/1.";

/// Whether HTTP may begin with these bytes.
pub(super) fn may_begin(bytes: &[u8]) -> bool {
    RequestScanner::default().scan(bytes) != Some(HttpDetected::NotHttp)
}

impl Default for RequestScanner {
    fn default() -> Self {
        Self {
            preface: Some(0),
            line: Position::Start {
                empty_lines: 0,
                after_cr: false,
            },
        }
    }
}

impl Scanner for RequestScanner {
    type Verdict = HttpDetected;

    fn scan(&mut self, next: &[u8]) -> Option<HttpDetected> {
        next.iter().find_map(|byte| self.scan_byte(*byte))
    }
}

impl RequestScanner {
    fn scan_byte(&mut self, byte: u8) -> Option<HttpDetected> {
        self.preface = self
            .preface
            .filter(|matched| PREFACE.get(*matched) == Some(&byte))
            .map(|matched| matched + 1);
        if self.preface == Some(PREFACE.len()) {
            return Some(HttpDetected::Http2);
        }
        if let Position::Version(matched) = self.line
            && matched == VERSION.len()
            && matches!(byte, b'0' | b'1')
        {
            return Some(HttpDetected::Http1);
        }
        self.line = self.line.after(byte);
        // The preface is not a request line of HTTP/1.
        let is_other = matches!(self.line, Position::NotHttp) && self.preface.is_none();
        is_other.then_some(HttpDetected::NotHttp)
    }
}

impl Position {
    /// Returns the position after one more byte. The first byte that cannot be part of a request
    /// line decides, so that binary protocols are recognised by their first bytes.
    fn after(self, byte: u8) -> Self {
        match self {
            Self::Start {
                empty_lines,
                after_cr,
            } => match byte {
                b'\n' if empty_lines < MAX_EMPTY_LINES => Self::Start {
                    empty_lines: empty_lines + 1,
                    after_cr: false,
                },
                b'\r' if !after_cr && empty_lines < MAX_EMPTY_LINES => Self::Start {
                    empty_lines,
                    after_cr: true,
                },
                _ if !after_cr && is_token(byte) => Self::Method(1),
                _ => Self::NotHttp,
            },
            Self::Method(length) if length < MAX_METHOD && is_token(byte) => {
                Self::Method(length + 1)
            }
            Self::Method(_) if byte == b' ' => Self::Target(0),
            Self::Target(length) if byte > b' ' && byte != 0x7f && length < MAX_TARGET => {
                Self::Target(length + 1)
            }
            Self::Target(1..) if byte == b' ' => Self::Version(0),
            Self::Version(matched) if VERSION.get(matched) == Some(&byte) => {
                Self::Version(matched + 1)
            }
            _ => Self::NotHttp,
        }
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes the bytes to a scanner one by one.
    fn sniff(bytes: &[u8]) -> Option<HttpDetected> {
        let mut scanner = RequestScanner::default();
        let bytewise = bytes.iter().find_map(|byte| scanner.scan(&[*byte]));
        assert_eq!(RequestScanner::default().scan(bytes), bytewise);
        bytewise
    }

    #[test]
    fn first_line_decides_protocol() {
        let check = |bytes: &[u8], expect| {
            assert_eq!(sniff(bytes), expect, "{:?}", String::from_utf8_lossy(bytes));
        };
        let (http1, http2, other) = (
            Some(HttpDetected::Http1),
            Some(HttpDetected::Http2),
            Some(HttpDetected::NotHttp),
        );
        check(b"GET / HTTP/1.1\r\n", http1);
        check(b"GET /x?y=z HTTP/1.0", http1);
        check(b"CONNECT a:443 HTTP/1.1\r\n", http1);
        check(b"OPTIONS * HTTP/1.1\r\n", http1);
        check(b"\r\n\r\nGET / HTTP/1.1\r\n", http1);
        check(b"PROPFIND http://a/b HTTP/1.1\r\n", http1);
        check("GET /ä HTTP/1.1\r\n".as_bytes(), http1);
        check(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", http2);
        check(b"PRI * HTTP/2.0", http2);
        check(b"PRI * HTTP/2.0\r\nx", http2);
        // Redis, SSH, MySQL's login, PostgreSQL's SSLRequest, TLS, SMTP.
        check(b"*1\r\n$4\r\nPING\r\n", other);
        check(b"PING\r\n", other);
        check(b"SSH-2.0-x\r\n", other);
        check(&[0x20, 0, 0, 1, 0x85], other);
        check(&[0, 0, 0, 8, 4, 210, 22, 47], other);
        check(&[0x16, 3, 1, 2, 0], other);
        check(b"EHLO a b\r\n", other);
        check(b"GET key\r\n", other);
        check(b"GET  / HTTP/1.1", other);
        check(b"GET / HTTP/2.0\r\n", other);
        check(b"GET / HTTP/1.2\r\n", other);
        check(b"PRI * HTTP/2.1", other);
        check(&[b'A'; MAX_METHOD + 1], other);
        check(b"\r\r\nGET / HTTP/1.1", other);
        check(b"\rGET / HTTP/1.1", other);
    }

    #[test]
    fn empty_lines_and_targets_beyond_the_limits_are_not_http() {
        let lines = |line: &str, count: u8| line.repeat(usize::from(count));
        for line in ["\r\n", "\n"] {
            let longest = lines(line, MAX_EMPTY_LINES) + "GET / HTTP/1.1\r\n";
            assert_eq!(sniff(longest.as_bytes()), Some(HttpDetected::Http1));
            // Decided by the line end, before a request line arrives.
            let beyond = lines(line, MAX_EMPTY_LINES + 1);
            assert_eq!(sniff(beyond.as_bytes()), Some(HttpDetected::NotHttp));
        }
        let target = |length| format!("GET /{} HTTP/1.1\r\n", "a".repeat(length - 1));
        assert_eq!(
            sniff(target(MAX_TARGET).as_bytes()),
            Some(HttpDetected::Http1)
        );
        assert_eq!(
            sniff(target(MAX_TARGET + 1).as_bytes()),
            Some(HttpDetected::NotHttp)
        );
    }

    #[test]
    fn prefixes_of_http_are_never_detected_as_other() {
        for whole in [&b"DELETE /a/b HTTP/1.1\r\n"[..], PREFACE] {
            let mut decided = false;
            for end in 0..=whole.len() {
                match sniff(&whole[..end]) {
                    None => assert!(!decided, "undecided again at {end}"),
                    Some(HttpDetected::NotHttp) => panic!("not HTTP at {end}"),
                    Some(_) => decided = true,
                }
            }
            assert!(decided);
        }
    }
}
