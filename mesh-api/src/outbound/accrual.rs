//! Failure accrual.

use std::time::Duration;

use mesh_core::resilience::FailureAccrual;

use crate::field::{FieldContext, required};
use crate::proto::outbound as wire;
use crate::proto::outbound::failure_accrual::{ConsecutiveFailures, Kind, Unified};
use crate::{InvalidField, value};

/// The shortest window of a success rate in proxies.
const MIN_WINDOW: Duration = Duration::from_millis(10);
/// The maximum of `min_requests` that proxies accept.
const MAX_MIN_REQUESTS: u32 = 1_000_000;

pub(super) fn accrual(wire: wire::FailureAccrual) -> Result<FailureAccrual, InvalidField> {
    match wire.kind {
        Some(Kind::ConsecutiveFailures(policy)) => {
            let read = || {
                Ok(FailureAccrual::ConsecutiveFailures {
                    max_failures: policy.max_failures,
                    backoff: required("backoff", policy.backoff, value::backoff)?,
                })
            };
            read().inside("consecutive_failures")
        }
        Some(Kind::Unified(policy)) => unified(policy).inside("unified"),
        None => Err(InvalidField::unknown_kind("kind")),
    }
}

fn unified(wire: Unified) -> Result<FailureAccrual, InvalidField> {
    let threshold = wire.success_rate_threshold;
    if !(0.0..=1.0).contains(&threshold) {
        return Err(InvalidField::not_a(
            "rate from 0 to 1",
            "success_rate_threshold",
            threshold,
        ));
    }
    if wire.min_requests > MAX_MIN_REQUESTS {
        return Err(InvalidField::not_a(
            "number up to 1000000",
            "min_requests",
            wire.min_requests,
        ));
    }
    Ok(FailureAccrual::Unified {
        success_rate_threshold: threshold,
        window: match wire.decay {
            Some(window) => value::duration(window).inside("decay")?,
            None if threshold == 0.0 => Duration::ZERO,
            None => return Err(InvalidField::missing("decay")),
        },
        min_requests: wire.min_requests,
        max_consecutive_failures: wire.max_consecutive_failures,
        honor_retry_after: wire
            .backoff
            .as_ref()
            .is_some_and(|backoff| backoff.respect_retry_after_hint),
        backoff: required("backoff", wire.backoff, value::backoff)?,
    })
}

/// Values out of range become the nearest valid one.
pub(super) fn to_proto(accrual: FailureAccrual) -> wire::FailureAccrual {
    let kind = match accrual {
        FailureAccrual::ConsecutiveFailures {
            max_failures,
            backoff,
        } => Kind::ConsecutiveFailures(ConsecutiveFailures {
            max_failures,
            backoff: Some(value::backoff_to_proto(backoff)),
        }),
        FailureAccrual::Unified {
            success_rate_threshold,
            window,
            min_requests,
            max_consecutive_failures,
            backoff,
            honor_retry_after,
        } => {
            let threshold = if success_rate_threshold.is_nan() {
                0.0
            } else {
                success_rate_threshold.clamp(0.0, 1.0)
            };
            Kind::Unified(Unified {
                success_rate_threshold: threshold,
                decay: Some(value::duration_to_proto(window.max(MIN_WINDOW))),
                min_requests: min_requests.min(MAX_MIN_REQUESTS),
                max_consecutive_failures,
                backoff: Some(wire::ExponentialBackoff {
                    respect_retry_after_hint: honor_retry_after,
                    ..value::backoff_to_proto(backoff)
                }),
            })
        }
    };
    wire::FailureAccrual {
        kind: Some(kind),
        ejection: None,
    }
}
