//! Processes in a simulated world ([`mesh_simnet::world`]): the client of an API server on the
//! simulated network. For mesh-controller-simulator, with the feature `simulation`. Decision: ADR
//! 0210.
//!
//! The client has the layers of kube's own, in their order and with the configuration of the
//! product; only the sockets differ, and there is no TLS.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::{fmt, io};

use http::{HeaderValue, Request, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt as _};
use kube::{Client, Config};
use mesh_simnet::{Process, Stream};
use tokio::time::{Instant, timeout};
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};

/// Where a process of a world finds the API server.
#[derive(Clone)]
pub struct Dial {
    /// Opens the connections.
    pub process: Process,
    pub server: SocketAddr,
    /// When the world began.
    pub start: Instant,
}

/// The header with the world's time when an attempt was sent, in milliseconds. The API server
/// learns from it how long a request was on its way.
pub const SENT_AT: &str = "x-sent-at";

/// A connection to the API server.
struct Socket(TokioIo<Stream>);

impl Dial {
    pub(crate) fn config(&self) -> Config {
        let url = format!("http://{}", self.server);
        // An address is a valid authority.
        Config::new(url.parse().unwrap_or_default())
    }

    pub(crate) fn client(&self, config: &Config) -> Result<Client, kube::Error> {
        let (dial, limit) = (self.clone(), config.connect_timeout);
        let connector = tower::service_fn(move |_uri: Uri| {
            let dial = dial.clone();
            // Boxed, because the client moves it.
            Box::pin(async move {
                let connect = dial.process.connect(dial.server);
                let stream = match limit {
                    Some(limit) => timeout(limit, connect).await??,
                    None => connect.await?,
                };
                Ok::<_, io::Error>(Socket(TokioIo::new(stream)))
            })
        });
        let client: legacy::Client<_, Body> =
            legacy::Builder::new(TokioExecutor::new()).build(connector);
        let start = self.start;
        let stamp = move |mut request: Request<Body>| {
            let sent = HeaderValue::from(start.elapsed().as_millis() as u64);
            request.headers_mut().insert(SENT_AT, sent);
            request
        };
        let retries = RetryLayer::new(RetryPolicy::server_retry());
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.default_retry.then_some(retries))
            .option_layer(config.auth_layer()?)
            .layer(config.extra_headers_layer()?)
            .map_request(stamp)
            .map_err(BoxError::from)
            .service(client);
        Ok(Client::new(service, &*config.default_namespace))
    }
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dial").field(&self.server).finish()
    }
}

impl Connection for Socket {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
