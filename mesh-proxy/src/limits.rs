//! The limits of what the process and its data threads hold: connections, requests, memory, idle
//! values, copies of bodies, and the rates of policies.
//!
//! Each protocol in `http` limits its own connections. `config` reads all limits.

use std::sync::Arc;

use mesh_runtime::descriptors;
use tokio::sync::Semaphore;

use self::connections::{ConnectionLimit, default_connections};
use self::memory::Memory;
use self::rate_limit::RateLimits;
use self::replay_memory::ReplayMemory;
use crate::config::Config;
use crate::telemetry::labels::Direction;

pub(crate) mod connections;
pub(crate) mod idle;
pub(crate) mod memory;
pub(crate) mod rate_limit;
pub(crate) mod replay_memory;

/// The limits that all data threads share.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) rates: RateLimits,
    pub(crate) memory: Memory,
    /// For the bodies of requests that may be sent again.
    pub(crate) replay_memory: Arc<ReplayMemory>,
    /// One permit per inbound request that waits for its response headers.
    pub(crate) inbound_in_flight: Semaphore,
    /// One permit per outbound request that waits for its response headers.
    pub(crate) outbound_in_flight: Semaphore,
    /// One permit per copy of a request for a mirror.
    pub(crate) mirrors_in_flight: Arc<Semaphore>,
    pub(crate) inbound_connections: ConnectionLimit,
    pub(crate) outbound_connections: ConnectionLimit,
}

/// The usual default of the limit of open files.
const DEFAULT_DESCRIPTORS: usize = 1024;

impl Limits {
    pub(crate) fn new(config: &Config) -> Self {
        let (inbound, outbound) = (&config.inbound, &config.outbound);
        let default = default_connections(descriptors::limit().unwrap_or(DEFAULT_DESCRIPTORS));
        let connections = |direction, limit: Option<usize>| {
            ConnectionLimit::new(direction, permits(limit.unwrap_or(default)))
        };
        Self {
            rates: RateLimits::default(),
            memory: Memory::new(config.memory),
            replay_memory: Arc::new(ReplayMemory::new(outbound.max_replay_bytes)),
            inbound_in_flight: permits(inbound.max_in_flight),
            outbound_in_flight: permits(outbound.max_in_flight),
            mirrors_in_flight: Arc::new(permits(outbound.max_mirrors)),
            inbound_connections: connections(Direction::Inbound, inbound.max_connections),
            outbound_connections: connections(Direction::Outbound, outbound.max_connections),
        }
    }
}

/// What is free of each limit.
#[cfg(feature = "simulation")]
pub(crate) type FreeLimits = [(&'static str, usize); 6];

#[cfg(feature = "simulation")]
impl Limits {
    pub(crate) fn free(&self) -> FreeLimits {
        let replay = self.replay_memory.free();
        let connections = |limit: &ConnectionLimit| limit.available();
        [
            ("bytes of copies of bodies", replay),
            (
                "inbound requests",
                self.inbound_in_flight.available_permits(),
            ),
            (
                "outbound requests",
                self.outbound_in_flight.available_permits(),
            ),
            ("mirrors", self.mirrors_in_flight.available_permits()),
            (
                "inbound connections",
                connections(&self.inbound_connections),
            ),
            (
                "outbound connections",
                connections(&self.outbound_connections),
            ),
        ]
    }
}

fn permits(limit: usize) -> Semaphore {
    Semaphore::new(limit.min(Semaphore::MAX_PERMITS))
}
