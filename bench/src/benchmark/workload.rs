//! Workloads: their load, the systems they compare, and their goals. `table` lists them all;
//! docs/bench explains how the goals were chosen.

mod table;

use super::metric::{Metric, SystemUnderTest, Unit};
pub(crate) use table::WORKLOADS;

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Workload {
    /// The name for `--workload`.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) kind: Kind,
    pub(crate) unit: Unit,
    /// The systems to compare with mesh-proxy.
    pub(crate) suts: &'static [SystemUnderTest],
    /// The columns of the table, in this order.
    pub(crate) shown: &'static [Metric],
    pub(crate) goals: &'static [Goal],
}

/// How a workload is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// Load alternates between running systems.
    Traffic(Service, Load),
    /// The same, between proxies with two workers, which share both CPUs with the load.
    TwoWorkers(Service, Load),
    /// Fresh processes hold idle connections.
    Idle(Service, IdleConnection, u32),
    /// Fresh mesh-proxy processes with many targets.
    Targets,
    /// Load at a fixed rate, with and without endpoint changes.
    Changes,
    /// Proxies are started.
    Start,
    /// First requests to targets.
    FirstRequest,
    /// Redirected and direct connections inside one pod.
    Redirection,
    /// The share of telemetry in the CPU time of requests.
    Telemetry,
    /// Requests with and without a collector of their spans.
    Tracing,
    /// Requests with and without an access log.
    AccessLog,
    /// Requests with and without a retry policy.
    Retries,
    /// Load at a fixed rate, with and without a tap.
    Tap,
    /// Scrapes of a proxy with many series.
    Scrape,
    /// Requests to the metrics API, with a Prometheus.
    MetricsApi,
}

/// An application behind the proxies, and its port settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// nginx, HTTP/1.1
    Http1,
    /// nginx, HTTP/2 with prior knowledge
    Http2,
    /// Echoes the messages of gRPC streams.
    Grpc,
    /// iperf3, mutual TLS between the proxies.
    Bulk,
    /// iperf3, no TLS between the proxies.
    Plain,
    /// Echoes bytes, mutual TLS between the proxies.
    Echo,
    /// Echoes bytes; every connection needs a full TLS handshake.
    EchoFullHandshake,
}

/// The load generator and its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Load {
    Wrk {
        connections: u32,
    },
    /// As `Wrk`. Every request has a trace context, which is sampled in one of a hundred.
    Traced {
        connections: u32,
    },
    /// As `Wrk`, to a service whose route has a retry policy.
    Retried {
        connections: u32,
    },
    /// As `Wrk`. Requests and responses have bodies of `size` bytes.
    Bodies {
        connections: u32,
        size: usize,
    },
    /// Requests a second on 64 connections.
    FixedRate {
        rate: u32,
    },
    H2load {
        grpc: bool,
    },
    Streams {
        size: u32,
    },
    Iperf3 {
        connections: u32,
    },
    Connect {
        parallel: u32,
    },
}

/// The protocol of idle connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdleConnection {
    Http1,
    Http2,
    Tcp,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Goal {
    pub(crate) metric: Metric,
    pub(crate) limit: Limit,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Limit {
    /// Limit of the ratio of mesh-proxy to another system.
    AtMost(f64, SystemUnderTest),
    /// Limit of the ratio of mesh-proxy to another system.
    AtLeast(f64, SystemUnderTest),
    /// Limit of mesh-proxy's value, in the units of [`Metric`].
    Value(f64),
}

/// Sizes of the bodies in workloads with bodies in both directions.
pub(super) const BODIES: [usize; 2] = [4 * 1024, 64 * 1024];

/// Returns the path of a response body of `size` bytes.
pub(super) fn body_path(size: usize) -> String {
    format!("/bodies/{size}")
}

impl Workload {
    /// Returns whether a quick run skips this workload.
    pub(crate) fn is_long(&self) -> bool {
        matches!(
            self.kind,
            Kind::Idle(_, _, 10_000..) | Kind::Redirection | Kind::Tracing | Kind::MetricsApi
        )
    }
}

impl Service {
    pub(crate) const ALL: [Self; 7] = [
        Self::Http1,
        Self::Http2,
        Self::Grpc,
        Self::Bulk,
        Self::Plain,
        Self::Echo,
        Self::EchoFullHandshake,
    ];

    /// Returns the port where the application listens.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Http1 => 8001,
            Self::Http2 => 8002,
            Self::Grpc => 8003,
            Self::Bulk => 9001,
            Self::Plain => 9002,
            Self::Echo => 9003,
            Self::EchoFullHandshake => 9004,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::Grpc => "grpc",
            Self::Bulk => "bulk",
            Self::Plain => "plain",
            Self::Echo => "echo",
            Self::EchoFullHandshake => "echo-anew",
        }
    }

    pub(crate) fn is_http(self) -> bool {
        matches!(self, Self::Http1 | Self::Http2 | Self::Grpc)
    }
}

/// Returns the workload with this name.
pub(crate) fn find(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn workload_names_are_unique_and_kebab_case() {
        let names: HashSet<&str> = WORKLOADS.iter().map(|workload| workload.name).collect();
        assert_eq!(names.len(), WORKLOADS.len());
        let easy = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(names.iter().all(|name| name.chars().all(easy)));
    }

    #[test]
    fn goals_refer_to_shown_metrics_and_compared_systems() {
        for workload in WORKLOADS {
            for goal in workload.goals {
                assert!(workload.shown.contains(&goal.metric), "{}", workload.name);
                if let Limit::AtMost(_, sut) | Limit::AtLeast(_, sut) = goal.limit {
                    assert!(workload.suts.contains(&sut), "{}", workload.name);
                }
            }
        }
    }

    #[test]
    fn service_ports_are_unique() {
        let ports: HashSet<u16> = Service::ALL.iter().map(|service| service.port()).collect();
        assert_eq!(ports.len(), Service::ALL.len());
    }
}
