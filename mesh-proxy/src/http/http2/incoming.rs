//! The body of a message that arrives on an HTTP/2 stream.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use mesh_http2::{BodyFrame, Error, ErrorCode};

use super::link::Reader;

/// Polled by [`super::super::Body`]. Who asks for the next frame is done with the one before, of
/// which the room in the windows is given back then: what the proxy holds of a message, handed out
/// or not, is never more than its window.
#[derive(Debug)]
pub(in crate::http) struct Incoming {
    reader: Reader,
    of: Of,
    /// There was a head and nothing else.
    is_head_only: bool,
    /// Bytes that were not handed out yet, when the head said how many there are.
    remaining: Option<u64>,
}

/// What the body belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Request,
    Response,
}

impl Incoming {
    pub(super) fn request(reader: Reader, length: Option<u64>, is_head_only: bool) -> Self {
        Self {
            reader,
            of: Of::Request,
            is_head_only,
            remaining: length,
        }
    }

    /// Of a response whose head has come.
    pub(super) fn response(reader: Reader, length: Option<u64>) -> Self {
        let (connection, id) = reader.connection();
        let is_head_only = connection.is_head_only(id);
        drop(connection);
        Self {
            reader,
            of: Of::Response,
            is_head_only,
            remaining: length,
        }
    }

    pub(in crate::http) fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// Whether there is no body, not even an empty one: some servers of gRPC tell them apart.
    pub(in crate::http) fn is_head_only(&self) -> bool {
        self.is_head_only
    }

    pub(in crate::http) fn is_end_stream(&self) -> bool {
        let (connection, id) = self.reader.connection();
        connection.is_read(id)
    }

    /// Empty frames are left out. Nobody needs them, and the next hop might count them against the
    /// connection that all requests to it share.
    pub(in crate::http) fn poll_frame(
        &mut self,
        cx: &Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let piece = {
            let (mut connection, id) = self.reader.connection();
            ready!(connection.poll_body_frame(id, cx.waker()))
        };
        Poll::Ready(match piece {
            Some(Ok(BodyFrame::Data(data))) => {
                if let Some(remaining) = &mut self.remaining {
                    *remaining = remaining.saturating_sub(data.len() as u64);
                }
                Some(Ok(Frame::data(data)))
            }
            Some(Ok(BodyFrame::Trailers(trailers))) => Some(Ok(Frame::trailers(trailers))),
            Some(Err(error)) if self.is_over(&error) => None,
            Some(Err(error)) => Some(Err(error)),
            None => None,
        })
    }

    /// A server that has answered and does not want the rest of the request says so by this reset
    /// (RFC 9113, section 8.1), which may overtake the end of its response.
    fn is_over(&self, error: &Error) -> bool {
        self.of == Of::Response
            && matches!(error, Error::Reset(ErrorCode::NO_ERROR))
            && self.remaining.is_none_or(|remaining| remaining == 0)
    }
}
