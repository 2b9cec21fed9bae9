//! [`Trace`]: everything that has happened on a network, as a hash and if wanted as a list.
//!
//! A trace has the number of bytes only: TLS makes bytes differ from run to run, because aws-lc
//! takes no seed, and their meaning is compared where they are read.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::net::SocketAddr;
use std::time::Duration;

/// Something that has happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// `connect` was called.
    Connect,
    Established,
    Refused,
    /// This many bytes have arrived.
    Bytes(usize),
    Fin,
    Reset,
    /// The sender has given up a peer that does not answer.
    TimedOut,
}

/// An event: at `at` since the network's start, from `from` to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    pub at: Duration,
    /// The number of the connection, in the order of `connect`.
    pub connection: u64,
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub kind: EventKind,
}

/// The most events that a trace keeps.
const MAX_EVENTS: usize = 100_000;

/// What has happened on a network.
#[derive(Debug)]
pub struct Trace {
    hasher: DefaultHasher,
    count: u64,
    events: Option<Vec<Event>>,
}

impl Trace {
    pub(crate) fn new(keeps_events: bool) -> Self {
        Self {
            hasher: DefaultHasher::new(),
            count: 0,
            events: keeps_events.then(Vec::new),
        }
    }

    pub(crate) fn record(&mut self, event: Event) {
        self.count += 1;
        event.hash(&mut self.hasher);
        if let Some(events) = &mut self.events
            && events.len() < MAX_EVENTS
        {
            events.push(event);
        }
    }

    /// The same for every run of one program with the same seed.
    pub fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    /// The number of events.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The first 100,000 events, if the network keeps them.
    pub fn events(&self) -> &[Event] {
        self.events.as_deref().unwrap_or_default()
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at,
            connection,
            from,
            to,
            kind,
        } = self;
        write!(
            f,
            "{:>9.3} s  #{connection} {from} → {to}  ",
            at.as_secs_f64()
        )?;
        match kind {
            EventKind::Connect => f.write_str("SYN"),
            EventKind::Established => f.write_str("SYN, ACK"),
            EventKind::Refused => f.write_str("refused"),
            EventKind::Bytes(size) => write!(f, "{size} bytes"),
            EventKind::Fin => f.write_str("FIN"),
            EventKind::Reset => f.write_str("RST"),
            EventKind::TimedOut => f.write_str("timed out"),
        }
    }
}
