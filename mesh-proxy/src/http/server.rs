//! Serves HTTP on one accepted connection: calls the handler per request, keeps connection headers at the connection, ends it when it must.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use http::{StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use mesh_runtime::drain::Watch;
use tokio::sync::Notify;

use super::executor::LocalExecutor;
use super::respond::CloseConnection;
use super::{Body, Handle, Protocol, Request, Response, respond, upgrade, uri};
use crate::transport::{Io, Scratch};

/// Serves the connections of one listener on one data thread.
#[derive(Clone, Debug)]
pub struct Server {
    pub params: Params,
    /// Tunnels copy through it.
    pub scratch: Rc<Scratch>,
    pub drain: Watch,
}

/// Settings of accepted connections.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// Limit for the head of an HTTP/1 request, counted from its first byte. Idle connections are not limited by it.
    pub header_read_timeout: Duration,
    pub http2: Http2Params,
}

/// Settings of accepted HTTP/2 connections.
#[derive(Clone, Debug, PartialEq)]
pub struct Http2Params {
    pub stream_window: u32,
    pub connection_window: u32,
    pub adaptive_window: bool,
    /// Interval and timeout of PINGs.
    pub keep_alive: Option<(Duration, Duration)>,
    pub max_concurrent_streams: u32,
    pub max_frame_size: u32,
    pub max_header_list_size: u32,
    /// Streams that a peer may reset before they are accepted; guards against rapid resets.
    pub max_pending_accept_reset_streams: Option<usize>,
    pub max_send_buf_size: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            // Linkerd has no limit. 30 s is hyper's own default and long enough for any honest client.
            header_read_timeout: Duration::from_secs(30),
            http2: Http2Params::default(),
        }
    }
}

impl Default for Http2Params {
    fn default() -> Self {
        Self {
            stream_window: 65_535,
            connection_window: 1_048_576,
            adaptive_window: false,
            keep_alive: None,
            // Linkerd has no limit, which leaves a connection's memory unbounded. A proxy carries all requests of a peer over one connection, so the
            // usual 100 to 250 would queue them.
            max_concurrent_streams: 10_000,
            max_frame_size: 16_384,
            // Linkerd's 16 KiB mangles large gRPC status details and long cookies.
            max_header_list_size: 65_536,
            max_pending_accept_reset_streams: None,
            max_send_buf_size: 400 * 1024,
        }
    }
}

impl Server {
    /// Serves `io` until it ends. While the proxy drains, requests in flight are finished and no new ones are taken.
    pub async fn serve<H: Handle + 'static>(
        &self,
        io: Io,
        protocol: Protocol,
        handler: Rc<H>,
    ) -> Result<(), hyper::Error> {
        let close = Rc::new(Notify::new());
        let connection = Connection {
            handler,
            close: close.clone(),
            scratch: self.scratch.clone(),
            drain: self.drain.clone(),
        };
        let service = service_fn(move |request| answer(connection.clone(), request));
        let end = async {
            tokio::select! {
                () = self.drain.draining() => {}
                () = close.notified() => {}
            }
        };
        match protocol {
            Protocol::Http1 => {
                let connection = http1_builder(&self.params)
                    .serve_connection(TokioIo::new(io), service)
                    .with_upgrades();
                drive(connection, end, |c| c.graceful_shutdown()).await
            }
            Protocol::Http2 => {
                let connection =
                    http2_builder(&self.params.http2).serve_connection(TokioIo::new(io), service);
                drive(connection, end, |c| c.graceful_shutdown()).await
            }
        }
    }
}

/// What the requests of one connection share.
struct Connection<H> {
    handler: Rc<H>,
    close: Rc<Notify>,
    scratch: Rc<Scratch>,
    drain: Watch,
}

impl<H> Clone for Connection<H> {
    fn clone(&self) -> Self {
        Self {
            handler: self.handler.clone(),
            close: self.close.clone(),
            scratch: self.scratch.clone(),
            drain: self.drain.clone(),
        }
    }
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

fn http1_builder(params: &Params) -> hyper::server::conn::http1::Builder {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(params.header_read_timeout)
        .half_close(true)
        .auto_date_header(false)
        .pipeline_flush(true);
    builder
}

fn http2_builder(params: &Http2Params) -> hyper::server::conn::http2::Builder<LocalExecutor> {
    let mut builder = hyper::server::conn::http2::Builder::new(LocalExecutor);
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(params.stream_window)
        .initial_connection_window_size(params.connection_window)
        .max_concurrent_streams(params.max_concurrent_streams)
        .max_frame_size(params.max_frame_size)
        .max_header_list_size(params.max_header_list_size)
        .max_send_buf_size(params.max_send_buf_size);
    if params.adaptive_window {
        builder.adaptive_window(true);
    }
    if let Some((interval, timeout)) = params.keep_alive {
        builder
            .keep_alive_interval(interval)
            .keep_alive_timeout(timeout);
    }
    if let Some(max) = params.max_pending_accept_reset_streams {
        builder.max_pending_accept_reset_streams(max);
    }
    builder
}

/// One request: what belongs to the connection is taken off, the handler is asked, tunnels are joined.
async fn answer<H: Handle>(
    connection: Connection<H>,
    request: http::Request<Incoming>,
) -> Result<Response, h2::Error> {
    let mut request: Request = request.map(Body::incoming);
    let version = request.version();
    let tunnel = match upgrade::accept(&mut request) {
        Ok(tunnel) => tunnel,
        Err(upgrade::BadTarget) => return Ok(respond::status(version, StatusCode::BAD_REQUEST)),
    };
    uri::mark_form(&mut request);
    let mut response = connection
        .handler
        .handle(request)
        .await
        .map_err(|reset| h2::Error::from(reset.0))?;
    if let Some(tunnel) = tunnel {
        upgrade::join(tunnel, &mut response, connection.scratch, connection.drain);
    }
    let closes = response.extensions_mut().remove::<CloseConnection>();
    if version == Version::HTTP_2 && closes.is_some() {
        // HTTP/1 connections close because the response says so.
        connection.close.notify_one();
    }
    Ok(response)
}
