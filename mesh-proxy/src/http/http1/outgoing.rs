//! Writes the body of a message to a connection, from wherever it comes. Used for responses by the
//! server and for requests by the client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame};

use super::{Connection, Error, chunked};
use crate::http::Body;

/// How the end of the body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoder {
    /// So many bytes are still to come; 0 also for messages that have no body.
    Bytes(u64),
    Chunked,
    /// By closing the connection.
    Close,
}

/// A body on its way.
#[derive(Debug)]
pub(crate) struct Outgoing {
    body: Body,
    encoder: Encoder,
    /// Whether anything of the body has been taken.
    begun: bool,
    ended: bool,
}

impl Outgoing {
    pub(crate) fn new(body: Body, encoder: Encoder) -> Self {
        Self {
            body,
            encoder,
            begun: false,
            ended: false,
        }
    }

    /// The body, unless something of it has been sent.
    pub(crate) fn into_unbegun(self) -> Option<Body> {
        (!self.begun).then_some(self.body)
    }

    /// Writes what there is, together with what is waiting to be written. Ready when all of it has
    /// been.
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
                    // Whatever there is goes now; more may take its time.
                    if let Poll::Ready(Err(error)) = to.poll_flush(cx) {
                        return Poll::Ready(Err(error));
                    }
                    return Poll::Pending;
                }
            };
            self.begun |= frame.is_some();
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
                if let Encoder::Bytes(left) = &mut self.encoder {
                    let rest = left.checked_sub(data.len() as u64);
                    *left = rest.ok_or(Error::WrongLength)?;
                }
                let as_chunk = self.encoder == Encoder::Chunked;
                to.write(|output| output.push(data, as_chunk));
            }
            Err(frame) => return self.end(to, frame.into_trailers().ok()),
        }
        Ok(())
    }

    /// Trailers go with chunked bodies only.
    fn end(&mut self, to: &Connection, trailers: Option<HeaderMap>) -> Result<(), Error> {
        self.ended = true;
        match self.encoder {
            Encoder::Bytes(0) | Encoder::Close => {}
            Encoder::Bytes(_) => return Err(Error::WrongLength),
            Encoder::Chunked => {
                to.write(|output| chunked::write_end(output.flat(), trailers.as_ref()));
            }
        }
        Ok(())
    }
}
