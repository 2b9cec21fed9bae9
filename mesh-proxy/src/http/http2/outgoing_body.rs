//! Writes the body of a message to an HTTP/2 stream. Used for responses by the server and for
//! requests by the client.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body as _;
use mesh_planted::Bug;

use super::SendStream;
use crate::http::{Body, BodyError};

/// A body being sent: a future that completes when the connection has received all of it.
///
/// Sends only what the flow-control windows allow, and reads at most one [`PendingFrame`] more than
/// that from the body.
pub(in crate::http) struct OutgoingBody {
    body: Body,
    stream: SendStream,
    pending: PendingFrame,
    end: Option<BodyEnd>,
    /// The number of frames that were taken from the body, or sent.
    progress: u64,
}

/// What follows the data.
enum BodyEnd {
    NoTrailers,
    Trailers(HeaderMap),
}

/// Why a body was not sent completely.
#[derive(Debug, thiserror::Error)]
pub(in crate::http) enum SendBodyError {
    #[error(transparent)]
    Stream(#[from] mesh_http2::Error),
    #[error(transparent)]
    Body(#[from] BodyError),
}

/// The data of one DATA frame. Small parts that are available at the same time are joined, because
/// a frame costs each following proxy and application more than copying its bytes costs here, and
/// because many receivers, among them h2, limit the number of small frames.
#[derive(Default)]
struct PendingFrame {
    bytes: Bytes,
    /// Replaces `bytes` if there is more than one part.
    joined: BytesMut,
    /// A part that was too large to be copied.
    next: Option<Bytes>,
}

/// Larger parts are sent without being copied. Copying must cost less than a frame.
const MAX_COPIED: usize = 1024;
/// A frame of this size is not joined with further parts.
const JOINED_SIZE: usize = 4096;

impl OutgoingBody {
    pub(in crate::http) fn new(body: Body, stream: SendStream) -> Self {
        Self {
            body,
            stream,
            pending: PendingFrame::default(),
            end: None,
            progress: 0,
        }
    }

    pub(super) fn progress(&self) -> u64 {
        self.progress
    }

    /// Whether nothing of the body has been read.
    pub(in crate::http) fn is_untouched(&self) -> bool {
        self.progress == 0
    }

    /// Returns the body, unless a part of it has been read.
    pub(in crate::http) fn into_untouched_body(self) -> Option<Body> {
        self.is_untouched().then_some(self.body)
    }

    /// Ready when another attempt has taken the body.
    pub(super) fn poll_superseded(&self, cx: &Context<'_>) -> Poll<()> {
        self.body.poll_superseded(cx)
    }

    /// As [`Future::poll`]; returns whether all of the body was sent.
    pub(super) fn poll_send_all(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let sent = ready!(Pin::new(self).poll(cx));
        if let Err(error) = &sent {
            tracing::debug!(%error, "Request body could not be sent completely");
        }
        Poll::Ready(sent.is_ok())
    }

    /// Reads the body until a frame is full. Pending if the body has nothing more for now.
    fn poll_fill_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        // If the end is already known, read it too, so that a full frame carries END_STREAM.
        while self.end.is_none() && (!self.pending.is_full() || self.body.is_end_stream()) {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
            self.progress += 1;
            let Some(frame) = frame else {
                self.end = Some(BodyEnd::NoTrailers);
                break;
            };
            match frame?.into_data() {
                Ok(data) => self.pending.push(data),
                Err(frame) => self.end = frame.into_trailers().ok().map(BodyEnd::Trailers),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendBodyError>> {
        loop {
            let filled = self.poll_fill_frame(cx);
            let is_waiting = filled.is_pending();
            let sent = self.poll_send_pending(cx);
            // The peer receives the data that preceded the failure, as far as the windows allow: it
            // does without a proxy, too.
            if let Poll::Ready(Err(error)) = filled {
                return Poll::Ready(Err(error.into()));
            }
            let is_last = ready!(sent)?;
            if is_last {
                return Poll::Ready(Ok(()));
            }
            match self.end.take() {
                Some(BodyEnd::NoTrailers) => {
                    self.stream.send_data(Bytes::new(), true);
                    return Poll::Ready(Ok(()));
                }
                Some(BodyEnd::Trailers(trailers)) => {
                    self.stream.send_trailers(&trailers);
                    return Poll::Ready(Ok(()));
                }
                None if is_waiting => return Poll::Pending,
                None => {}
            }
        }
    }

    /// Sends the data that was read; returns whether it ended the stream.
    fn poll_send_pending(&mut self, cx: &Context<'_>) -> Poll<Result<bool, SendBodyError>> {
        while !self.pending.is_empty() {
            let capacity = ready!(self.stream.poll_capacity(cx))?;
            let data = self.pending.take(capacity);
            let is_last = self.pending.is_empty() && matches!(self.end, Some(BodyEnd::NoTrailers));
            self.stream.send_data(data, is_last);
            self.progress += 1;
            if is_last {
                return Poll::Ready(Ok(true));
            }
        }
        Poll::Ready(Ok(false))
    }
}

impl Future for OutgoingBody {
    type Output = Result<(), SendBodyError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(sent) = self.poll_send(cx) else {
            // While there is nothing to send, only this poll reports a reset.
            return self.stream.poll_failure(cx).map(|error| Err(error.into()));
        };
        if let Err(SendBodyError::Body(error)) = &sent {
            let code = if self.stream.is_response() {
                error.response_error_code()
            } else {
                error.error_code()
            };
            self.stream.reset(code);
        }
        Poll::Ready(sent)
    }
}

impl PendingFrame {
    fn push(&mut self, data: Bytes) {
        if self.is_empty() {
            self.bytes = data;
        } else if data.len() > MAX_COPIED && Bug::BytesReordered.is_planted() {
            self.next = Some(std::mem::replace(&mut self.bytes, data));
        } else if data.len() > MAX_COPIED {
            self.next = Some(data);
        } else {
            if self.joined.is_empty() {
                self.joined.reserve(MAX_COPIED);
                self.joined.extend_from_slice(&self.bytes);
            }
            self.joined.extend_from_slice(&data);
        }
    }

    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn is_full(&self) -> bool {
        self.next.is_some() || self.bytes.len() > MAX_COPIED || self.joined.len() >= JOINED_SIZE
    }

    /// Takes the frame, or at most `capacity` bytes of it.
    fn take(&mut self, capacity: usize) -> Bytes {
        if !self.joined.is_empty() {
            self.bytes = std::mem::take(&mut self.joined).freeze();
        }
        let frame = self.bytes.split_to(capacity.min(self.bytes.len()));
        if self.bytes.is_empty() {
            self.bytes = self.next.take().unwrap_or_default();
        }
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_joined_and_split_in_order() {
        let mut pending = PendingFrame::default();
        let mut expected = Vec::new();
        let mut sent = Vec::new();
        let mut next = (0_u8..=255).cycle();
        // Data sizes below and above the copy limit, with windows smaller, equal and larger.
        for (size, capacity) in [(1, 10), (900, 500), (5000, 1), (1024, 4096), (1025, 1024)]
            .into_iter()
            .cycle()
            .take(1000)
        {
            let part: Bytes = next.by_ref().take(size).collect();
            expected.extend_from_slice(&part);
            pending.push(part);
            while pending.is_full() {
                let frame = pending.take(capacity);
                assert!(!frame.is_empty() && frame.len() <= capacity);
                sent.extend_from_slice(&frame);
            }
        }
        while !pending.is_empty() {
            sent.extend_from_slice(&pending.take(usize::MAX));
        }
        assert_eq!(sent, expected);
    }
}
