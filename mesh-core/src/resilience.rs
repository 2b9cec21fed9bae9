//! Settings of retries, timeouts, back-off and failure accrual, which the proxy applies.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Exponential back-off: `min`, doubled up to `max`, each step extended by a random share of up to
/// `jitter`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The first step.
    pub min: Duration,
    /// The longest step, without jitter.
    pub max: Duration,
    /// The random share of a step, 0.0 to 100.0.
    pub jitter: f64,
}

/// Time limits of a route rule; `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// From the request's headers to the end of the response.
    pub request: Option<Duration>,
    /// From the end of the request to the end of the response.
    pub response: Option<Duration>,
    /// Without a frame in either direction.
    pub idle: Option<Duration>,
}

/// A retry policy. `C` are the responses that are retried.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Retry<C> {
    /// Maximum number of retries.
    pub max_retries: u16,
    /// Requests with larger bodies are not retried.
    pub max_request_bytes: usize,
    /// Responses that are retried.
    pub conditions: C,
    /// Time limit of one attempt, up to the response's headers.
    pub timeout: Option<Duration>,
    /// The back-off between attempts.
    pub backoff: Option<Backoff>,
}

/// The retry policy of HTTP requests, by the response's status.
pub type HttpRetry = Retry<Vec<RangeInclusive<u16>>>;
/// The retry policy of gRPC calls, by the gRPC status code.
pub type GrpcRetry = Retry<Vec<u16>>;

/// The retry budget of a ServiceProfile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryBudget {
    /// Time for which a request counts, 1 to 60 s.
    pub ttl: Duration,
    /// Retries per second that are always allowed.
    pub min_per_second: u32,
    /// Allowed retries per request, 0 to 1000.
    pub ratio: f32,
}

/// When a balancer stops using an endpoint that fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FailureAccrual {
    /// After consecutive failures.
    ConsecutiveFailures {
        /// Number of consecutive failures.
        max_failures: u32,
        /// Time for which the endpoint is not used.
        backoff: Backoff,
    },
    /// After consecutive failures, or when the success rate is too low.
    Unified {
        /// The lowest acceptable success rate, 0.0 to 1.0.
        success_rate_threshold: f64,
        /// The window of the success rate.
        window: Duration,
        /// Requests in the window below which the success rate is not used.
        min_requests: u32,
        /// Number of consecutive failures.
        max_consecutive_failures: u32,
        /// Time for which the endpoint is not used.
        backoff: Backoff,
    },
}

/// How a balancer estimates the latency of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeakEwma {
    /// Estimate before the first measurement.
    pub default_rtt: Duration,
    /// Time in which a measurement loses 63 % of its weight.
    pub decay: Duration,
    /// The latency that failures count for.
    pub penalty: Option<FailurePenalty>,
}

/// Makes failures count as slow responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FailurePenalty {
    /// The latency of a failure.
    pub penalty: Duration,
    /// The longest Retry-After that is counted as latency.
    pub max_retry_after: Duration,
}

impl Default for PeakEwma {
    /// Returns the values that Linkerd's controllers send and its proxy assumes when they are
    /// absent.
    fn default() -> Self {
        Self {
            default_rtt: Duration::from_millis(30),
            decay: Duration::from_secs(10),
            penalty: None,
        }
    }
}
