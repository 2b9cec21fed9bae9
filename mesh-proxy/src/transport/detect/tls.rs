//! Recognises a TLS ClientHello and its server name. Does no I/O.
//!
//! Parses only the framing and the server name. The TLS server that terminates the connection,
//! rustls or the destination, validates the rest.

use std::sync::Arc;

use super::{Sniff, TlsDetected};
use crate::host_name::is_host_name;

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

pub(super) fn sniff(bytes: &[u8]) -> Sniff<TlsDetected> {
    if bytes.len() > MAX_HELLO {
        return Sniff::Decided(TlsDetected::ClientHello { sni: None });
    }
    match hello_body(bytes) {
        Ok(body) => Sniff::Decided(TlsDetected::ClientHello {
            sni: server_name(&body),
        }),
        Err(Stop::NeedMore) => Sniff::NeedMore,
        Err(Stop::NotTls) => Sniff::Decided(TlsDetected::NotTls),
    }
}

enum Stop {
    NeedMore,
    NotTls,
}

/// Returns the ClientHello's body, reassembled from its records.
fn hello_body(mut bytes: &[u8]) -> Result<Vec<u8>, Stop> {
    let mut message = Vec::new();
    loop {
        let payload = record(&mut bytes, &message)?;
        message.extend_from_slice(payload);
        if message.len() < 4 {
            continue;
        }
        let length =
            usize::from(message[1]) << 16 | usize::from(message[2]) << 8 | usize::from(message[3]);
        if length > MAX_HELLO {
            return Err(Stop::NotTls);
        }
        if message.len() >= 4 + length {
            message.truncate(4 + length);
            message.drain(..4);
            return Ok(message);
        }
    }
}

/// Splits off one complete handshake record. Checks an incomplete one as well, so that other
/// protocols are recognised by their first bytes.
fn record<'a>(bytes: &mut &'a [u8], so_far: &[u8]) -> Result<&'a [u8], Stop> {
    let fits = |index: usize, test: &dyn Fn(u8) -> bool| bytes.get(index).is_none_or(|b| test(*b));
    // TLS 1.3 ignores the version (RFC 8446, section 5.1), but all clients send 3 in the first byte
    // and other protocols do not.
    let is_first = so_far.is_empty();
    let plausible = fits(0, &|b| b == HANDSHAKE)
        && (!is_first || fits(1, &|b| b == 3) && fits(5, &|b| b == CLIENT_HELLO));
    if !plausible {
        return Err(Stop::NotTls);
    }
    let Some((header, rest)) = bytes.split_at_checked(5) else {
        return Err(Stop::NeedMore);
    };
    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if length == 0 || length > MAX_RECORD {
        return Err(Stop::NotTls);
    }
    let (payload, rest) = rest.split_at_checked(length).ok_or(Stop::NeedMore)?;
    *bytes = rest;
    Ok(payload)
}

/// Returns the first `host_name` of the server_name extension in lower case. An invalid host name
/// counts as none: rustls rejects it too, and it would become a cache key and a metric label.
fn server_name(body: &[u8]) -> Option<Arc<str>> {
    let mut at = Cursor(body);
    at.take(2 + 32)?; // legacy_version, random
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

    fn named(sni: &str) -> Sniff<TlsDetected> {
        Sniff::Decided(TlsDetected::ClientHello {
            sni: Some(sni.into()),
        })
    }

    #[test]
    fn client_hello_is_detected_with_its_server_name() {
        let nameless = Sniff::Decided(TlsDetected::ClientHello { sni: None });
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
        let nameless = Sniff::Decided(TlsDetected::ClientHello { sni: None });
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
                assert_eq!(sniff(&whole[..end]), Sniff::NeedMore, "{end}");
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
            assert_eq!(
                sniff(bytes),
                Sniff::Decided(TlsDetected::NotTls),
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn client_hello_with_malformed_extensions_has_no_name() {
        let mut message = hello(Some("a.example"), 0);
        let end = message.len();
        message[end - 11] = 0xff; // the name's length
        assert_eq!(
            sniff(&records(&message, 1 << 14)),
            Sniff::Decided(TlsDetected::ClientHello { sni: None })
        );
    }
}
