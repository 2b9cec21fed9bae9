//! The handles that other tasks hold of a connection: the body that they read, and the sender of
//! interim responses.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, Version};
use http_body::Frame;

use super::decoder::BodyDecoder;
use super::{Connection, ExpectContinue};
use crate::http::buffers::READ_SIZE;
use crate::http::client_close::UpstreamStream;
use crate::http::http1::Error;
use crate::http::http1::encode::{self, FramingHeaders};

/// A body that its reader polls from the connection. Dropping it discards the rest.
#[derive(Debug)]
pub(crate) struct IncomingBody(pub(super) Rc<Connection>);

impl IncomingBody {
    pub(crate) fn poll_frame(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let mut inner = self.0.inner();
        if let BodyDecoder::Failed = inner.body {
            return Poll::Ready(Some(Err(Error::Incomplete)));
        }
        inner.send_local_continue(cx);
        inner.poll_body(cx).map(Result::transpose)
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        matches!(self.0.inner().body, BodyDecoder::Complete)
    }

    /// The remaining length, if it is known.
    pub(crate) fn remaining(&self) -> Option<u64> {
        match self.0.inner().body {
            BodyDecoder::Complete => Some(0),
            BodyDecoder::Length(left) => Some(left),
            _ => None,
        }
    }

    /// Enlarges the reads of a response. `grant` gets the bytes that are missing and returns how
    /// many are allowed.
    pub(in crate::http) fn widen_reads(&self, grant: impl FnOnce(u32) -> u32) {
        let mut inner = self.0.inner();
        let missing = (READ_SIZE as u32).saturating_sub(inner.read_size);
        let missing = match inner.body {
            BodyDecoder::Complete | BodyDecoder::Failed => 0,
            BodyDecoder::Length(left) => {
                let unread = left.saturating_sub(inner.input.len() as u64);
                let beyond = unread.saturating_sub(inner.read_size.into());
                // A read that fills its buffer is followed by one that finds nothing.
                let room = beyond + u64::from(beyond > 0);
                u32::try_from(room).map_or(missing, |room| room.min(missing))
            }
            BodyDecoder::Chunked(_) | BodyDecoder::UntilClose => missing,
        };
        if missing > 0 {
            inner.read_size += grant(missing).min(missing);
        }
    }
}

impl Drop for IncomingBody {
    fn drop(&mut self) {
        let mut inner = self.0.inner();
        inner.body_in_use = false;
        inner.wake_connection_task();
    }
}

/// Sends interim responses to the client of a request received on a connection.
#[derive(Clone, Debug)]
pub(crate) struct InterimSender {
    connection: Rc<Connection>,
    /// HTTP/1.0 has no interim responses.
    is_http10: bool,
}

impl InterimSender {
    pub(crate) fn new(connection: &Rc<Connection>, is_http10: bool) -> Self {
        Self {
            connection: connection.clone(),
            is_http10,
        }
    }

    pub(crate) fn expects_continue(&self) -> bool {
        self.connection.inner().expectation.is_awaited()
    }

    pub(crate) fn forward_expectation(&self, forwarded: bool) {
        let mut inner = self.connection.inner();
        if inner.expectation.is_awaited() {
            inner.expectation = if forwarded {
                ExpectContinue::Forwarded
            } else {
                ExpectContinue::Local
            };
        }
    }

    pub(crate) fn is_continue_awaited(&self) -> bool {
        self.connection.inner().expectation == ExpectContinue::Forwarded
    }

    /// Queues an interim response. The connection's task, which the caller runs in, writes it.
    pub(crate) fn send(&self, status: StatusCode, headers: &HeaderMap) {
        if self.is_http10 {
            return;
        }
        let mut inner = self.connection.inner();
        if status == StatusCode::CONTINUE {
            if inner.expectation == ExpectContinue::Sent {
                return;
            }
            inner.expectation = ExpectContinue::None;
        }
        inner.has_interim = true;
        let status_line = (Version::HTTP_11, status, None);
        inner.output.append(|buffer| {
            encode::write_response(buffer, status_line, headers, FramingHeaders::Omit, None);
        });
    }

    /// Whether the client has been sent an interim response.
    pub(crate) fn has_sent(&self) -> bool {
        self.connection.inner().has_interim
    }

    pub(in crate::http) fn pass_close_to(&self, upstream: UpstreamStream) {
        let mut inner = self.connection.inner();
        if inner.read_closed {
            upstream.close();
        } else {
            inner.upstream = Some(upstream);
        }
    }

    pub(in crate::http) fn is_client_closed(&self) -> bool {
        self.connection.inner().read_closed
    }

    /// Ends the exchange, whose task the caller runs in, without a response.
    pub(in crate::http) fn abandon(&self) {
        self.connection.inner().is_abandoned = true;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::config::HttpLimits;
    use crate::http::body_timeout::PendingRequestBody as _;
    use crate::http::buffers::FIRST_READ_SIZE;
    use crate::transport::Io;

    async fn connection() -> Rc<Connection> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await;
        Connection::new(Io::plain(tcp.unwrap()), HttpLimits::DEFAULT.http1)
    }

    #[tokio::test]
    async fn body_knows_its_rest_and_its_end() {
        let connection = connection().await;
        let body = IncomingBody(connection.clone());
        for (decoder, remaining, is_end) in [
            (BodyDecoder::Length(5), Some(5), false),
            (BodyDecoder::UntilClose, None, false),
            (BodyDecoder::Failed, None, false),
            (BodyDecoder::Complete, Some(0), true),
        ] {
            connection.inner().body = decoder;
            assert_eq!(
                (body.remaining(), body.is_end_stream()),
                (remaining, is_end)
            );
        }
    }

    /// A byte more than the body, so that a read that ends it does not fill the buffer.
    #[tokio::test]
    async fn larger_reads_are_asked_for_as_far_as_the_body_needs_them() {
        let connection = connection().await;
        let body = IncomingBody(connection.clone());
        connection.inner().read_size = FIRST_READ_SIZE;
        let usual = u64::from(FIRST_READ_SIZE);
        let most = READ_SIZE as u64 - usual;
        for (length, expected) in [
            (0, None),
            (usual, None),
            (usual + 10, Some(11)),
            (usual + most, Some(most)),
            (u64::MAX, Some(most)),
        ] {
            connection.inner().body = BodyDecoder::Length(length);
            let mut asked = None;
            body.widen_reads(|missing| {
                asked = Some(u64::from(missing));
                0
            });
            assert_eq!(asked, expected, "{length}");
        }
    }

    #[tokio::test]
    async fn body_is_awaited_while_its_reader_waits_and_the_client_may_send() {
        let connection = connection().await;
        for (in_use, waits, expects, expected) in [
            (true, true, false, true),
            (true, true, true, false),
            (true, false, false, false),
            (false, true, false, false),
        ] {
            let mut inner = connection.inner();
            inner.body_in_use = in_use;
            inner.reader_waits = waits;
            inner.expectation = if expects {
                ExpectContinue::Forwarded
            } else {
                ExpectContinue::None
            };
            drop(inner);
            let case = (in_use, waits, expects);
            assert_eq!(connection.is_awaited(), expected, "{case:?}");
        }
    }
}
