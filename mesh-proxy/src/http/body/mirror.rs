//! Request bodies that mirrored requests share with the request itself. Used by
//! `outbound::http::mirror`.
//!
//! What the request reads of its body is copied for its mirrors, which read it later. A mirror that
//! falls back by more than [`MAX_MIRRORED_BYTES`] is given up; the request never waits for one. All
//! mirrors of a request share the copied frames, so that a request keeps no more than one of them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::sleep;

use super::{Body, BodyError, Content};

/// The bytes of a body that are kept at once, with the overhead of its frames: the same as for
/// retries.
pub(crate) const MAX_MIRRORED_BYTES: usize = 64 * 1024;

/// What a frame or a trailer field takes besides its bytes: an entry of a queue or a table, and an
/// allocation.
const OVERHEAD: usize = 128;

/// The body of a request with mirrors.
pub(super) struct SharedReader {
    source: Body,
    /// A mirror that has ended holds its body no longer.
    copies: Vec<Weak<MirrorBody>>,
    /// Whether the mirrors have had a turn since the last frame.
    has_yielded: bool,
}

/// The body of a mirrored request.
pub(super) struct MirrorReader {
    body: Rc<MirrorBody>,
    /// The remaining bytes of a body with a declared length.
    remaining: Option<u64>,
    has_no_body: bool,
}

/// The part of a body that its mirror has not read.
pub(crate) struct MirrorBody {
    state: RefCell<State>,
    /// Notifies the mirror of changes of the phase.
    changed: Notify,
    /// Counts the mirror until nothing of it holds its body. The request does not: it may go on for
    /// hours after the mirror has ended.
    _permit: OwnedSemaphorePermit,
}

struct State {
    phase: Phase,
    frames: VecDeque<Frame<Bytes>>,
    /// The bytes of `frames`, with their overhead.
    kept: usize,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The client is still sending.
    Open,
    /// The request has read its body to the end, or the mirror will not read it.
    Complete,
    GivenUp(GivenUp),
}

/// Why a mirror is not sent completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    /// It has fallen back by more than may be kept.
    TooSlow,
    /// It had no response in time.
    TimedOut,
    /// The request itself was not read to its end.
    Cancelled,
}

impl Body {
    /// Returns a body for the mirror of each permit, with the same content as this one.
    pub(crate) fn share(
        &mut self,
        permits: Vec<OwnedSemaphorePermit>,
    ) -> Vec<(Self, Rc<MirrorBody>)> {
        let is_empty = self.is_empty();
        let has_no_body = self.has_no_body();
        let remaining = self.size_hint().exact();
        let phase = if is_empty {
            Phase::Complete
        } else {
            Phase::Open
        };
        let shared = permits.into_iter().map(|permit| {
            let body = Rc::new(MirrorBody {
                state: RefCell::new(State {
                    phase,
                    frames: VecDeque::new(),
                    kept: 0,
                    waker: None,
                }),
                changed: Notify::new(),
                _permit: permit,
            });
            let content = if is_empty {
                Content::Empty
            } else {
                Content::Mirror(Box::new(MirrorReader {
                    body: body.clone(),
                    remaining,
                    has_no_body,
                }))
            };
            (Self::from_content(content), body)
        });
        let shared: Vec<_> = shared.collect();
        if !is_empty && !shared.is_empty() {
            let context = self.context.take();
            *self = Self::from_content(Content::Shared(Box::new(SharedReader {
                source: std::mem::take(self),
                copies: shared.iter().map(|(_, body)| Rc::downgrade(body)).collect(),
                has_yielded: false,
            })));
            self.context = context;
        }
        shared
    }
}

impl SharedReader {
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        // A client that is faster than the connection of the request would keep this task busy, and
        // mirrors on the same thread would fall back. They get one turn; it is not awaited what
        // they make of it.
        if !self.has_yielded && self.copies().any(|copy| copy.is_behind()) {
            self.has_yielded = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = ready!(Pin::new(&mut self.source).poll_frame(cx));
        self.has_yielded = false;
        match &frame {
            Some(Ok(frame)) => self.copy(frame),
            Some(Err(_)) => self.end(Phase::GivenUp(GivenUp::Cancelled)),
            None => self.end(Phase::Complete),
        }
        Poll::Ready(frame)
    }

    pub(super) fn source(&self) -> &Body {
        &self.source
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }

    /// Copies a frame, because it shares the memory of the buffer that it was received in, which
    /// may be many times larger.
    fn copy(&self, frame: &Frame<Bytes>) {
        let mut open = self.copies().filter(|copy| copy.is_open()).peekable();
        if open.peek().is_none() {
            return;
        }
        if let Some(data) = frame.data_ref() {
            if data.len() <= MAX_MIRRORED_BYTES {
                let data = Bytes::copy_from_slice(data);
                open.for_each(|copy| copy.push(Frame::data(data.clone()), data.len()));
            } else {
                open.for_each(|copy| copy.end(Phase::GivenUp(GivenUp::TooSlow)));
            }
        } else if let Some(trailers) = frame.trailers_ref() {
            let size = size_of_fields(trailers);
            open.for_each(|copy| copy.push(Frame::trailers(trailers.clone()), size));
            self.end(Phase::Complete);
        }
        if self.source.is_end_stream() {
            self.end(Phase::Complete);
        }
    }

    fn end(&self, phase: Phase) {
        let open = self.copies().filter(|copy| copy.is_open());
        open.for_each(|copy| copy.end(phase));
    }

    /// The bodies of the mirrors that have not ended.
    fn copies(&self) -> impl Iterator<Item = Rc<MirrorBody>> {
        self.copies.iter().filter_map(Weak::upgrade)
    }
}

impl Drop for SharedReader {
    fn drop(&mut self) {
        // A reader may know the end from the headers or from the last frame.
        self.end(if self.source.is_end_stream() {
            Phase::Complete
        } else {
            Phase::GivenUp(GivenUp::Cancelled)
        });
    }
}

fn size_of_fields(fields: &HeaderMap) -> usize {
    let size = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        name.as_str().len() + value.len() + OVERHEAD
    };
    fields.iter().map(size).sum()
}

impl MirrorBody {
    /// Waits until the mirror is to be given up: at the latest `limit` after the end of the body.
    pub(crate) async fn given_up(&self, limit: Duration) -> GivenUp {
        loop {
            let phase = self.state.borrow().phase;
            match phase {
                Phase::Open => self.changed.notified().await,
                Phase::GivenUp(reason) => return reason,
                Phase::Complete => {
                    sleep(limit).await;
                    return GivenUp::TimedOut;
                }
            }
        }
    }

    /// The mirror has its response. Nothing more is copied for it.
    pub(crate) fn finish(&self) {
        if self.is_open() {
            self.end(Phase::GivenUp(GivenUp::Cancelled));
        }
    }

    fn is_open(&self) -> bool {
        self.state.borrow().phase == Phase::Open
    }

    fn is_behind(&self) -> bool {
        let state = self.state.borrow();
        state.phase == Phase::Open && state.kept > MAX_MIRRORED_BYTES / 2
    }

    fn push(&self, frame: Frame<Bytes>, size: usize) {
        let mut state = self.state.borrow_mut();
        let kept = state.kept + size + OVERHEAD;
        if kept > MAX_MIRRORED_BYTES {
            drop(state);
            return self.end(Phase::GivenUp(GivenUp::TooSlow));
        }
        state.kept = kept;
        state.frames.push_back(frame);
        state.wake();
    }

    fn end(&self, phase: Phase) {
        let mut state = self.state.borrow_mut();
        state.phase = phase;
        if let Phase::GivenUp(_) = phase {
            state.frames = VecDeque::new();
            state.kept = 0;
        }
        state.wake();
        self.changed.notify_one();
    }
}

impl State {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl MirrorReader {
    pub(super) fn poll_frame(
        &mut self,
        cx: &Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut state = self.body.state.borrow_mut();
        if let Some(frame) = state.frames.pop_front() {
            let size = match (frame.data_ref(), frame.trailers_ref()) {
                (Some(data), _) => data.len(),
                (None, Some(trailers)) => size_of_fields(trailers),
                (None, None) => 0,
            };
            state.kept -= size + OVERHEAD;
            if let (Some(remaining), Some(data)) = (&mut self.remaining, frame.data_ref()) {
                *remaining = remaining.saturating_sub(data.len() as u64);
            }
            return Poll::Ready(Some(Ok(frame)));
        }
        match state.phase {
            Phase::Open => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Phase::Complete => Poll::Ready(None),
            // The end of the body here would look like the request's end.
            Phase::GivenUp(_) => Poll::Ready(Some(Err(BodyError::MirrorGivenUp))),
        }
    }

    pub(super) fn has_no_body(&self) -> bool {
        self.has_no_body
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let state = self.body.state.borrow();
        state.frames.is_empty() && state.phase == Phase::Complete
    }

    pub(super) fn remaining(&self) -> Option<u64> {
        self.remaining
    }
}

impl Drop for MirrorReader {
    fn drop(&mut self) {
        let mut state = self.body.state.borrow_mut();
        state.frames = VecDeque::new();
        state.kept = 0;
        let is_open = state.phase == Phase::Open;
        drop(state);
        if is_open {
            // Nothing more is copied for a mirror that has its response or has failed.
            self.body.end(Phase::Complete);
        }
    }
}

#[cfg(test)]
mod tests;
