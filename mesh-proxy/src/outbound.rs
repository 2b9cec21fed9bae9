//! Outbound connections of the application.
//!
//! Runs on the data threads. [`accept`] resolves the destination and protocol of a connection. Then
//! [`opaque`] forwards it to one endpoint, or [`http`] picks an endpoint for each request. Both
//! connect to endpoints through [`dial`].

use std::rc::Rc;

use self::http::Http;
use self::opaque::Opaque;
use crate::classify::Classifier;
use crate::context::ProxyContext;
use crate::http::server::Server;
use crate::telemetry::labels::Direction;

mod accept;
pub(crate) mod dial;
pub(crate) mod http;
mod named;
mod opaque;

pub(crate) use self::{named::NamedError, opaque::ConnectionGuard};

/// Serves the outbound connections of one data thread.
pub(crate) struct Outbound {
    context: Rc<ProxyContext>,
    classifier: Classifier,
    server: Server,
    http: Rc<Http>,
    opaque: Opaque,
}

impl Outbound {
    pub(crate) fn new(context: Rc<ProxyContext>) -> Self {
        Self {
            classifier: Classifier::new(Direction::Outbound, &context),
            server: context.http_server(Direction::Outbound),
            http: Rc::new(Http::new(context.clone())),
            opaque: Opaque::new(context.clone()),
            context,
        }
    }

    /// Evicts what is idle, on a timer, until the proxy ends: while memory is short, no connection
    /// is accepted that would do so.
    pub(crate) async fn evict_idle(self: Rc<Self>) {
        loop {
            tokio::time::sleep(self.http.targets().eviction_interval()).await;
            self.http.targets().evict_idle();
            self.opaque.balancers().evict_idle();
        }
    }

    /// Evicts all that is not in use, because memory is short.
    pub(crate) fn evict_unused(&self) {
        self.http.targets().evict_unused();
        self.opaque.balancers().evict_unused();
    }

    /// The number of HTTP targets, and of balancers of opaque connections.
    #[cfg(test)]
    pub(crate) fn cached(&self) -> (usize, usize) {
        (self.http.targets().count(), self.opaque.balancers().count())
    }
}
