//! Request bodies that can be sent again: what an attempt reads of a body is copied, up to a limit,
//! and the next attempt reads the copy before the rest. Used by `retry::attempts`.
//!
//! The bytes are copied because a frame shares the memory of the buffer that it was received in,
//! which may be many times larger than the frame.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame};
use mesh_planted::Bug;

use super::{Body, BodyContext, BodyError, Content};
use crate::http::interim::InterimSender;
use crate::limits::replay_memory::{ReplayMemory, Reservation};

/// The body of a request. Each attempt reads from it.
#[derive(Clone)]
pub(crate) struct ReplayBody(Rc<RefCell<State>>);

/// Whether a request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    Possible,
    /// A part of its body is not kept.
    NotKept,
    /// Its client has received an interim response: it would see parts of the responses to two
    /// attempts.
    Answered,
}

/// The body of one attempt.
pub(super) struct ReplayReader {
    state: Rc<RefCell<State>>,
    /// The attempt that it belongs to. Only the last attempt may read.
    attempt: u32,
    /// The number of bytes that it has read.
    position: usize,
    has_read_trailers: bool,
}

struct State {
    /// The client's body, until its end.
    source: Option<Body>,
    /// `None`: the body is not kept, so the request cannot be sent again.
    kept: Option<Kept>,
    /// The attempt that may read. Each change supersedes the attempt before.
    attempt: u32,
    /// Whether a part of the client's body has been read.
    is_begun: bool,
    /// Wakes the last attempt's reader.
    waker: Option<Waker>,
    /// The length that the client has declared.
    length: Option<u64>,
    is_empty: bool,
    has_no_body: bool,
    interim: Option<InterimSender>,
}

/// What has been read of the client's body.
struct Kept {
    bytes: Vec<u8>,
    trailers: Option<HeaderMap>,
    limit: usize,
    /// Covers the capacity of `bytes`, and the trailers.
    reservation: Reservation,
}

/// The largest frame of a copy.
const MAX_FRAME: usize = 16 * 1024;

/// What a trailer field takes besides its name and value: an entry of the table of fields.
const FIELD_OVERHEAD: usize = 64;

impl ReplayBody {
    /// Keeps `body`, up to `limit` bytes, in what `memory` allows.
    pub(crate) fn new(body: Body, limit: usize, memory: &Arc<ReplayMemory>) -> Self {
        let length = body.size_hint().exact();
        let is_too_long = length.is_some_and(|length| length > limit as u64);
        let kept = (!is_too_long).then(|| Kept {
            bytes: Vec::new(),
            trailers: None,
            limit,
            reservation: memory.reservation(),
        });
        Self(Rc::new(RefCell::new(State {
            length,
            is_empty: body.is_empty(),
            has_no_body: body.has_no_body(),
            interim: body.interim(),
            source: Some(body),
            kept,
            attempt: 0,
            is_begun: false,
            waker: None,
        })))
    }

    /// Supersedes the previous attempt and returns the body of the next one. From now on nothing is
    /// read of the client's body until that attempt reads it. `None` if a byte that was already
    /// read is not kept: the rest would look like the whole body.
    pub(crate) fn next_attempt(&self) -> Option<Body> {
        let mut state = self.0.borrow_mut();
        state.attempt += 1;
        if let Some(waker) = state.waker.take() {
            // The previous attempt's reader may be a task that waits for the client or the server.
            waker.wake();
        }
        if state.kept.is_none() {
            let is_begun = std::mem::replace(&mut state.is_begun, true);
            return state.source.take_if(|_| !is_begun);
        }
        let content = if state.is_empty {
            Content::Empty
        } else {
            Content::Replay(ReplayReader {
                state: self.0.clone(),
                attempt: state.attempt,
                position: 0,
                has_read_trailers: false,
            })
        };
        let mut body = Body::from_content(content);
        body.context = state.interim.clone().map(BodyContext::Interim);
        Some(body)
    }

    /// Whether another attempt may send the request.
    pub(crate) fn repeat(&self) -> Repeat {
        let state = self.0.borrow();
        if state.interim.as_ref().is_some_and(InterimSender::has_sent) {
            Repeat::Answered
        } else if state.kept.is_some() {
            Repeat::Possible
        } else {
            Repeat::NotKept
        }
    }

    /// Whether the client has sent all of it, and all of it is kept.
    pub(crate) fn is_complete(&self) -> bool {
        let state = self.0.borrow();
        let is_read = || state.source.as_ref().is_none_or(Body::is_end_stream);
        state.kept.is_some() && is_read()
    }
}

impl ReplayReader {
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self {
            state,
            attempt,
            position,
            has_read_trailers,
        } = self;
        let mut state = state.borrow_mut();
        if state.attempt != *attempt {
            // The end of the body here would look like the request's end.
            return Poll::Ready(Some(Err(BodyError::Superseded)));
        }
        if let Some(data) = state.kept_after(*position) {
            *position += data.len();
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let Some(source) = &mut state.source else {
            let is_read = std::mem::replace(has_read_trailers, true);
            let trailers = state.kept_trailers().filter(|_| !is_read);
            return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
        };
        let Poll::Ready(frame) = Pin::new(source).poll_frame(cx) else {
            state.register(cx);
            return Poll::Pending;
        };
        state.is_begun = true;
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    *position += data.len();
                    let declared = state.length;
                    state.keep(|kept| kept.push(data, declared));
                } else if let Some(trailers) = frame.trailers_ref() {
                    *has_read_trailers = true;
                    state.source = None;
                    state.keep(|kept| kept.push_trailers(trailers));
                }
            }
            Some(Err(_)) => state.keep(|_kept| false),
            None => state.source = None,
        }
        Poll::Ready(frame)
    }

    /// Ready when this is not the last attempt any more.
    pub(super) fn poll_superseded(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state.borrow_mut();
        if state.attempt != self.attempt {
            return Poll::Ready(());
        }
        state.register(cx);
        Poll::Pending
    }

    pub(super) fn has_no_body(&self) -> bool {
        self.state.borrow().has_no_body
    }

    /// Whether nothing follows what has been read.
    pub(super) fn is_end_stream(&self) -> bool {
        self.is_at_end(Body::is_end_stream)
    }

    /// The same, only if the body knows it without a lookup.
    pub(super) fn is_end_known(&self) -> bool {
        self.is_at_end(Body::is_end_known)
    }

    fn is_at_end(&self, is_source_at_end: impl FnOnce(&Body) -> bool) -> bool {
        let state = self.state.borrow();
        let is_kept_read = state.kept.as_ref().is_none_or(|kept| {
            self.position >= kept.bytes.len() && (kept.trailers.is_none() || self.has_read_trailers)
        });
        is_kept_read && state.source.as_ref().is_none_or(is_source_at_end)
    }

    /// The remaining bytes of a body with a declared length.
    pub(super) fn remaining(&self) -> Option<u64> {
        let length = self.state.borrow().length?;
        Some(length.saturating_sub(self.position as u64))
    }
}

impl State {
    fn register(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
    }

    /// Returns kept bytes from `position` on.
    fn kept_after(&self, position: usize) -> Option<Bytes> {
        let bytes = self.kept.as_ref()?.bytes.get(position..)?;
        if position > 0 && Bug::ReplayInPart.is_planted() {
            return None;
        }
        let frame = &bytes[..bytes.len().min(MAX_FRAME)];
        (!frame.is_empty()).then(|| Bytes::copy_from_slice(frame))
    }

    fn kept_trailers(&self) -> Option<HeaderMap> {
        self.kept.as_ref()?.trailers.clone()
    }

    /// Extends the kept part. If `extend` fails, the body is not kept from now on.
    fn keep(&mut self, extend: impl FnOnce(&mut Kept) -> bool) {
        if self.kept.as_mut().is_some_and(|kept| !extend(kept)) {
            self.kept = None;
        }
    }
}

impl Kept {
    /// `declared` is the length of the whole body.
    fn push(&mut self, data: &[u8], declared: Option<u64>) -> bool {
        let length = self.bytes.len() + data.len();
        if length > self.limit {
            return false;
        }
        if length > self.bytes.capacity() {
            let declared = declared.and_then(|length| usize::try_from(length).ok());
            let most = declared.unwrap_or(self.limit).min(self.limit);
            let capacity = (2 * self.bytes.capacity()).min(most).max(length);
            if !self.reservation.grow(capacity - self.bytes.capacity()) {
                return false;
            }
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(data);
        true
    }

    fn push_trailers(&mut self, trailers: &HeaderMap) -> bool {
        let size = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            name.as_str().len() + value.len() + FIELD_OVERHEAD
        };
        let size = trailers.iter().map(size).sum();
        if self.bytes.len() + size > self.limit || !self.reservation.grow(size) {
            return false;
        }
        self.trailers = Some(trailers.clone());
        true
    }
}

#[cfg(test)]
mod tests;
