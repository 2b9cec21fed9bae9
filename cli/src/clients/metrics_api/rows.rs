//! The rows of the metrics API's tables. Numbers are rates and shares; a value without requests is
//! absent.

use mesh_api::linkerd2::viz;
use mesh_api::linkerd2::viz::route_table;
use mesh_api::linkerd2::viz::stat_table::pod_group;
use serde::Serialize;

use super::request::TimeWindow;

/// The statistics of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StatRow {
    pub(crate) namespace: String,
    /// The name of the kind in the API.
    pub(crate) kind: String,
    pub(crate) name: String,
    /// The status of a pod.
    pub(crate) status: String,
    pub(crate) meshed: u64,
    pub(crate) running: u64,
    /// `None` if there were none.
    pub(crate) requests: Option<Requests>,
    pub(crate) tcp: Option<Tcp>,
    /// The Server of a policy object.
    pub(crate) server: Option<PolicyObject>,
    /// Requests per second that a policy object denied.
    pub(crate) unauthorized: Option<f64>,
    pub(crate) split: Option<Split>,
}

/// Requests in the time window; there was at least one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Requests {
    /// 0 to 1.
    pub(crate) success_rate: f64,
    pub(crate) rps: f64,
    pub(crate) latency_ms_p50: u64,
    pub(crate) latency_ms_p95: u64,
    pub(crate) latency_ms_p99: u64,
}

/// Connections now, and the bytes per second in the time window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tcp {
    pub(crate) open_connections: u64,
    pub(crate) read_bytes_rate: f64,
    pub(crate) write_bytes_rate: f64,
}

/// The part of a Service's requests that its ServiceProfile sends to a destination.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Split {
    pub(crate) apex: String,
    pub(crate) leaf: String,
    pub(crate) weight: String,
}

/// A Server, route or authorization. `default` as the kind means that the object does not exist.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PolicyObject {
    pub(crate) kind: String,
    pub(crate) name: String,
}

/// A connection between two objects. Fields have Linkerd's names and order in JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Edge {
    pub(crate) src: String,
    pub(crate) src_namespace: String,
    pub(crate) dst: String,
    pub(crate) dst_namespace: String,
    /// ServiceAccount and namespace.
    pub(crate) client_id: String,
    pub(crate) server_id: String,
    /// Why the connection has no mutual TLS; empty if it has.
    pub(crate) no_tls_reason: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouteRow {
    pub(crate) route: String,
    /// The name of a Service, or an authority.
    pub(crate) service: String,
    /// As the client sees them: with their retries.
    pub(crate) effective: Option<Requests>,
    /// Success rate and requests per second of all requests sent, each retry counted.
    pub(crate) actual: Option<(f64, f64)>,
}

/// The requests that a Server, a route and an authorization applied to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AuthzRow {
    pub(crate) server: Option<PolicyObject>,
    pub(crate) route: Option<PolicyObject>,
    pub(crate) authorization: Option<PolicyObject>,
    /// Requests per second that were denied.
    pub(crate) unauthorized: f64,
    pub(crate) requests: Option<Requests>,
}

impl StatRow {
    pub(super) fn new(row: pod_group::Row, window: &TimeWindow) -> Self {
        let resource = row.resource.unwrap_or_default();
        let server = row.srv_stats;
        Self {
            namespace: resource.namespace,
            kind: resource.r#type,
            name: resource.name,
            status: row.status,
            meshed: row.meshed_pod_count,
            running: row.running_pod_count,
            requests: row.stats.and_then(|stats| Requests::new(&stats, window)),
            tcp: row.tcp_stats.map(|stats| Tcp::new(&stats, window)),
            unauthorized: server
                .as_ref()
                .map(|server| window.per_second(server.denied_count)),
            server: server.and_then(|server| PolicyObject::new(server.srv)),
            split: row.ts_stats.map(Split::new),
        }
    }
}

impl Requests {
    fn new(stats: &viz::BasicStats, window: &TimeWindow) -> Option<Self> {
        let (success_rate, rps) = rates(stats.success_count, stats.failure_count, window)?;
        Some(Self {
            success_rate,
            rps,
            latency_ms_p50: stats.latency_ms_p50,
            latency_ms_p95: stats.latency_ms_p95,
            latency_ms_p99: stats.latency_ms_p99,
        })
    }
}

/// Returns the success rate and the requests per second, unless there were no requests.
fn rates(success: u64, failure: u64, window: &TimeWindow) -> Option<(f64, f64)> {
    let total = success.saturating_add(failure);
    (total > 0).then(|| (success as f64 / total as f64, window.per_second(total)))
}

impl Tcp {
    fn new(stats: &viz::TcpStats, window: &TimeWindow) -> Self {
        Self {
            open_connections: stats.open_connections,
            read_bytes_rate: window.per_second(stats.read_bytes_total),
            write_bytes_rate: window.per_second(stats.write_bytes_total),
        }
    }
}

impl Split {
    fn new(stats: viz::TrafficSplitStats) -> Self {
        Self {
            apex: stats.apex,
            leaf: stats.leaf,
            weight: stats.weight,
        }
    }
}

impl PolicyObject {
    fn new(resource: Option<viz::Resource>) -> Option<Self> {
        let resource = resource.filter(|resource| !resource.name.is_empty())?;
        Some(Self {
            kind: resource.r#type,
            name: resource.name,
        })
    }
}

impl Edge {
    pub(super) fn new(edge: viz::Edge) -> Self {
        let (src, dst) = (edge.src.unwrap_or_default(), edge.dst.unwrap_or_default());
        Self {
            src_namespace: src.namespace,
            src: src.name,
            dst_namespace: dst.namespace,
            dst: dst.name,
            client_id: account(&edge.client_id),
            server_id: account(&edge.server_id),
            no_tls_reason: edge.no_identity_msg,
        }
    }
}

/// Returns ServiceAccount and namespace of an identity.
fn account(identity: &str) -> String {
    let parts: Vec<&str> = identity.splitn(3, '.').take(2).collect();
    parts.join(".")
}

impl RouteRow {
    pub(super) fn new(row: route_table::Row, window: &TimeWindow) -> Self {
        let stats = row.stats.unwrap_or_default();
        Self {
            route: row.route,
            service: row.authority,
            effective: Requests::new(&stats, window),
            actual: rates(
                stats.actual_success_count,
                stats.actual_failure_count,
                window,
            ),
        }
    }
}

impl AuthzRow {
    pub(super) fn new(row: pod_group::Row, window: &TimeWindow) -> Self {
        let policy = row.srv_stats.unwrap_or_default();
        Self {
            unauthorized: window.per_second(policy.denied_count),
            server: PolicyObject::new(policy.srv),
            route: PolicyObject::new(policy.route),
            authorization: PolicyObject::new(policy.authz),
            requests: row.stats.and_then(|stats| Requests::new(&stats, window)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_without_any_are_absent() {
        let window = TimeWindow::parse("1m").unwrap();
        let mut stats = viz::BasicStats {
            latency_ms_p50: 3,
            ..viz::BasicStats::default()
        };
        assert_eq!(Requests::new(&stats, &window), None);
        stats.success_count = 90;
        stats.failure_count = 30;
        let requests = Requests::new(&stats, &window).unwrap();
        assert_eq!((requests.success_rate, requests.rps), (0.75, 2.0));
        stats.failure_count = u64::MAX;
        assert!(Requests::new(&stats, &window).is_some());
    }

    #[test]
    fn identities_are_shortened() {
        let identity = "web.shop.serviceaccount.identity.linkerd.cluster.local";
        assert_eq!(account(identity), "web.shop");
        assert_eq!(account("web"), "web");
        assert_eq!(account(""), "");
    }
}
