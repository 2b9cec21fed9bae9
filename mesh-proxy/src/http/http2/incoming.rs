//! The body of a message that arrives on an HTTP/2 stream.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http_body::Frame;

/// Polled by [`super::super::Body`]. Who asks for the next frame is done with the one before, of which the room in the windows is given back then: what the proxy
/// holds of a message, handed out or not, is never more than its window.
#[derive(Debug)]
pub(in crate::http) struct Incoming {
    stream: RecvStream,
    of: Of,
    /// Bytes that are still to come, when the head said how many there are. h2 refuses messages that do not keep to it.
    remaining: Option<u64>,
    /// Length of the frame that was handed out last.
    in_use: u32,
    /// There is no more data; trailers may follow.
    is_read: bool,
}

/// What the body belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Of {
    Request,
    Response,
}

impl Incoming {
    pub(in crate::http) fn new(stream: RecvStream, of: Of, length: Option<u64>) -> Self {
        Self {
            stream,
            of,
            remaining: length,
            in_use: 0,
            is_read: false,
        }
    }

    pub(in crate::http) fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    pub(in crate::http) fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    /// Empty frames are left out. Nobody needs them, and the next hop might count them against the connection that all requests to it share.
    pub(in crate::http) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        self.release();
        while !self.is_read {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => {
                    self.take(data.len());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(self.broken(error)),
                None => self.is_read = true,
            }
        }
        match ready!(self.stream.poll_trailers(cx)) {
            Ok(trailers) => Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers)))),
            Err(error) => Poll::Ready(self.broken(error)),
        }
    }

    fn release(&mut self) {
        if self.in_use > 0 {
            let length = std::mem::take(&mut self.in_use) as usize;
            // What the stream gave was in its window.
            let _cannot_fail = self.stream.flow_control().release_capacity(length);
        }
    }

    fn take(&mut self, length: usize) {
        // Frames are of 16 MiB at most, and ours allow less.
        self.in_use = u32::try_from(length).unwrap_or(u32::MAX);
        if let Some(remaining) = &mut self.remaining {
            *remaining = remaining.saturating_sub(length as u64);
        }
    }

    /// A server that has answered and does not want the rest of the request says so by this reset (RFC 9113, section 8.1), which may overtake the end of its response.
    fn broken(&self, error: h2::Error) -> Option<Result<Frame<Bytes>, h2::Error>> {
        let is_over = self.of == Of::Response
            && error.is_remote()
            && error.reason() == Some(Reason::NO_ERROR)
            && self.remaining.is_none_or(|remaining| remaining == 0);
        (!is_over).then_some(Err(error))
    }
}
