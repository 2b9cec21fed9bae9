//! What others hold of a connection: the body that they read from it, and the way for interim
//! responses.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, Version};
use http_body::Frame;

use super::decoder::Decoder;
use super::{Connection, Expectation};
use crate::http::http1::Error;
use crate::http::http1::encode::{self, Framing};

/// A body that is read from its connection by whoever polls it. Dropping it says that nobody will.
#[derive(Debug)]
pub(crate) struct Incoming(pub(super) Rc<Connection>);

impl Incoming {
    pub(crate) fn poll_frame(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let mut state = self.0.state();
        if let Decoder::Broken = state.body {
            return Poll::Ready(Some(Err(Error::Incomplete)));
        }
        state.keep_expectation(cx);
        state.poll_body(cx).map(Result::transpose)
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        matches!(self.0.state().body, Decoder::Over)
    }

    /// How much is to come, when that is known.
    pub(crate) fn remaining(&self) -> Option<u64> {
        match self.0.state().body {
            Decoder::Over => Some(0),
            Decoder::Bytes(left) => Some(left),
            _ => None,
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.body_held = false;
        state.tell_owner();
    }
}

/// [`Interim`](crate::http::interim::Interim) of a request that came on this connection.
#[derive(Clone, Debug)]
pub(crate) struct Interim(Rc<Connection>);

impl Interim {
    pub(crate) fn of(connection: &Rc<Connection>) -> Self {
        Self(connection.clone())
    }

    pub(crate) fn leave_expectation_to_server(&self) {
        let mut state = self.0.state();
        if state.expectation == Expectation::Ours {
            state.expectation = Expectation::Servers;
        }
    }

    pub(crate) fn is_awaited(&self) -> bool {
        self.0.state().expectation == Expectation::Servers
    }

    /// The connection's task, which the caller belongs to, writes it.
    pub(crate) fn send(&self, status: StatusCode, headers: &HeaderMap) {
        let mut state = self.0.state();
        if status == StatusCode::CONTINUE {
            state.expectation = Expectation::None;
        }
        let head = (Version::HTTP_11, status, None);
        encode::response(state.output.flat(), head, headers, Framing::None, None);
    }
}
