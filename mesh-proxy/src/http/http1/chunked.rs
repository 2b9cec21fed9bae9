//! Chunked transfer coding (RFC 9112, section 7): an incremental decoder, which is stricter than
//! the RFC, and functions that write chunks. Pure.

use bytes::{Buf as _, Bytes, BytesMut};
use http::HeaderMap;
use memchr::memchr;
use mesh_planted::Bug;

use super::parse::{self, HeaderEnd};
use crate::config::Http1Limits;
use crate::http::headers::is_allowed_in_trailers;
use crate::http::message_error::MessageError;

/// Decodes one chunked body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decoder {
    state: State,
    /// How many more bytes chunk extensions may have in total.
    extensions_left: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size,
    /// The remaining bytes of the chunk.
    Data(u64),
    DataEnd,
    /// The trailer section does not end within this many bytes.
    Trailers(usize),
}

/// A decoded part of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyPart {
    Data(Bytes),
    /// The end of the body, with trailers if there are any.
    End(Option<HeaderMap>),
}

/// The most digits of a chunk size, with the zeros before it that some senders add. 64 bits are 16
/// hexadecimal digits.
const MAX_SIZE_DIGITS: usize = 16;

impl Decoder {
    pub(super) fn new(limits: &Http1Limits) -> Self {
        Self {
            state: State::Size,
            extensions_left: limits.extensions,
        }
    }

    /// Takes the next part off `input`; `None` when more must be read first. Not to be called again
    /// after the end or an error.
    pub(super) fn next(
        &mut self,
        input: &mut BytesMut,
        limits: &Http1Limits,
    ) -> Result<Option<BodyPart>, MessageError> {
        loop {
            if self.state == State::Size
                && let Some(data) = join_small(input)
            {
                return Ok(Some(BodyPart::Data(data)));
            }
            match self.state {
                State::Size => match self.take_size(input)? {
                    None => return Ok(None),
                    Some(0) if Bug::LastChunkMissed.is_planted() => self.state = State::DataEnd,
                    Some(0) => self.state = State::Trailers(0),
                    Some(size) => self.state = State::Data(size),
                },
                State::Data(_) if input.is_empty() => return Ok(None),
                State::Data(left) => {
                    let here = usize::try_from(left).map_or(input.len(), |n| n.min(input.len()));
                    self.state = match left - here as u64 {
                        0 => State::DataEnd,
                        left => {
                            State::Data(left - u64::from(Bug::ChunkSplitLosesByte.is_planted()))
                        }
                    };
                    return Ok(Some(BodyPart::Data(input.split_to(here).freeze())));
                }
                State::DataEnd if take_line_end(input)? => self.state = State::Size,
                State::DataEnd => return Ok(None),
                State::Trailers(from) => return self.trailers(input, from, limits),
            }
        }
    }

    /// Takes the line with the chunk size, if it is complete.
    fn take_size(&mut self, input: &mut BytesMut) -> Result<Option<u64>, MessageError> {
        let digits = input.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        if digits > MAX_SIZE_DIGITS || (digits == 0 && !input.is_empty()) {
            return Err(MessageError::InvalidChunkSize);
        }
        match input.get(digits) {
            None => return Ok(None),
            Some(b'\r' | b';') => {}
            Some(_) => return Err(MessageError::InvalidChunkSize),
        }
        let Some(feed) = memchr(b'\n', &input[digits..]) else {
            // The carriage return does not count as a part of the extension.
            if input.len() - digits > self.extensions_left as usize + 1 {
                return Err(MessageError::ChunkExtensionsTooLarge);
            }
            return Ok(None);
        };
        let Some((b'\r', extension)) = input[digits..digits + feed].split_last() else {
            return Err(MessageError::BareLineFeed);
        };
        if extension
            .iter()
            .any(|b| b.is_ascii_control() && *b != b'\t')
        {
            return Err(MessageError::InvalidChunkExtension);
        }
        self.extensions_left = u32::try_from(extension.len())
            .ok()
            .and_then(|taken| self.extensions_left.checked_sub(taken))
            .ok_or(MessageError::ChunkExtensionsTooLarge)?;
        let size = input[..digits].iter().fold(0, |size: u64, digit| {
            size << 4 | u64::from(char::from(*digit).to_digit(16).unwrap_or_default())
        });
        input.advance(digits + feed + 1);
        Ok(Some(size))
    }

    fn trailers(
        &mut self,
        input: &mut BytesMut,
        from: usize,
        limits: &Http1Limits,
    ) -> Result<Option<BodyPart>, MessageError> {
        if input.starts_with(b"\r\n") {
            input.advance(2);
            return Ok(Some(BodyPart::End(None)));
        }
        let end = parse::find_end(input, from, limits.trailers).map_err(|error| match error {
            MessageError::HeadersTooLarge => MessageError::TrailersTooLarge,
            error => error,
        })?;
        let (length, is_whole) = match end {
            HeaderEnd::At(length) => (length, true),
            HeaderEnd::Incomplete(length) => (length, false),
        };
        if !is_whole {
            // The `\r` of the empty line may have been received without its `\n`.
            self.state = State::Trailers(if length < 2 { 0 } else { length });
            return Ok(None);
        }
        let trailers = parse::parse_trailers(&input.split_to(length).freeze(), limits)?;
        Ok(Some(BodyPart::End(
            (!trailers.is_empty() && !Bug::TrailerLost.is_planted()).then_some(trailers),
        )))
    }
}

/// Chunks of at most this size are joined if several have been received, because processing each of
/// them, and forwarding it as a chunk or frame of its own, costs many times its bytes.
const MAX_JOINED_CHUNK: usize = 0xff;

/// Approximate size up to which chunks are joined.
const JOINED_SIZE: usize = 4 * 1024;

/// Joins complete small chunks without extensions, if there are at least two.
/// [`Decoder::take_size`] handles all other input.
fn join_small(input: &mut BytesMut) -> Option<Bytes> {
    let (first, mut taken) = small_chunk(input)?;
    let (second, length) = small_chunk(&input[taken..])?;
    taken += length;
    let mut joined = BytesMut::with_capacity((JOINED_SIZE + MAX_JOINED_CHUNK).min(input.len()));
    joined.extend_from_slice(first);
    joined.extend_from_slice(second);
    while joined.len() < JOINED_SIZE
        && let Some((data, length)) = small_chunk(&input[taken..])
    {
        joined.extend_from_slice(data);
        taken += length;
    }
    input.advance(taken);
    Some(joined.freeze())
}

/// Returns the data and the total length of a complete chunk whose size has one or two digits,
/// after any zeros, and is not 0.
fn small_chunk(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as usize);
    let zeros = bytes.iter().take(MAX_SIZE_DIGITS - 2);
    let zeros = zeros.take_while(|byte| **byte == b'0').count();
    let (size, data) = match &bytes[zeros..] {
        [one, b'\r', b'\n', data @ ..] => (digit(*one)?, data),
        [one, two, b'\r', b'\n', data @ ..] => (digit(*one)? << 4 | digit(*two)?, data),
        _ => return None,
    };
    if size == 0 || size > MAX_JOINED_CHUNK {
        return None;
    }
    let (data, rest) = data.split_at_checked(size)?;
    let rest = rest.strip_prefix(b"\r\n")?;
    Some((data, bytes.len() - rest.len()))
}

/// Takes the line end after a chunk, if it has been received.
fn take_line_end(input: &mut BytesMut) -> Result<bool, MessageError> {
    match **input {
        [] | [b'\r'] => Ok(false),
        [b'\r', b'\n', ..] => {
            input.advance(2);
            Ok(true)
        }
        _ => Err(MessageError::MissingChunkEnd),
    }
}

/// Writes the size of a chunk. The caller then writes the data, which must not be empty, and
/// [`CHUNK_END`].
pub(super) fn write_size(out: &mut Vec<u8>, size: usize) {
    let counted = size.saturating_sub(usize::from(Bug::ChunkSizeDigitLost.is_planted()));
    let digits = (usize::BITS - counted.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        out.push(b"0123456789abcdef"[size >> (4 * digit) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

pub(super) const CHUNK_END: &[u8] = b"\r\n";

/// Writes the last chunk and the trailer section. Trailers may come from HTTP/2; those that HTTP/1
/// does not allow are omitted.
pub(super) fn write_end(out: &mut Vec<u8>, trailers: Option<&HeaderMap>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        if is_allowed_in_trailers(name) && !Bug::TrailerNotSent.is_planted() {
            super::encode::write_field(out, name, value);
        }
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests;
