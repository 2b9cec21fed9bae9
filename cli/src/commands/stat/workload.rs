//! Sums the counters of proxies and computes rates from the difference of two sums.

use std::time::Duration;

use mesh_core::exposition::Sample;
use serde::Serialize;

/// The inbound counters of a workload's proxies. Probes and requests to admin ports of proxies and
/// controllers are excluded: the kubelet and Prometheus send them in plain text, and they are not
/// part of the workload's traffic.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counters {
    success: f64,
    failure: f64,
    requests: f64,
    /// Requests of clients with mutual TLS. Requests are counted instead of responses, because an
    /// open stream has no response yet.
    secured: f64,
    /// Upper bound in ms and cumulative count, ascending; the last bound is infinite.
    latency: Vec<(f64, f64)>,
    tcp_connections: f64,
    /// Open connections with mutual TLS.
    secured_connections: f64,
}

/// The statistics of a workload. A value is `None` if there was no traffic.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WorkloadStats {
    pub(crate) responses: u64,
    /// 0 to 1.
    pub(crate) success_rate: Option<f64>,
    pub(crate) rps: Option<f64>,
    pub(crate) latency_ms_p50: Option<f64>,
    pub(crate) latency_ms_p95: Option<f64>,
    pub(crate) latency_ms_p99: Option<f64>,
    /// 0 to 1: of the requests, or of the open connections where there were none.
    pub(crate) secured: Option<f64>,
    pub(crate) tcp_connections: u64,
}

/// The default admin port of proxies.
const ADMIN_PORT: u16 = 4191;

impl Counters {
    /// Adds the samples of a proxy. `admin` has the admin ports of controllers in the pod.
    pub(crate) fn add(&mut self, samples: &[Sample], admin: &[u16]) {
        let is_admin = |sample: &Sample| {
            let port = sample.label("target_port").parse::<u16>();
            port.is_ok_and(|port| port == ADMIN_PORT || admin.contains(&port))
        };
        let is_probe = |sample: &Sample| {
            sample.label("route_kind") == "default" && sample.label("route_name") == "probe"
        };
        let inbound = |sample: &&Sample| {
            sample.label("direction") == "inbound" && !is_admin(sample) && !is_probe(sample)
        };
        for sample in samples.iter().filter(inbound) {
            match sample.name.as_str() {
                "response_total" => {
                    let class = if sample.label("classification") == "success" {
                        &mut self.success
                    } else {
                        &mut self.failure
                    };
                    *class += sample.value;
                }
                "request_total" => {
                    self.requests += sample.value;
                    if sample.label("tls") == "true" {
                        self.secured += sample.value;
                    }
                }
                "response_latency_ms_bucket" => self.add_bucket(sample),
                "tcp_open_connections" if sample.label("peer") == "src" => {
                    self.tcp_connections += sample.value;
                    if sample.label("tls") == "true" {
                        self.secured_connections += sample.value;
                    }
                }
                _ => {}
            }
        }
    }

    fn add_bucket(&mut self, sample: &Sample) {
        let Ok(bound) = sample.label("le").replace("+Inf", "inf").parse::<f64>() else {
            return;
        };
        match self
            .latency
            .binary_search_by(|(known, _)| known.total_cmp(&bound))
        {
            Ok(at) => self.latency[at].1 += sample.value,
            Err(at) => self.latency.insert(at, (bound, sample.value)),
        }
    }

    /// Computes the statistics since `earlier`. A counter that decreased belongs to a restarted
    /// proxy, and its difference is taken as zero.
    pub(crate) fn since(&self, earlier: &Self, window: Option<Duration>) -> WorkloadStats {
        let increase = |now: f64, before: f64| (now - before).max(0.0);
        let (success, failure) = (
            increase(self.success, earlier.success),
            increase(self.failure, earlier.failure),
        );
        let total = success + failure;
        let share = |part: f64, of: f64| (of > 0.0).then(|| part.min(of) / of);
        let requests = increase(self.requests, earlier.requests);
        let secured = share(increase(self.secured, earlier.secured), requests)
            .or_else(|| share(self.secured_connections, self.tcp_connections));
        let before = |bound: f64| {
            earlier
                .latency
                .iter()
                .find(|(known, _)| *known == bound)
                .map_or(0.0, |(_, count)| *count)
        };
        let buckets: Vec<(f64, f64)> = self
            .latency
            .iter()
            .map(|(bound, count)| (*bound, increase(*count, before(*bound))))
            .collect();
        WorkloadStats {
            responses: total as u64,
            success_rate: share(success, total),
            rps: window.map(|window| total / window.as_secs_f64()),
            latency_ms_p50: quantile(&buckets, 0.50),
            latency_ms_p95: quantile(&buckets, 0.95),
            latency_ms_p99: quantile(&buckets, 0.99),
            secured,
            tcp_connections: self.tcp_connections as u64,
        }
    }
}

/// Computes a quantile like `histogram_quantile` of Prometheus: interpolates linearly in the
/// bucket, and returns the last finite bound for values above it.
fn quantile(buckets: &[(f64, f64)], q: f64) -> Option<f64> {
    let total = buckets
        .last()
        .map(|(_, count)| *count)
        .filter(|total| *total > 0.0)?;
    let rank = q * total;
    let at = buckets.iter().position(|(_, count)| *count >= rank)?;
    let (low, below) = if at == 0 { (0.0, 0.0) } else { buckets[at - 1] };
    let (high, count) = buckets[at];
    if high.is_infinite() {
        return Some(low);
    }
    Some(low + (high - low) * (rank - below) / (count - below).max(f64::MIN_POSITIVE))
}

#[cfg(test)]
mod tests {
    use mesh_core::exposition::parse;

    use super::*;

    const SCRAPE: &str = "\
request_total{direction=\"inbound\",target_port=\"8080\",tls=\"true\"} 90
request_total{direction=\"inbound\",target_port=\"8080\",tls=\"no_identity\"} 10
request_total{direction=\"inbound\",target_port=\"4191\",tls=\"no_identity\"} 500
response_total{direction=\"inbound\",target_port=\"8080\",tls=\"true\",classification=\"success\"} 90
response_total{direction=\"inbound\",target_port=\"8080\",tls=\"no_identity\",classification=\"failure\"} 10
response_total{direction=\"inbound\",target_port=\"4191\",tls=\"no_identity\",classification=\"success\"} 500
response_total{direction=\"outbound\",target_port=\"8080\",classification=\"success\"} 7
response_latency_ms_bucket{direction=\"inbound\",target_port=\"8080\",le=\"1\"} 50
response_latency_ms_bucket{direction=\"inbound\",target_port=\"8080\",le=\"2\"} 90
response_latency_ms_bucket{direction=\"inbound\",target_port=\"8080\",le=\"+Inf\"} 100
tcp_open_connections{direction=\"inbound\",peer=\"src\",target_port=\"8080\"} 4
tcp_open_connections{direction=\"inbound\",peer=\"dst\"} 9
";

    fn counters() -> Counters {
        let mut counters = Counters::default();
        counters.add(&parse(SCRAPE), &[]);
        counters
    }

    /// The metrics of a controller's proxy: open streams of meshed clients, and probes in plain
    /// text.
    const CONTROLLER: &str = "\
request_total{direction=\"inbound\",target_port=\"8090\",tls=\"true\",route_kind=\"default\",route_name=\"default\"} 4
request_total{direction=\"inbound\",target_port=\"9990\",tls=\"no_identity\",route_kind=\"default\",route_name=\"default\"} 6
request_total{direction=\"inbound\",target_port=\"9996\",tls=\"no_identity\",route_kind=\"default\",route_name=\"probe\"} 3
response_total{direction=\"inbound\",target_port=\"9990\",tls=\"no_identity\",route_kind=\"default\",route_name=\"default\",classification=\"success\"} 6
response_total{direction=\"inbound\",target_port=\"9996\",tls=\"no_identity\",route_kind=\"default\",route_name=\"probe\",classification=\"success\"} 3
tcp_open_connections{direction=\"inbound\",peer=\"src\",target_port=\"8090\",tls=\"true\"} 2
tcp_open_connections{direction=\"inbound\",peer=\"src\",target_port=\"9990\",tls=\"no_identity\"} 1
";

    #[test]
    fn probes_of_controllers_do_not_count_as_unsecured() {
        let mut counters = Counters::default();
        counters.add(&parse(CONTROLLER), &[9990]);
        let all = counters.since(&Counters::default(), None);
        assert_eq!((all.secured, all.responses), (Some(1.0), 0));
        assert_eq!(all.tcp_connections, 2);
        // No requests since then, and the connections are still open.
        let unchanged = counters.since(&counters, Some(Duration::from_secs(2)));
        assert_eq!(
            (unchanged.secured, unchanged.success_rate),
            (Some(1.0), None)
        );
    }

    #[test]
    fn inbound_traffic_of_the_application_is_counted() {
        let numbers = counters().since(&Counters::default(), Some(Duration::from_secs(2)));
        let expect = WorkloadStats {
            responses: 100,
            success_rate: Some(0.9),
            rps: Some(50.0),
            latency_ms_p50: Some(1.0),
            latency_ms_p95: Some(2.0),
            latency_ms_p99: Some(2.0),
            secured: Some(0.9),
            tcp_connections: 4,
        };
        assert_eq!(numbers, expect);
    }

    #[test]
    fn statistics_without_traffic_are_empty() {
        let numbers = counters().since(&counters(), None);
        assert_eq!(
            (
                numbers.responses,
                numbers.success_rate,
                numbers.latency_ms_p50,
                numbers.rps
            ),
            (0, None, None, None)
        );
    }

    #[test]
    fn quantiles_lie_inside_their_bucket() {
        let buckets = [(1.0, 0.0), (10.0, 10.0), (f64::INFINITY, 10.0)];
        assert_eq!(quantile(&buckets, 0.5), Some(5.5));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
