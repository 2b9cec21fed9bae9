//! Reads HTTP/1 out of bytes that are all there, straight from RFC 9112 and with nothing but std:
//! the second opinion on every message of the proxy's.
//!
//! It has [`Habits`], because smuggling lives in what implementations allow themselves beyond the
//! RFC. [`STRICT`] allows nothing. The others are each a bad habit that servers have had. A message
//! that the proxy accepts must be read alike by all of them: then it does not matter whom it is
//! passed to.

use std::fmt;

mod body;

pub(crate) use self::body::{ChunkedBody, chunked};

/// What a reader allows itself.
#[derive(Clone, Copy)]
pub(crate) struct Habits {
    name: &'static str,
    lines: Lines,
    /// Lines that begin with a blank go on with the one before.
    folds: bool,
    /// Blanks around names, and no complaint about characters.
    sloppy_fields: bool,
    framing: Framing,
    sizes: Sizes,
}

/// Where a line ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lines {
    /// At a CR LF; neither may stand alone.
    CrLf,
    /// At a line feed, whatever precedes it.
    Feed,
    /// At a line feed or a carriage return.
    Either,
}

/// Which of several statements about the length counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// There must be only one.
    Sole,
    /// `chunked` anywhere in any transfer-encoding, else the first length.
    EncodingThenFirst,
    /// The last length, else a transfer-encoding.
    LastThenEncoding,
    /// `chunked` as the last word of the last transfer-encoding, else the last length. RFC 9112,
    /// section 6.3.
    Letter,
}

/// How a chunk's size is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizes {
    Digits,
    /// As C's strtol does: blanks before, a sign, `0x`, and whatever comes behind is an extension.
    Number,
}

impl fmt::Debug for Habits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the reader {:?}", self.name)
    }
}

pub(crate) const STRICT: Habits = Habits {
    name: "strict",
    lines: Lines::CrLf,
    folds: false,
    sloppy_fields: false,
    framing: Framing::Sole,
    sizes: Sizes::Digits,
};

/// The strict reader and the careless ones.
pub(crate) const HABITS: [Habits; 6] = [
    STRICT,
    Habits {
        name: "by the letter",
        framing: Framing::Letter,
        ..STRICT
    },
    Habits {
        name: "bare line feeds",
        lines: Lines::Feed,
        framing: Framing::Letter,
        ..STRICT
    },
    Habits {
        name: "bare carriage returns",
        lines: Lines::Either,
        framing: Framing::Letter,
        sloppy_fields: true,
        ..STRICT
    },
    Habits {
        name: "anything for a chunk",
        lines: Lines::Feed,
        folds: true,
        sloppy_fields: true,
        framing: Framing::EncodingThenFirst,
        sizes: Sizes::Number,
    },
    Habits {
        name: "lengths first",
        lines: Lines::Feed,
        folds: true,
        sloppy_fields: true,
        framing: Framing::LastThenEncoding,
        sizes: Sizes::Number,
    },
];

/// What is read. Of a response one must know what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Request,
    Response(Asked),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Head,
    Connect,
    Other,
}

/// A whole message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The start line's three parts; the last of a response may be missing.
    pub(crate) start: [Vec<u8>; 3],
    /// Names in lower case.
    pub(crate) fields: Vec<Field>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<Field>,
    /// Where the next message begins.
    pub(crate) end: usize,
    /// Its end is the connection's.
    pub(crate) until_close: bool,
}

pub(crate) type Field = (Vec<u8>, Vec<u8>);

/// Why it is no message.
pub(crate) type Wrong = &'static str;

impl Message {
    pub(crate) fn method(&self) -> &[u8] {
        &self.start[0]
    }

    pub(crate) fn target(&self) -> &[u8] {
        &self.start[1]
    }

    /// The status of a response; 0 when it is none.
    pub(crate) fn status(&self) -> u16 {
        str::from_utf8(&self.start[1])
            .ok()
            .and_then(|code| code.parse().ok())
            .unwrap_or(0)
    }

    pub(crate) fn is_interim(&self) -> bool {
        (100..200).contains(&self.status()) && self.status() != 101
    }

    /// What was asked, when this is a request.
    pub(crate) fn asked(&self) -> Asked {
        match self.method() {
            b"HEAD" => Asked::Head,
            b"CONNECT" => Asked::Connect,
            _ => Asked::Other,
        }
    }

    pub(crate) fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        values(&self.fields, name)
    }
}

/// The message that `bytes` begin with; `None` when they end within it. A body that lasts until the
/// connection ends, ends with the bytes.
pub(crate) fn message(bytes: &[u8], role: Role, habits: &Habits) -> Result<Option<Message>, Wrong> {
    let mut at = 0;
    // RFC 9112, section 2.2: a server skips empty lines in front of a request.
    while role == Role::Request && at < bytes.len() {
        match line(bytes, at, habits)? {
            Some((b"", next)) => at = next,
            _ => break,
        }
    }
    let Some((first, next)) = line(bytes, at, habits)? else {
        return Ok(None);
    };
    let start = start_line(first, role)?;
    let Some((fields, next)) = fields(bytes, next, habits)? else {
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
    Ok(body::read(bytes, role, habits, &mut message)?.then_some(message))
}

fn start_line(line: &[u8], role: Role) -> Result<[Vec<u8>; 3], Wrong> {
    let mut parts = line.splitn(3, |byte| *byte == b' ').map(<[u8]>::to_vec);
    let parts = [(); 3].map(|()| parts.next().unwrap_or_default());
    let version = match role {
        Role::Request => &parts[2],
        Role::Response(_) => &parts[0],
    };
    if version != b"HTTP/1.1" && version != b"HTTP/1.0" {
        return Err("version");
    }
    match role {
        Role::Request if !is_token(&parts[0]) => return Err("method"),
        Role::Request
            if parts[1].is_empty() || parts[1].iter().any(|b| *b <= b' ' || *b == 0x7f) =>
        {
            return Err("target");
        }
        Role::Response(_) if parts[1].len() != 3 || !parts[1].iter().all(u8::is_ascii_digit) => {
            return Err("status");
        }
        _ => {}
    }
    Ok(parts)
}

/// Header fields or trailers with the empty line behind them.
fn fields(
    bytes: &[u8],
    mut at: usize,
    habits: &Habits,
) -> Result<Option<(Vec<Field>, usize)>, Wrong> {
    let mut fields: Vec<Field> = Vec::new();
    loop {
        let Some((line, next)) = line(bytes, at, habits)? else {
            return Ok(None);
        };
        at = next;
        match line {
            [] => return Ok(Some((fields, at))),
            [b' ' | b'\t', ..] if habits.folds => {
                if let Some((_, value)) = fields.last_mut() {
                    value.push(b' ');
                    value.extend_from_slice(trim(line));
                }
            }
            _ => fields.extend(field(line, habits)?),
        }
    }
}

fn field(line: &[u8], habits: &Habits) -> Result<Option<Field>, Wrong> {
    let Some(colon) = line.iter().position(|byte| *byte == b':') else {
        return match habits.sloppy_fields {
            true => Ok(None),
            false => Err("field without a colon"),
        };
    };
    let (mut name, mut value) = (&line[..colon], trim(&line[colon + 1..]));
    if habits.sloppy_fields {
        name = trim(name);
        // What some take for white space too.
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

/// The line from `at` on and where the next begins; `None` when it does not end.
fn line<'a>(
    bytes: &'a [u8],
    at: usize,
    habits: &Habits,
) -> Result<Option<(&'a [u8], usize)>, Wrong> {
    let rest = &bytes[at..];
    let is_end = |byte: &u8| match habits.lines {
        Lines::CrLf | Lines::Feed => *byte == b'\n',
        Lines::Either => matches!(byte, b'\n' | b'\r'),
    };
    let Some(end) = rest.iter().position(is_end) else {
        return Ok(None);
    };
    let line = &rest[..end];
    let next = at + end + 1;
    match habits.lines {
        Lines::CrLf => match line.strip_suffix(b"\r") {
            Some(line) if !line.contains(&b'\r') => Ok(Some((line, next))),
            Some(_) => Err("bare carriage return"),
            None => Err("bare line feed"),
        },
        Lines::Feed => Ok(Some((line.strip_suffix(b"\r").unwrap_or(line), next))),
        // A line feed behind belongs to it; whether it comes must be known.
        Lines::Either if rest[end] == b'\r' => Ok(match rest.get(end + 1) {
            None => None,
            Some(b'\n') => Some((line, next + 1)),
            Some(_) => Some((line, next)),
        }),
        Lines::Either => Ok(Some((line, next))),
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
