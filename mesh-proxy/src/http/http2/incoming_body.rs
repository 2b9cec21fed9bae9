//! The bodies of messages that are received on HTTP/2 streams.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use mesh_http2::{BodyFrame, Error, ErrorCode};

use super::FIRST_RESPONSE_WINDOW;
use super::shared_connection::{RecvStream, ResponseFuture};
use crate::http::headers;

/// The body of a message that is received on an HTTP/2 stream.
///
/// A poll for the next frame releases the flow-control capacity of the previous one, so the proxy
/// never holds more of a message than its window.
#[derive(Debug)]
pub(in crate::http) struct IncomingBody {
    stream: RecvStream,
    kind: MessageKind,
    /// The message ended with its headers.
    has_no_body: bool,
    /// The remaining bytes, if the message has a content-length.
    remaining: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageKind {
    Request,
    Response,
}

impl IncomingBody {
    pub(super) fn request(stream: RecvStream, length: Option<u64>, has_no_body: bool) -> Self {
        Self {
            stream,
            kind: MessageKind::Request,
            has_no_body,
            remaining: length,
        }
    }

    /// The body of a response whose headers have been received.
    pub(in crate::http) fn response(response: ResponseFuture, length: Option<u64>) -> Self {
        let stream = response.into_stream();
        let (connection, id) = stream.connection();
        let has_no_body = connection.is_headers_only(id);
        drop(connection);
        Self {
            stream,
            kind: MessageKind::Response,
            has_no_body,
            remaining: length,
        }
    }

    pub(in crate::http) fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// Widens the flow-control window of a response. `grant` gets the bytes that it lacks, and
    /// returns the bytes to add.
    pub(in crate::http) fn widen_window(&self, grant: impl FnOnce(u32) -> u32) {
        let first = u64::from(FIRST_RESPONSE_WINDOW);
        let is_long = self.remaining.is_none_or(|length| length > first);
        self.stream.record_length(is_long);
        let (mut connection, id) = self.stream.connection();
        let missing = connection.missing_window(id);
        if missing > 0 {
            connection.widen_window(id, grant(missing));
        }
    }

    /// Whether there is no body, not even an empty one: some gRPC servers distinguish the two.
    pub(in crate::http) fn has_no_body(&self) -> bool {
        self.has_no_body
    }

    pub(in crate::http) fn is_end_stream(&self) -> bool {
        let (connection, id) = self.stream.connection();
        connection.is_fully_read(id)
    }

    /// Polls for the next frame. Empty frames are skipped: they carry nothing, and the next hop
    /// might count them against the connection that all requests to it share.
    pub(in crate::http) fn poll_frame(
        &mut self,
        cx: &Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let frame = {
            let (mut connection, id) = self.stream.connection();
            ready!(connection.poll_body_frame(id, cx.waker()))
        };
        Poll::Ready(match frame {
            Some(Ok(BodyFrame::Data(data))) => {
                if let Some(remaining) = &mut self.remaining {
                    *remaining = remaining.saturating_sub(data.len() as u64);
                }
                Some(Ok(Frame::data(data)))
            }
            Some(Ok(BodyFrame::Trailers(mut trailers))) => {
                if self.kind == MessageKind::Request {
                    headers::strip_request_trailers(&mut trailers);
                }
                Some(Ok(Frame::trailers(trailers)))
            }
            Some(Err(error)) if self.is_complete_despite(&error) => None,
            Some(Err(error)) => Some(Err(error)),
            None => None,
        })
    }

    /// A server that has responded and does not want the rest of the request resets the stream with
    /// NO_ERROR (RFC 9113, section 8.1). Some do so before END_STREAM: then only a response whose
    /// announced length has arrived is complete. Any other may be truncated.
    fn is_complete_despite(&self, error: &Error) -> bool {
        self.kind == MessageKind::Response
            && matches!(error, Error::Reset(ErrorCode::NO_ERROR))
            && self.remaining == Some(0)
    }
}
