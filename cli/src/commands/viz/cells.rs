//! Columns that several tables have.

use crate::clients::metrics_api::Requests;
use crate::output::{self, figures};

/// The headers of [`request_cells`].
pub(super) const REQUESTS: &str = "SUCCESS RPS LATENCY_P50 LATENCY_P95 LATENCY_P99";

/// The headers of [`latency_cells`].
pub(super) const LATENCIES: &str = "LATENCY_P50 LATENCY_P95 LATENCY_P99";

/// Returns success rate, requests per second and latencies.
pub(super) fn request_cells(requests: Option<Requests>) -> [String; 5] {
    let [success, rps] = rate_cells(requests.map(|it| (it.success_rate, it.rps)));
    let [p50, p95, p99] = latency_cells(requests);
    [success, rps, p50, p95, p99]
}

/// Returns success rate and requests per second.
pub(super) fn rate_cells(rates: Option<(f64, f64)>) -> [String; 2] {
    let (success, rps) = rates.unzip();
    [figures::percent(success), figures::rate(rps)]
}

pub(super) fn latency_cells(requests: Option<Requests>) -> [String; 3] {
    let latencies: Option<[u64; 3]> =
        requests.map(|it| [it.latency_ms_p50, it.latency_ms_p95, it.latency_ms_p99]);
    match latencies {
        Some(latencies) => latencies.map(|millis| format!("{millis}ms")),
        None => Default::default(),
    }
}

/// Says that a table would be empty.
pub(super) fn no_traffic() -> anyhow::Result<()> {
    output::note("No traffic found.");
    Ok(())
}
