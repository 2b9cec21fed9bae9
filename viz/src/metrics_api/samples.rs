//! Converts the results of queries to statistics.

use std::collections::BTreeMap;

use mesh_api::linkerd2::viz::{BasicStats, Resource, ServerStats, TcpStats};
use mesh_cluster::prometheus::Sample;
use mesh_objects::model::Name;

use crate::metrics::{Family, Grouping, Matchers, QUANTILES, Query, TimeWindow};

/// The quantity that a query measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    Requests,
    /// Requests after retries.
    ActualRequests,
    /// By index in [`QUANTILES`].
    Latency(usize),
    OpenConnections,
    ReadBytes,
    WriteBytes,
    Allowed,
    Denied,
    /// Whether a gateway responds to probes.
    Alive,
}

/// A query, and the quantity that it measures.
pub(crate) type Measure = (Metric, Query);

/// The result of a query.
pub(crate) type Measurement = (Metric, Vec<Sample>);

/// The statistics of an object, as far as there are samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stats {
    pub(crate) basic: Option<BasicStats>,
    pub(crate) tcp: Option<TcpStats>,
    pub(crate) server: Option<ServerStats>,
}

/// Returns the queries for successful and failed requests and their latencies.
pub(super) fn request_queries(
    matchers: &Matchers,
    window: &TimeWindow,
    by: &Grouping,
) -> Vec<Measure> {
    let requests = by.and(&["classification", "tls"]);
    let mut queries = vec![(
        Metric::Requests,
        matchers.increase(Family::Responses, window, &requests),
    )];
    queries.extend(latency_queries(
        matchers,
        Family::ResponseLatency,
        window,
        by,
    ));
    queries
}

pub(crate) fn latency_queries<'a>(
    matchers: &'a Matchers,
    family: Family,
    window: &'a TimeWindow,
    by: &'a Grouping,
) -> impl Iterator<Item = Measure> + 'a {
    QUANTILES
        .into_iter()
        .enumerate()
        .map(move |(at, quantile)| {
            let query = matchers.quantile(quantile, family, window, by);
            (Metric::Latency(at), query)
        })
}

/// Returns the queries for connections. `transferred` selects the series of transferred bytes:
/// every connection has two.
pub(super) fn tcp_queries(
    open: &Matchers,
    transferred: &Matchers,
    window: &TimeWindow,
    by: &Grouping,
) -> [Measure; 3] {
    [
        (
            Metric::OpenConnections,
            open.sum(Family::OpenConnections, by),
        ),
        (
            Metric::ReadBytes,
            transferred.increase(Family::ReadBytes, window, by),
        ),
        (
            Metric::WriteBytes,
            transferred.increase(Family::WriteBytes, window, by),
        ),
    ]
}

pub(super) fn authorization_queries(
    matchers: &Matchers,
    window: &TimeWindow,
    by: &Grouping,
) -> [Measure; 2] {
    [
        (
            Metric::Allowed,
            matchers.increase(Family::Allowed, window, by),
        ),
        (
            Metric::Denied,
            matchers.increase(Family::Denied, window, by),
        ),
    ]
}

/// Returns the statistics by the last two labels of the grouping, which are namespace and name.
pub(super) fn by_name(results: Vec<Measurement>, key: &Grouping) -> BTreeMap<Name, Stats> {
    let (namespace, name) = match &key.0[..] {
        [.., namespace, name] => (namespace.as_str(), name.as_str()),
        [name] => ("", name.as_str()),
        [] => ("", ""),
    };
    let mut stats: BTreeMap<Name, Stats> = BTreeMap::new();
    for (metric, samples) in results {
        for sample in samples {
            let key = Name::new(sample.label(namespace), sample.label(name));
            stats.entry(key).or_default().add(metric, &sample);
        }
    }
    stats
}

impl Stats {
    pub(crate) fn add(&mut self, metric: Metric, sample: &Sample) {
        let value = sample.count();
        match metric {
            Metric::OpenConnections | Metric::ReadBytes | Metric::WriteBytes => {
                let tcp = self.tcp.get_or_insert_default();
                let total = match metric {
                    Metric::OpenConnections => &mut tcp.open_connections,
                    Metric::ReadBytes => &mut tcp.read_bytes_total,
                    _ => &mut tcp.write_bytes_total,
                };
                *total = total.saturating_add(value);
            }
            Metric::Allowed | Metric::Denied => {
                let server = self.server.get_or_insert_with(|| server_stats(sample, ""));
                let total = match metric {
                    Metric::Allowed => &mut server.allowed_count,
                    _ => &mut server.denied_count,
                };
                *total = total.saturating_add(value);
            }
            Metric::Requests | Metric::ActualRequests | Metric::Latency(_) => {
                add_requests(self.basic.get_or_insert_default(), metric, sample);
            }
            Metric::Alive => {}
        }
    }
}

/// Adds a sample of requests or latencies. Several samples of a latency, as of the routes of a
/// Server, count as the highest one.
pub(super) fn add_requests(stats: &mut BasicStats, metric: Metric, sample: &Sample) {
    let value = sample.count();
    let total = match (metric, sample.label("classification")) {
        (Metric::Latency(at), _) => {
            let latency = match at {
                0 => &mut stats.latency_ms_p50,
                1 => &mut stats.latency_ms_p95,
                _ => &mut stats.latency_ms_p99,
            };
            *latency = value.max(*latency);
            return;
        }
        (Metric::ActualRequests, "success") => &mut stats.actual_success_count,
        (Metric::ActualRequests, "failure") => &mut stats.actual_failure_count,
        (_, "success") => &mut stats.success_count,
        (_, "failure") => &mut stats.failure_count,
        _ => return,
    };
    *total = total.saturating_add(value);
}

/// Returns empty statistics of the policy objects that the labels name.
pub(super) fn server_stats(sample: &Sample, namespace: &str) -> ServerStats {
    let resource = |of: &str| Resource {
        namespace: namespace.to_owned(),
        r#type: sample.label(&format!("{of}_kind")).to_owned(),
        name: sample.label(&format!("{of}_name")).to_owned(),
    };
    ServerStats {
        allowed_count: 0,
        denied_count: 0,
        srv: Some(resource("srv")),
        route: Some(resource("route")),
        authz: Some(resource("authz")),
    }
}
