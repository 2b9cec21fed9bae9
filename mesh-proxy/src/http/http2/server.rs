//! Serves HTTP/2 on one accepted connection: one task for I/O, and one for each stream.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http::{Method, StatusCode, Version};
use mesh_core::endpoint::KeepAlive;
use mesh_http2::{AcceptedStream, Error, ErrorCode, FieldSectionLimit, Role};
use mesh_runtime::drain;

use super::shared_connection::RequestBodyMonitor;
use super::{
    Driver, IncomingBody, OutgoingBody, ReadAhead, ReadAheadGrant, SendStream, SharedConnection,
    prepare_response,
};
use crate::config::{ClientTrust, Http2Server, HttpLimits};
use crate::http::body_timeout::BodyTimeout;
use crate::http::idle::wait_until_idle;
use crate::http::message_context::MessageContext;
use crate::http::message_error::MessageError;
use crate::http::refusal_counter::RefusalCounter;
use crate::http::{
    Body, HttpHandler, InterimSender, Protocol, Request, Reset, Response, synthetic_response,
    upgrade, uri,
};
use crate::transport::Io;

/// Configuration of an accepted connection.
pub(in crate::http) struct ServeConfig<H> {
    pub(crate) handler: Rc<H>,
    pub(crate) params: Http2Server,
    pub(crate) client: ClientTrust,
    pub(crate) limits: HttpLimits,
    pub(crate) drain: drain::Watch,
    pub(crate) refusals: RefusalCounter,
    pub(in crate::http) read_ahead: ReadAhead,
}

/// Serves `io` until the connection and all of its streams have ended. When the proxy drains or the
/// connection is idle, a graceful shutdown starts.
///
/// Not an `async fn`, which would keep memory for its arguments in addition to the values made from
/// them for the life of the connection.
pub(in crate::http) fn serve<H: HttpHandler + 'static>(
    io: Io,
    config: ServeConfig<H>,
) -> impl Future<Output = Result<(), Error>> {
    let mut driver = Driver::new(io, config.role_config());
    let shared = driver.shared().clone();
    let config = Rc::new(config);
    async move {
        let mut stop = pin!(config.drained_or_idle(&shared));
        let mut is_stopping = false;
        let served = poll_fn(|cx| {
            if !is_stopping && stop.as_mut().poll(cx).is_ready() {
                is_stopping = true;
                shared.start_graceful_shutdown();
            }
            let polled = driver.poll(cx, &mut |shared, accepted| {
                tokio::task::spawn_local(exchange(config.clone(), shared.clone(), accepted));
            });
            if !is_stopping && shared.is_drain_due() {
                is_stopping = true;
                config.record_exceeded_limit(&shared, None);
                shared.start_graceful_shutdown();
                cx.waker().wake_by_ref();
            }
            polled
        })
        .await;
        config.record_exceeded_limit(&shared, served.as_ref().err());
        served
    }
}

/// Returns how many field lines a client may send beyond those that their bytes account for. Eighty
/// requests of a hundred one-byte lines; an authenticated peer carries the requests of others.
fn field_lines(client: ClientTrust) -> u32 {
    match client {
        ClientTrust::Known => 128 * 1024,
        ClientTrust::Unknown => 8 * 1024,
    }
}

impl<H> ServeConfig<H> {
    fn role_config(&self) -> super::RoleConfig {
        let params = &self.params;
        let max_streams = params.max_streams(self.client);
        let mut limits = self.limits;
        // A client may cancel all of its streams at the same time.
        limits.http2.resets = limits.http2.resets.max(max_streams.saturating_mul(2));
        super::RoleConfig {
            role: Role::Server,
            limits,
            max_header_list_size: params
                .max_header_list_size
                .saturating_add(limits.added_bytes),
            max_streams,
            max_pending_accept_resets: params.max_pending_accept_resets(self.client),
            field_lines: field_lines(self.client),
            stream_window: params.stream_window,
            connection_window: params.connection_window,
            adaptive_window: params.adaptive_window,
            max_frame_size: params.max_frame_size,
            send_buffer: params.max_send_buf_size,
            // Disconnected clients hold idle connections, too.
            keep_alive: params.keep_alive.map(|pings| KeepAlive {
                interval: pings.interval,
                timeout: pings.timeout,
                while_idle: true,
            }),
        }
    }

    /// Completes when the proxy drains or the connection is idle.
    async fn drained_or_idle(&self, shared: &SharedConnection) {
        tokio::select! {
            biased;
            () = self.drain.draining() => {}
            () = wait_until_idle(self.limits.idle, || shared.message_frames()) => {}
        }
    }

    /// Counts and logs a limit that the client exceeded, or its protocol error.
    fn record_exceeded_limit(&self, shared: &SharedConnection, error: Option<&Error>) {
        if let Some(exceeded) = shared.take_limit_exceeded() {
            tracing::info!(reason = %exceeded, "HTTP/2 client exceeded a limit");
            self.refusals.count(Protocol::Http2, exceeded.label());
        } else if let Some(Error::ConnectionError(..)) = error {
            self.refusals.count(Protocol::Http2, "malformed");
        }
    }
}

/// Watches whether the client sends the declared body.
struct SlowBodyWatch<H> {
    config: Rc<ServeConfig<H>>,
    monitor: RequestBodyMonitor,
    timeout: BodyTimeout,
}

impl<H> SlowBodyWatch<H> {
    /// Ready, after counting and logging it, if the client does not.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = ready!(self.timeout.poll(cx, &self.monitor));
        tracing::info!(?limit, "Request body timed out");
        self.config.refusals.count(Protocol::Http2, "body_time");
        Poll::Ready(())
    }
}

/// Serves one stream. The handler's future is dropped when the client resets the stream.
///
/// Not an `async fn`, as with [`serve`].
fn exchange<H: HttpHandler>(
    config: Rc<ServeConfig<H>>,
    shared: SharedConnection,
    accepted: AcceptedStream,
) -> impl Future<Output = ()> {
    let AcceptedStream {
        id,
        request,
        raw_target,
        exceeded_limit,
        is_headers_only: has_no_body,
        content_length,
    } = accepted;
    let (recv_stream, send_stream) = shared.split(id);
    let mut read_ahead = config.read_ahead.grant_ahead();
    let interim = super::InterimSender::new(&shared, id, &request, read_ahead.bytes());
    let interim = InterimSender::Http2(interim);
    let body = Body::http2(IncomingBody::request(
        recv_stream,
        content_length,
        has_no_body,
    ))
    .with_interim(interim);
    let mut request = request.map(|()| body);
    if raw_target.is_some() {
        MessageContext::of_mut(request.extensions_mut()).raw_target = raw_target;
    }
    let mut watch = SlowBodyWatch {
        monitor: RequestBodyMonitor::new(&shared, id),
        timeout: BodyTimeout::new(config.limits.body_time),
        config,
    };
    async move {
        let config = watch.config.clone();
        let outcome = {
            let mut outcome = pin!(handle_request(
                &config,
                &mut request,
                exceeded_limit,
                content_length
            ));
            poll_fn(|cx| {
                if let Poll::Ready(outcome) = outcome.as_mut().poll(cx) {
                    return Poll::Ready(Some(outcome));
                }
                if watch.poll(cx).is_ready() {
                    let refusal =
                        synthetic_response::status(Version::HTTP_2, StatusCode::REQUEST_TIMEOUT);
                    return Poll::Ready(Some(Ok(refusal)));
                }
                send_stream.poll_failure(cx).map(|_gone| None)
            })
            .await
        };
        drop(request);
        match outcome {
            None => {}
            Some(Err(Reset(reason))) => {
                if config.drain.is_draining() {
                    // GOAWAY first, so that the client does not retry on this connection.
                    shared.start_graceful_shutdown();
                }
                send_stream.reset(reason);
            }
            Some(Ok(response)) => {
                if MessageContext::of(response.extensions()).closes_connection {
                    shared.start_graceful_shutdown();
                }
                // Its grant is held until all is sent.
                send_response(response, send_stream, watch, &mut read_ahead).await;
            }
        }
    }
}

/// Removes hop-by-hop headers and calls the handler.
async fn handle_request<H: HttpHandler>(
    config: &ServeConfig<H>,
    request: &mut Request,
    exceeded_limit: Option<FieldSectionLimit>,
    length: Option<u64>,
) -> Result<Response, Reset> {
    let reject = |error: MessageError| {
        config.refusals.count(Protocol::Http2, error.label());
        Ok(synthetic_response::status(Version::HTTP_2, error.status()))
    };
    match exceeded_limit {
        Some(FieldSectionLimit::FieldCount) => return reject(MessageError::TooManyFields),
        Some(FieldSectionLimit::Size) => return reject(MessageError::HeadersTooLarge),
        None => {}
    }
    if *request.method() == Method::CONNECT && length.is_some_and(|length| length > 0) {
        return reject(MessageError::ConnectWithBody);
    }
    // No tunnel is needed: both bodies of an HTTP/2 stream can last indefinitely.
    if upgrade::take_request(request).is_err() {
        return Ok(synthetic_response::status(
            Version::HTTP_2,
            StatusCode::BAD_REQUEST,
        ));
    }
    if let Err(error) = uri::unify_authority(request) {
        return reject(error);
    }
    let response = config.handler.handle(request).await?;
    if response.status().is_informational() {
        // An unrequested 1xx as the final response: nothing valid could follow it.
        return Ok(synthetic_response::status(
            Version::HTTP_2,
            StatusCode::BAD_GATEWAY,
        ));
    }
    Ok(response)
}

async fn send_response<H>(
    response: Response,
    send_stream: SendStream,
    mut watch: SlowBodyWatch<H>,
    read_ahead: &mut ReadAheadGrant,
) {
    let (mut parts, mut body) = response.into_parts();
    let revocable = body.take_revocable();
    prepare_response(&mut parts.headers, &body);
    let is_last = body.has_no_body();
    send_stream.respond(&http::Response::from_parts(parts, ()), is_last);
    if is_last {
        return;
    }
    read_ahead.widen(&body);
    let mut outgoing = OutgoingBody::new(body, send_stream);
    let sent = poll_fn(|cx| {
        let sent = Pin::new(&mut outgoing).poll(cx);
        if sent.is_pending() && watch.poll(cx).is_ready() {
            watch.monitor.reset(ErrorCode::CANCEL);
        }
        if let Some(revocable) = &revocable
            && sent.is_pending()
            && revocable.poll_revoked(cx).is_ready()
        {
            // gRPC maps this error code to "permission denied".
            watch.monitor.reset(ErrorCode::INADEQUATE_SECURITY);
            return Poll::Ready(Ok(()));
        }
        sent
    });
    if let Err(error) = sent.await {
        tracing::debug!(%error, "Response body could not be sent completely");
    }
}
