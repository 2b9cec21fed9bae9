//! Serves HTTP on one accepted connection: calls the handler per request, keeps connection headers
//! at the connection, ends it when it must. How, say [`super::http1::server`] and
//! [`super::http2::server`].

use std::rc::Rc;

use mesh_runtime::drain::Watch;

use super::http1::server::{Ended, Terms};
use super::{Handle, Protocol, http1, http2, upgrade};
use crate::config::{Http2Server, HttpLimits};
use crate::telemetry::labels::Direction;
use crate::telemetry::refused::RefusedFamily;
use crate::transport::{Io, Scratch};
use crate::worker::Worker;

/// Serves the connections of one listener on one data thread.
#[derive(Clone, Debug)]
pub struct Server {
    http2: Http2Server,
    limits: HttpLimits,
    refusals: Refusals,
    /// Tunnels copy through it.
    scratch: Rc<Scratch>,
    /// Tunnels outlive the connections they began on.
    drain: Watch,
}

/// Counts what the clients of one listener are refused.
#[derive(Clone, Debug)]
pub(super) struct Refusals {
    direction: Direction,
    family: RefusedFamily,
}

/// How serving a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Http1(#[from] http1::Error),
    #[error(transparent)]
    Http2(#[from] mesh_http2::Error),
}

impl Server {
    pub fn new(direction: Direction, worker: &Worker) -> Self {
        let config = &worker.config;
        Self {
            http2: match direction {
                Direction::Inbound => config.inbound.http2_server,
                Direction::Outbound => config.outbound.http2_server,
            },
            limits: config.http,
            refusals: Refusals {
                direction,
                family: worker.families.refused.clone(),
            },
            scratch: worker.scratch.clone(),
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
            refusals: Refusals {
                direction: Direction::Inbound,
                family: crate::telemetry::Families::new(registry).refused,
            },
            scratch: Rc::default(),
            drain,
        }
    }

    /// Serves `io` until it ends. While the proxy drains, requests in flight are finished and no
    /// new ones are taken.
    pub fn serve<H: Handle + 'static>(
        &self,
        io: Io,
        protocol: Protocol,
        handler: Rc<H>,
    ) -> impl Future<Output = Result<(), ServeError>> {
        self.serve_within(io, protocol, handler, self.drain.clone())
    }

    /// The same for a connection of a part of the proxy that can be drained by itself.
    pub async fn serve_within<H: Handle + 'static>(
        &self,
        io: Io,
        protocol: Protocol,
        handler: Rc<H>,
        drain: Watch,
    ) -> Result<(), ServeError> {
        // Boxed: connections of either kind would be as large as the larger one.
        match protocol {
            Protocol::Http1 => {
                let ended = Box::pin(self.serve_http1(io, &*handler, &drain)).await?;
                // A tunnel needs nothing of what went before, but the connection's place.
                drop(handler);
                if let Ended::Tunnel(ends) = ended {
                    let (client, server, admission) = *ends;
                    let joined = upgrade::join(client, server, &self.scratch, &self.drain);
                    Box::pin(upgrade::while_admitted(joined, admission)).await;
                }
                Ok(())
            }
            Protocol::Http2 => {
                let terms = self.http2_terms(handler, drain);
                Ok(Box::pin(http2::server::serve(io, terms)).await?)
            }
        }
    }

    async fn serve_http1<H: Handle>(
        &self,
        io: Io,
        handler: &H,
        drain: &Watch,
    ) -> Result<Ended, http1::Error> {
        let terms = Terms {
            drain,
            handler,
            limits: &self.limits,
        };
        // HTTP/2 has windows for it.
        io.limit_unsent();
        let served = http1::server::serve(io, &terms).await;
        if let Some(reason) = served.as_ref().err().and_then(http1::Error::label) {
            self.refusals.count(Protocol::Http1, reason);
        }
        served
    }

    pub(super) fn http2_terms<H>(&self, handler: Rc<H>, drain: Watch) -> http2::server::Terms<H> {
        http2::server::Terms {
            handler,
            params: self.http2,
            limits: self.limits,
            drain,
            refusals: self.refusals.clone(),
        }
    }
}

impl Refusals {
    pub(super) fn count(&self, protocol: Protocol, reason: &'static str) {
        self.family.http(self.direction, protocol, reason);
    }
}
