//! Connections from outside to the application: who may talk to it, and the way to it.
//!
//! Runs on the data threads. A connection walks [`accept`] (which port, what protocol, whose TLS),
//! then either [`tcp`] (judged once, then watched) or [`http`] (each request judged). Connections
//! to the proxy's own inbound port come from other proxies and say where they want to go
//! ([`direct`]). All judging is [`judge`]'s.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use ahash::AHashSet;
use mesh_runtime::metrics::OTHER;

use self::app::Apps;
use self::judge::{ActiveJudge, Judge};
use self::peer::Peer;
use crate::discovery::TooManyPorts;
use crate::http::server::Server;
use crate::idle::IdleCache;
use crate::telemetry::labels::{self, Direction, ServerTls, Target};
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
    /// Connections of the same client identity to the same address share a judge and with it the
    /// metric handles.
    judges: IdleCache<(SocketAddr, ServerTls), Judge>,
    /// Addresses at which the application has spoken before its client did. It is dialled at once
    /// there, without the moment's patience.
    greeters: RefCell<AHashSet<SocketAddr>>,
}

/// From so many judges on, clients of foreign TLS whose server name is new share one per address.
/// Each takes some kilobytes, and 90 seconds after its last connection it goes.
pub(crate) const MAX_NAMED_JUDGES: usize = 1024;

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
    fn judge_of(&self, peer: &Peer) -> Result<ActiveJudge, TooManyPorts> {
        let mut key = (peer.target, peer.tls.clone());
        // Clients choose the name before they are authorized, and no decision depends on it.
        let is_named = matches!(key.1, ServerTls::Opaque { sni: Some(_) });
        if is_named && self.judges.count() >= MAX_NAMED_JUDGES && !self.judges.contains(&key) {
            key.1 = ServerTls::Opaque {
                sni: Some(OTHER.into()),
            };
        }
        if let Some(judge) = self.judges.find(&key).and_then(|judge| judge.activate()) {
            return Ok(judge);
        }
        loop {
            let judge = Judge::new(&self.worker, key.0, key.1.clone())?;
            // Not at once only if the port was given up in this moment.
            if let Some(judge) = self.judges.insert(key.clone(), judge).activate() {
                return Ok(judge);
            }
        }
    }

    /// The same for a connection that has just come: the policy of its port may have to be waited
    /// for.
    async fn first_judge_of(&self, peer: &Peer) -> Result<ActiveJudge, TooManyPorts> {
        let judge = self.judge_of(peer)?;
        if !judge.is_answered() {
            // Boxed: it is rare, and every connection would hold room for it.
            Box::pin(judge.settled()).await;
        }
        Ok(judge)
    }

    #[cfg(test)]
    pub(crate) fn judges(&self) -> usize {
        self.judges.count()
    }

    /// An address that a client has dialled, for labels.
    fn labelled(&self, target: SocketAddr) -> Target {
        Target::new(target, &self.worker.config.inbound.ports)
    }
}
