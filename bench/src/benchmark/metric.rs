//! Metrics, their display units, and the systems under test.

use std::fmt;

use clap::ValueEnum;

/// The path of the load between client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum SystemUnderTest {
    /// No proxy between client and server: the baseline
    Direct,
    /// A pair of mesh-proxy
    #[value(name = "ours")]
    MeshProxy,
    /// A pair of mesh-proxy without the workload's feature
    #[value(skip)]
    Plain,
    /// A pair of Envoy
    Envoy,
    /// A pair of HAProxy
    Haproxy,
    /// Redirection by iptables, in the workload that measures redirection
    Iptables,
}

/// A metric of a sample. Times are in seconds, memory in bytes; CPU is per operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Metric {
    /// Scheduler run time of the client's proxy.
    CpuOut,
    /// Scheduler run time of the server's proxy.
    CpuIn,
    /// Scheduler run time of client and server together, where there is no proxy.
    CpuBoth,
    /// Operations a second.
    Rate,
    P50,
    P99,
    P999,
    /// Latency that the proxies add to the median: the difference in `P50` to
    /// [`SystemUnderTest::Direct`] in the same round.
    AddedP50,
    /// CPU time that redirection adds to a connection: the difference in `CpuBoth` to
    /// [`SystemUnderTest::Direct`] in the same round.
    AddedCpu,
    /// `AddedCpu` with ten thousand other pods enrolled.
    AddedCpuManyPods,
    /// Share of the requests that have no latency, since a CPU stood still.
    Stalled,
    /// Tapped requests a second.
    Tapped,
    /// Changes of endpoints a second that the client's proxy was told of.
    Changes,
    /// Share of the CPU time of the client's proxy that its telemetry takes.
    TelemetryOut,
    /// Share of the CPU time of the server's proxy that its telemetry takes.
    TelemetryIn,
    /// Spans that the collectors received, per request.
    Spans,
    /// Share of the requests whose entry in the access log was read.
    Logged,
    /// Sample lines in the exposition of a proxy.
    Series,
    /// Run time of the control thread, per scrape.
    ScrapeControl,
    /// Run time of all data threads, per scrape.
    ScrapeData,
    /// Run time of the metrics API, per response.
    ApiCpu,
    /// Time until the metrics API responds, including its queries to Prometheus.
    ApiResponse,
    /// Anonymous memory of the client's proxy, per connection or target.
    MemoryOut,
    /// Anonymous memory of the server's proxy, per connection or target.
    MemoryIn,
    /// Anonymous memory of the client's proxy per additional endpoint.
    MemoryEndpoint,
    /// Resident memory of a proxy without traffic.
    Resident,
    /// Anonymous memory of a proxy without traffic.
    Anonymous,
    /// Time from exec to ready.
    Start,
    /// Latency of the first request to a target.
    FirstRequest,
    /// Entries in the kernel's connection tracking table.
    Conntrack,
}

/// The operation that a workload counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Request,
    Message,
    Connection,
    Gigabyte,
    Target,
}

impl SystemUnderTest {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::MeshProxy => "ours",
            Self::Plain => "without",
            Self::Envoy => "Envoy",
            Self::Haproxy => "HAProxy",
            Self::Iptables => "iptables",
        }
    }
}

impl Metric {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CpuOut => "CPU out",
            Self::CpuIn => "CPU in",
            Self::CpuBoth => "CPU client+server",
            Self::Rate => "rate",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
            Self::AddedP50 => "added p50",
            Self::AddedCpu => "added CPU",
            Self::AddedCpuManyPods => "added CPU, 10,000 pods",
            Self::Stalled => "stalled",
            Self::Tapped => "tapped",
            Self::Changes => "changes",
            Self::TelemetryOut => "telemetry out",
            Self::TelemetryIn => "telemetry in",
            Self::Spans => "spans",
            Self::Logged => "logged",
            Self::Series => "series",
            Self::ScrapeControl => "control thread",
            Self::ScrapeData => "data threads",
            Self::ApiCpu => "own time",
            Self::ApiResponse => "response",
            Self::MemoryOut => "memory out",
            Self::MemoryIn => "memory in",
            Self::MemoryEndpoint => "memory per endpoint",
            Self::Resident => "resident",
            Self::Anonymous => "anonymous",
            Self::Start => "exec to ready",
            Self::FirstRequest => "first request",
            Self::Conntrack => "conntrack entries",
        }
    }

    /// Returns the display unit and the factor from base units to it.
    pub(crate) fn unit(self, operation: Unit) -> (&'static str, f64) {
        match self {
            Self::CpuOut | Self::CpuIn | Self::CpuBoth => match operation {
                Unit::Request => ("µs/req", 1e6),
                Unit::Message => ("µs/msg", 1e6),
                Unit::Connection => ("µs/conn", 1e6),
                Unit::Gigabyte => ("s/GB", 1.0),
                Unit::Target => ("µs/target", 1e6),
            },
            Self::Rate => match operation {
                Unit::Request => ("req/s", 1.0),
                Unit::Message => ("msg/s", 1.0),
                Unit::Connection => ("conn/s", 1.0),
                Unit::Gigabyte => ("Gb/s", 8.0),
                Unit::Target => ("targets/s", 1.0),
            },
            Self::P50 | Self::P99 | Self::P999 | Self::AddedP50 => ("µs", 1e6),
            Self::AddedCpu | Self::AddedCpuManyPods => ("µs/conn", 1e6),
            Self::Tapped => ("req/s", 1.0),
            Self::Changes => ("1/s", 1.0),
            Self::TelemetryOut | Self::TelemetryIn | Self::Logged | Self::Stalled => ("%", 100.0),
            Self::Spans => ("% of requests", 100.0),
            Self::Series => ("", 1.0),
            Self::ScrapeControl | Self::ScrapeData => ("ms/scrape", 1e3),
            Self::ApiCpu | Self::ApiResponse => ("ms", 1e3),
            Self::MemoryOut | Self::MemoryIn => match operation {
                Unit::Target => ("KiB/target", 1.0 / 1024.0),
                _ => ("KiB/conn", 1.0 / 1024.0),
            },
            Self::MemoryEndpoint => ("KiB/endpoint", 1.0 / 1024.0),
            Self::Resident | Self::Anonymous => ("MiB", 1.0 / (1024.0 * 1024.0)),
            Self::Start | Self::FirstRequest => ("ms", 1e3),
            Self::Conntrack => ("", 1.0),
        }
    }
}

impl fmt::Display for SystemUnderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Formats a number with about three significant digits.
pub(crate) fn shown(value: f64) -> String {
    match value.abs() {
        size if size >= 10_000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_by_magnitude() {
        for (value, expected) in [
            (48_123.4, "48123"),
            (312.7, "313"),
            (31.14, "31.1"),
            (1.234, "1.23"),
            (0.3141, "0.314"),
            (0.0, "0.000"),
        ] {
            assert_eq!(shown(value), expected);
        }
    }
}
