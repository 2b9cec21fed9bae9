//! An independent parser of complete HTTP/1 messages, written after RFC 9112, as the oracle for
//! every message of the proxy.
//!
//! Request smuggling exploits extensions of the RFC in implementations, so the parser has a
//! [`ParserProfile`]. [`STRICT`] allows no extension; each other profile has the extensions of a
//! kind of server. All profiles must parse a message alike if the proxy accepts it, so that it is
//! safe to forward to any server.

use std::fmt;

mod body;

pub(crate) use self::body::{ChunkedBody, chunked};

/// The extensions of RFC 9112 that a parser accepts.
#[derive(Clone, Copy)]
pub(crate) struct ParserProfile {
    name: &'static str,
    lines: LineEnding,
    /// Whether lines that begin with white space continue the previous one.
    folds: bool,
    /// Whether names may be surrounded by white space and characters are not checked.
    sloppy_fields: bool,
    framing: Framing,
    sizes: ChunkSizeSyntax,
}

/// The end of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnding {
    /// CR LF; a bare CR or LF is an error.
    CrLf,
    /// LF, after an optional CR.
    Feed,
    /// LF or CR.
    Either,
}

/// How the message framing is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// Several framings are an error.
    Single,
    /// `chunked` anywhere in any transfer-encoding, else the first content-length.
    EncodingThenFirst,
    /// The last content-length, else a transfer-encoding.
    LastThenEncoding,
    /// `chunked` as the last coding of the last transfer-encoding, else the last content-length
    /// (RFC 9112, section 6.3).
    Rfc9112,
}

/// How a chunk size is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkSizeSyntax {
    Digits,
    /// Like C's strtol: after white space, a sign and `0x`. The rest of the line is an extension.
    Strtol,
}

impl fmt::Debug for ParserProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "parser {:?}", self.name)
    }
}

pub(crate) const STRICT: ParserProfile = ParserProfile {
    name: "strict",
    lines: LineEnding::CrLf,
    folds: false,
    sloppy_fields: false,
    framing: Framing::Single,
    sizes: ChunkSizeSyntax::Digits,
};

/// The strict profile and the lenient ones.
pub(crate) const PROFILES: [ParserProfile; 6] = [
    STRICT,
    ParserProfile {
        name: "RFC 9112",
        framing: Framing::Rfc9112,
        ..STRICT
    },
    ParserProfile {
        name: "bare line feeds",
        lines: LineEnding::Feed,
        framing: Framing::Rfc9112,
        ..STRICT
    },
    ParserProfile {
        name: "bare carriage returns",
        lines: LineEnding::Either,
        framing: Framing::Rfc9112,
        sloppy_fields: true,
        ..STRICT
    },
    ParserProfile {
        name: "transfer-encoding first",
        lines: LineEnding::Feed,
        folds: true,
        sloppy_fields: true,
        framing: Framing::EncodingThenFirst,
        sizes: ChunkSizeSyntax::Strtol,
    },
    ParserProfile {
        name: "content-length first",
        lines: LineEnding::Feed,
        folds: true,
        sloppy_fields: true,
        framing: Framing::LastThenEncoding,
        sizes: ChunkSizeSyntax::Strtol,
    },
];

/// The kind of a message. The framing of a response depends on the request's method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    Request,
    Response(RequestMethod),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestMethod {
    Head,
    Connect,
    Other,
}

/// A complete message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The three parts of the start line. The reason phrase may be empty.
    pub(crate) start: [Vec<u8>; 3],
    /// Header fields with names in lower case.
    pub(crate) fields: Vec<Field>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<Field>,
    /// The length of the message.
    pub(crate) end: usize,
    /// Whether the end of the connection ends the body.
    pub(crate) until_close: bool,
}

pub(crate) type Field = (Vec<u8>, Vec<u8>);

/// Why bytes are not a valid message.
pub(crate) type ParseError = &'static str;

impl Message {
    pub(crate) fn method(&self) -> &[u8] {
        &self.start[0]
    }

    pub(crate) fn target(&self) -> &[u8] {
        &self.start[1]
    }

    /// The status code of a response; 0 if it is invalid.
    pub(crate) fn status(&self) -> u16 {
        str::from_utf8(&self.start[1])
            .ok()
            .and_then(|code| code.parse().ok())
            .unwrap_or(0)
    }

    pub(crate) fn is_interim(&self) -> bool {
        (100..200).contains(&self.status()) && self.status() != 101
    }

    /// The method of a request.
    pub(crate) fn request_method(&self) -> RequestMethod {
        match self.method() {
            b"HEAD" => RequestMethod::Head,
            b"CONNECT" => RequestMethod::Connect,
            _ => RequestMethod::Other,
        }
    }

    pub(crate) fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        values(&self.fields, name)
    }
}

/// Parses the message at the start of `bytes`. `None` if it is incomplete. The end of `bytes` is
/// the end of the connection.
pub(crate) fn message(
    bytes: &[u8],
    role: MessageKind,
    profile: &ParserProfile,
) -> Result<Option<Message>, ParseError> {
    let mut at = 0;
    // A server skips empty lines before a request (RFC 9112, section 2.2).
    while role == MessageKind::Request && at < bytes.len() {
        match line(bytes, at, profile)? {
            Some((b"", next)) => at = next,
            _ => break,
        }
    }
    let Some((first, next)) = line(bytes, at, profile)? else {
        return Ok(None);
    };
    let start = start_line(first, role)?;
    let Some((fields, next)) = fields(bytes, next, profile)? else {
        return Ok(None);
    };
    let mut message = Message {
        start,
        fields,
        body: Vec::new(),
        trailers: Vec::new(),
        end: next,
        until_close: false,
    };
    Ok(body::read(bytes, role, profile, &mut message)?.then_some(message))
}

fn start_line(line: &[u8], role: MessageKind) -> Result<[Vec<u8>; 3], ParseError> {
    let mut parts = line.splitn(3, |byte| *byte == b' ').map(<[u8]>::to_vec);
    let parts = [(); 3].map(|()| parts.next().unwrap_or_default());
    let version = match role {
        MessageKind::Request => &parts[2],
        MessageKind::Response(_) => &parts[0],
    };
    if version != b"HTTP/1.1" && version != b"HTTP/1.0" {
        return Err("version");
    }
    match role {
        MessageKind::Request if !is_token(&parts[0]) => return Err("method"),
        MessageKind::Request
            if parts[1].is_empty() || parts[1].iter().any(|b| *b <= b' ' || *b == 0x7f) =>
        {
            return Err("target");
        }
        MessageKind::Response(_)
            if parts[1].len() != 3 || !parts[1].iter().all(u8::is_ascii_digit) =>
        {
            return Err("status");
        }
        _ => {}
    }
    Ok(parts)
}

/// Parses header or trailer fields and the empty line after them.
fn fields(
    bytes: &[u8],
    mut at: usize,
    profile: &ParserProfile,
) -> Result<Option<(Vec<Field>, usize)>, ParseError> {
    let mut fields: Vec<Field> = Vec::new();
    loop {
        let Some((line, next)) = line(bytes, at, profile)? else {
            return Ok(None);
        };
        at = next;
        match line {
            [] => return Ok(Some((fields, at))),
            [b' ' | b'\t', ..] if profile.folds => {
                if let Some((_, value)) = fields.last_mut() {
                    value.push(b' ');
                    value.extend_from_slice(trim(line));
                }
            }
            _ => fields.extend(field(line, profile)?),
        }
    }
}

fn field(line: &[u8], profile: &ParserProfile) -> Result<Option<Field>, ParseError> {
    let Some(colon) = line.iter().position(|byte| *byte == b':') else {
        return if profile.sloppy_fields {
            Ok(None)
        } else {
            Err("field without a colon")
        };
    };
    let (mut name, mut value) = (&line[..colon], trim(&line[colon + 1..]));
    if profile.sloppy_fields {
        name = trim(name);
        // Some parsers treat vertical tabs and form feeds as white space.
        while let [0x0b | 0x0c, rest @ ..] | [rest @ .., 0x0b | 0x0c] = value {
            value = rest;
        }
    } else if !is_token(name) {
        return Err("field name");
    } else if value
        .iter()
        .any(|b| (*b < b' ' && *b != b'\t') || *b == 0x7f)
    {
        return Err("field value");
    }
    Ok(Some((name.to_ascii_lowercase(), value.to_vec())))
}

/// Returns the line at `at` and the start of the next one. `None` if it is incomplete.
fn line<'a>(
    bytes: &'a [u8],
    at: usize,
    profile: &ParserProfile,
) -> Result<Option<(&'a [u8], usize)>, ParseError> {
    let rest = &bytes[at..];
    let is_end = |byte: &u8| match profile.lines {
        LineEnding::CrLf | LineEnding::Feed => *byte == b'\n',
        LineEnding::Either => matches!(byte, b'\n' | b'\r'),
    };
    let Some(end) = rest.iter().position(is_end) else {
        return Ok(None);
    };
    let line = &rest[..end];
    let next = at + end + 1;
    match profile.lines {
        LineEnding::CrLf => match line.strip_suffix(b"\r") {
            Some(line) if !line.contains(&b'\r') => Ok(Some((line, next))),
            Some(_) => Err("bare carriage return"),
            None => Err("bare line feed"),
        },
        LineEnding::Feed => Ok(Some((line.strip_suffix(b"\r").unwrap_or(line), next))),
        // An LF after the CR belongs to the line ending, so the next byte is required.
        LineEnding::Either if rest[end] == b'\r' => Ok(match rest.get(end + 1) {
            None => None,
            Some(b'\n') => Some((line, next + 1)),
            Some(_) => Some((line, next)),
        }),
        LineEnding::Either => Ok(Some((line, next))),
    }
}

fn values<'a>(fields: &'a [Field], name: &str) -> impl Iterator<Item = &'a [u8]> {
    let is_named = move |field: &&Field| field.0 == name.as_bytes();
    fields
        .iter()
        .filter(is_named)
        .map(|(_, value)| value.as_slice())
}

fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

fn is_token(text: &[u8]) -> bool {
    let is_one = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_one)
}

#[cfg(test)]
mod tests;
