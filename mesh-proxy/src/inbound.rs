//! Connections from outside to the application: who may talk to it, and the way to it.
//!
//! Runs on the data threads. A connection walks [`accept`] (which port, what protocol, whose TLS), then either [`tcp`] (judged once, then watched) or
//! [`http`] (each request judged). Connections to the proxy's own inbound port come from other proxies and say where they want to go ([`direct`]).
//! All judging is [`judge`]'s.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use ahash::AHashSet;

use self::app::Apps;
use self::judge::Judge;
use self::peer::Peer;
use crate::http::server::Server;
use crate::idle::IdleCache;
use crate::telemetry::labels::{self, Direction, ServerTls};
use crate::worker::Worker;

mod accept;
mod admin;
mod app;
mod direct;
mod http;
mod judge;
mod peer;
pub mod rate_limit;
mod tcp;

/// The inbound side of one data thread.
pub struct Inbound {
    worker: Rc<Worker>,
    server: Server,
    apps: Apps,
    /// Connections of the same client identity to the same address share a judge and with it the metric handles.
    judges: IdleCache<(SocketAddr, ServerTls), Judge>,
    /// Addresses at which the application has spoken before its client did. It is dialled at once there, without the moment's patience.
    greeters: RefCell<AHashSet<SocketAddr>>,
}

impl Inbound {
    pub fn new(worker: Rc<Worker>) -> Self {
        let keep = worker.config.discovery.inbound_idle;
        let to_app = worker.families.tcp.transport(labels::inbound_connect());
        Self {
            server: Server::new(Direction::Inbound, &worker),
            apps: Apps::new(&worker, to_app),
            judges: IdleCache::new(keep),
            greeters: RefCell::default(),
            worker,
        }
    }

    /// Who judges this peer.
    fn judge_of(&self, peer: &Peer) -> Rc<Judge> {
        self.judges
            .find_or((peer.target, peer.tls.clone()), |(target, tls)| {
                Judge::new(&self.worker, *target, tls.clone())
            })
    }
}
