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

use super::executor::LocalExecutor;
use super::http1::{self, server::Ended};
use super::respond::CloseConnection;
use super::{Body, Handle, Protocol, Request, Response, respond, upgrade};
use crate::config::Http2Server;
use crate::transport::{Io, Scratch};
use crate::worker::Worker;

/// Serves the connections of one listener on one data thread.
#[derive(Clone, Debug)]
pub struct Server {
    http2: Http2Server,
    /// Tunnels copy through it.
    scratch: Rc<Scratch>,
    /// Tunnels outlive the connections they began on.
    tasks: TaskTracker,
    drain: Watch,
}

/// RFC 9113, section 6.9.1.
const MAX_WINDOW: u32 = (1 << 31) - 1;

/// How serving a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Http1(#[from] http1::Error),
    #[error(transparent)]
    Http2(#[from] hyper::Error),
}

impl Server {
    pub fn new(http2: &Http2Server, worker: &Worker) -> Self {
        Self {
            http2: *http2,
            scratch: worker.scratch.clone(),
            tasks: worker.tasks.clone(),
            drain: worker.drain.clone(),
        }
    }

    #[cfg(test)]
    pub(super) fn for_tests(drain: Watch) -> Self {
        Self {
            http2: Http2Server {
                stream_window: 65_535,
                connection_window: 1 << 20,
                adaptive_window: false,
                keep_alive: None,
                max_concurrent_streams: 200,
                max_frame_size: None,
                max_header_list_size: 1 << 18,
                max_pending_accept_reset_streams: None,
                max_send_buf_size: None,
            },
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
        match http1::server::serve(io, &self.drain, handler).await? {
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
        let close = Rc::new(Notify::new());
        let connection = Connection {
            handler,
            close: close.clone(),
            tasks: self.tasks.clone(),
        };
        let service = service_fn(move |request| answer(connection.clone(), request));
        let end = async {
            tokio::select! {
                () = self.drain.draining() => {}
                () = close.notified() => {}
            }
        };
        let connection = http2_builder(&self.http2).serve_connection(TokioIo::new(io), service);
        drive(connection, end, |c| c.graceful_shutdown()).await
    }
}

/// What the requests of one connection share.
struct Connection<H> {
    handler: Rc<H>,
    close: Rc<Notify>,
    tasks: TaskTracker,
}

impl<H> Clone for Connection<H> {
    fn clone(&self) -> Self {
        Self {
            handler: self.handler.clone(),
            close: self.close.clone(),
            tasks: self.tasks.clone(),
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

fn http2_builder(params: &Http2Server) -> hyper::server::conn::http2::Builder<LocalExecutor> {
    let mut builder = hyper::server::conn::http2::Builder::new(LocalExecutor);
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(params.stream_window)
        .initial_connection_window_size(connection_window(params))
        .max_concurrent_streams(params.max_concurrent_streams)
        .max_frame_size(params.max_frame_size)
        .max_header_list_size(params.max_header_list_size);
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
        connection.tasks.spawn_local(joined);
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
