//! Connections from the application to the rest of the world.
//!
//! Runs on the data threads. A connection walks [`accept`] (where to, and what protocol), then
//! either [`opaque`] (one endpoint for its whole life) or [`http`] (one endpoint per request). Both
//! reach endpoints through [`dial`].

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use ahash::AHashSet;

use self::http::Http;
use self::opaque::Opaque;
use crate::http::server::Server;
use crate::telemetry::labels::Direction;
use crate::worker::Worker;

mod accept;
pub mod dial;
pub mod http;
mod opaque;

/// The outbound side of one data thread.
pub struct Outbound {
    worker: Rc<Worker>,
    server: Server,
    http: Http,
    opaque: Opaque,
    /// Destinations whose server has spoken before its client did. They are dialled at once,
    /// without the moment's patience.
    greeters: RefCell<AHashSet<SocketAddr>>,
}

/// Destinations that are remembered as greeting. A workload talks to fewer; what is forgotten costs
/// the next connection a moment.
const MAX_GREETERS: usize = 4096;

impl Outbound {
    pub fn new(worker: Rc<Worker>) -> Self {
        Self {
            server: Server::new(Direction::Outbound, &worker),
            http: Http::new(worker.clone()),
            opaque: Opaque::new(worker.clone()),
            greeters: RefCell::default(),
            worker,
        }
    }

    fn greets(&self, dst: SocketAddr) -> bool {
        self.greeters.borrow().contains(&dst)
    }

    fn remember_greeter(&self, dst: SocketAddr) {
        let mut greeters = self.greeters.borrow_mut();
        if greeters.len() >= MAX_GREETERS {
            greeters.clear();
        }
        greeters.insert(dst);
    }
}
