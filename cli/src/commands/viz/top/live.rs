//! Sums the events of a tap by source, destination, method and path. Has no I/O and no clock.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use mesh_core::labels::Labels;
use mesh_core::tap::{TapContext, TapDirection, TapEvent, TapEventKind, TapStreamEnd, TapStreamId};

use crate::output::printable;

/// What distinguishes rows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Grouping {
    /// By route instead of path.
    pub(super) by_route: bool,
    /// All sources in one row.
    pub(super) hides_sources: bool,
}

/// The requests since the start.
#[derive(Debug)]
pub(super) struct LiveRequests {
    grouping: Grouping,
    rows: HashMap<RowKey, Row>,
    pending: HashMap<TapStreamId, Pending>,
    /// The numbers of requests in the order of their start, among them all pending ones.
    started: VecDeque<TapStreamId>,
    /// The number of completed requests.
    completed: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RowKey {
    /// `in` or `out`: a request between two tapped pods is reported by both proxies.
    pub(super) proxy: &'static str,
    pub(super) source: String,
    pub(super) destination: String,
    pub(super) method: String,
    /// The path without query, or the route.
    pub(super) path: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) count: u64,
    pub(super) successes: u64,
    pub(super) best: Duration,
    pub(super) worst: Duration,
    pub(super) last: Duration,
    /// The number of the last request among all.
    latest: u64,
}

/// A request whose response has not ended.
#[derive(Debug)]
struct Pending {
    key: RowKey,
    is_server_error: bool,
}

/// Rows of a table that a person can search. The one without requests for the longest time makes
/// place for a new one.
const MAX_ROWS: usize = 1_000;

/// Requests in flight: more than a second of the largest tap. The oldest is forgotten.
const MAX_PENDING: usize = 20_000;

/// The length of a text in a row. Longer ones share the row of their beginning.
const MAX_TEXT: usize = 200;

/// The name of the route of requests that match none.
const DEFAULT_ROUTE: &str = "[DEFAULT]";

impl LiveRequests {
    pub(super) fn new(grouping: Grouping) -> Self {
        Self {
            grouping,
            rows: HashMap::new(),
            pending: HashMap::new(),
            started: VecDeque::new(),
            completed: 0,
        }
    }

    /// Adds an event. Responses of requests that began before the tap are left out.
    pub(super) fn record(&mut self, event: &TapEvent) {
        match &event.kind {
            TapEventKind::Request { method, path, .. } => {
                let key = self.key(&event.context, method.as_str(), path);
                self.start(event.id, key);
            }
            TapEventKind::Response { status, .. } => {
                if let Some(pending) = self.pending.get_mut(&event.id) {
                    pending.is_server_error = status.is_server_error();
                }
            }
            TapEventKind::End {
                since_request, end, ..
            } => {
                if let Some(pending) = self.pending.remove(&event.id) {
                    let is_success = !pending.is_server_error && is_complete(*end);
                    self.complete(pending.key, *since_request, is_success);
                }
            }
        }
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = (&RowKey, &Row)> {
        self.rows.iter()
    }

    pub(super) fn completed(&self) -> u64 {
        self.completed
    }

    fn key(&self, context: &TapContext, method: &str, path: &str) -> RowKey {
        let path = if self.grouping.by_route {
            context.route_labels.get("route").unwrap_or(DEFAULT_ROUTE)
        } else {
            path.split('?').next().unwrap_or_default()
        };
        let source = if self.grouping.hides_sources {
            String::new()
        } else {
            peer(&context.source_labels, context.source.ip().to_canonical())
        };
        RowKey {
            proxy: match context.direction {
                TapDirection::Inbound => "in",
                TapDirection::Outbound => "out",
            },
            source,
            destination: peer(
                &context.destination_labels,
                context.destination.ip().to_canonical(),
            ),
            method: shown(method),
            path: shown(path),
        }
    }

    fn start(&mut self, id: TapStreamId, key: RowKey) {
        if self.started.len() >= MAX_PENDING
            && let Some(oldest) = self.started.pop_front()
        {
            self.pending.remove(&oldest);
        }
        let pending = Pending {
            key,
            is_server_error: false,
        };
        if self.pending.insert(id, pending).is_none() {
            self.started.push_back(id);
        }
    }

    fn complete(&mut self, key: RowKey, latency: Duration, is_success: bool) {
        self.completed += 1;
        if self.rows.len() >= MAX_ROWS && !self.rows.contains_key(&key) {
            self.remove_idle_row();
        }
        let row = self.rows.entry(key).or_insert(Row {
            count: 0,
            successes: 0,
            best: latency,
            worst: latency,
            last: latency,
            latest: 0,
        });
        row.count += 1;
        row.successes += u64::from(is_success);
        row.best = row.best.min(latency);
        row.worst = row.worst.max(latency);
        row.last = latency;
        row.latest = self.completed;
    }

    fn remove_idle_row(&mut self) {
        let idle = self.rows.iter().min_by_key(|(_, row)| row.latest);
        if let Some(key) = idle.map(|(key, _)| key.clone()) {
            self.rows.remove(&key);
        }
    }
}

impl Row {
    /// Returns the share of successful requests, 0 to 1.
    pub(super) fn success_rate(&self) -> f64 {
        self.successes as f64 / self.count.max(1) as f64
    }
}

fn is_complete(end: TapStreamEnd) -> bool {
    matches!(end, TapStreamEnd::Complete | TapStreamEnd::GrpcStatus(0))
}

/// Returns the name of the pod of an address, or the address.
fn peer(labels: &Labels, ip: std::net::IpAddr) -> String {
    labels.get("pod").map_or_else(|| ip.to_string(), shown)
}

/// Returns the beginning of a text that a peer has chosen.
fn shown(text: &str) -> String {
    let end = text.char_indices().nth(MAX_TEXT).map(|(at, _)| at);
    printable(&text[..end.unwrap_or(text.len())])
}

#[cfg(test)]
mod tests;
