//! The decoder of a body: determines which bytes of the input belong to it.

use bytes::BytesMut;
use mesh_planted::Bug;

use crate::config::Http1Limits;
use crate::http::http1::chunked::{self, BodyPart};
use crate::http::message_error::MessageError;

/// What remains of the body.
#[derive(Debug)]
pub(super) enum BodyDecoder {
    Complete,
    Length(u64),
    Chunked(chunked::Decoder),
    UntilClose,
    /// The body ended too early or was invalid. Nothing more can be read from the connection.
    Failed,
}

impl BodyDecoder {
    /// Whether the end of the connection is the end of the body.
    pub(super) fn ends_with_connection(&self) -> bool {
        matches!(self, Self::UntilClose) || Bug::CutBodyIsComplete.is_planted()
    }

    /// Whether a reset is the end of the body: never.
    pub(super) fn ends_with_reset(&self) -> bool {
        matches!(self, Self::UntilClose) && Bug::ResetBodyIsComplete.is_planted()
    }

    /// Takes the next part off `input`; `None` if it has not been received, or the body is
    /// complete.
    pub(super) fn next(
        &mut self,
        input: &mut BytesMut,
        limits: &Http1Limits,
    ) -> Result<Option<BodyPart>, MessageError> {
        let data = match self {
            Self::Complete | Self::Failed => return Ok(None),
            Self::Chunked(decoder) => {
                let part = decoder.next(input, limits)?;
                if let Some(BodyPart::End(_)) = part {
                    *self = Self::Complete;
                }
                return Ok(part);
            }
            Self::Length(_) | Self::UntilClose if input.is_empty() => return Ok(None),
            Self::Length(left) => {
                let here = usize::try_from(*left).map_or(input.len(), |n| n.min(input.len()));
                *left -= here as u64;
                if *left == 0 {
                    *self = Self::Complete;
                }
                input.split_to(here)
            }
            Self::UntilClose => input.split(),
        };
        Ok(Some(BodyPart::Data(data.freeze())))
    }
}
