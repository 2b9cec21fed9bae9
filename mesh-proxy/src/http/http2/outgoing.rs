//! Writes the body of a message to an HTTP/2 stream, from wherever it comes. Used for responses by
//! the server and for requests by the client.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body as _;

use super::Writer;
use crate::http::{Body, BodyError};

/// A body on its way: a future that is ready when all of it has been handed to the connection.
///
/// Hands on only what the other side's windows have room for, and takes no more than one [`Batch`]
/// beyond it from the body.
pub(in crate::http) struct Outgoing {
    body: Body,
    writer: Writer,
    batch: Batch,
    end: Option<End>,
}

/// What comes after the data.
enum End {
    Nothing,
    Trailers(HeaderMap),
}

/// Why a body did not get to its end.
#[derive(Debug, thiserror::Error)]
pub(in crate::http) enum Interrupted {
    #[error(transparent)]
    Stream(#[from] mesh_http2::Error),
    #[error(transparent)]
    Body(#[from] BodyError),
}

/// Data that will be sent in one frame. Small pieces that are there at the same time are put
/// together: a frame costs every proxy and application on the way more than copying its bytes costs
/// us, and many receivers, h2 among them, allow only so many small ones.
#[derive(Default)]
struct Batch {
    bytes: Bytes,
    /// Instead of `bytes` when there was more than one piece.
    joined: BytesMut,
    /// A piece that was too large to be copied.
    next: Option<Bytes>,
}

/// Larger pieces are sent as they are. What is copied stays below what a frame costs.
const SMALL: usize = 1024;
/// A batch of this size is not made larger.
const FULL: usize = 4096;

impl Outgoing {
    pub(in crate::http) fn new(body: Body, writer: Writer) -> Self {
        Self {
            body,
            writer,
            batch: Batch::default(),
            end: None,
        }
    }

    /// Takes what there is from the body, until a frame is full. Pending when the body will wake
    /// the task.
    fn poll_gather(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        // A full frame may be the last: it says so itself if that is known.
        while self.end.is_none() && (!self.batch.is_full() || self.body.is_end_stream()) {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
                self.end = Some(End::Nothing);
                break;
            };
            match frame?.into_data() {
                Ok(data) => self.batch.push(data),
                Err(frame) => self.end = frame.into_trailers().ok().map(End::Trailers),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Interrupted>> {
        loop {
            let gathered = self.poll_gather(cx)?;
            while !self.batch.is_empty() {
                let room = ready!(self.writer.poll_capacity(cx))?;
                let data = self.batch.take(room);
                let is_last = self.batch.is_empty() && matches!(self.end, Some(End::Nothing));
                self.writer.send_data(data, is_last);
                if is_last {
                    return Poll::Ready(Ok(()));
                }
            }
            match self.end.take() {
                Some(End::Nothing) => {
                    self.writer.send_data(Bytes::new(), true);
                    return Poll::Ready(Ok(()));
                }
                Some(End::Trailers(trailers)) => {
                    self.writer.send_trailers(&trailers);
                    return Poll::Ready(Ok(()));
                }
                None => ready!(gathered),
            }
        }
    }
}

impl Future for Outgoing {
    type Output = Result<(), Interrupted>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(sent) = self.poll_send(cx) else {
            // While there is nothing to send, nothing else would end it.
            return self.writer.poll_failure(cx).map(|error| Err(error.into()));
        };
        if let Err(Interrupted::Body(error)) = &sent {
            self.writer.reset(error.reason());
        }
        Poll::Ready(sent)
    }
}

impl Batch {
    fn push(&mut self, data: Bytes) {
        if self.is_empty() {
            self.bytes = data;
        } else if data.len() > SMALL {
            self.next = Some(data);
        } else {
            if self.joined.is_empty() {
                self.joined.reserve(SMALL);
                self.joined.extend_from_slice(&self.bytes);
            }
            self.joined.extend_from_slice(&data);
        }
    }

    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn is_full(&self) -> bool {
        self.next.is_some() || self.bytes.len() > SMALL || self.joined.len() >= FULL
    }

    /// The next frame, or the beginning of it that `room` has place for.
    fn take(&mut self, room: usize) -> Bytes {
        if !self.joined.is_empty() {
            self.bytes = std::mem::take(&mut self.joined).freeze();
        }
        let frame = self.bytes.split_to(room.min(self.bytes.len()));
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
    fn frames_are_joined_and_cut_and_stay_in_order() {
        let mut batch = Batch::default();
        let mut expected = Vec::new();
        let mut sent = Vec::new();
        let mut next = (0_u8..=255).cycle();
        // Sizes below and above what is copied, and room for less, all, and more.
        for (size, room) in [(1, 10), (900, 500), (5000, 1), (1024, 4096), (1025, 1024)]
            .into_iter()
            .cycle()
            .take(1000)
        {
            let piece: Bytes = next.by_ref().take(size).collect();
            expected.extend_from_slice(&piece);
            batch.push(piece);
            while batch.is_full() {
                let frame = batch.take(room);
                assert!(!frame.is_empty() && frame.len() <= room);
                sent.extend_from_slice(&frame);
            }
        }
        while !batch.is_empty() {
            sent.extend_from_slice(&batch.take(usize::MAX));
        }
        assert_eq!(sent, expected);
    }
}
