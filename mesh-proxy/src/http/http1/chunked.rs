//! Chunked bodies: the decoder, which takes bytes as they come, and the few bytes that an encoder
//! adds. Pure; RFC 9112, section 7, without its leniencies.

use bytes::{Buf as _, Bytes, BytesMut};
use http::HeaderMap;
use memchr::memchr;

use super::head::{self, End};
use super::refused::Refused;
use crate::config::Http1Limits;
use crate::http::headers::may_be_trailer;

/// Where in a chunked body the next byte stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decoder {
    state: State,
    /// What all extensions together may still take.
    extensions_left: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size,
    /// So much of the chunk is to come.
    Data(u64),
    DataEnd,
    /// The trailers are known to go on after this many bytes.
    Trailers(usize),
}

/// One piece of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Data(Bytes),
    /// The body is over.
    End(Option<HeaderMap>),
}

/// A size of 16 digits is the largest that 64 bits hold.
const MAX_SIZE_DIGITS: usize = 16;

impl Decoder {
    pub(super) fn new(limits: &Http1Limits) -> Self {
        Self {
            state: State::Size,
            extensions_left: limits.extensions,
        }
    }

    /// Takes the next piece off `input`; `None` when more has to be read first. Not to be called
    /// again after the end or an error.
    pub(super) fn next(
        &mut self,
        input: &mut BytesMut,
        limits: &Http1Limits,
    ) -> Result<Option<Piece>, Refused> {
        loop {
            if self.state == State::Size
                && let Some(data) = join_small(input)
            {
                return Ok(Some(Piece::Data(data)));
            }
            match self.state {
                State::Size => match self.size(input)? {
                    None => return Ok(None),
                    Some(0) => self.state = State::Trailers(0),
                    Some(size) => self.state = State::Data(size),
                },
                State::Data(_) if input.is_empty() => return Ok(None),
                State::Data(left) => {
                    let here = usize::try_from(left).map_or(input.len(), |n| n.min(input.len()));
                    self.state = match left - here as u64 {
                        0 => State::DataEnd,
                        left => State::Data(left),
                    };
                    return Ok(Some(Piece::Data(input.split_to(here).freeze())));
                }
                State::DataEnd => match line_end(input)? {
                    false => return Ok(None),
                    true => self.state = State::Size,
                },
                State::Trailers(from) => return self.trailers(input, from, limits),
            }
        }
    }

    /// The line with the size, if it is there.
    fn size(&mut self, input: &mut BytesMut) -> Result<Option<u64>, Refused> {
        let digits = input.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        if digits > MAX_SIZE_DIGITS || (digits == 0 && !input.is_empty()) {
            return Err(Refused::ChunkSize);
        }
        match input.get(digits) {
            None => return Ok(None),
            Some(b'\r' | b';') => {}
            Some(_) => return Err(Refused::ChunkSize),
        }
        let Some(feed) = memchr(b'\n', &input[digits..]) else {
            // The carriage return is no part of the extension.
            return match input.len() - digits > self.extensions_left as usize + 1 {
                true => Err(Refused::ChunkExtensionsTooLarge),
                false => Ok(None),
            };
        };
        let Some((b'\r', extension)) = input[digits..digits + feed].split_last() else {
            return Err(Refused::BareLineFeed);
        };
        if extension
            .iter()
            .any(|b| b.is_ascii_control() && *b != b'\t')
        {
            return Err(Refused::ChunkExtension);
        }
        self.extensions_left = u32::try_from(extension.len())
            .ok()
            .and_then(|taken| self.extensions_left.checked_sub(taken))
            .ok_or(Refused::ChunkExtensionsTooLarge)?;
        let size = input[..digits].iter().fold(0, |size: u64, digit| {
            size << 4 | u64::from(char::from(*digit).to_digit(16).unwrap_or_default())
        });
        drop(input.split_to(digits + feed + 1));
        Ok(Some(size))
    }

    fn trailers(
        &mut self,
        input: &mut BytesMut,
        from: usize,
        limits: &Http1Limits,
    ) -> Result<Option<Piece>, Refused> {
        if input.starts_with(b"\r\n") {
            drop(input.split_to(2));
            return Ok(Some(Piece::End(None)));
        }
        let end = head::end(input, from, limits.trailers).map_err(|refused| match refused {
            Refused::HeadTooLarge => Refused::TrailersTooLarge,
            refused => refused,
        })?;
        let (length, is_whole) = match end {
            End::At(length) => (length, true),
            End::Later(length) => (length, false),
        };
        if !is_whole {
            // A first line end may be half there.
            self.state = State::Trailers(if length < 2 { 0 } else { length });
            return Ok(None);
        }
        let trailers = head::trailers(&input.split_to(length).freeze(), limits)?;
        Ok(Some(Piece::End((!trailers.is_empty()).then_some(trailers))))
    }
}

/// Chunks of at most so many bytes are joined when several of them were received: processing each
/// by itself, and sending it on as a chunk or frame of its own, costs many times its bytes.
const SMALL: usize = 0xff;

/// Chunks are joined up to about this size.
const JOINED: usize = 4 * 1024;

/// Joins complete small chunks without extensions, if there are at least two. All other input is
/// left to [`Decoder::size`].
fn join_small(input: &mut BytesMut) -> Option<Bytes> {
    let (first, mut taken) = small_chunk(input)?;
    let (second, behind) = small_chunk(&input[taken..])?;
    taken += behind;
    let mut joined = BytesMut::with_capacity((JOINED + SMALL).min(input.len()));
    joined.extend_from_slice(first);
    joined.extend_from_slice(second);
    while joined.len() < JOINED
        && let Some((data, behind)) = small_chunk(&input[taken..])
    {
        joined.extend_from_slice(data);
        taken += behind;
    }
    input.advance(taken);
    Some(joined.freeze())
}

/// The data of a complete chunk whose size has one or two digits and is not 0, and its whole
/// length.
fn small_chunk(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as usize);
    let (size, data) = match bytes {
        [one, b'\r', b'\n', data @ ..] => (digit(*one)?, data),
        [one, two, b'\r', b'\n', data @ ..] => (digit(*one)? << 4 | digit(*two)?, data),
        _ => return None,
    };
    if size == 0 || size > SMALL {
        return None;
    }
    let (data, behind) = data.split_at_checked(size)?;
    let behind = behind.strip_prefix(b"\r\n")?;
    Some((data, bytes.len() - behind.len()))
}

/// Takes the line end behind a chunk, if it is there.
fn line_end(input: &mut BytesMut) -> Result<bool, Refused> {
    match **input {
        [] | [b'\r'] => Ok(false),
        [b'\r', b'\n', ..] => {
            drop(input.split_to(2));
            Ok(true)
        }
        _ => Err(Refused::ChunkEnd),
    }
}

/// Writes what stands in front of a chunk. Behind it stands [`CHUNK_END`]. An empty chunk would end
/// the body.
pub(super) fn write_size(out: &mut Vec<u8>, size: usize) {
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        out.push(b"0123456789abcdef"[size >> (4 * digit) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

pub(super) const CHUNK_END: &[u8] = b"\r\n";

/// Writes the end of a body. Of the trailers, which may come from HTTP/2, only what HTTP/1 has a
/// place for.
pub(super) fn write_end(out: &mut Vec<u8>, trailers: Option<&HeaderMap>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        if may_be_trailer(name) {
            super::encode::field(out, name, value);
        }
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests;
