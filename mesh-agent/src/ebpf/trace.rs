//! Traces: has the programs report their decisions about a pod, and reads the reports from their
//! log.
//!
//! The log is a ring buffer that is pinned with the other maps, so that a new agent reads the
//! entries of adopted programs. It has no owner of its entries: a reader gets the entries of all
//! traced pods.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::{fmt, mem};

use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};
use mesh_core::redirection::{Hook, RedirectionEvent};
use mesh_ebpf_common::decision::{self, Decision, Endpoint};
use mesh_ebpf_common::layout::{FLAG_TRACED, PodConfig};
use parking_lot::Mutex;

use super::error::Error;
use super::maps::{Maps, keys_where, map_error, open_traces, optional, remove_result};
use super::pins::{self, Pins};
use crate::sys::bpf;

/// `BPF_EXIST`, and `BPF_ANY`.
const EXIST: u64 = 2;
const ANY: u64 = 0;
/// A program that writes to the log. aya-log finds the log by it.
const WRITER: &str = "mesh_connect4";
/// Decisions of one read. The ring has place for 496 at a time; further ones can arrive during the
/// read.
const MOST_DECISIONS: usize = 4_096;

/// A decision about a connection of the pod with this cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedDecision {
    pub cookie: u64,
    pub event: RedirectionEvent,
}

pub struct TraceLog {
    logger: EbpfLogger<Collector>,
    collected: Collector,
    pins: Pins,
}

/// Collects the messages that aya-log formats.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<TracedDecision>>>);

impl TraceLog {
    pub(super) fn open(pins: &Pins) -> Result<Self, Error> {
        if open_traces(pins)?.is_none() {
            return Err(Error::NoTraces);
        }
        let path = pins.link(WRITER);
        let link = pins::open(&path)?.ok_or_else(|| Error::NotPinned(pins.root().to_owned()))?;
        let info = bpf::link_info(link).map_err(|source| Error::Query {
            path: path.clone(),
            source,
        })?;
        let collected = Collector::default();
        let logger = EbpfLogger::init_from_id_with_logger(info.program, collected.clone());
        let mut log = Self {
            logger: logger.map_err(Error::Log)?,
            collected,
            pins: pins.clone(),
        };
        log.read();
        Ok(log)
    }

    /// Returns the decisions that have been reported since the last call.
    pub fn read(&mut self) -> Vec<TracedDecision> {
        self.logger.flush();
        mem::take(&mut *self.collected.0.lock())
    }

    /// Returns how many decisions about a pod the programs have reported, or tried to since its
    /// trace began; `None` when it is not traced.
    pub fn attempts(&self, cookie: u64) -> Option<u64> {
        let traces = open_traces(&self.pins).ok()??;
        let attempts = optional(traces.get(&cookie, 0), "TRACES").ok()??;
        u64::try_from(attempts).ok()
    }
}

impl AsFd for TraceLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.logger.as_fd()
    }
}

impl fmt::Debug for TraceLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceLog").finish_non_exhaustive()
    }
}

impl Log for Collector {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let message = record.args().to_string();
        let mut collected = self.0.lock();
        // Decisions that are not collected count as missing.
        if collected.len() < MOST_DECISIONS
            && let Some(decision) = Decision::from_message(&message)
        {
            collected.extend(traced(&decision));
        }
    }

    fn flush(&self) {}
}

/// Returns `None` for a hook or verdict of another version.
fn traced(decision: &Decision) -> Option<TracedDecision> {
    let hook = match decision.hook()? {
        decision::Hook::Connect => Hook::Connect,
        decision::Hook::Lookup => Hook::Lookup,
        decision::Hook::Accept => Hook::Accept,
    };
    Some(TracedDecision {
        cookie: decision.cookie,
        event: RedirectionEvent {
            monotonic_ns: decision.monotonic_ns,
            hook,
            verdict: decision.verdict()?.name(),
            source: decision.source().map(socket_address),
            destination: socket_address(decision.destination()),
            redirected_to: decision.target().map(socket_address),
        },
    })
}

fn socket_address(endpoint: Endpoint) -> SocketAddr {
    SocketAddr::new(IpAddr::from(endpoint.address), endpoint.port)
}

/// The counter first: a decision that is reported is counted.
pub(super) fn start(pins: &Pins, cookie: u64) -> Result<(), Error> {
    let mut maps = Maps::open(pins)?;
    let traces = maps.traces.as_mut().ok_or(Error::NoTraces)?;
    if optional(traces.get(&cookie, 0), "TRACES")?.is_none() {
        traces
            .insert(cookie, 0, ANY)
            .map_err(map_error("write to", "TRACES"))?;
    }
    if set_flag(&mut maps, cookie, FLAG_TRACED)? {
        return Ok(());
    }
    forget(&mut maps, cookie)?;
    Err(Error::NotInMaps)
}

pub(super) fn stop(pins: &Pins, cookie: u64) -> Result<(), Error> {
    let mut maps = Maps::open(pins)?;
    set_flag(&mut maps, cookie, 0)?;
    forget(&mut maps, cookie)
}

pub(super) fn stop_all(pins: &Pins) -> Result<usize, Error> {
    let mut maps = Maps::open(pins)?;
    let mut stopped = 0;
    for cookie in keys_where("PODS", maps.pods.keys(), |_| true)? {
        let config = optional(maps.pods.get(&cookie, 0), "PODS")?;
        if config.is_some_and(|config| config.flags & FLAG_TRACED != 0) {
            set_flag(&mut maps, cookie, 0)?;
            stopped += 1;
        }
    }
    let counted = match &maps.traces {
        Some(traces) => keys_where("TRACES", traces.keys(), |_| true)?,
        None => Vec::new(),
    };
    for cookie in counted {
        forget(&mut maps, cookie)?;
    }
    Ok(stopped)
}

/// Sets [`FLAG_TRACED`] to itself or 0, in a new entry; returns false for a pod without one.
fn set_flag(maps: &mut Maps, cookie: u64, flag: u32) -> Result<bool, Error> {
    let Some(config) = optional(maps.pods.get(&cookie, 0), "PODS")? else {
        return Ok(false);
    };
    let config = PodConfig {
        flags: config.flags & !FLAG_TRACED | flag,
        ..config
    };
    maps.pods
        .insert(cookie, config, EXIST)
        .map_err(map_error("write to", "PODS"))?;
    Ok(true)
}

fn forget(maps: &mut Maps, cookie: u64) -> Result<(), Error> {
    match &mut maps.traces {
        Some(traces) => remove_result(traces.remove(&cookie), "TRACES").map(drop),
        None => Ok(()),
    }
}
