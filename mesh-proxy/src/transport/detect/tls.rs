//! Recognises a TLS ClientHello and its server name. Does no I/O.
//!
//! Parses only the framing and the server name. The TLS server that terminates the connection,
//! rustls or the destination, validates the rest.

use std::sync::Arc;

use mesh_planted::Bug;
use mesh_runtime::bounded_buffer::Scanner;

use crate::host_name::is_host_name;

/// Finds the end of a ClientHello in the records received so far.
#[derive(Debug, Default)]
pub(super) struct HelloScanner {
    /// The bytes scanned.
    length: usize,
    /// The header of the current record, with the number of bytes received.
    header: [u8; HEADER_LEN],
    header_length: usize,
    /// The bytes of the current record that have not been received.
    record_left: usize,
    /// The header of the handshake message.
    message_header: [u8; MESSAGE_HEADER_LEN],
    /// The bytes of the handshake message received, with its header.
    message_length: usize,
}

/// The kind of the first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hello {
    /// A complete ClientHello.
    Complete,
    /// A ClientHello that is longer than [`MAX_HELLO`], or is not complete within this number of
    /// bytes.
    TooLong,
    NotTls,
}

/// The longest ClientHello that is buffered. One with a post-quantum key share has about 1.7 KiB;
/// the limit of four records allows pre-shared keys and large extensions. A longer one counts as a
/// ClientHello without a name, so it is forwarded and never terminated here.
const MAX_HELLO: usize = 64 * 1024;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// The longest plaintext of a record (RFC 8446, section 5.1).
const MAX_RECORD: usize = 1 << 14;
const HEADER_LEN: usize = 5;
/// Type and length.
const MESSAGE_HEADER_LEN: usize = 4;

impl Scanner for HelloScanner {
    type Verdict = Hello;

    fn scan(&mut self, mut next: &[u8]) -> Option<Hello> {
        while !next.is_empty() {
            let taken = if self.record_left == 0 {
                if !self.add_to_header(next[0]) {
                    return Some(Hello::NotTls);
                }
                1
            } else {
                let taken = self.record_left.min(next.len());
                if !self.add_to_message(&next[..taken]) {
                    return Some(Hello::NotTls);
                }
                taken
            };
            self.length += taken;
            if self.length > MAX_HELLO {
                return Some(Hello::TooLong);
            }
            if let Some(verdict) = self.message_end() {
                return Some(verdict);
            }
            next = &next[taken..];
        }
        None
    }
}

impl HelloScanner {
    /// Adds a byte to the header of a record. Returns false if it cannot be part of one, so that
    /// other protocols are recognised by their first bytes.
    fn add_to_header(&mut self, byte: u8) -> bool {
        // TLS 1.3 ignores the version (RFC 8446, section 5.1), but all clients send 3 in the first
        // byte and other protocols do not.
        let is_plausible = match self.header_length {
            0 => byte == HANDSHAKE,
            1 => byte == 3 || self.message_length > 0,
            _ => true,
        };
        self.header[self.header_length] = byte;
        self.header_length += 1;
        if self.header_length < HEADER_LEN {
            return is_plausible;
        }
        self.header_length = 0;
        self.record_left = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
        is_plausible && (1..=MAX_RECORD).contains(&self.record_left)
    }

    /// Adds bytes of a record to the message. Returns false if it is not a ClientHello.
    fn add_to_message(&mut self, bytes: &[u8]) -> bool {
        let header = self.message_header.iter_mut().skip(self.message_length);
        for (to, byte) in header.zip(bytes) {
            *to = *byte;
        }
        self.message_length += bytes.len();
        self.record_left -= bytes.len();
        self.message_header[0] == CLIENT_HELLO
    }

    /// Decides at the end of a record that completes the message or makes its length known.
    fn message_end(&self) -> Option<Hello> {
        let is_record_end = self.record_left == 0 && self.header_length == 0;
        if !is_record_end || self.message_length < MESSAGE_HEADER_LEN {
            return None;
        }
        let [_, length @ ..] = self.message_header;
        let length = length.iter().fold(0, |n, byte| n << 8 | usize::from(*byte));
        if length > MAX_HELLO {
            return Some(Hello::NotTls);
        }
        let missed = usize::from(Bug::HelloEndMissed.is_planted());
        (self.message_length >= MESSAGE_HEADER_LEN + length + missed).then_some(Hello::Complete)
    }
}

/// Returns the server name of the complete ClientHello at the start of `bytes`.
pub(super) fn server_name(bytes: &[u8]) -> Option<Arc<str>> {
    name_in_body(&hello_body(bytes)?)
}

/// Returns the ClientHello's body, reassembled from its records.
fn hello_body(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut records = Cursor(bytes);
    let mut message = Vec::new();
    loop {
        records.take(HEADER_LEN - 2)?; // content type, legacy_record_version
        message.extend_from_slice(records.vector16()?);
        let Some((header, body)) = message.split_first_chunk::<MESSAGE_HEADER_LEN>() else {
            continue;
        };
        let [_, length @ ..] = *header;
        let length = length.iter().fold(0, |n, byte| n << 8 | usize::from(*byte));
        if let Some(body) = body.get(..length) {
            return Some(body.to_vec());
        }
    }
}

/// Returns the first `host_name` of the server_name extension in lower case. An invalid host name
/// counts as none: rustls rejects it too, and it would become a cache key and a metric label.
fn name_in_body(body: &[u8]) -> Option<Arc<str>> {
    let mut at = Cursor(body);
    at.take(2 + 32 - usize::from(Bug::HelloNameMissed.is_planted()))?; // legacy_version, random
    at.vector8()?; // legacy_session_id
    at.vector16()?; // cipher_suites
    at.vector8()?; // legacy_compression_methods
    let mut extensions = Cursor(at.vector16()?);
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let data = extensions.vector16()?;
        if kind == SERVER_NAME {
            let mut names = Cursor(Cursor(data).vector16()?);
            while !names.0.is_empty() {
                let kind = names.take(1)?[0];
                let name = names.vector16()?;
                if kind == HOST_NAME {
                    let name = str::from_utf8(name).ok()?;
                    return is_host_name(name).then(|| name.to_ascii_lowercase().into());
                }
            }
        }
    }
    None
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }

    fn vector8(&mut self) -> Option<&'a [u8]> {
        let n = self.take(1)?[0];
        self.take(usize::from(n))
    }

    fn vector16(&mut self) -> Option<&'a [u8]> {
        let n = self.u16()?;
        self.take(usize::from(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::detect::TlsDetected;

    /// Encodes a ClientHello with this server name.
    fn hello(sni: Option<&str>, padding: usize) -> Vec<u8> {
        let prefixed = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
        let mut extensions = [&[0, 43][..], &prefixed(&[2, 3, 4])].concat();
        extensions.extend([&[0, 21][..], &prefixed(&vec![0; padding])].concat());
        if let Some(name) = sni {
            let entry = [&[HOST_NAME][..], &prefixed(name.as_bytes())].concat();
            extensions.extend([&[0, 0][..], &prefixed(&prefixed(&entry))].concat());
        }
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.push(0);
        body.extend(prefixed(&[0x13, 1]));
        body.extend([1, 0]);
        body.extend(prefixed(&extensions));
        let length = (body.len() as u32).to_be_bytes();
        [&[CLIENT_HELLO][..], &length[1..], &body].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |part: &[u8]| {
            [
                &[HANDSHAKE, 3, 1][..],
                &(part.len() as u16).to_be_bytes(),
                part,
            ]
            .concat()
        };
        message.chunks(size).flat_map(record).collect()
    }

    fn named(sni: &str) -> Option<TlsDetected> {
        Some(TlsDetected::ClientHello {
            sni: Some(sni.into()),
        })
    }

    /// Passes the bytes to a scanner at once and one by one.
    fn sniff(bytes: &[u8]) -> Option<TlsDetected> {
        let mut scanner = HelloScanner::default();
        let bytewise = bytes.iter().find_map(|byte| scanner.scan(&[*byte]));
        assert_eq!(HelloScanner::default().scan(bytes), bytewise);
        Some(match bytewise? {
            Hello::Complete => TlsDetected::ClientHello {
                sni: server_name(bytes),
            },
            Hello::TooLong => TlsDetected::ClientHello { sni: None },
            Hello::NotTls => TlsDetected::NotTls,
        })
    }

    #[test]
    fn client_hello_is_detected_with_its_server_name() {
        let nameless = Some(TlsDetected::ClientHello { sni: None });
        assert_eq!(
            sniff(&records(&hello(Some("A.Example"), 0), 1 << 14)),
            named("a.example")
        );
        assert_eq!(sniff(&records(&hello(None, 0), 1 << 14)), nameless);
        // The size of a ClientHello with a post-quantum key share, in one and in several records.
        for size in [1, 3, 100, 1 << 14] {
            assert_eq!(
                sniff(&records(&hello(Some("b"), 1600), size)),
                named("b"),
                "{size}"
            );
        }
        let mut odd = records(&hello(Some("c"), 0), 20);
        for version in [[3, 9], [0, 2]] {
            odd[26..28].copy_from_slice(&version); // in the second record
            assert_eq!(sniff(&odd), named("c"), "{version:?}");
        }
        let mut followed = records(&hello(Some("c"), 0), 1 << 14);
        followed.extend(b"early data");
        assert_eq!(sniff(&followed), named("c"));
    }

    #[test]
    fn invalid_host_names_are_ignored() {
        let label = "a".repeat(63);
        let longest = format!("{label}.{label}.{label}.{}", &label[..61]);
        for name in [
            &longest,
            "a",
            "a.b.",
            "xn--bcher-kva.example",
            "_srv.web-1.example",
            "10.0.0.1",
        ] {
            assert_eq!(sniff(&records(&hello(Some(name), 0), 1 << 14)), named(name));
        }
        let nameless = Some(TlsDetected::ClientHello { sni: None });
        for name in [
            &format!("{longest}a"),
            &format!("{label}a.example"),
            &"a.".repeat(30_000),
            "",
            ".",
            ".a",
            "a..b",
            "a b",
            "b\u{fc}cher.example",
            "*.example",
            "a\"b",
            "::1",
        ] {
            assert_eq!(
                sniff(&records(&hello(Some(name), 0), 1 << 14)),
                nameless,
                "{name:.40}"
            );
        }
    }

    #[test]
    fn prefixes_of_client_hello_need_more_input() {
        for size in [5, 1 << 14] {
            let whole = records(&hello(Some("a.example"), 300), size);
            for end in 0..whole.len() {
                assert_eq!(sniff(&whole[..end]), None, "{end}");
            }
        }
    }

    #[test]
    fn other_protocols_are_recognised_by_their_first_bytes() {
        for bytes in [
            &b"G"[..],
            b"PRI",
            &[0],
            &[HANDSHAKE, 2],
            &[HANDSHAKE, 3, 1, 0, 0],
            &[HANDSHAKE, 3, 1, 0xff, 0xff],
            &[HANDSHAKE, 3, 3, 0, 9, 2],
            &[21, 3, 3, 0, 2, 1, 0],
        ] {
            assert_eq!(sniff(bytes), Some(TlsDetected::NotTls), "{bytes:?}");
        }
    }

    #[test]
    fn client_hello_with_malformed_extensions_has_no_name() {
        let mut message = hello(Some("a.example"), 0);
        let end = message.len();
        message[end - 11] = 0xff; // the name's length
        assert_eq!(
            sniff(&records(&message, 1 << 14)),
            Some(TlsDetected::ClientHello { sni: None })
        );
    }
}
