//! Start lines and field sections (RFC 9112, sections 3 to 5).

use super::Role;
use crate::script::{Field, field};

/// The longest start line and header section.
const MAX_HEAD: usize = 1 << 20;

/// A header or trailer section.
pub(super) struct Section {
    /// With its empty line.
    pub(super) length: usize,
    pub(super) fields: Vec<Field>,
    /// Why a strict reader refuses it.
    pub(super) irregular: Option<&'static str>,
}

/// Reads a start line and a header section; `None` if they are not complete. Responses are read
/// leniently, as clients do.
pub(super) fn read(bytes: &[u8], role: Role) -> Result<Option<Section>, &'static str> {
    let is_lenient = role == Role::Responses;
    let Some(start) = line_of(bytes, is_lenient)? else {
        return Ok(None);
    };
    let text = &bytes[..start.text];
    let begin = match role {
        Role::Requests => request_line(text),
        Role::Responses => status_line(text),
    }?;
    let Some(mut section) = fields(&bytes[start.length..], is_lenient)? else {
        return Ok(None);
    };
    section.length += start.length;
    section.fields.splice(0..0, begin);
    section.irregular = section.irregular.or(start.irregular());
    Ok(Some(section))
}

/// Reads field lines and the empty line after them; `None` if they are not complete.
pub(super) fn fields(bytes: &[u8], is_lenient: bool) -> Result<Option<Section>, &'static str> {
    let mut section = Section {
        length: 0,
        fields: Vec::new(),
        irregular: None,
    };
    loop {
        let rest = &bytes[section.length..];
        let Some(line) = line_of(rest, is_lenient)? else {
            return Ok(None);
        };
        let text = &rest[..line.text];
        section.length += line.length;
        section.irregular = section.irregular.or(line.irregular());
        if text.is_empty() {
            return Ok(Some(section));
        }
        let is_folded = text.starts_with(b" ") || text.starts_with(b"\t");
        if is_folded
            && is_lenient
            && let Some((_, value)) = section.fields.last_mut()
        {
            section.irregular = Some(FOLDED);
            value.push(b' ');
            value.extend_from_slice(text.trim_ascii());
            continue;
        }
        let mut field = parse_field(text, is_lenient)?;
        if field.0.ends_with(b" ") {
            section.irregular = Some(BLANK_BEFORE_COLON);
            field.0 = field.0.trim_ascii_end().to_vec();
        }
        section.fields.push(field);
    }
}

pub(crate) const BARE_LINE_FEED: &str = "bare line feed";
pub(crate) const BLANK_BEFORE_COLON: &str = "blank before a colon";
pub(crate) const FOLDED: &str = "folded line";

/// A line: the lengths of its text, and with its end.
struct Line {
    text: usize,
    length: usize,
}

impl Line {
    fn irregular(&self) -> Option<&'static str> {
        (self.length == self.text + 1).then_some(BARE_LINE_FEED)
    }
}

/// Reads a line, which may end in a line feed alone if the reader is lenient.
fn line_of(bytes: &[u8], is_lenient: bool) -> Result<Option<Line>, &'static str> {
    let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    if is_lenient
        && let Some(text) = end
        && bytes[text] == b'\n'
        && !bytes[..text].contains(&0)
    {
        let length = text + 1;
        return Ok(Some(Line { text, length }));
    }
    let text = line(bytes)?;
    Ok(text.map(|text| Line {
        text,
        length: text + 2,
    }))
}

/// The length of the first line, without its end; `None` if that has not arrived.
pub(super) fn line(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    let Some(end) = bytes
        .iter()
        .position(|byte| matches!(byte, b'\r' | b'\n' | 0))
    else {
        return if bytes.len() > MAX_HEAD {
            Err("line above 1 MiB")
        } else {
            Ok(None)
        };
    };
    match &bytes[end..] {
        [b'\r', b'\n', ..] => Ok(Some(end)),
        [b'\r'] => Ok(None),
        [0, ..] => Err("NUL"),
        _ => Err("bare carriage return or line feed"),
    }
}

/// The name keeps blanks after it if the reader is lenient.
fn parse_field(line: &[u8], is_lenient: bool) -> Result<Field, &'static str> {
    let colon = line.iter().position(|byte| *byte == b':');
    let colon = colon.ok_or("field line without a colon")?;
    let name = &line[..colon];
    let token = if is_lenient {
        name.trim_ascii_end()
    } else {
        name
    };
    if token.is_empty() || !token.iter().copied().all(is_token) {
        return Err("invalid field name");
    }
    let value = line[colon + 1..].trim_ascii();
    if value
        .iter()
        .any(|byte| byte.is_ascii_control() && *byte != b'\t')
    {
        return Err("control character in a field value");
    }
    Ok((name.to_vec(), value.to_vec()))
}

fn request_line(line: &[u8]) -> Result<Vec<Field>, &'static str> {
    let parts: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = parts.as_slice() else {
        return Err("invalid request line");
    };
    let is_valid = !method.is_empty()
        && method.iter().copied().all(is_token)
        && !target.is_empty()
        && !target.iter().any(|byte| byte.is_ascii_control());
    if !is_valid {
        return Err("invalid request line");
    }
    Ok(vec![
        field(":method", method),
        field(":path", target),
        field(":version", valid_version(version)?),
    ])
}

fn status_line(line: &[u8]) -> Result<Vec<Field>, &'static str> {
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    let version = valid_version(parts.next().unwrap_or_default())?;
    let status = parts.next().unwrap_or_default();
    if status.len() != 3 || !status.iter().all(u8::is_ascii_digit) {
        return Err("invalid status");
    }
    Ok(vec![
        field(":status", status),
        field(":version", version),
        field(":reason", parts.next().unwrap_or_default()),
    ])
}

fn valid_version(version: &[u8]) -> Result<&[u8], &'static str> {
    if matches!(version, b"HTTP/1.0" | b"HTTP/1.1") {
        Ok(version)
    } else {
        Err("not HTTP/1")
    }
}

pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    number(digits, 10)
}

pub(super) fn hexadecimal(digits: &[u8]) -> Option<u64> {
    number(digits, 16)
}

/// Digits alone: `from_str_radix` also takes a sign.
fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok()?;
    let is_number = text.chars().all(|digit| digit.is_digit(radix));
    is_number.then(|| u64::from_str_radix(text, radix).ok())?
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
