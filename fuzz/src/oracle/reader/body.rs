//! Body lengths and chunked bodies.

use super::{
    ChunkSizeSyntax, Field, Framing, Message, MessageKind, ParseError, ParserProfile,
    RequestMethod, fields, line, trim,
};

/// A chunked body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkedBody {
    pub(crate) data: Vec<u8>,
    pub(crate) trailers: Vec<Field>,
    /// The position after the body.
    pub(crate) end: usize,
}

/// The length of a body.
enum Length {
    Nothing,
    Bytes(u64),
    Chunked,
    UntilClose,
}

/// Parses the body of `message` after its header section. Returns false if it is incomplete.
pub(super) fn read(
    bytes: &[u8],
    role: MessageKind,
    profile: &ParserProfile,
    message: &mut Message,
) -> Result<bool, ParseError> {
    let start = message.end;
    match length(role, profile, message)? {
        Length::Nothing => {}
        Length::Bytes(length) => {
            let here = (bytes.len() - start) as u64;
            if length > here {
                return Ok(false);
            }
            message.end = start + length as usize;
            message.body = bytes[start..message.end].to_vec();
        }
        Length::Chunked => {
            let Some(body) = chunked(bytes, start, profile)? else {
                return Ok(false);
            };
            message.body = body.data;
            message.trailers = body.trailers;
            message.end = body.end;
        }
        Length::UntilClose => {
            message.body = bytes[start..].to_vec();
            message.end = bytes.len();
            message.until_close = true;
        }
    }
    Ok(true)
}

fn length(
    role: MessageKind,
    profile: &ParserProfile,
    message: &Message,
) -> Result<Length, ParseError> {
    let nothing_said = match role {
        MessageKind::Request => Length::Nothing,
        MessageKind::Response(asked) => {
            let status = message.status();
            let is_success = (200..300).contains(&status);
            if (asked == RequestMethod::Connect && is_success) || status == 101 {
                return Ok(Length::Nothing);
            }
            // The framing must be valid although there is no body.
            let framing = framing(profile, message);
            if asked == RequestMethod::Head || status < 200 || status == 204 || status == 304 {
                return framing.map(|_| Length::Nothing);
            }
            Length::UntilClose
        }
    };
    Ok(framing(profile, message)?.unwrap_or(nothing_said))
}

fn framing(profile: &ParserProfile, message: &Message) -> Result<Option<Length>, ParseError> {
    let encodings: Vec<_> = message.values("transfer-encoding").collect();
    let lengths: Vec<_> = message
        .values("content-length")
        .flat_map(|value| value.split(|byte| *byte == b','))
        .map(trim)
        .collect();
    let is_last = encodings
        .last()
        .and_then(|value| value.rsplit(|byte| *byte == b',').next())
        .is_some_and(|coding| trim(coding).eq_ignore_ascii_case(b"chunked"));
    let is_anywhere = encodings.iter().any(|value| {
        let value = value.to_ascii_lowercase();
        value.windows(7).any(|part| part == b"chunked")
    });
    let number = |text: &[u8]| decimal(text).map(Length::Bytes).ok_or("length");
    let all_equal = lengths
        .windows(2)
        .all(|pair| decimal(pair[0]) == decimal(pair[1]));
    Ok(match (profile.framing, &encodings[..], &lengths[..]) {
        (_, [], []) => None,
        (Framing::Single, [coding], []) if trim(coding).eq_ignore_ascii_case(b"chunked") => {
            Some(Length::Chunked)
        }
        (Framing::Single, [], [length, ..]) if all_equal => Some(number(length)?),
        (Framing::Single, ..) => return Err("framing"),
        (Framing::Rfc9112, [_, ..], _) if is_last => Some(Length::Chunked),
        (Framing::Rfc9112, [_, ..], _) => return Err("transfer-encoding"),
        (Framing::EncodingThenFirst, [_, ..], _) if is_anywhere => Some(Length::Chunked),
        (Framing::LastThenEncoding, [_, ..], []) => Some(Length::Chunked),
        (Framing::EncodingThenFirst, _, [length, ..]) => Some(number(length)?),
        (Framing::LastThenEncoding | Framing::Rfc9112, _, [.., length]) => Some(number(length)?),
        (Framing::EncodingThenFirst, _, []) => None,
    })
}

/// Parses the chunked body at `at`. `None` if it is incomplete.
pub(crate) fn chunked(
    bytes: &[u8],
    mut at: usize,
    profile: &ParserProfile,
) -> Result<Option<ChunkedBody>, ParseError> {
    let mut data = Vec::new();
    loop {
        let Some((line, next)) = line(bytes, at, profile)? else {
            return Ok(None);
        };
        at = next;
        let size = size(line, profile)?;
        if size == 0 {
            return Ok(
                fields(bytes, at, profile)?.map(|(trailers, end)| ChunkedBody {
                    data,
                    trailers,
                    end,
                }),
            );
        }
        let here = (bytes.len() - at) as u64;
        if size > here {
            return Ok(None);
        }
        let end = at + size as usize;
        data.extend_from_slice(&bytes[at..end]);
        match super::line(bytes, end, profile)? {
            Some((b"", next)) => at = next,
            Some(_) => return Err("end of a chunk"),
            None => return Ok(None),
        }
    }
}

fn size(line: &[u8], profile: &ParserProfile) -> Result<u64, ParseError> {
    let mut text = line;
    if profile.sizes == ChunkSizeSyntax::Strtol {
        while let [b' ' | b'\t' | 0x0b | 0x0c | b'+', rest @ ..] | [b'0', b'x' | b'X', rest @ ..] =
            text
        {
            text = rest;
        }
    }
    let digits = text
        .iter()
        .take_while(|byte| byte.is_ascii_hexdigit())
        .count();
    let (digits, rest) = text.split_at(digits);
    if digits.is_empty() {
        return Err("chunk size");
    }
    if profile.sizes == ChunkSizeSyntax::Digits && !matches!(rest, [] | [b';', ..]) {
        return Err("bytes after chunk size");
    }
    digits
        .iter()
        .try_fold(0_u64, |size, digit| {
            let digit = char::from(*digit).to_digit(16)?;
            size.checked_mul(16)?.checked_add(u64::from(digit))
        })
        .ok_or("chunk size")
}

fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}
