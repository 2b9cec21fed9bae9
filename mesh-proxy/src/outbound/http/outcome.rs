//! The results of requests, for the circuit breakers and the penalties of a balancer.
//!
//! A response fails by its HTTP status or its gRPC status, in its headers or in its trailers. What
//! its headers do not decide is decided by its end. Nothing here is done for a backend whose policy
//! has neither failure accrual nor a penalty.

use std::time::{Duration, SystemTime};

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};

use super::endpoint::HttpEndpoint;
use crate::balance::{Outcome, PickedEndpoint};
use crate::error::grpc_code::RESOURCE_EXHAUSTED;
use crate::http::Response;
use crate::http::body::{BodyEnd, ExchangeTimeouts};
use crate::retry::Failure;
use crate::telemetry::http::{grpc_is_failure, grpc_status, is_grpc};

type Picked = PickedEndpoint<HttpEndpoint>;

/// A request that waits for its response. It counts as failed if a time limit of the policy has
/// ended it, and does not count if its client has.
pub(super) struct Unanswered<'a> {
    picked: &'a Picked,
    timeouts: Option<&'a ExchangeTimeouts>,
}

impl<'a> Unanswered<'a> {
    pub(super) fn new(picked: &'a Picked, timeouts: Option<&'a ExchangeTimeouts>) -> Self {
        let timeouts = timeouts.filter(|_| picked.needs_result());
        Self { picked, timeouts }
    }

    /// The request has a response, or has failed.
    pub(super) fn end(mut self) {
        self.timeouts = None;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.timeouts.is_some_and(ExchangeTimeouts::has_expired) {
            self.picked.record_result(Outcome::Failure, None);
        }
    }
}

/// Records what the headers of a response decide.
pub(super) fn record_headers(picked: &Picked, response: &Response) {
    if !picked.needs_result() {
        return;
    }
    let (status, headers) = (response.status(), response.headers());
    let outcome = of_status(status).or_else(|| of_grpc(headers));
    if let Some(outcome) = outcome {
        picked.record_result(outcome, retry_after(headers, SystemTime::now()));
    } else if picked.is_probe() && !is_grpc(headers) {
        // The body may be endless, and the endpoint would stay out of rotation.
        picked.record_result(Outcome::Success, None);
    }
}

/// Records the first data of a response. An endless call succeeds as a probe with its first
/// message.
pub(super) fn record_data(picked: &Picked) {
    picked.record_latency();
    if picked.is_probe() {
        picked.record_result(Outcome::Success, None);
    }
}

/// Records what the end of a response decides. A response that its client has cancelled is not
/// counted.
pub(super) fn record_end(picked: &Picked, end: BodyEnd<'_>) {
    let trailers = match end {
        BodyEnd::Dropped => return,
        BodyEnd::Failed(_) => {
            if picked.needs_result() {
                picked.record_result(Outcome::Failure, None);
            }
            return;
        }
        BodyEnd::Complete(trailers) => trailers,
    };
    if picked.needs_result() {
        let failed = trailers.and_then(|trailers| Some((of_grpc(trailers)?, trailers)));
        match failed {
            Some((outcome, trailers)) => {
                picked.record_result(outcome, retry_after(trailers, SystemTime::now()));
            }
            None => picked.record_result(Outcome::Success, None),
        }
    }
    picked.record_latency();
}

/// Records a request without a response. One that the endpoint has not processed does not count,
/// nor one without a connection, because the back-off of connections applies then. As a probe, the
/// latter has failed.
pub(super) fn record_failure(picked: &Picked, failure: Failure) {
    let counts = match failure {
        Failure::Reset | Failure::Lost { .. } | Failure::BrokenResponse | Failure::TimedOut => {
            picked.needs_result()
        }
        Failure::ConnectionRefused | Failure::NoConnection => picked.is_probe(),
        Failure::Unwritten | Failure::Refused | Failure::Excluded | Failure::UnsentByPeer => false,
    };
    if counts {
        picked.record_result(Outcome::Failure, None);
    }
}

fn of_status(status: StatusCode) -> Option<Outcome> {
    match status {
        StatusCode::TOO_MANY_REQUESTS => Some(Outcome::Throttled),
        status if status.is_server_error() => Some(Outcome::Failure),
        _ => None,
    }
}

/// Returns the outcome of a gRPC status that is not a success. A missing status has no outcome.
fn of_grpc(headers: &HeaderMap) -> Option<Outcome> {
    match grpc_status(headers)? {
        RESOURCE_EXHAUSTED => Some(Outcome::Throttled),
        code if grpc_is_failure(code) => Some(Outcome::Failure),
        _ => None,
    }
}

/// Returns when the endpoint asks to be tried again: `retry-after`, in seconds or as a date, or
/// `grpc-retry-pushback-ms`, whichever is later. A negative pushback means never, which is for the
/// client to decide.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let in_seconds = text(RETRY_AFTER.as_str()).and_then(|text| {
        let seconds = text.parse().ok().map(Duration::from_secs);
        seconds.or_else(|| {
            httpdate::parse_http_date(text)
                .ok()?
                .duration_since(now)
                .ok()
        })
    });
    let pushback = text("grpc-retry-pushback-ms");
    let in_millis = pushback.and_then(|text| text.parse().ok().map(Duration::from_millis));
    in_seconds.max(in_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let fields = fields.iter();
        fields
            .map(|(name, value)| {
                let name = http::HeaderName::from_static(name);
                (name, value.parse().unwrap())
            })
            .collect()
    }

    #[test]
    fn statuses_fail_as_in_linkerd() {
        let http = |status| of_status(StatusCode::from_u16(status).unwrap());
        for status in [200, 204, 301, 404, 418, 499] {
            assert_eq!(http(status), None, "{status}");
        }
        for status in [500, 503, 599] {
            assert_eq!(http(status), Some(Outcome::Failure), "{status}");
        }
        assert_eq!(http(429), Some(Outcome::Throttled));
        for code in 0..=17 {
            let expected = match code {
                8 => Some(Outcome::Throttled),
                // 17 is undefined, which is UNKNOWN.
                2 | 4 | 7 | 13 | 14 | 15 | 17 => Some(Outcome::Failure),
                _ => None,
            };
            let headers = headers(&[("grpc-status", &code.to_string())]);
            assert_eq!(of_grpc(&headers), expected, "{code}");
        }
        assert_eq!(of_grpc(&HeaderMap::new()), None);
    }

    #[test]
    fn hints_to_retry_are_read() {
        // Sun, 06 Nov 1994 08:49:37 GMT.
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let hint = |fields| retry_after(&headers(fields), now).map(|hint| hint.as_millis());
        for (fields, expected) in [
            (&[][..], None),
            (&[("retry-after", "0")], Some(0)),
            (&[("retry-after", "120")], Some(120_000)),
            (
                &[("retry-after", "Sun, 06 Nov 1994 08:49:40 GMT")],
                Some(3000),
            ),
            (
                &[("retry-after", "Sunday, 06-Nov-94 08:49:40 GMT")],
                Some(3000),
            ),
            (&[("retry-after", "Sun Nov  6 08:49:40 1994")], Some(3000)),
            // It has passed.
            (&[("retry-after", "Sun, 06 Nov 1994 08:49:30 GMT")], None),
            (&[("retry-after", "-1")], None),
            (&[("retry-after", "soon")], None),
            (&[("retry-after", "99999999999999999999")], None),
            (&[("grpc-retry-pushback-ms", "1500")], Some(1500)),
            (&[("grpc-retry-pushback-ms", "-1")], None),
            (
                &[("retry-after", "1"), ("grpc-retry-pushback-ms", "1500")],
                Some(1500),
            ),
        ] {
            assert_eq!(hint(fields), expected, "{fields:?}");
        }
        let far = headers(&[("retry-after", &u64::MAX.to_string())]);
        assert_eq!(retry_after(&far, now), Some(Duration::from_secs(u64::MAX)));
    }
}
