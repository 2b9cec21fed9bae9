//! Sums the samples of outbound routes and their backends.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::traffic::{Counts, route_type, shown_name};
use crate::clients::prometheus_api::Sample;

/// The samples of a protocol.
pub(super) struct Samples {
    /// `http` or `grpc`, the beginning of the status' label.
    pub(super) protocol: &'static str,
    pub(super) requests: Vec<Sample>,
    pub(super) retries: Vec<Sample>,
    /// In seconds, one list for each quantile.
    pub(super) latencies: [Vec<Sample>; 3],
    pub(super) backend_responses: Vec<Sample>,
    pub(super) backend_latencies: [Vec<Sample>; 3],
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RouteKey {
    #[serde(skip)]
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) service: String,
    pub(super) port: String,
    pub(super) route: String,
    pub(super) route_type: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct BackendKey {
    #[serde(rename = "backend")]
    pub(super) name: String,
    #[serde(rename = "backendPort")]
    pub(super) port: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Route {
    pub(super) counts: Counts,
    /// `None` if the proxies do not count them.
    pub(super) retries: Option<f64>,
    pub(super) backends: BTreeMap<BackendKey, Counts>,
}

pub(super) type Rows = BTreeMap<RouteKey, Route>;

impl Route {
    /// Returns the share of retries among all attempts.
    pub(super) fn retry_rate(&self) -> Option<f64> {
        let retries = self.retries?;
        let attempts = self.counts.total() + retries;
        (attempts > 0.0).then(|| retries / attempts)
    }
}

/// Returns the routes with requests, and their backends with requests. `object` returns the
/// namespace and name of a sample's object.
pub(super) fn rows(protocols: &[Samples], object: impl Fn(&Sample) -> (String, String)) -> Rows {
    let key = |sample: &Sample| {
        let (namespace, name) = object(sample);
        let route = sample.label("route_name");
        RouteKey {
            namespace,
            name,
            service: sample.label("parent_name").to_owned(),
            port: sample.label("parent_port").to_owned(),
            route: shown_name(route, route == "default"),
            route_type: route_type(sample),
        }
    };
    let mut rows = Rows::new();
    for samples in protocols {
        for sample in &samples.requests {
            let route = rows.entry(key(sample)).or_default();
            count(&mut route.counts, samples.protocol, sample);
        }
        for sample in &samples.backend_responses {
            let route = rows.entry(key(sample)).or_default();
            let counts = route.backends.entry(backend(sample)).or_default();
            count(counts, samples.protocol, sample);
        }
    }
    rows.retain(|_, route| route.counts.total() > 0.0);
    for route in rows.values_mut() {
        route.backends.retain(|_, counts| counts.total() > 0.0);
    }
    for samples in protocols {
        for sample in &samples.retries {
            if let Some(route) = rows.get_mut(&key(sample)) {
                *route.retries.get_or_insert_default() += sample.value;
            }
        }
        for (at, list) in samples.latencies.iter().enumerate() {
            for sample in list {
                if let Some(route) = rows.get_mut(&key(sample)) {
                    route.counts.latency_ms[at] = Some(millis(sample));
                }
            }
        }
        for (at, list) in samples.backend_latencies.iter().enumerate() {
            for sample in list {
                let route = rows.get_mut(&key(sample));
                let counts = route.and_then(|route| route.backends.get_mut(&backend(sample)));
                if let Some(counts) = counts {
                    counts.latency_ms[at] = Some(millis(sample));
                }
            }
        }
    }
    rows
}

fn backend(sample: &Sample) -> BackendKey {
    BackendKey {
        name: sample.label("backend_name").to_owned(),
        port: sample.label("backend_port").to_owned(),
    }
}

fn count(counts: &mut Counts, protocol: &str, sample: &Sample) {
    let error = sample.label("error");
    let is_success = match protocol {
        "grpc" => sample.label("grpc_status") == "OK",
        _ => !sample.label("http_status").starts_with('5'),
    };
    counts.add(sample.value, is_success && error.is_empty());
    if matches!(error, "RESPONSE_HEADERS_TIMEOUT" | "REQUEST_TIMEOUT") {
        counts.timeouts += sample.value;
    }
}

fn millis(sample: &Sample) -> f64 {
    sample.value * 1_000.0
}
