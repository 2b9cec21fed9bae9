//! Reads the beginning of a response body ahead, because the status of a gRPC call may be in its
//! trailers. Used by `retry::attempts`.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::HeaderMap;
use http_body::{Body as _, Frame};

use super::{Body, BodyError, Content};

/// A body whose first frames have been read.
pub(super) struct PeekedBody {
    frames: VecDeque<Result<Frame<Bytes>, BodyError>>,
    /// The number of bytes that have been read ahead.
    length: usize,
    /// Whether nothing follows `frames`.
    has_ended: bool,
    rest: Body,
}

/// Longer responses are forwarded without knowing how they end.
const MAX_PEEKED: usize = 16 * 1024;

impl Body {
    /// Reads what has arrived of the body, up to [`MAX_PEEKED`] bytes, and returns its trailers if
    /// they are among it: a call that fails has at most a short message before them. Waits for the
    /// first frame only, and not at all without `may_wait`: the client may be waiting for the
    /// headers.
    pub(crate) async fn peek_trailers(&mut self, may_wait: bool) -> Option<HeaderMap> {
        if self.is_empty() {
            return None;
        }
        let mut peeked = PeekedBody {
            frames: VecDeque::new(),
            length: 0,
            has_ended: false,
            rest: mem::take(self),
        };
        if may_wait {
            poll_fn(|cx| peeked.poll_read(cx)).await;
        }
        while peeked.length <= MAX_PEEKED && !peeked.has_ended {
            let read = poll_fn(|cx| peeked.poll_read(cx)).now_or_never();
            if read.is_none() {
                break;
            }
        }
        let last = peeked.frames.back().and_then(|frame| frame.as_ref().ok());
        let trailers = last.and_then(Frame::trailers_ref).cloned();
        *self = Self::from_content(Content::Peeked(Box::new(peeked)));
        trailers
    }
}

impl PeekedBody {
    /// A body with these frames, which need not be waited for.
    #[cfg(test)]
    pub(super) fn of(frames: VecDeque<Result<Frame<Bytes>, BodyError>>) -> Self {
        Self {
            frames,
            length: 0,
            has_ended: true,
            rest: Body::empty(),
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let frame = ready!(Pin::new(&mut self.rest).poll_frame(cx));
        match frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref())
        {
            Some(data) => self.length += data.len(),
            None => self.has_ended = true,
        }
        self.frames.extend(frame);
        Poll::Ready(())
    }

    /// What has not been read.
    pub(super) fn rest(&self) -> &Body {
        &self.rest
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(frame)),
            None if self.has_ended => Poll::Ready(None),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && (self.has_ended || self.rest.is_end_stream())
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn peeked_body_is_delivered_completely() {
        for may_wait in [true, false] {
            let mut body = Body::full("hello");
            assert_eq!(body.peek_trailers(may_wait).await, None);
            assert!(!body.is_empty());
            assert_eq!(body.collect().await.unwrap().to_bytes(), "hello");
        }
    }

    #[tokio::test]
    async fn empty_body_stays_empty() {
        let mut body = Body::empty();
        assert_eq!(body.peek_trailers(true).await, None);
        assert!(body.is_empty());
    }
}
