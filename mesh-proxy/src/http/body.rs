//! [`Body`], the only body type of the proxy: the body that a connection receives, or a few local
//! bytes, with at most one observer and one set of time limits.
//!
//! A body can also carry the context of its message and its connection: [`BodyContext`].

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use http::{HeaderMap, HeaderValue};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;

use super::client_close::SERVER_CLOSED;
use super::http1::pool::PoolGuard;
use super::http2::incoming_body::IncomingBody as Http2Body;
use super::http2::stream_guard::StreamGuard;
use super::interim::InterimSender;
use super::revocable::RevocableRequest;
use super::{ErrorCode, grpc, http1};
use crate::error::grpc_code;
use crate::transport::Io;

pub(crate) use self::mirror::{GivenUp, MirrorBody};
use self::mirror::{MirrorReader, SharedReader};
use self::peek::PeekedBody;
use self::replay::ReplayReader;
pub(crate) use self::replay::{Repeat, ReplayBody};
pub(crate) use self::timeouts::{ExchangeProgress, ExchangeTimeouts, TimeoutError};

mod mirror;
mod peek;
mod replay;
mod timeouts;

/// The body of a request or response.
#[derive(Default)]
pub struct Body {
    content: Content,
    extras: Option<Box<Extras>>,
    context: Option<BodyContext>,
}

type LocalBody = Pin<Box<dyn http_body::Body<Data = Bytes, Error = BodyError>>>;

/// What a message carries besides its content.
enum BodyContext {
    /// For a response: released when the body is complete.
    Guard(ResponseGuard),
    /// For a request: sends interim responses to the client.
    Interim(InterimSender),
    /// For a response that accepts a tunnel: the connection to the server.
    Tunnel(Box<Io>),
}

/// Holds the connection or stream that a response arrives on until its body has been read.
pub(super) enum ResponseGuard {
    Http1(PoolGuard),
    Http2(StreamGuard),
}

#[derive(Default)]
enum Content {
    #[default]
    Empty,
    Full(Bytes),
    Http1(http1::IncomingBody),
    Http2(Http2Body),
    /// A request that may be sent again.
    Replay(ReplayReader),
    /// A response whose beginning has been read.
    Peeked(Box<PeekedBody>),
    /// A request with mirrors.
    Shared(Box<SharedReader>),
    /// A mirror.
    Mirror(Box<MirrorReader>),
    /// A response that a service of the proxy makes.
    Local(LocalBody),
}

/// Attributes that few bodies have, in one allocation.
#[derive(Default)]
struct Extras {
    observer: Option<Box<dyn BodyObserver>>,
    /// The future of [`ExchangeTimeouts::expired`], and the progress that each frame updates.
    timeouts: Option<(LocalBoxFuture<'static, TimeoutError>, Rc<ExchangeProgress>)>,
    /// In a response: the policy may revoke its request.
    revocable: Option<RevocableRequest>,
    /// The body belongs to a gRPC response: its error becomes trailers.
    grpc: Option<GrpcErrorTrailers>,
    ended: bool,
}

/// How the error of a gRPC response body is reported in trailers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrpcErrorTrailers {
    pub(crate) with_message: bool,
}

/// Observes the frames of a body.
pub(crate) trait BodyObserver {
    fn data(&mut self, bytes: usize);
    /// Called once, after the last frame.
    fn end(&mut self, end: BodyEnd<'_>);
    /// Returns the observers without the one that was added last.
    fn without_last(self: Box<Self>) -> Option<Box<dyn BodyObserver>> {
        None
    }
}

/// How a body ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BodyEnd<'a> {
    Complete(Option<&'a HeaderMap>),
    Failed(&'a BodyError),
    /// The reader dropped the body before its end.
    Dropped,
}

/// Why a body could not be delivered.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("could not read the body from the connection")]
    Http1(#[from] http1::Error),
    #[error("could not read the body from the connection")]
    Http2(#[from] mesh_http2::Error),
    #[error("timed out waiting for the response to complete: {0}")]
    TimedOut(TimeoutError),
    /// Not seen by a client: the attempt that reads the body has been given up.
    #[error("the request is being sent again")]
    Superseded,
    /// Not seen by a client: the response of a mirror is ignored.
    #[error("the mirrored request has been given up")]
    MirrorGivenUp,
    #[error("a service of the proxy could not complete its response")]
    Local(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl BodyError {
    /// The error code of an HTTP/2 stream reset by the peer.
    pub(crate) fn reset(&self) -> Option<ErrorCode> {
        match self {
            Self::Http2(mesh_http2::Error::Reset(code)) => Some(*code),
            Self::Http1(_)
            | Self::Http2(_)
            | Self::TimedOut(_)
            | Self::Superseded
            | Self::MirrorGivenUp
            | Self::Local(_) => None,
        }
    }

    /// Whether the sender's connection has failed, or has sent an invalid body.
    pub(super) fn is_of_client(&self) -> bool {
        match self {
            Self::Http1(_) | Self::Http2(_) => true,
            Self::TimedOut(_) | Self::Superseded | Self::MirrorGivenUp | Self::Local(_) => false,
        }
    }

    /// The error code for the stream that the body of a response was being forwarded on.
    pub(super) fn response_error_code(&self) -> ErrorCode {
        match self {
            Self::Http1(http1::Error::Incomplete) => SERVER_CLOSED,
            error => error.error_code(),
        }
    }

    /// The error code for the stream that the body of a request was being forwarded on.
    pub(super) fn error_code(&self) -> ErrorCode {
        match self {
            Self::Http2(error) => error.error_code().unwrap_or(ErrorCode::INTERNAL_ERROR),
            Self::Http1(_) | Self::Local(_) => ErrorCode::INTERNAL_ERROR,
            // A timeout is not a failure of the peer that receives this code.
            Self::TimedOut(_) | Self::Superseded | Self::MirrorGivenUp => ErrorCode::CANCEL,
        }
    }
}

impl GrpcErrorTrailers {
    /// Returns the trailers of a gRPC response whose body failed.
    fn trailers(self, error: &BodyError) -> HeaderMap {
        let code = match error {
            BodyError::TimedOut(..) => grpc_code::DEADLINE_EXCEEDED,
            BodyError::Http1(_)
            | BodyError::Http2(_)
            | BodyError::Superseded
            | BodyError::MirrorGivenUp
            | BodyError::Local(_) => grpc_code::UNAVAILABLE,
        };
        let mut trailers = HeaderMap::with_capacity(2);
        trailers.insert(grpc::GRPC_STATUS, code.into());
        if self.with_message
            && let Ok(message) = HeaderValue::try_from(error.to_string())
        {
            trailers.insert(grpc::GRPC_MESSAGE, message);
        }
        trailers
    }
}

impl ResponseGuard {
    /// Releases the connection after the response has been read completely. Dropping the guard
    /// instead closes the connection or resets the stream.
    fn release(self) {
        match self {
            Self::Http1(guard) => guard.release(),
            Self::Http2(stream) => stream.release(),
        }
    }
}

impl Body {
    pub fn empty() -> Self {
        Self::default()
    }

    pub fn full(bytes: impl Into<Bytes>) -> Self {
        Self::from_content(Content::Full(bytes.into()))
    }

    /// The body of a response that a service of the proxy makes.
    pub(crate) fn local<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if body.is_end_stream() {
            return Self::empty();
        }
        let body = body.map_err(|error| BodyError::Local(error.into()));
        Self::from_content(Content::Local(Box::pin(body)))
    }

    pub(super) fn http2(incoming: Http2Body) -> Self {
        let content = if incoming.has_no_body() {
            Content::Empty
        } else {
            Content::Http2(incoming)
        };
        Self::from_content(content)
    }

    pub(super) fn http1(incoming: http1::IncomingBody) -> Self {
        Self::from_content(Content::Http1(incoming))
    }

    /// The body of a response that turned its connection into a tunnel.
    pub(super) fn tunnel(io: Box<Io>) -> Self {
        let mut body = Self::empty();
        body.context = Some(BodyContext::Tunnel(io));
        body
    }

    /// Takes the tunnel's connection out of the body.
    pub(super) fn take_tunnel(&mut self) -> Option<Box<Io>> {
        match self.context.take()? {
            BodyContext::Tunnel(io) => Some(io),
            BodyContext::Guard(_) | BodyContext::Interim(_) => None,
        }
    }

    /// Keeps `revocable` until the response or tunnel completes.
    #[must_use]
    pub(crate) fn with_revocable(mut self, revocable: RevocableRequest) -> Self {
        let is_tunnel = matches!(self.context, Some(BodyContext::Tunnel(_)));
        if is_tunnel || !self.is_empty() {
            self.extras().revocable = Some(revocable);
        }
        self
    }

    /// Takes the revocable request out; the sender of the body then polls it.
    pub(super) fn take_revocable(&mut self) -> Option<RevocableRequest> {
        self.extras.as_mut()?.revocable.take()
    }

    /// Enables forwarding of the server's interim responses to the client.
    pub(super) fn with_interim(mut self, interim: InterimSender) -> Self {
        self.context = Some(BodyContext::Interim(interim));
        self
    }

    pub(super) fn interim(&self) -> Option<InterimSender> {
        match &self.context {
            Some(BodyContext::Interim(interim)) => Some(interim.clone()),
            _ => None,
        }
    }

    fn from_content(content: Content) -> Self {
        Self {
            content,
            extras: None,
            context: None,
        }
    }

    /// Keeps `guard` until the body ends; see [`ResponseGuard`].
    pub(super) fn with_guard(mut self, guard: ResponseGuard) -> Self {
        match &self.content {
            Content::Empty => guard.release(),
            _ => self.context = Some(BodyContext::Guard(guard)),
        }
        self
    }

    /// Widens the read-ahead of a response: the flow-control window in HTTP/2, the size of reads in
    /// HTTP/1. `grant` gets the bytes that are missing and returns how many are allowed.
    pub(super) fn widen_window(&self, grant: impl FnOnce(u32) -> u32) {
        match &self.content {
            Content::Http1(incoming) => incoming.widen_reads(grant),
            Content::Http2(incoming) => incoming.widen_window(grant),
            Content::Peeked(peeked) => peeked.rest().widen_window(grant),
            _ => {}
        }
    }

    /// Whether no data can follow, so that the message can be sent again without its body being
    /// read.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(&self.content, Content::Empty)
    }

    /// Whether the message ends with its header section. A body that only turns out to be empty
    /// does not count: some gRPC servers distinguish the two.
    pub(super) fn has_no_body(&self) -> bool {
        match &self.content {
            Content::Empty => true,
            Content::Full(bytes) => bytes.is_empty(),
            Content::Http1(incoming) => incoming.is_end_stream(),
            Content::Replay(reader) => reader.has_no_body(),
            Content::Shared(reader) => reader.source().has_no_body(),
            Content::Mirror(reader) => reader.has_no_body(),
            Content::Http2(_) | Content::Peeked(_) | Content::Local(_) => false,
        }
    }

    /// Ready when another attempt has taken the body, see [`ReplayBody`].
    pub(super) fn poll_superseded(&self, cx: &Context<'_>) -> Poll<()> {
        match &self.content {
            Content::Replay(reader) => reader.poll_superseded(cx),
            _ => Poll::Pending,
        }
    }

    /// Adds `observer`, after an existing one. For an empty body the observer's end is called
    /// immediately.
    pub(crate) fn observe(&mut self, mut observer: Box<dyn BodyObserver>) {
        if self.is_empty() {
            observer.end(BodyEnd::Complete(None));
            return;
        }
        let slot = &mut self.extras().observer;
        *slot = Some(match slot.take() {
            None => observer,
            Some(first) => Box::new(ObserverPair(first, observer)),
        });
    }

    /// Removes the observer that was added last, before anything was read: the attempt that it
    /// belongs to has failed.
    pub(crate) fn unobserve(&mut self) {
        if let Some(extras) = &mut self.extras {
            extras.observer = extras.observer.take().and_then(BodyObserver::without_last);
        }
    }

    /// Returns the body with `observer` added, as by [`observe`](Self::observe).
    #[must_use]
    pub(crate) fn observed(mut self, observer: Box<dyn BodyObserver>) -> Self {
        self.observe(observer);
        self
    }

    /// Makes the body fail with [`BodyError::TimedOut`] when one of `timeouts` expires.
    #[must_use]
    pub(crate) fn with_timeouts(mut self, timeouts: ExchangeTimeouts) -> Self {
        if !self.is_empty() {
            let progress = timeouts.progress().clone();
            let expired = async move { timeouts.expired().await };
            self.extras().timeouts = Some((Box::pin(expired), progress));
        }
        self
    }

    /// Reports errors as gRPC trailers.
    #[must_use]
    pub(crate) fn with_grpc_error_trailers(mut self, errors: GrpcErrorTrailers) -> Self {
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
        if let Some((expired, _)) = self.extras.as_mut().and_then(|e| e.timeouts.as_mut())
            && let Poll::Ready(timed_out) = expired.as_mut().poll(cx)
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
            Content::Replay(reader) => ready!(reader.poll_frame(cx)),
            Content::Peeked(peeked) => ready!(peeked.poll_frame(cx)),
            Content::Shared(reader) => ready!(reader.poll_frame(cx)),
            Content::Mirror(reader) => ready!(reader.poll_frame(cx)),
            Content::Local(body) => ready!(body.as_mut().poll_frame(cx)),
        };
        if let Some((_, progress)) = self.extras.as_ref().and_then(|e| e.timeouts.as_ref()) {
            progress.record_frame();
        }
        Poll::Ready(frame)
    }

    /// Whether the end is known without polling. Always false for HTTP/2, whose readers poll a body
    /// to its end, to save a lookup of the stream for each frame.
    fn is_end_known(&self) -> bool {
        match &self.content {
            Content::Http2(_) | Content::Peeked(_) => false,
            Content::Replay(reader) => reader.is_end_known(),
            Content::Shared(reader) => reader.source().is_end_known(),
            _ => self.is_content_complete(),
        }
    }

    fn is_content_complete(&self) -> bool {
        match &self.content {
            Content::Empty => true,
            Content::Full(bytes) => bytes.is_empty(),
            Content::Http1(incoming) => incoming.is_end_stream(),
            Content::Http2(incoming) => incoming.is_end_stream(),
            Content::Replay(reader) => reader.is_end_stream(),
            Content::Peeked(peeked) => peeked.is_end_stream(),
            Content::Shared(reader) => reader.source().is_content_complete(),
            Content::Mirror(reader) => reader.is_end_stream(),
            Content::Local(body) => body.is_end_stream(),
        }
    }

    /// Ends the body. When it is complete, its connection can be reused.
    fn finish(&mut self, end: BodyEnd<'_>) {
        // Drop the content before releasing the guard: it holds the connection.
        self.content = Content::Empty;
        if let Some(BodyContext::Guard(guard)) = self
            .context
            .take_if(|context| matches!(context, BodyContext::Guard(_)))
            && matches!(end, BodyEnd::Complete(_))
        {
            guard.release();
        }
        if let Some(extras) = &mut self.extras {
            extras.end(end);
        }
    }
}

impl Extras {
    fn end(&mut self, end: BodyEnd<'_>) {
        if !std::mem::replace(&mut self.ended, true)
            && let Some(mut observer) = self.observer.take()
        {
            observer.end(end);
        }
        self.timeouts = None;
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(extras) = &mut self.extras {
            extras.end(BodyEnd::Dropped);
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
                body.finish(BodyEnd::Complete(None));
                Poll::Ready(None)
            }
            Some(Err(error)) => {
                let errors = body.extras.as_ref().and_then(|extras| extras.grpc);
                body.finish(BodyEnd::Failed(&error));
                Poll::Ready(Some(match errors {
                    Some(errors) if error.reset().is_none() => {
                        Ok(Frame::trailers(errors.trailers(&error)))
                    }
                    _ => Err(error),
                }))
            }
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    body.finish(BodyEnd::Complete(Some(trailers)));
                } else if let Some(data) = frame.data_ref() {
                    if let Some(observer) = body.extras.as_mut().and_then(|e| e.observer.as_mut()) {
                        observer.data(data.len());
                    }
                    if body.is_end_known() {
                        body.finish(BodyEnd::Complete(None));
                    }
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_content_complete()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            // Not `with_exact(0)`, which would add a `content-length` that the sender did not send.
            Content::Empty => SizeHint::default(),
            Content::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Http1(incoming) => size_hint_of(incoming.remaining()),
            Content::Http2(incoming) => size_hint_of(incoming.remaining()),
            Content::Replay(reader) => size_hint_of(reader.remaining()),
            Content::Peeked(_) => SizeHint::default(),
            Content::Shared(reader) => reader.size_hint(),
            Content::Mirror(reader) => size_hint_of(reader.remaining()),
            Content::Local(body) => body.size_hint(),
        }
    }
}

fn size_hint_of(remaining: Option<u64>) -> SizeHint {
    remaining.map_or_else(SizeHint::default, SizeHint::with_exact)
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let content = match &self.content {
            Content::Empty => "empty",
            Content::Full(_) => "full",
            Content::Http1(_) => "http1",
            Content::Http2(_) => "http2",
            Content::Replay(_) => "replay",
            Content::Peeked(_) => "peeked",
            Content::Shared(_) => "shared",
            Content::Mirror(_) => "mirror",
            Content::Local(_) => "local",
        };
        f.debug_tuple("Body").field(&content).finish()
    }
}

struct ObserverPair(Box<dyn BodyObserver>, Box<dyn BodyObserver>);

impl BodyObserver for ObserverPair {
    fn data(&mut self, bytes: usize) {
        self.0.data(bytes);
        self.1.data(bytes);
    }

    fn end(&mut self, end: BodyEnd<'_>) {
        self.0.end(end);
        self.1.end(end);
    }

    fn without_last(self: Box<Self>) -> Option<Box<dyn BodyObserver>> {
        Some(self.0)
    }
}

#[cfg(test)]
mod tests;
