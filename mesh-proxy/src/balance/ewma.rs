//! The load of an endpoint: its estimated latency times the requests in flight. The estimate is a
//! peak-sensitive moving average (Peak EWMA): a response slower than the estimate replaces it
//! immediately, faster ones reduce it over the decay time. An endpoint that becomes slow loses
//! traffic with the next request, and regains it gradually.

use std::cell::Cell;
use std::time::Duration;

use mesh_core::resilience::PeakEwma;
use tokio::time::Instant;

/// The load of one endpoint.
#[derive(Debug)]
pub(super) struct Load {
    /// Estimated latency in seconds, as of `at`.
    latency: Cell<f64>,
    at: Cell<Instant>,
    decay: Duration,
    in_flight: Cell<u32>,
}

/// Minimum latency, as in Linkerd's proxy. Smaller differences between endpoints are scheduling
/// noise.
const MIN_LATENCY: Duration = Duration::from_millis(1);

impl Load {
    pub(super) fn new(ewma: &PeakEwma, now: Instant) -> Self {
        Self {
            latency: Cell::new(ewma.default_rtt.as_secs_f64()),
            at: Cell::new(now),
            decay: ewma.decay,
            in_flight: Cell::new(0),
        }
    }

    /// Returns the cost for comparisons between endpoints. The estimate decays with the time since
    /// the last sample.
    pub(super) fn cost(&self, now: Instant) -> f64 {
        let decayed = self.latency.get() * self.remaining(now);
        decayed.max(MIN_LATENCY.as_secs_f64()) * f64::from(self.in_flight.get() + 1)
    }

    pub(super) fn record(&self, sample: Duration, now: Instant) {
        let sample = sample.max(MIN_LATENCY).as_secs_f64();
        let remaining = self.remaining(now);
        let estimate = self.latency.get();
        self.latency.set(if sample > estimate * remaining {
            sample
        } else {
            estimate * remaining + sample * (1.0 - remaining)
        });
        self.at.set(now);
    }

    pub(super) fn begin(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    pub(super) fn end(&self) {
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
    }

    /// Returns the remaining weight of the old estimate, from 0 to 1.
    fn remaining(&self, now: Instant) -> f64 {
        let elapsed = now.saturating_duration_since(self.at.get());
        (-elapsed.as_secs_f64() / self.decay.as_secs_f64()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECAY: Duration = Duration::from_secs(10);

    fn new(now: Instant) -> Load {
        let ewma = PeakEwma {
            default_rtt: millis(30),
            decay: DECAY,
            penalty: None,
        };
        Load::new(&ewma, now)
    }

    fn millis(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn latency_peak_replaces_estimate_and_decays() {
        let start = Instant::now();
        let load = new(start);
        load.record(millis(500), start);
        assert!((load.cost(start) - 0.5).abs() < 1e-9);
        load.record(millis(10), start + DECAY);
        let expected = 0.5 / std::f64::consts::E + 0.01 * (1.0 - 1.0 / std::f64::consts::E);
        assert!((load.cost(start + DECAY) - expected).abs() < 1e-9);
    }

    #[test]
    fn sample_above_the_decayed_estimate_replaces_it() {
        let start = Instant::now();
        let load = new(start);
        load.record(millis(500), start);
        load.record(millis(300), start + DECAY);
        assert!((load.cost(start + DECAY) - 0.3).abs() < 1e-9);
    }

    #[test]
    fn estimate_decays_without_samples() {
        let start = Instant::now();
        let load = new(start);
        let expected = 0.03 / std::f64::consts::E;
        assert!((load.cost(start + DECAY) - expected).abs() < 1e-9);
    }

    #[test]
    fn cost_is_multiplied_by_requests_in_flight() {
        let now = Instant::now();
        let load = new(now);
        load.begin();
        load.begin();
        assert!((load.cost(now) - 0.09).abs() < 1e-9);
        load.end();
        load.end();
        assert!((load.cost(now) - 0.03).abs() < 1e-9);
    }

    #[test]
    fn latency_is_never_below_minimum() {
        let now = Instant::now();
        let load = new(now);
        assert!(load.cost(now + Duration::from_secs(3600)) >= 0.001);
        load.record(Duration::ZERO, now + Duration::from_secs(3600));
        assert!(load.cost(now + Duration::from_secs(3600)) >= 0.001);
    }
}
