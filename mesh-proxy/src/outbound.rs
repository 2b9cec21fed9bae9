//! Outbound connections of the application.
//!
//! Runs on the data threads. [`accept`] resolves the destination and protocol of a connection. Then
//! [`opaque`] forwards it to one endpoint, or [`http`] picks an endpoint for each request. Both
//! connect to endpoints through [`dial`].

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use ahash::AHashSet;

use self::http::Http;
use self::opaque::Opaque;
use crate::context::ProxyContext;
use crate::http::server::Server;
use crate::telemetry::labels::Direction;

mod accept;
pub mod dial;
pub mod http;
mod opaque;

/// Serves the outbound connections of one data thread.
pub struct Outbound {
    context: Rc<ProxyContext>,
    server: Server,
    http: Http,
    opaque: Opaque,
    /// Destinations that use a server-first protocol. They are dialled without waiting for client
    /// data.
    server_first: RefCell<AHashSet<SocketAddr>>,
}

/// Maximum number of remembered server-first destinations. A connection to a forgotten one waits
/// for client data once more.
const MAX_SERVER_FIRST: usize = 4096;

impl Outbound {
    pub fn new(context: Rc<ProxyContext>) -> Self {
        Self {
            server: Server::new(Direction::Outbound, &context),
            http: Http::new(context.clone()),
            opaque: Opaque::new(context.clone()),
            server_first: RefCell::default(),
            context,
        }
    }

    fn is_server_first(&self, dst: SocketAddr) -> bool {
        self.server_first.borrow().contains(&dst)
    }

    fn remember_server_first(&self, dst: SocketAddr) {
        let mut server_first = self.server_first.borrow_mut();
        if server_first.len() >= MAX_SERVER_FIRST {
            server_first.clear();
        }
        server_first.insert(dst);
    }
}
