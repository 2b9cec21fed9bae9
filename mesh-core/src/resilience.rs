//! Settings of retries, timeouts, back-off and failure accrual. The machines that use them live in
//! the proxy.

use std::{ops::RangeInclusive, time::Duration};

/// Exponential back-off: `min`, doubled up to `max`, each step lengthened by a random share of up
/// to `jitter`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    pub min: Duration,
    pub max: Duration,
    /// 0.0 to 100.0, a share of the step.
    pub jitter: f64,
}

/// Time limits of a route rule; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// From the request's head to the end of the response.
    pub request: Option<Duration>,
    /// From the end of the request to the end of the response.
    pub response: Option<Duration>,
    /// Without a frame in either direction.
    pub idle: Option<Duration>,
}

/// When and how often an HTTP request is tried again.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpRetry {
    pub max_retries: u16,
    pub max_request_bytes: usize,
    /// Response statuses that are tried again.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// Limit of one try, up to the response's head.
    pub timeout: Option<Duration>,
    pub backoff: Option<Backoff>,
}

/// When and how often a gRPC call is tried again.
#[derive(Clone, Debug, PartialEq)]
pub struct GrpcRetry {
    pub max_retries: u16,
    pub max_request_bytes: usize,
    /// gRPC status codes that are tried again.
    pub codes: Vec<u16>,
    pub timeout: Option<Duration>,
    pub backoff: Option<Backoff>,
}

/// The retry budget of a ServiceProfile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryBudget {
    /// How long a request counts, 1 to 60 s.
    pub ttl: Duration,
    pub min_per_second: u32,
    /// Retries per request, 0 to 1000.
    pub ratio: f32,
}

/// When a balancer stops using an endpoint that fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FailureAccrual {
    ConsecutiveFailures {
        max_failures: u32,
        backoff: Backoff,
    },
    Unified {
        success_rate_threshold: f64,
        window: Duration,
        min_requests: u32,
        max_consecutive_failures: u32,
        backoff: Backoff,
    },
}

/// How a balancer estimates the latency of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeakEwma {
    /// Estimate before the first measurement.
    pub default_rtt: Duration,
    /// Time for an old measurement to lose 63 % of its weight.
    pub decay: Duration,
    pub penalty: Option<FailurePenalty>,
}

/// Makes failures count as slow answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FailurePenalty {
    pub penalty: Duration,
    pub max_retry_after: Duration,
}

impl Default for PeakEwma {
    /// The values Linkerd's controllers send and its proxy assumes when they are absent.
    fn default() -> Self {
        Self {
            default_rtt: Duration::from_millis(30),
            decay: Duration::from_secs(10),
            penalty: None,
        }
    }
}
