//! [`Body`], the one body type of the proxy: what a connection delivers, or a few bytes of our own,
//! with at most one observer and one set of time limits.
//!
//! A body may also carry what belongs to its message and the connection it arrived on: see
//! [`Link`].

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use http::HeaderMap;
use http_body::{Frame, SizeHint};

pub use self::limits::{Limits, Progress, TimedOut};
use super::admitted::Admission;
use super::client::Lease;
use super::grpc;
use super::http1;
use super::interim::Interim;
use super::{ErrorCode, http2};
use crate::transport::Io;

mod limits;

/// The body of a request or response.
#[derive(Default)]
pub struct Body {
    content: Content,
    extras: Option<Box<Extras>>,
    link: Option<Link>,
}

/// What comes with a message besides its content.
enum Link {
    /// Of a response: given back when the body has ended well.
    Lease(Lease),
    /// Of a request: the way for responses before the response.
    Interim(Interim),
    /// Of a response that agrees to a tunnel: the connection that it came on.
    Tunnel(Box<Io>),
}

#[derive(Default)]
enum Content {
    #[default]
    Empty,
    Full(Bytes),
    Http1(http1::Incoming),
    Http2(http2::Incoming),
}

/// What only some bodies have, in one allocation.
#[derive(Default)]
struct Extras {
    observer: Option<Box<dyn Observe>>,
    /// The future of [`Limits::overrun`], and what must be told of frames.
    limits: Option<(LocalBoxFuture<'static, TimedOut>, Rc<Progress>)>,
    /// Of a response: the request was let through, and may not be any more.
    admission: Option<Admission>,
    /// Errors become trailers: the body belongs to a gRPC response. The flag says whether the
    /// message is told too.
    grpc: Option<GrpcErrors>,
    ended: bool,
}

/// How the error of a gRPC response's body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrpcErrors {
    pub with_message: bool,
}

/// Sees a body pass.
pub trait Observe {
    fn data(&mut self, bytes: usize);
    /// Called once, when nothing more will pass.
    fn end(&mut self, end: End<'_>);
}

/// How a body ended.
#[derive(Clone, Copy, Debug)]
pub enum End<'a> {
    /// Completely, perhaps with trailers.
    Complete(Option<&'a HeaderMap>),
    Failed(&'a BodyError),
    /// The reader lost interest before the end.
    Dropped,
}

/// Why a body could not be delivered.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the body could not be read from the connection")]
    Http1(#[from] http1::Error),
    #[error("the body could not be read from the connection")]
    Http2(#[from] mesh_http2::Error),
    #[error("timed out waiting for the response to complete: {0}")]
    TimedOut(TimedOut),
}

impl BodyError {
    /// The reason of an HTTP/2 reset by the other side.
    pub fn reset(&self) -> Option<ErrorCode> {
        match self {
            Self::Http2(mesh_http2::Error::Reset(reason)) => Some(*reason),
            Self::Http1(_) | Self::Http2(_) | Self::TimedOut(_) => None,
        }
    }

    /// The reason to reset the stream with on which the body was being sent on.
    pub(super) fn reason(&self) -> ErrorCode {
        match self {
            Self::Http2(error) => error.error_code().unwrap_or(ErrorCode::INTERNAL_ERROR),
            Self::Http1(_) => ErrorCode::INTERNAL_ERROR,
            // The peer must not believe that it failed.
            Self::TimedOut(_) => ErrorCode::CANCEL,
        }
    }
}

impl Body {
    pub fn empty() -> Self {
        Self::default()
    }

    pub fn full(bytes: impl Into<Bytes>) -> Self {
        Self::of(Content::Full(bytes.into()))
    }

    pub(super) fn http2(incoming: http2::Incoming) -> Self {
        let content = if incoming.is_head_only() {
            Content::Empty
        } else {
            Content::Http2(incoming)
        };
        Self::of(content)
    }

    pub(super) fn http1(incoming: http1::Incoming) -> Self {
        Self::of(Content::Http1(incoming))
    }

    /// The body of a response that turned its connection into a tunnel.
    pub(super) fn tunnel(io: Box<Io>) -> Self {
        let mut body = Self::empty();
        body.link = Some(Link::Tunnel(io));
        body
    }

    /// Takes the tunnel's connection out.
    pub(super) fn take_tunnel(&mut self) -> Option<Box<Io>> {
        match self.link.take()? {
            Link::Tunnel(io) => Some(io),
            Link::Lease(_) | Link::Interim(_) => None,
        }
    }

    /// Keeps the request listed as long as its response or tunnel lasts.
    #[must_use]
    pub fn admitted(mut self, admission: Admission) -> Self {
        let is_tunnel = matches!(self.link, Some(Link::Tunnel(_)));
        if is_tunnel || !self.is_empty() {
            self.extras().admission = Some(admission);
        }
        self
    }

    /// Takes the admission out: who sends the body watches it.
    pub(super) fn take_admission(&mut self) -> Option<Admission> {
        self.extras.as_mut()?.admission.take()
    }

    /// Lets the request's interim responses go to the client.
    pub(super) fn with_interim(mut self, interim: Interim) -> Self {
        self.link = Some(Link::Interim(interim));
        self
    }

    pub(super) fn interim(&self) -> Option<Interim> {
        match &self.link {
            Some(Link::Interim(interim)) => Some(interim.clone()),
            _ => None,
        }
    }

    fn of(content: Content) -> Self {
        Self {
            content,
            extras: None,
            link: None,
        }
    }

    /// Keeps `lease` until the end; see [`Lease`].
    pub(super) fn leased(mut self, lease: Lease) -> Self {
        match &self.content {
            Content::Empty => lease.give_back(),
            _ => self.link = Some(Link::Lease(lease)),
        }
        self
    }

    /// Whether nothing is to come, so that the message can be sent again without its body being
    /// read.
    pub fn is_empty(&self) -> bool {
        matches!(&self.content, Content::Empty)
    }

    /// Whether the message ends with its head. A body that only turns out to be empty is one: some
    /// servers of gRPC tell them apart.
    pub(super) fn is_head_only(&self) -> bool {
        match &self.content {
            Content::Empty => true,
            Content::Full(bytes) => bytes.is_empty(),
            Content::Http1(incoming) => incoming.is_end_stream(),
            Content::Http2(_) => false,
        }
    }

    /// Adds `observer`, after any that is there. An empty body ends at once.
    pub fn observe(&mut self, mut observer: Box<dyn Observe>) {
        if self.is_empty() {
            observer.end(End::Complete(None));
            return;
        }
        let slot = &mut self.extras().observer;
        *slot = Some(match slot.take() {
            None => observer,
            Some(first) => Box::new(Both(first, observer)),
        });
    }

    /// The body with `observer` added, as by [`observe`](Self::observe).
    #[must_use]
    pub fn observed(mut self, observer: Box<dyn Observe>) -> Self {
        self.observe(observer);
        self
    }

    /// Fails with [`BodyError::TimedOut`] when `limits` are overrun.
    #[must_use]
    pub fn limited(mut self, limits: Limits) -> Self {
        if !self.is_empty() {
            let progress = limits.progress().clone();
            let overrun = async move { limits.overrun().await };
            self.extras().limits = Some((Box::pin(overrun), progress));
        }
        self
    }

    /// Tells errors as gRPC trailers.
    #[must_use]
    pub fn with_grpc_errors(mut self, errors: GrpcErrors) -> Self {
        if !self.is_empty() {
            self.extras().grpc = Some(errors);
        }
        self
    }

    fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    fn poll_content(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some((overrun, _)) = self.extras.as_mut().and_then(|e| e.limits.as_mut())
            && let Poll::Ready(timed_out) = overrun.as_mut().poll(cx)
        {
            return Poll::Ready(Some(Err(BodyError::TimedOut(timed_out))));
        }
        let frame = match &mut self.content {
            Content::Empty => None,
            Content::Full(bytes) => Some(Ok(Frame::data(std::mem::take(bytes)))),
            Content::Http1(incoming) => {
                let frame = ready!(incoming.poll_frame(cx));
                frame.map(|frame| frame.map_err(BodyError::Http1))
            }
            Content::Http2(incoming) => {
                let frame = ready!(incoming.poll_frame(cx));
                frame.map(|frame| frame.map_err(BodyError::Http2))
            }
        };
        if let Some((_, progress)) = self.extras.as_ref().and_then(|e| e.limits.as_ref()) {
            progress.frame();
        }
        Poll::Ready(frame)
    }

    /// Whether the end is known before it is polled for. HTTP/2's is not asked for with each frame,
    /// which would cost a lock: whoever reads such a body polls it to its end.
    fn ends_by_itself(&self) -> bool {
        !matches!(self.content, Content::Http2(_)) && self.content_is_over()
    }

    fn content_is_over(&self) -> bool {
        match &self.content {
            Content::Empty => true,
            Content::Full(bytes) => bytes.is_empty(),
            Content::Http1(incoming) => incoming.is_end_stream(),
            Content::Http2(incoming) => incoming.is_end_stream(),
        }
    }

    /// Ends the body: the connection is free again when it `ended` completely.
    fn finish(&mut self, end: End<'_>) {
        // Before the lease: the connection must not be held any more when it is given back.
        self.content = Content::Empty;
        if let Some(Link::Lease(lease)) = self.link.take_if(|link| matches!(link, Link::Lease(_)))
            && matches!(end, End::Complete(_))
        {
            lease.give_back();
        }
        if let Some(extras) = &mut self.extras {
            extras.end(end);
        }
    }
}

impl Extras {
    fn end(&mut self, end: End<'_>) {
        if !std::mem::replace(&mut self.ended, true)
            && let Some(mut observer) = self.observer.take()
        {
            observer.end(end);
        }
        self.limits = None;
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(extras) = &mut self.extras {
            extras.end(End::Dropped);
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = self.get_mut();
        let frame = ready!(body.poll_content(cx));
        match frame {
            None => {
                body.finish(End::Complete(None));
                Poll::Ready(None)
            }
            Some(Err(error)) => {
                let told = body.extras.as_ref().and_then(|extras| extras.grpc);
                body.finish(End::Failed(&error));
                Poll::Ready(Some(match told {
                    Some(told) if error.reset().is_none() => {
                        Ok(Frame::trailers(grpc::error_trailers(&error, told)))
                    }
                    _ => Err(error),
                }))
            }
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    body.finish(End::Complete(Some(trailers)));
                } else if let Some(data) = frame.data_ref() {
                    if let Some(observer) = body.extras.as_mut().and_then(|e| e.observer.as_mut()) {
                        observer.data(data.len());
                    }
                    if body.ends_by_itself() {
                        body.finish(End::Complete(None));
                    }
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.content_is_over()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            // Not "exactly 0", which would become a `content-length` that the sender did not send.
            Content::Empty => SizeHint::default(),
            Content::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Http1(incoming) => known(incoming.remaining()),
            Content::Http2(incoming) => known(incoming.remaining()),
        }
    }
}

fn known(remaining: Option<u64>) -> SizeHint {
    remaining.map_or_else(SizeHint::default, SizeHint::with_exact)
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let content = match &self.content {
            Content::Empty => "empty",
            Content::Full(_) => "full",
            Content::Http1(_) => "http1",
            Content::Http2(_) => "http2",
        };
        f.debug_tuple("Body").field(&content).finish()
    }
}

/// Two observers in a row.
struct Both(Box<dyn Observe>, Box<dyn Observe>);

impl Observe for Both {
    fn data(&mut self, bytes: usize) {
        self.0.data(bytes);
        self.1.data(bytes);
    }

    fn end(&mut self, end: End<'_>) {
        self.0.end(end);
        self.1.end(end);
    }
}

#[cfg(test)]
mod tests;
