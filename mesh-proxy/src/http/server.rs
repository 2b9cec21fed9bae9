//! Serves HTTP on one accepted connection: calls the handler per request, keeps connection headers at the connection, ends it when it must. HTTP/1 is ours
//! ([`super::http1`]), HTTP/2 hyper's.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;

use http::{StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use mesh_runtime::drain::Watch;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use super::body::h2_error;
use super::executor::LocalExecutor;
use super::http1::server::{Ended, Terms};
use super::http1::{self, Refused};
use super::http2::{Guarded, Role, Standing};
use super::idle::idle;
use super::respond::CloseConnection;
use super::{Body, Handle, Protocol, Request, Response, respond, upgrade};
use crate::config::{Http2Server, HttpLimits};
use crate::telemetry::labels::Direction;
use crate::telemetry::refused::RefusedFamily;
use crate::transport::{Io, Scratch};
use crate::worker::Worker;

/// Serves the connections of one listener on one data thread.
#[derive(Clone, Debug)]
pub struct Server {
    direction: Direction,
    http2: Http2Server,
    limits: HttpLimits,
    refused: RefusedFamily,
    /// Tunnels copy through it.
    scratch: Rc<Scratch>,
    /// Tunnels outlive the connections they began on.
    tasks: TaskTracker,
    drain: Watch,
}

/// RFC 9113, section 6.9.1.
pub(super) const MAX_WINDOW: u32 = (1 << 31) - 1;

/// How serving a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Http1(#[from] http1::Error),
    #[error(transparent)]
    Http2(#[from] hyper::Error),
}

impl Server {
    pub fn new(direction: Direction, worker: &Worker) -> Self {
        let config = &worker.config;
        Self {
            direction,
            http2: match direction {
                Direction::Inbound => config.inbound.http2_server,
                Direction::Outbound => config.outbound.http2_server,
            },
            limits: config.http,
            refused: worker.families.refused.clone(),
            scratch: worker.scratch.clone(),
            tasks: worker.tasks.clone(),
            drain: worker.drain.clone(),
        }
    }

    #[cfg(test)]
    pub(super) fn for_tests(
        drain: Watch,
        limits: HttpLimits,
        registry: &mesh_runtime::metrics::Registry,
    ) -> Self {
        Self {
            direction: Direction::Inbound,
            http2: Http2Server {
                stream_window: 65_535,
                connection_window: 1 << 20,
                adaptive_window: false,
                keep_alive: None,
                max_concurrent_streams: 200,
                max_frame_size: None,
                max_header_list_size: 1 << 18,
                max_pending_accept_reset_streams: 200,
                max_send_buf_size: None,
            },
            limits,
            refused: crate::telemetry::Families::new(registry).refused,
            scratch: Rc::default(),
            tasks: TaskTracker::new(),
            drain,
        }
    }

    /// Serves `io` until it ends. While the proxy drains, requests in flight are finished and no new ones are taken.
    pub async fn serve<H: Handle + 'static>(
        &self,
        io: Io,
        protocol: Protocol,
        handler: Rc<H>,
    ) -> Result<(), ServeError> {
        // Boxed: connections of either kind would be as large as the larger one.
        match protocol {
            Protocol::Http1 => Ok(Box::pin(self.serve_http1(io, &*handler)).await?),
            Protocol::Http2 => Ok(Box::pin(self.serve_http2(io, handler)).await?),
        }
    }

    async fn serve_http1<H: Handle>(&self, io: Io, handler: &H) -> Result<(), http1::Error> {
        let terms = Terms {
            drain: &self.drain,
            handler,
            limits: &self.limits,
        };
        let served = http1::server::serve(io, &terms).await;
        if let Some(reason) = served.as_ref().err().and_then(http1::Error::label) {
            self.refuse(Protocol::Http1, reason);
        }
        match served? {
            Ended::Closed => {}
            Ended::Tunnel(ends) => {
                let (scratch, drain) = (self.scratch.clone(), self.drain.clone());
                self.tasks.spawn_local(async move {
                    let (client, server) = *ends;
                    upgrade::join(client, server, &scratch, &drain).await;
                });
            }
        }
        Ok(())
    }

    async fn serve_http2<H: Handle + 'static>(
        &self,
        io: Io,
        handler: Rc<H>,
    ) -> Result<(), hyper::Error> {
        let io = Guarded::new(io, Role::Server, &self.limits);
        let standing = io.standing();
        let connection = Rc::new(Connection {
            handler,
            close: Notify::new(),
            server: self.clone(),
        });
        let end = {
            let connection = connection.clone();
            let standing = standing.clone();
            async move {
                tokio::select! {
                    () = connection.server.drain.draining() => {}
                    () = connection.close.notified() => {}
                    () = idle(connection.server.limits.idle, standing.messages()) => {}
                    () = standing.retired() => connection.server.refuse_http2(&standing, None),
                }
            }
        };
        let service = service_fn(move |request| answer(connection.clone(), request));
        let serving =
            http2_builder(&self.http2, &self.limits).serve_connection(TokioIo::new(io), service);
        let served = drive(serving, end, |c| c.graceful_shutdown()).await;
        self.refuse_http2(&standing, served.as_ref().err());
        served
    }

    /// Counts and logs why a client's HTTP/2 connection was ended or replaced, if it was the client's fault.
    fn refuse_http2(&self, standing: &Standing, error: Option<&hyper::Error>) {
        if let Some(violation) = standing.take_violation() {
            tracing::info!(reason = %violation, "HTTP/2 connection of a client ended or replaced");
            self.refuse(Protocol::Http2, violation.label());
        } else if let Some(reason) = error.and_then(library_verdict) {
            self.refuse(Protocol::Http2, reason);
        }
    }

    fn refuse(&self, protocol: Protocol, reason: &'static str) {
        self.refused.http(self.direction, protocol, reason);
    }
}

/// Value of the `reason` label when the library has ended a connection.
fn library_verdict(error: &hyper::Error) -> Option<&'static str> {
    let error = h2_error(error).filter(|error| error.is_go_away() && error.is_library())?;
    match error.reason() {
        Some(h2::Reason::ENHANCE_YOUR_CALM) => Some("flood"),
        _ => Some("malformed"),
    }
}

/// What the requests of one connection share.
struct Connection<H> {
    handler: Rc<H>,
    close: Notify,
    server: Server,
}

/// Runs `connection`, and asks it once to finish when `end` is ready.
async fn drive<C>(
    connection: C,
    end: impl Future<Output = ()>,
    graceful: impl FnOnce(Pin<&mut C>),
) -> Result<(), hyper::Error>
where
    C: Future<Output = Result<(), hyper::Error>>,
{
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        served = connection.as_mut() => return served,
        () = end => {}
    }
    graceful(connection.as_mut());
    connection.await
}

/// Room for what every stream may send before it is read.
///
/// Requests that wait for a place at an endpoint (a server may take 100 at a time) are not read, and what they sent stays in the connection's window. Were it smaller than
/// that, they could fill it, and the requests that have a place would never get the rest of their bodies: everything would stand still.
fn connection_window(params: &Http2Server) -> u32 {
    let all = params
        .stream_window
        .saturating_mul(params.max_concurrent_streams);
    params.connection_window.max(all).min(MAX_WINDOW)
}

fn http2_builder(
    params: &Http2Server,
    limits: &HttpLimits,
) -> hyper::server::conn::http2::Builder<LocalExecutor> {
    let mut builder = hyper::server::conn::http2::Builder::new(LocalExecutor);
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(params.stream_window)
        .initial_connection_window_size(connection_window(params))
        .max_concurrent_streams(params.max_concurrent_streams)
        .max_frame_size(params.max_frame_size)
        .max_header_list_size(params.max_header_list_size)
        .max_pending_accept_reset_streams(params.max_pending_accept_reset_streams)
        .max_local_error_reset_streams(limits.http2.mistakes as usize);
    if let Some(size) = params.max_send_buf_size {
        builder.max_send_buf_size(size);
    }
    if params.adaptive_window {
        builder.adaptive_window(true);
    }
    if let Some(pings) = params.keep_alive {
        builder
            .keep_alive_interval(pings.interval)
            .keep_alive_timeout(pings.timeout);
    }
    builder
}

/// One request: what belongs to the connection is taken off, the handler is asked, tunnels are joined.
async fn answer<H: Handle>(
    connection: Rc<Connection<H>>,
    request: http::Request<Incoming>,
) -> Result<Response, h2::Error> {
    let server = &connection.server;
    if request.headers().len() > usize::from(server.limits.http1.fields) {
        server.refuse(Protocol::Http2, Refused::TooManyHeaders.label());
        let status = Refused::TooManyHeaders.status();
        return Ok(respond::status(Version::HTTP_2, status));
    }
    let mut request: Request = request.map(Body::incoming);
    let tunnel = match upgrade::accept(&mut request) {
        Ok(wanted) => wanted.map(|wanted| (wanted, hyper::upgrade::on(&mut request))),
        Err(upgrade::BadTarget) => {
            return Ok(respond::status(Version::HTTP_2, StatusCode::BAD_REQUEST));
        }
    };
    let mut response = connection
        .handler
        .handle(request)
        .await
        .map_err(|reset| h2::Error::from(reset.0))?;
    if let Some((wanted, client)) = tunnel
        && let Some(joined) = upgrade::join_streams(wanted, client, &mut response)
    {
        server.tasks.spawn_local(joined);
    }
    if response
        .extensions_mut()
        .remove::<CloseConnection>()
        .is_some()
    {
        connection.close.notify_one();
    }
    Ok(response)
}
