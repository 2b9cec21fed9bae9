//! Serves HTTP on one accepted connection with [`super::http1::server`] or
//! [`super::http2::server`].

use std::rc::Rc;
use std::time::Duration;

use mesh_runtime::drain::Watch;

use super::http1::server::{ServeConfig, ServeOutcome};
use super::refusal_counter::RefusalCounter;
use super::{HttpHandler, Protocol, http1, http2, upgrade};
use crate::config::{ClientTrust, Config, Http2Server, HttpLimits};
use crate::telemetry::labels::Direction;
use crate::telemetry::refused::RefusedFamily;
use crate::transport::{Io, Scratch, Stage};

/// Serves the connections of one listener on one data thread.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(super) http2: Http2Server,
    pub(super) limits: HttpLimits,
    pub(super) refusals: RefusalCounter,
    /// The copy buffer of tunnels.
    pub(super) scratch: Rc<Scratch>,
    pub(super) half_closed_idle: Duration,
    /// Tunnels outlive the connections that they began on.
    pub(super) drain: Watch,
}

/// Why serving a connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error(transparent)]
    Http1(#[from] http1::Error),
    #[error(transparent)]
    Http2(#[from] mesh_http2::Error),
}

impl Server {
    pub(crate) fn new(
        direction: Direction,
        config: &Config,
        refused: RefusedFamily,
        scratch: Rc<Scratch>,
        drain: Watch,
    ) -> Self {
        Self {
            http2: match direction {
                Direction::Inbound => config.inbound.http2_server,
                Direction::Outbound => config.outbound.http2_server,
            },
            limits: match direction {
                // The client may be another proxy of the mesh.
                Direction::Inbound => config.http.behind_proxy(),
                Direction::Outbound => config.http,
            },
            refusals: RefusalCounter::new(direction, refused),
            scratch,
            half_closed_idle: config.half_closed_idle,
            drain,
        }
    }

    /// Returns the server with other settings of HTTP/2.
    #[must_use]
    pub(crate) fn with_http2(mut self, change: impl FnOnce(&mut Http2Server)) -> Self {
        change(&mut self.http2);
        self
    }

    /// Serves `io`, a connection of the pod's own application, until it ends, with the drain of the
    /// proxy.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn serve<H: HttpHandler + 'static>(
        &self,
        io: Io,
        protocol: Protocol,
        handler: Rc<H>,
    ) -> impl Future<Output = Result<(), ServeError>> {
        self.serve_client(
            io,
            protocol,
            handler,
            ClientTrust::Known,
            self.drain.clone(),
        )
    }

    /// Serves `io`, a connection of any client, until it ends. When the connection's `drain`
    /// starts, requests in flight are completed and no new ones are accepted.
    pub(crate) async fn serve_client<H: HttpHandler + 'static>(
        &self,
        io: Io,
        protocol: Protocol,
        handler: Rc<H>,
        client: ClientTrust,
        drain: Watch,
    ) -> Result<(), ServeError> {
        io.enter(Stage::Http);
        // Boxed, because otherwise every connection would be as large as the larger kind.
        match protocol {
            Protocol::Http1 => {
                let ended = Box::pin(self.serve_http1(io, &*handler, &drain)).await?;
                // A tunnel does not need the handler.
                drop(handler);
                if let ServeOutcome::Tunnel(connections) = ended {
                    let (client, server, revocable) = *connections;
                    let (scratch, idle) = (&self.scratch, self.half_closed_idle);
                    let tunnel = upgrade::run_tunnel(client, server, scratch, idle, &self.drain);
                    Box::pin(upgrade::until_revoked(tunnel, revocable)).await;
                }
                Ok(())
            }
            Protocol::Http2 => {
                let config = self.http2_config(handler, client, drain);
                Ok(Box::pin(http2::server::serve(io, config)).await?)
            }
        }
    }

    async fn serve_http1<H: HttpHandler>(
        &self,
        io: Io,
        handler: &H,
        drain: &Watch,
    ) -> Result<ServeOutcome, http1::Error> {
        let config = ServeConfig {
            drain,
            handler,
            limits: &self.limits,
        };
        // Limits unsent data in the kernel; HTTP/2 has flow-control windows for this.
        io.limit_unsent();
        let served = http1::server::serve(io, &config).await;
        if let Some(reason) = served.as_ref().err().and_then(http1::Error::label) {
            self.refusals.count(Protocol::Http1, reason);
        }
        served
    }

    pub(super) fn http2_config<H>(
        &self,
        handler: Rc<H>,
        client: ClientTrust,
        drain: Watch,
    ) -> http2::server::ServeConfig<H> {
        http2::server::ServeConfig {
            handler,
            params: self.http2,
            client,
            limits: self.limits,
            drain,
            refusals: self.refusals.clone(),
            read_ahead: http2::ReadAhead::default(),
        }
    }
}
