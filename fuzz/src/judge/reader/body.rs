//! How long a body is, and chunks.

use super::{Asked, Field, Framing, Habits, Message, Role, Sizes, Wrong, fields, line, trim};

/// A chunked body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkedBody {
    pub(crate) data: Vec<u8>,
    pub(crate) trailers: Vec<Field>,
    /// Where it ends.
    pub(crate) end: usize,
}

/// What the head says.
enum Length {
    Nothing,
    Bytes(u64),
    Chunked,
    UntilClose,
}

/// Reads the body of `message`, of which the head has been read. False when it is not whole.
pub(super) fn read(
    bytes: &[u8],
    role: Role,
    habits: &Habits,
    message: &mut Message,
) -> Result<bool, Wrong> {
    let start = message.end;
    match length(role, habits, message)? {
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
            let Some(body) = chunked(bytes, start, habits)? else {
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

fn length(role: Role, habits: &Habits, message: &Message) -> Result<Length, Wrong> {
    let nothing_said = match role {
        Role::Request => Length::Nothing,
        Role::Response(asked) => {
            let status = message.status();
            let is_success = (200..300).contains(&status);
            if (asked == Asked::Connect && is_success) || status == 101 {
                return Ok(Length::Nothing);
            }
            // Its framing has to be right although there is no body.
            let framing = framing(habits, message);
            if asked == Asked::Head || status < 200 || status == 204 || status == 304 {
                return framing.map(|_| Length::Nothing);
            }
            Length::UntilClose
        }
    };
    Ok(framing(habits, message)?.unwrap_or(nothing_said))
}

fn framing(habits: &Habits, message: &Message) -> Result<Option<Length>, Wrong> {
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
    Ok(match (habits.framing, &encodings[..], &lengths[..]) {
        (_, [], []) => None,
        (Framing::Sole, [coding], []) if trim(coding).eq_ignore_ascii_case(b"chunked") => {
            Some(Length::Chunked)
        }
        (Framing::Sole, [], [length, ..]) if all_equal => Some(number(length)?),
        (Framing::Sole, ..) => return Err("framing"),
        (Framing::Letter, [_, ..], _) if is_last => Some(Length::Chunked),
        (Framing::Letter, [_, ..], _) => return Err("transfer-encoding"),
        (Framing::EncodingThenFirst, [_, ..], _) if is_anywhere => Some(Length::Chunked),
        (Framing::LastThenEncoding, [_, ..], []) => Some(Length::Chunked),
        (Framing::EncodingThenFirst, _, [length, ..]) => Some(number(length)?),
        (Framing::LastThenEncoding | Framing::Letter, _, [.., length]) => Some(number(length)?),
        (Framing::EncodingThenFirst, _, []) => None,
    })
}

/// The chunked body from `at` on; `None` when it does not end.
pub(crate) fn chunked(
    bytes: &[u8],
    mut at: usize,
    habits: &Habits,
) -> Result<Option<ChunkedBody>, Wrong> {
    let mut data = Vec::new();
    loop {
        let Some((line, next)) = line(bytes, at, habits)? else {
            return Ok(None);
        };
        at = next;
        let size = size(line, habits)?;
        if size == 0 {
            return Ok(
                fields(bytes, at, habits)?.map(|(trailers, end)| ChunkedBody {
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
        match super::line(bytes, end, habits)? {
            Some((b"", next)) => at = next,
            Some(_) => return Err("end of a chunk"),
            None => return Ok(None),
        }
    }
}

fn size(line: &[u8], habits: &Habits) -> Result<u64, Wrong> {
    let mut text = line;
    if habits.sizes == Sizes::Number {
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
    let (digits, behind) = text.split_at(digits);
    if digits.is_empty() {
        return Err("size of a chunk");
    }
    if habits.sizes == Sizes::Digits && !matches!(behind, [] | [b';', ..]) {
        return Err("behind the size of a chunk");
    }
    digits
        .iter()
        .try_fold(0_u64, |size, digit| {
            let digit = char::from(*digit).to_digit(16)?;
            size.checked_mul(16)?.checked_add(u64::from(digit))
        })
        .ok_or("size of a chunk")
}

fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}
