//! Settings of retries, timeouts, back-off and failure accrual, which the proxy applies.

use std::num::NonZeroU32;
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

impl Backoff {
    /// Returns the pause after `failures` earlier failures, with `share` of the jitter, 0.0 to 1.0.
    pub fn pause(&self, failures: u32, share: f64) -> Duration {
        let doubled = self.min.saturating_mul(1 << failures.min(20));
        let seconds = doubled.min(self.max).as_secs_f64() * (1.0 + self.jitter * share);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
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
    /// A request counts for this time, 1 to 60 s.
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
        /// The endpoint is not used for this time.
        backoff: Backoff,
    },
    /// After consecutive failures, or when the success rate is too low.
    Unified {
        /// The lowest acceptable success rate, 0.0 to 1.0.
        success_rate_threshold: f64,
        /// The window of the success rate.
        window: Duration,
        /// The success rate is not used with fewer requests in the window.
        min_requests: u32,
        /// Number of consecutive failures.
        max_consecutive_failures: u32,
        /// The endpoint is not used for this time.
        backoff: Backoff,
        /// Whether a Retry-After header of a failure replaces the first step of the back-off,
        /// within its bounds.
        honor_retry_after: bool,
    },
}

/// The queue of a balancer: the requests that wait while no endpoint is available. `None` leaves a
/// setting to the configuration of the proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Queue {
    /// Maximum number of requests that wait.
    pub capacity: Option<NonZeroU32>,
    /// A request waits for this time before it fails, more than zero.
    pub failfast_timeout: Option<Duration>,
}

impl Queue {
    /// The values that Linkerd's policy controller sends.
    pub const LINKERD: Self = Self {
        capacity: NonZeroU32::new(100),
        failfast_timeout: Some(Duration::from_secs(3)),
    };
}

/// How a balancer estimates the latency of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeakEwma {
    /// Estimate before the first measurement.
    pub default_rtt: Duration,
    /// A measurement loses 63 % of its weight in this time.
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

/// Parses a retry condition of HTTP, from an annotation: a status, a range of statuses, `5xx` or
/// `gateway-error`.
///
/// # Errors
///
/// The text is none of them; the error is the problem with the text.
pub fn parse_http_condition(text: &str) -> Result<RangeInclusive<u16>, String> {
    let status = |text: &str| {
        let status = text.trim().parse::<u16>().ok();
        status.filter(|status| (100..600).contains(status))
    };
    let range = match text {
        "5xx" => Some(500..=599),
        "gateway-error" => Some(502..=504),
        _ => match text.split_once('-') {
            None => status(text).map(|status| status..=status),
            Some((low, high)) => status(low)
                .zip(status(high))
                .map(|(low, high)| low..=high)
                .filter(|range| !range.is_empty()),
        },
    };
    range.ok_or_else(|| {
        format!("{text:?} is not an HTTP status, range of statuses, \"5xx\" or \"gateway-error\"")
    })
}

/// Parses a retry condition of gRPC, from an annotation, to the status code.
///
/// # Errors
///
/// The text is not the name of a status that can be retried; the error is the problem with the
/// text.
pub fn parse_grpc_condition(text: &str) -> Result<u16, String> {
    match text {
        "cancelled" => Ok(1),
        "deadline-exceeded" => Ok(4),
        "resource-exhausted" => Ok(8),
        "internal" => Ok(13),
        "unavailable" => Ok(14),
        _ => Err(format!(
            "{text:?} is not cancelled, deadline-exceeded, internal, resource-exhausted or unavailable"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_maximum_plus_jitter() {
        let backoff = Backoff {
            min: Duration::from_millis(25),
            max: Duration::from_millis(250),
            jitter: 1.0,
        };
        let pauses = |share| -> Vec<u128> {
            let pauses = (0..5).map(|failures| backoff.pause(failures, share).as_millis());
            pauses.collect()
        };
        assert_eq!(pauses(0.0), [25, 50, 100, 200, 250]);
        assert_eq!(pauses(1.0), [50, 100, 200, 400, 500]);
        assert_eq!(backoff.pause(u32::MAX, 0.0).as_millis(), 250);
    }

    #[test]
    fn longest_pause_does_not_overflow() {
        let backoff = Backoff {
            min: Duration::MAX,
            max: Duration::MAX,
            jitter: 100.0,
        };
        assert_eq!(backoff.pause(20, 1.0), Duration::MAX);
    }

    #[test]
    fn http_conditions_are_statuses_ranges_or_names() {
        for (text, expected) in [
            ("5xx", Some(500..=599)),
            ("gateway-error", Some(502..=504)),
            ("409", Some(409..=409)),
            ("500-504", Some(500..=504)),
            ("500 - 504", Some(500..=504)),
            ("99", None),
            ("600", None),
            ("504-500", None),
            ("500-", None),
            ("4xx", None),
            ("", None),
        ] {
            assert_eq!(parse_http_condition(text).ok(), expected, "{text:?}");
        }
    }
}
