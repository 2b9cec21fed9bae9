//! Serves HTTP/2 on one accepted connection: a task that moves bytes, and a task for each stream.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http::{Method, StatusCode, Version};
use mesh_core::endpoint::KeepAlive;
use mesh_http2::{AcceptedStream, Error, ErrorCode, FieldSectionLimit, Role};
use mesh_runtime::drain;

use super::link::Upload;
use super::{Driver, Incoming, Link, Outgoing, Writer, prepare_response};
use crate::config::{Http2Server, HttpLimits};
use crate::http::http1::Refused;
use crate::http::idle::idle;
use crate::http::interim::Interim;
use crate::http::patience::Patience;
use crate::http::respond::CloseConnection;
use crate::http::server::Refusals;
use crate::http::{Body, Handle, Protocol, Request, Reset, Response, respond, upgrade, uri};
use crate::transport::Io;

/// On what terms a connection is served.
pub(in crate::http) struct Terms<H> {
    pub handler: Rc<H>,
    pub params: Http2Server,
    pub limits: HttpLimits,
    pub drain: drain::Watch,
    pub refusals: Refusals,
}

/// Serves `io` until the connection and all of its streams have ended. Asked to end, it takes no
/// new streams.
///
/// No `async fn`: that would keep room for its arguments beside what they become, for as long as
/// the connection lives.
pub(in crate::http) fn serve<H: Handle + 'static>(
    io: Io,
    terms: Terms<H>,
) -> impl Future<Output = Result<(), Error>> {
    let mut driver = Driver::new(io, terms.of_connection());
    let link = driver.link().clone();
    let terms = Rc::new(terms);
    async move {
        let mut end = pin!(terms.end(&link));
        let mut is_ending = false;
        let served = poll_fn(|cx| {
            if !is_ending && end.as_mut().poll(cx).is_ready() {
                is_ending = true;
                link.leave();
            }
            let polled = driver.poll(cx, &mut |link, accepted| {
                tokio::task::spawn_local(exchange(terms.clone(), link.clone(), accepted));
            });
            if !is_ending && !link.is_welcome() {
                is_ending = true;
                terms.judge(&link, None);
                link.leave();
                cx.waker().wake_by_ref();
            }
            polled
        })
        .await;
        terms.judge(&link, served.as_ref().err());
        served
    }
}

impl<H> Terms<H> {
    fn of_connection(&self) -> super::Terms {
        let params = &self.params;
        super::Terms {
            role: Role::Server,
            limits: self.limits,
            header_list: params.max_header_list_size,
            streams: params.max_concurrent_streams,
            unseen_resets: u32::try_from(params.max_pending_accept_reset_streams)
                .unwrap_or(u32::MAX),
            stream_window: params.stream_window,
            connection_window: params.connection_window,
            adapts_windows: params.adaptive_window,
            max_frame: params.max_frame_size,
            collected: params.max_send_buf_size,
            // Clients that are gone hold their connections while nothing runs on them, too.
            keep_alive: params.keep_alive.map(|pings| KeepAlive {
                interval: pings.interval,
                timeout: pings.timeout,
                while_idle: true,
            }),
        }
    }

    /// Ready when the connection is to take no more streams.
    async fn end(&self, link: &Link) {
        tokio::select! {
            () = self.drain.draining() => {}
            () = idle(self.limits.idle, || link.messages()) => {}
        }
    }

    /// Counts and logs why the connection was ended or replaced, if it was the client's fault.
    fn judge(&self, link: &Link, error: Option<&Error>) {
        if let Some(violation) = link.take_limit_exceeded() {
            tracing::info!(reason = %violation, "HTTP/2 connection of a client ended or replaced");
            self.refusals.count(Protocol::Http2, violation.label());
        } else if let Some(Error::Protocol(..)) = error {
            self.refusals.count(Protocol::Http2, "malformed");
        }
    }
}

/// Watches whether the client sends the body that it has announced.
struct Slow<H> {
    terms: Rc<Terms<H>>,
    upload: Upload,
    patience: Patience,
}

impl<H> Slow<H> {
    /// Ready when it does not; counted and logged then.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = ready!(self.patience.poll(cx, &self.upload));
        tracing::info!(
            ?limit,
            "Nothing of a request's announced body arrived for too long"
        );
        self.terms.refusals.count(Protocol::Http2, "body_time");
        Poll::Ready(())
    }
}

/// One stream: the handler is asked, and dropped with whatever it is doing when the client resets
/// the stream.
///
/// No `async fn`, as with [`serve`].
fn exchange<H: Handle>(
    terms: Rc<Terms<H>>,
    link: Link,
    accepted: AcceptedStream,
) -> impl Future<Output = ()> {
    let AcceptedStream {
        id,
        request,
        refused,
        is_head_only,
        length,
    } = accepted;
    let (reader, writer) = link.hold(id);
    let interim = Interim::Http2(super::Interim::of(&link, id, &request));
    let body = Body::http2(Incoming::request(reader, length, is_head_only)).with_interim(interim);
    let mut request = request.map(|()| body);
    let mut slow = Slow {
        upload: Upload::of(&link, id),
        patience: Patience::new(terms.limits.body_time),
        terms,
    };
    async move {
        let terms = slow.terms.clone();
        let answer = {
            let mut answer = pin!(answer(&terms, &mut request, refused, length));
            poll_fn(|cx| {
                if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                    return Poll::Ready(Some(answer));
                }
                if slow.poll(cx).is_ready() {
                    let refusal = respond::status(Version::HTTP_2, StatusCode::REQUEST_TIMEOUT);
                    return Poll::Ready(Some(Ok(refusal)));
                }
                writer.poll_failure(cx).map(|_gone| None)
            })
            .await
        };
        drop(request);
        match answer {
            None => {}
            Some(Err(Reset(reason))) => {
                if terms.drain.is_draining() {
                    // First, so that the client does not repeat the request on this connection.
                    link.leave();
                }
                writer.reset(reason);
            }
            Some(Ok(mut response)) => {
                let close = response.extensions_mut().remove::<CloseConnection>();
                if close.is_some() {
                    link.leave();
                }
                send(response, writer, slow).await;
            }
        }
    }
}

/// What belongs to the connection is taken off, and the handler is asked.
async fn answer<H: Handle>(
    terms: &Terms<H>,
    request: &mut Request,
    unread: Option<FieldSectionLimit>,
    length: Option<u64>,
) -> Result<Response, Reset> {
    let refuse = |refused: Refused| {
        terms.refusals.count(Protocol::Http2, refused.label());
        Ok(respond::status(Version::HTTP_2, refused.status()))
    };
    match unread {
        Some(FieldSectionLimit::FieldCount) => return refuse(Refused::TooManyHeaders),
        Some(FieldSectionLimit::Size) => return refuse(Refused::HeadTooLarge),
        None => {}
    }
    if *request.method() == Method::CONNECT && length.is_some_and(|length| length > 0) {
        return refuse(Refused::ConnectBody);
    }
    // An HTTP/2 stream is a tunnel by itself: bodies go both ways for as long as they like.
    if upgrade::accept(request).is_err() {
        return Ok(respond::status(Version::HTTP_2, StatusCode::BAD_REQUEST));
    }
    if let Err(refused) = uri::unify_authority(request) {
        return refuse(refused);
    }
    let response = terms.handler.handle(request).await?;
    if response.status().is_informational() {
        // Nobody has asked for it, and nothing could follow it.
        return Ok(respond::status(Version::HTTP_2, StatusCode::BAD_GATEWAY));
    }
    Ok(response)
}

async fn send<H>(response: Response, writer: Writer, mut slow: Slow<H>) {
    let (mut head, mut body) = response.into_parts();
    let admission = body.take_admission();
    prepare_response(&mut head.headers, &body);
    let is_last = body.is_head_only();
    writer.respond(&http::Response::from_parts(head, ()), is_last);
    if is_last {
        return;
    }
    let mut outgoing = Outgoing::new(body, writer);
    let sent = poll_fn(|cx| {
        let sent = Pin::new(&mut outgoing).poll(cx);
        if sent.is_pending() && slow.poll(cx).is_ready() {
            slow.upload.reset(ErrorCode::CANCEL);
        }
        if let Some(admission) = &admission
            && sent.is_pending()
            && admission.poll_revoked(cx).is_ready()
        {
            // gRPC reads it as "permission denied".
            slow.upload.reset(ErrorCode::INADEQUATE_SECURITY);
            return Poll::Ready(Ok(()));
        }
        sent
    });
    if let Err(error) = sent.await {
        tracing::debug!(%error, "A response could not be sent to its end");
    }
}
