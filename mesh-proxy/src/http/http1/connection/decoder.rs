//! The body that is being read: which bytes of the input belong to it.

use bytes::BytesMut;

use crate::config::Http1Limits;
use crate::http::http1::Refused;
use crate::http::http1::chunked::{self, Piece};

/// The rest of the body that is being read.
#[derive(Debug)]
pub(super) enum Decoder {
    Over,
    Bytes(u64),
    Chunked(chunked::Decoder),
    UntilClose,
    /// Ended too early, or was refused. Nothing can be read from the connection any more.
    Broken,
}

impl Decoder {
    /// The next piece, if it has been read. `None` also when the body is over.
    pub(super) fn next(
        &mut self,
        input: &mut BytesMut,
        limits: &Http1Limits,
    ) -> Result<Option<Piece>, Refused> {
        let data = match self {
            Self::Over | Self::Broken => return Ok(None),
            Self::Chunked(decoder) => {
                let piece = decoder.next(input, limits)?;
                if let Some(Piece::End(_)) = piece {
                    *self = Self::Over;
                }
                return Ok(piece);
            }
            Self::Bytes(_) | Self::UntilClose if input.is_empty() => return Ok(None),
            Self::Bytes(left) => {
                let here = usize::try_from(*left).map_or(input.len(), |n| n.min(input.len()));
                *left -= here as u64;
                if *left == 0 {
                    *self = Self::Over;
                }
                input.split_to(here)
            }
            Self::UntilClose => input.split(),
        };
        Ok(Some(Piece::Data(data.freeze())))
    }
}
