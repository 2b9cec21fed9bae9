//! Writes the body of a message to a connection. Used for responses by the server and for requests
//! by the client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame};

use super::{Connection, Error, chunked};
use crate::http::Body;

/// How the body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyEncoder {
    /// This many bytes remain; 0 also for messages without a body.
    Length(u64),
    Chunked,
    /// The end of the connection ends the body.
    UntilClose,
}

/// A body being sent.
#[derive(Debug)]
pub(crate) struct OutgoingBody {
    body: Body,
    encoder: BodyEncoder,
    /// The number of frames that were taken from the body.
    frames: u64,
    ended: bool,
}

impl OutgoingBody {
    pub(crate) fn new(body: Body, encoder: BodyEncoder) -> Self {
        Self {
            body,
            encoder,
            frames: 0,
            ended: false,
        }
    }

    /// Whether nothing of the body has been sent.
    pub(crate) fn is_unsent(&self) -> bool {
        self.frames == 0
    }

    /// Returns the body, unless a part of it has been sent.
    pub(crate) fn into_unsent_body(self) -> Option<Body> {
        self.is_unsent().then_some(self.body)
    }

    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// Ready when another attempt has taken the body.
    pub(crate) fn poll_superseded(&self, cx: &Context<'_>) -> Poll<()> {
        self.body.poll_superseded(cx)
    }

    /// Writes the output queued so far and the body. Ready when everything has been written.
    pub(crate) fn poll(
        &mut self,
        to: &Connection,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        while !self.ended {
            if to.write(|output| output.is_full()) {
                ready!(to.poll_flush(cx))?;
            }
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => Some(frame),
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Err(Error::Body(Box::new(error))));
                }
                Poll::Ready(None) => None,
                Poll::Pending => {
                    // Write the bytes at hand, because the body may take long to continue.
                    if let Poll::Ready(Err(error)) = to.poll_flush(cx) {
                        return Poll::Ready(Err(error));
                    }
                    return Poll::Pending;
                }
            };
            self.frames += u64::from(frame.is_some());
            self.take(frame, to)?;
        }
        to.poll_flush(cx)
    }

    fn take(&mut self, frame: Option<Frame<Bytes>>, to: &Connection) -> Result<(), Error> {
        let Some(frame) = frame else {
            return self.end(to, None);
        };
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => {
                if let BodyEncoder::Length(left) = &mut self.encoder {
                    let rest = left.checked_sub(data.len() as u64);
                    *left = rest.ok_or(Error::LengthMismatch)?;
                }
                let as_chunk = self.encoder == BodyEncoder::Chunked;
                to.write(|output| output.push(data, as_chunk));
            }
            Err(frame) => return self.end(to, frame.into_trailers().ok()),
        }
        Ok(())
    }

    /// Ends the body. Only chunked bodies have trailers.
    fn end(&mut self, to: &Connection, trailers: Option<HeaderMap>) -> Result<(), Error> {
        self.ended = true;
        to.complete_message();
        match self.encoder {
            BodyEncoder::Length(0) | BodyEncoder::UntilClose => {}
            BodyEncoder::Length(_) => return Err(Error::LengthMismatch),
            BodyEncoder::Chunked => {
                to.append(|buffer| chunked::write_end(buffer, trailers.as_ref()));
            }
        }
        Ok(())
    }
}
