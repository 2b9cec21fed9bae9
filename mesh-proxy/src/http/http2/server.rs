//! Serves HTTP/2 on one accepted connection: a loop that accepts streams, and a task for each.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Builder, SendResponse};
use http::{Method, StatusCode, Version};
use mesh_core::endpoint::KeepAlive;
use mesh_runtime::drain;
use tokio::sync::Notify;

use super::{
    Beat, Failed, Guarded, Incoming, Of, Outgoing, Pulse, Role, Standing, connection_window,
    declared_length, first_stream_window, prepare_response,
};
use crate::config::{Http2Server, HttpLimits};
use crate::http::http1::Refused;
use crate::http::idle::idle;
use crate::http::respond::CloseConnection;
use crate::http::server::Refusals;
use crate::http::{Body, Handle, Protocol, Request, Reset, Response, respond, upgrade};
use crate::transport::Io;

/// On what terms a connection is served.
pub(in crate::http) struct Terms<H> {
    pub handler: Rc<H>,
    pub params: Http2Server,
    pub limits: HttpLimits,
    pub drain: drain::Watch,
    pub refusals: Refusals,
}

/// What the streams of one connection share.
struct Shared<H> {
    terms: Terms<H>,
    close: Notify,
}

/// Serves `io` until the connection and all of its streams have ended. Asked to end, it takes no new streams.
pub(in crate::http) async fn serve<H: Handle + 'static>(
    io: Io,
    terms: Terms<H>,
) -> Result<(), h2::Error> {
    let io = Guarded::new(io, Role::Server, &terms.limits);
    let standing = io.standing();
    let shared = Rc::new(Shared {
        terms,
        close: Notify::new(),
    });
    let served = run(io, &standing, &shared).await;
    shared.judge(&standing, served.as_ref().err());
    served
}

async fn run<H: Handle + 'static>(
    io: Guarded,
    standing: &Rc<Standing>,
    shared: &Rc<Shared<H>>,
) -> Result<(), h2::Error> {
    let terms = &shared.terms;
    let mut end = pin!(shared.end(standing));
    let mut is_ending = false;
    let mut connection = {
        let mut handshake = Box::pin(builder(&terms.params, &terms.limits).handshake(io));
        poll_fn(|cx| {
            is_ending = is_ending || end.as_mut().poll(cx).is_ready();
            let connection = handshake.as_mut().poll(cx);
            // Our settings may go ahead of the client's. That sending failed is told by the next read.
            let _sent = standing.poll_send(cx);
            connection
        })
        .await?
    };
    if is_ending {
        connection.graceful_shutdown();
    }
    let window = first_stream_window(terms.params.stream_window, terms.params.adaptive_window);
    let adapted = terms.params.adaptive_window.then_some(window);
    let mut pulse = Pulse::new(
        connection.ping_pong(),
        standing,
        keep_alive(&terms.params),
        adapted,
    );
    loop {
        let accepted = poll_fn(|cx| {
            loop {
                if let Poll::Ready(accepted) = connection.poll_accept(cx) {
                    return Poll::Ready(accepted);
                }
                match pulse.poll(cx, || connection.has_streams()) {
                    Poll::Pending if !is_ending && end.as_mut().poll(cx).is_ready() => {
                        is_ending = true;
                        connection.graceful_shutdown();
                    }
                    Poll::Pending => match standing.poll_send(cx) {
                        Poll::Ready(Err(Failed)) => {}
                        _ => return Poll::Pending,
                    },
                    Poll::Ready(Beat::Window(size)) => {
                        connection.set_target_window_size(window_of(&terms.params, size));
                        // Fails only while the last change is not acknowledged: the next sample says the same.
                        let _later = connection.set_initial_window_size(size);
                    }
                    Poll::Ready(Beat::Dead) => connection.abrupt_shutdown(h2::Reason::NO_ERROR),
                }
            }
        });
        match accepted.await {
            Some(accepted) => {
                let (request, respond) = accepted?;
                tokio::task::spawn_local(exchange(shared.clone(), request, respond));
            }
            None => return Ok(()),
        }
    }
}

impl<H> Shared<H> {
    /// Ready when the connection is to take no more streams.
    async fn end(&self, standing: &Standing) {
        tokio::select! {
            () = self.terms.drain.draining() => {}
            () = self.close.notified() => {}
            () = idle(self.terms.limits.idle, standing.messages()) => {}
            () = standing.retired() => self.judge(standing, None),
        }
    }

    /// Counts and logs why the connection was ended or replaced, if it was the client's fault.
    fn judge(&self, standing: &Standing, error: Option<&h2::Error>) {
        let refusals = &self.terms.refusals;
        if let Some(violation) = standing.take_violation() {
            tracing::info!(reason = %violation, "HTTP/2 connection of a client ended or replaced");
            refusals.count(Protocol::Http2, violation.label());
        } else if let Some(reason) = error.and_then(library_verdict) {
            refusals.count(Protocol::Http2, reason);
        }
    }
}

/// Value of the `reason` label when the library has ended a connection.
fn library_verdict(error: &h2::Error) -> Option<&'static str> {
    if !(error.is_go_away() && error.is_library()) {
        return None;
    }
    match error.reason() {
        Some(h2::Reason::ENHANCE_YOUR_CALM) => Some("flood"),
        _ => Some("malformed"),
    }
}

/// One stream: the handler is asked, and dropped with whatever it is doing when the client resets the stream.
async fn exchange<H: Handle>(
    shared: Rc<Shared<H>>,
    request: http::Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let answer = {
        let mut answer = pin!(answer(&shared.terms, request));
        poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => respond.poll_reset(cx).map(|_gone| None),
        })
        .await
    };
    match answer {
        None => {}
        Some(Err(Reset(reason))) => respond.send_reset(reason),
        Some(Ok(mut response)) => {
            let close = response.extensions_mut().remove::<CloseConnection>();
            if close.is_some() {
                shared.close.notify_one();
            }
            drop(shared);
            send(response, respond).await;
        }
    }
}

/// What belongs to the connection is taken off, and the handler is asked.
async fn answer<H: Handle>(
    terms: &Terms<H>,
    request: http::Request<RecvStream>,
) -> Result<Response, Reset> {
    let refuse = |refused: Refused| {
        terms.refusals.count(Protocol::Http2, refused.label());
        Ok(respond::status(Version::HTTP_2, refused.status()))
    };
    if request.headers().len() > usize::from(terms.limits.http1.fields) {
        return refuse(Refused::TooManyHeaders);
    }
    let length = declared_length(request.headers());
    if *request.method() == Method::CONNECT && length.is_some_and(|length| length > 0) {
        return refuse(Refused::ConnectBody);
    }
    let mut request: Request =
        request.map(|stream| Body::http2(Incoming::new(stream, Of::Request, length)));
    // An HTTP/2 stream is a tunnel by itself: bodies go both ways for as long as they like.
    if upgrade::accept(&mut request).is_err() {
        return Ok(respond::status(Version::HTTP_2, StatusCode::BAD_REQUEST));
    }
    let response = terms.handler.handle(request).await?;
    if response.status().is_informational() {
        // Nobody has asked for it, and nothing could follow it.
        return Ok(respond::status(Version::HTTP_2, StatusCode::BAD_GATEWAY));
    }
    Ok(response)
}

async fn send(response: Response, mut respond: SendResponse<Bytes>) {
    let (mut head, body) = response.into_parts();
    prepare_response(&mut head.headers, &body);
    let is_last = http_body::Body::is_end_stream(&body);
    let head = http::Response::from_parts(head, ());
    let sent = match respond.send_response(head, is_last) {
        Ok(_stream) if is_last => Ok(()),
        Ok(stream) => Outgoing::new(body, stream).await,
        Err(error) => {
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
            Err(error.into())
        }
    };
    if let Err(error) = sent {
        tracing::debug!(%error, "A response could not be sent to its end");
    }
}

fn keep_alive(params: &Http2Server) -> Option<KeepAlive> {
    // Clients that are gone hold their connections while nothing runs on them, too.
    params.keep_alive.map(|pings| KeepAlive {
        interval: pings.interval,
        timeout: pings.timeout,
        while_idle: true,
    })
}

fn window_of(params: &Http2Server, stream_window: u32) -> u32 {
    connection_window(
        stream_window,
        params.max_concurrent_streams,
        params.connection_window,
    )
}

fn builder(params: &Http2Server, limits: &HttpLimits) -> Builder {
    let stream_window = first_stream_window(params.stream_window, params.adaptive_window);
    let mut builder = Builder::new();
    builder
        .initial_window_size(stream_window)
        .initial_connection_window_size(window_of(params, stream_window))
        .max_concurrent_streams(params.max_concurrent_streams)
        .max_header_list_size(params.max_header_list_size)
        .max_pending_accept_reset_streams(params.max_pending_accept_reset_streams)
        .max_local_error_reset_streams(Some(limits.http2.mistakes as usize));
    if let Some(size) = params.max_frame_size {
        builder.max_frame_size(size);
    }
    if let Some(size) = params.max_send_buf_size {
        builder.max_send_buffer_size(size);
    }
    builder
}
