//! The loop of an accepted HTTP/1 connection: read a request, call the handler, write the response,
//! discard the rest of the request's body, repeat.
//!
//! The loop's future is small while it waits for a request. The state of an exchange is in a boxed
//! future that exists only as long as the exchange.

use std::cell::Cell;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, Version};
use mesh_runtime::drain::Watch;
use tokio::time::timeout;

use self::response_framing::{RequestInfo, ResponseFraming};
use super::connection::RemainingBody;
use super::framing::RequestMethod;
use super::limits::DISCARD_TIME;
use super::{
    BodyEncoder, Connection, Error, FramingHeaders, MessageError, OutgoingBody, encode, parse,
};
use crate::config::HttpLimits;
use crate::http::body_timeout::BodyTimeout;
use crate::http::idle::wait_until_idle;
use crate::http::linger::{Linger, LingerLimits};
use crate::http::message_context::MessageContext;
use crate::http::revocable::RevocableRequest;
use crate::http::{
    Body, HttpHandler, InterimSender, Request, Response, synthetic_response, upgrade, uri,
};
use crate::transport::Io;
use crate::transport::reset::RESET_TIME;

mod response_framing;

/// How a connection ended.
#[derive(Debug)]
pub(in crate::http) enum ServeOutcome {
    Closed,
    /// The connections of the client and the server, to be joined to a tunnel.
    Tunnel(Box<(Io, Io, Option<RevocableRequest>)>),
}

/// What follows an exchange.
enum ConnectionAction {
    KeepAlive,
    Close,
    /// Close, but first read what the client still sends: otherwise the kernel would reset the
    /// connection before the client reads the response.
    Linger,
    /// Become a tunnel with the server's connection.
    Tunnel(Box<Io>, Option<RevocableRequest>),
}

/// Configuration of all requests on a connection.
pub(in crate::http) struct ServeConfig<'a, H> {
    pub(in crate::http) drain: &'a Watch,
    pub(in crate::http) handler: &'a H,
    pub(in crate::http) limits: &'a HttpLimits,
}

/// Serves `io` until the connection ends or is idle for too long. While the proxy drains, a request
/// that has begun is completed, and no other is read.
pub(in crate::http) async fn serve<H: HttpHandler>(
    io: Io,
    config: &ServeConfig<'_, H>,
) -> Result<ServeOutcome, Error> {
    let connection = Connection::new(io, config.limits.http1);
    let exchanges = Cell::new(0_u32);
    let mut draining = pin!(config.drain.draining());
    let mut idle = pin!(wait_until_idle(config.limits.idle, || exchanges.get()));
    loop {
        let is_over = |cx: &mut Context<'_>| {
            draining.as_mut().poll(cx).is_ready() || idle.as_mut().poll(cx).is_ready()
        };
        if !wait_for_request(&connection, is_over).await? {
            break;
        }
        exchanges.set(exchanges.get().wrapping_add(1));
        let exchange = Box::pin(exchange(&connection, config));
        let ended = exchange.await;
        connection.forget_upstream();
        match ended {
            Ok(ConnectionAction::KeepAlive) => {}
            Ok(ConnectionAction::Close) => break,
            Ok(ConnectionAction::Linger) => {
                Box::pin(linger(&connection, config.limits)).await;
                return Ok(ServeOutcome::Closed);
            }
            Ok(ConnectionAction::Tunnel(server, revocable)) => {
                let client = connection.into_io().ok_or(Error::ConnectionInUse)?;
                return Ok(ServeOutcome::Tunnel(Box::new((client, *server, revocable))));
            }
            Err(error) => {
                Box::pin(send_error_response(&connection, &error, config.limits)).await;
                connection.abort_body_reader();
                return Err(error);
            }
        }
    }
    poll_fn(|cx| connection.poll_shutdown(cx)).await?;
    Ok(ServeOutcome::Closed)
}

/// Waits for a request. Returns false when none will follow: the client has closed, the connection
/// was idle for too long, or the proxy drains.
async fn wait_for_request(
    connection: &Connection,
    mut is_over: impl FnMut(&mut Context<'_>) -> bool,
) -> Result<bool, Error> {
    let waiting = poll_fn(|cx| match connection.poll_request_start(cx) {
        Poll::Pending if is_over(cx) => Poll::Ready(Ok(false)),
        started => started,
    });
    if waiting.await? {
        return Ok(true);
    }
    // A request may have arrived while this thread did not run. The I/O driver learns of it before
    // the task continues; to close the connection without reading would reset the request.
    tokio::task::yield_now().await;
    poll_fn(|cx| {
        Poll::Ready(match connection.poll_request_start(cx) {
            Poll::Ready(started) => started,
            Poll::Pending => Ok(false),
        })
    })
    .await
}

/// Serves one request. An error ends the connection, after an error response where there is one.
async fn exchange<H: HttpHandler>(
    connection: &Rc<Connection>,
    config: &ServeConfig<'_, H>,
) -> Result<ConnectionAction, Error> {
    let (mut request, info) = read_request(connection, config.limits).await?;
    let upgrade_request =
        upgrade::take_request(&mut request).map_err(|_invalid| MessageError::InvalidTarget)?;
    uri::unify_authority(&mut request)?;
    uri::record_form(&mut request);
    let mut body_timeout = BodyTimeout::new(config.limits.body_time);
    let response =
        call_handler(connection, config.handler, &mut request, &mut body_timeout).await?;
    drop(request);
    let Some(mut response) = response else {
        return Ok(ConnectionAction::Close);
    };
    if upgrade_request.is_some_and(|upgrade| upgrade.is_accepted_by(response.status())) {
        return begin_tunnel(connection, response).await;
    }
    if response.status().is_informational() {
        // An unrequested 1xx or 101: no valid message could follow it.
        response = synthetic_response::status(info.version, StatusCode::BAD_GATEWAY);
        MessageContext::of_mut(response.extensions_mut()).closes_connection = true;
    }
    let drained = config.limits.drained_body;
    let must_close = config.drain.is_draining() || cannot_read_rest(connection, drained);
    let framing = ResponseFraming::new(info, &response, must_close);
    write_response(connection, framing, response, &mut body_timeout).await?;
    let is_body_complete = match connection.remaining_body() {
        RemainingBody::Complete => true,
        _ => Box::pin(drain_request_body(connection, framing.keeps_alive, drained)).await,
    };
    let must_linger = || connection.has_unread_input() || config.drain.is_draining();
    Ok(match is_body_complete {
        true if framing.keeps_alive => ConnectionAction::KeepAlive,
        true if !must_linger() => ConnectionAction::Close,
        _ => ConnectionAction::Linger,
    })
}

/// Reads the headers of a request whose first byte has been received.
async fn read_request(
    connection: &Rc<Connection>,
    limits: &HttpLimits,
) -> Result<(Request, RequestInfo), Error> {
    let headers = match connection.try_take_headers()? {
        Some(headers) => headers,
        None => Box::pin(read_slow_headers(connection, limits.head_time)).await?,
    };
    let parsed = parse::parse_request(&headers, &limits.http1)?;
    let info = RequestInfo {
        method: RequestMethod::new(&parsed.method),
        version: parsed.version,
        keeps_alive: parsed.keeps_alive,
    };
    let body = match connection.begin_body(parsed.body_length, parsed.expects_continue) {
        Some(incoming) => Body::http1(incoming),
        None => Body::empty(),
    };
    let is_http10 = parsed.version == Version::HTTP_10;
    let interim = super::InterimSender::new(connection, is_http10);
    let body = body.with_interim(InterimSender::Http1(interim));
    let mut request = Request::new(body);
    *request.method_mut() = parsed.method;
    *request.uri_mut() = parsed.uri;
    *request.version_mut() = parsed.version;
    *request.headers_mut() = parsed.headers;
    if parsed.raw_target.is_some() {
        MessageContext::of_mut(request.extensions_mut()).raw_target = parsed.raw_target;
    }
    Ok((request, info))
}

/// Reads headers that did not arrive in one piece.
async fn read_slow_headers(connection: &Connection, limit: Duration) -> Result<Bytes, Error> {
    let headers = poll_fn(|cx| connection.poll_headers(cx));
    match timeout(limit, headers).await {
        Ok(headers) => headers?.ok_or(Error::Incomplete),
        Err(_elapsed) => Err(Error::HeaderTimeout(limit)),
    }
}

/// Calls the handler. Returns `None` when it resets the request. Fails when the client disconnects,
/// or when the body turns out to be invalid.
async fn call_handler<H: HttpHandler>(
    connection: &Rc<Connection>,
    handler: &H,
    request: &mut Request,
    body_timeout: &mut BodyTimeout,
) -> Result<Option<Response>, Error> {
    let mut handling = pin!(handler.handle(request));
    let response = poll_fn(|cx| {
        if let Poll::Ready(handled) = handling.as_mut().poll(cx) {
            return Poll::Ready(Ok(handled.ok()));
        }
        // Writes forwarded interim responses, and the 100 that the handler's first read of the body
        // queued.
        if let Poll::Ready(Err(error)) = connection.poll_flush(cx) {
            return Poll::Ready(Err(error));
        }
        // No server can respond to a request without its end. Dropping the handler now keeps the
        // endpoint from counting as failed.
        if let Some(error) = connection.body_failure() {
            return Poll::Ready(Err(error));
        }
        poll_client_failure(connection, body_timeout, false, cx).map(Err)
    })
    .await?;
    // An invalid body takes precedence over the handler's response.
    match connection.body_error() {
        Some(error) => Err(error.into()),
        None => Ok(response),
    }
}

/// Ready when the client has disconnected, or does not send the declared body.
fn poll_client_failure(
    connection: &Rc<Connection>,
    body_timeout: &mut BodyTimeout,
    response_started: bool,
    cx: &mut Context<'_>,
) -> Poll<Error> {
    match body_timeout.poll(cx, connection) {
        Poll::Ready(limit) => Poll::Ready(Error::BodyTimeout {
            limit,
            response_started,
        }),
        Poll::Pending => connection.poll_disconnected(cx),
    }
}

/// Whether it is already known that the rest of the request will not be read: it is too large, or
/// the client will not send it.
fn cannot_read_rest(connection: &Connection, drained: u64) -> bool {
    connection.is_awaiting_continue()
        || match connection.remaining_body() {
            RemainingBody::Complete | RemainingBody::InUse => false,
            RemainingBody::Discard(left) => left.is_some_and(|left| left > drained),
            RemainingBody::Unframed => true,
        }
}

async fn write_response(
    connection: &Rc<Connection>,
    framing: ResponseFraming,
    response: Response,
    body_timeout: &mut BodyTimeout,
) -> Result<(), Error> {
    let (parts, mut body) = response.into_parts();
    let revocable = body.take_revocable();
    connection.append(|buffer| {
        encode::write_response(
            buffer,
            (
                framing.version,
                parts.status,
                MessageContext::of(&parts.extensions).reason.as_ref(),
            ),
            &parts.headers,
            framing.headers,
            framing.connection(),
        );
    });
    let body = if framing.has_body {
        body
    } else {
        Body::empty()
    };
    // The client's connection carries one response at a time.
    body.widen_window(|missing| missing);
    let mut outgoing = OutgoingBody::new(body, framing.encoder);
    let written = poll_fn(|cx| match outgoing.poll(connection, cx) {
        Poll::Ready(written) => Poll::Ready(written),
        Poll::Pending => match &revocable {
            Some(revocable) if revocable.poll_revoked(cx).is_ready() => {
                Poll::Ready(Err(Error::Revoked))
            }
            _ => poll_client_failure(connection, body_timeout, true, cx).map(Err),
        },
    })
    .await;
    if let Err(error) = &written {
        Box::pin(abort_response(connection, framing.encoder, error)).await;
    }
    written
}

/// Sends the beginning of a response that cannot be completed. Then the connection is reset, unless
/// its close shows that the response is incomplete and the server has closed its connection, too.
async fn abort_response(connection: &Connection, encoder: BodyEncoder, error: &Error) {
    if let Error::Read(_) | Error::Write(_) = error {
        // The client's connection has failed, so that nothing can be sent.
        connection.reset();
        return;
    }
    let written = timeout(RESET_TIME, connection.acknowledged()).await;
    if encoder == BodyEncoder::UntilClose || !error.is_close_of_server() || written.is_err() {
        // A normal close would mark the body as complete.
        connection.reset();
    }
}

/// Reads and discards the rest of the request's body. Returns whether the body is complete.
async fn drain_request_body(connection: &Connection, keeps_alive: bool, mut left: u64) -> bool {
    // The body may still be forwarded; that ends when the server closes or the client disconnects.
    match poll_fn(|cx| connection.poll_remaining_body(cx)).await {
        RemainingBody::Complete => return true,
        RemainingBody::Discard(_) if keeps_alive => {}
        RemainingBody::Discard(_) | RemainingBody::InUse | RemainingBody::Unframed => return false,
    }
    let discard = poll_fn(|cx| connection.poll_discard_body(cx, &mut left));
    timeout(DISCARD_TIME, discard).await.unwrap_or(false)
}

/// Sends the response that switches protocols, and takes the server's connection out of it.
async fn begin_tunnel(
    connection: &Connection,
    mut response: Response,
) -> Result<ConnectionAction, Error> {
    if connection.remaining_body() != RemainingBody::Complete {
        return Err(Error::ConnectionInUse);
    }
    let revocable = response.body_mut().take_revocable();
    let tunnel = response.body_mut().take_tunnel();
    connection.append(|buffer| {
        let status_line = (
            response.version().clamp(Version::HTTP_10, Version::HTTP_11),
            response.status(),
            MessageContext::of(response.extensions()).reason.as_ref(),
        );
        encode::write_response(
            buffer,
            status_line,
            response.headers(),
            FramingHeaders::Omit,
            None,
        );
    });
    poll_fn(|cx| connection.poll_flush(cx)).await?;
    Ok(tunnel.map_or(ConnectionAction::Close, |server| {
        ConnectionAction::Tunnel(server, revocable)
    }))
}

/// Sends the error response, if there is one.
async fn send_error_response(connection: &Connection, error: &Error, limits: &HttpLimits) {
    let Some(status) = error.status() else { return };
    let response = synthetic_response::status(Version::HTTP_11, status);
    connection.append(|buffer| {
        encode::write_response(
            buffer,
            (Version::HTTP_11, status, None),
            response.headers(),
            FramingHeaders::Unchanged,
            Some(HeaderValue::from_static("close")),
        );
    });
    linger(connection, limits).await;
}

/// Closes the writing half, and the connection when the client has received the response.
async fn linger(connection: &Connection, limits: &HttpLimits) {
    let shutdown = timeout(DISCARD_TIME, poll_fn(|cx| connection.poll_shutdown(cx)));
    if let Ok(Ok(())) = shutdown.await {
        let limits = LingerLimits {
            sending: DISCARD_TIME,
            idle: limits.idle,
        };
        let mut linger = Linger::new(limits);
        poll_fn(|cx| linger.poll(cx, &mut &*connection)).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use mesh_runtime::drain;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::http::Reset;

    /// As large as the actual handlers.
    struct Large;

    impl HttpHandler for Large {
        async fn handle(&self, _request: &mut Request) -> Result<Response, Reset> {
            let state = [0_u8; 4096];
            tokio::task::yield_now().await;
            std::hint::black_box(&state);
            Ok(Response::new(Body::empty()))
        }
    }

    /// The thread did not run between the arrival of the request and the drain.
    #[tokio::test]
    async fn request_that_arrived_before_drain_gets_response() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (tcp, _) = listener.accept().await.unwrap();
        let (_drain, watch) = drain::channel();
        let part = watch.part();
        let watch = part.watch();
        let config = ServeConfig {
            drain: &watch,
            handler: &Large,
            limits: &HttpLimits::DEFAULT,
        };
        let mut serving = pin!(serve(Io::plain(tcp), &config));
        for _ in 0..3 {
            assert!(serving.as_mut().now_or_never().is_none());
            tokio::task::yield_now().await;
        }

        client.writable().await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: web\r\n\r\n";
        assert_eq!(client.try_write(request).unwrap(), request.len());
        part.drain();
        let read = async move {
            let mut response = String::new();
            client.read_to_string(&mut response).await.unwrap();
            response
        };
        let (ended, response) = tokio::join!(serving, read);
        ended.unwrap();
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        assert!(response.contains("connection: close\r\n"), "{response}");
    }

    /// The size of an idle connection besides its socket: its task and what that points to.
    #[tokio::test]
    async fn idle_connection_future_is_small() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (_drain, watch) = drain::channel();
        let config = ServeConfig {
            drain: &watch,
            handler: &Large,
            limits: &HttpLimits::DEFAULT,
        };
        let task = size_of_val(&serve(Io::plain(tcp.unwrap()), &config));
        let connection = size_of::<Connection>();
        assert!(task <= 528, "{task}");
        assert!(connection <= 512, "{connection}");
    }
}
