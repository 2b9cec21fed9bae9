//! `tcp_open_total` and related families: one [`TransportMetrics`] per label set, one
//! [`OpenConnection`] per connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

use mesh_planted::Bug;
use mesh_runtime::metrics::{Counter, CounterFamily, Gauge, GaugeFamily, Labels, Registry};
use nix::errno::Errno;

/// The transport families.
#[derive(Clone, Debug)]
pub(crate) struct TcpFamilies {
    open_total: CounterFamily,
    close_total: CounterFamily,
    open: GaugeFamily,
    read: CounterFamily,
    written: CounterFamily,
}

/// The handles of one label set.
#[derive(Debug)]
pub(crate) struct TransportMetrics {
    open_total: Counter,
    open: Gauge,
    read: Counter,
    written: Counter,
    /// Resolved at the close, whose error is a label.
    close_total: CounterFamily,
    labels: Labels,
}

/// One open connection. Dropping it counts the close.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    transport: Arc<TransportMetrics>,
    /// The error that ended the connection, or 0. Atomic so that a connection may move to another
    /// thread; never contended.
    errno: AtomicI32,
}

/// `outbound_tcp_route_*` and `outbound_tls_route_*`: opaque connections by route.
#[derive(Clone, Debug)]
pub(crate) struct TcpRouteFamilies {
    open: CounterFamily,
    close: CounterFamily,
}

mesh_core::names! {
    /// The reason why an opaque connection failed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum TcpRouteError {
        Forbidden = "forbidden",
        InvalidBackend = "invalid_backend",
        InvalidPolicy = "invalid_policy",
        Unexpected = "unexpected",
    }
}

impl TcpFamilies {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            open_total: registry
                .counter_family("tcp_open_total", "Total count of opened connections"),
            close_total: registry
                .counter_family("tcp_close_total", "Total count of closed connections"),
            open: registry.gauge_family(
                "tcp_open_connections",
                "Number of currently-open connections",
            ),
            read: registry.counter_family(
                "tcp_read_bytes_total",
                "Total count of bytes read from peers",
            ),
            written: registry.counter_family(
                "tcp_write_bytes_total",
                "Total count of bytes written to peers",
            ),
        }
    }

    pub(crate) fn transport(&self, labels: Labels) -> Arc<TransportMetrics> {
        Arc::new(TransportMetrics {
            open_total: self.open_total.with(&labels),
            open: self.open.with(&labels),
            read: self.read.with(&labels),
            written: self.written.with(&labels),
            close_total: self.close_total.clone(),
            labels,
        })
    }
}

impl TransportMetrics {
    /// Counts a connection as open until the result is dropped.
    pub(crate) fn open(self: &Arc<Self>) -> OpenConnection {
        self.open_total.inc();
        self.open.inc();
        OpenConnection {
            transport: self.clone(),
            errno: AtomicI32::new(0),
        }
    }
}

impl OpenConnection {
    pub(crate) fn read(&self, bytes: usize) {
        self.transport.read.inc_by(bytes as u64);
    }

    pub(crate) fn written(&self, bytes: usize) {
        self.transport.written.inc_by(bytes as u64);
    }

    /// Records the error that ended the connection. Later errors are consequences of the first and
    /// ignored.
    pub(crate) fn failed(&self, error: &io::Error) {
        if let Some(errno) = error.raw_os_error() {
            // `Err` means that an earlier error is recorded.
            let _ = self.errno.compare_exchange(0, errno, Relaxed, Relaxed);
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let errno = match self.errno.load(Relaxed) {
            0 => String::new(),
            errno => format!("{:?}", Errno::from_raw(errno)),
        };
        if !Bug::GaugeLeak.is_planted() {
            self.transport.open.dec();
        }
        let labels = self.transport.labels.clone().with("errno", errno);
        self.transport.close_total.with(&labels).inc();
    }
}

impl TcpRouteFamilies {
    pub(super) fn tls(registry: &Registry) -> Self {
        Self {
            open: registry.counter_family(
                "outbound_tls_route_open_total",
                "The total number of connections opened by a TLS route",
            ),
            close: registry.counter_family(
                "outbound_tls_route_close_total",
                "The total number of connections closed by a TLS route",
            ),
        }
    }

    pub(super) fn tcp(registry: &Registry) -> Self {
        Self {
            open: registry.counter_family(
                "outbound_tcp_route_open_total",
                "The total number of connections opened by an opaque route",
            ),
            close: registry.counter_family(
                "outbound_tcp_route_close_total",
                "The total number of connections closed by an opaque route",
            ),
        }
    }

    pub(crate) fn opened(&self, labels: &Labels) {
        self.open.with(labels).inc();
    }

    pub(crate) fn closed(&self, labels: &Labels, error: Option<TcpRouteError>) {
        let error = error.map_or("", TcpRouteError::as_str);
        self.close.with(&labels.clone().with("error", error)).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_is_counted_at_open_and_close() {
        let registry = Registry::new();
        let families = TcpFamilies::new(&registry);
        let transport = families.transport(Labels::new().with("peer", "src"));
        let connection = transport.open();
        connection.read(7);
        connection.written(9);
        connection.failed(&io::Error::from_raw_os_error(libc::ECONNRESET));
        connection.failed(&io::Error::from_raw_os_error(libc::EPIPE));
        let text = || String::from_utf8(registry.encode()).unwrap();
        assert!(text().contains("tcp_open_connections{peer=\"src\"} 1\n"));
        drop(connection);
        drop(transport.open());
        for line in [
            "tcp_open_total{peer=\"src\"} 2\n",
            "tcp_open_connections{peer=\"src\"} 0\n",
            "tcp_read_bytes_total{peer=\"src\"} 7\n",
            "tcp_write_bytes_total{peer=\"src\"} 9\n",
            "tcp_close_total{peer=\"src\",errno=\"\"} 1\n",
            "tcp_close_total{peer=\"src\",errno=\"ECONNRESET\"} 1\n",
        ] {
            assert!(text().contains(line), "{line} in {}", text());
        }
    }
}
