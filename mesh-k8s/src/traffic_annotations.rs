//! The annotations of Services, EgressNetworks and routes for requests: timeouts, retries, failure
//! accrual, fail-over. The policy and destination controllers read them; `meshctl` reports those
//! that they ignore.

use std::ops::RangeInclusive;
use std::time::Duration;

use mesh_core::annotation as keys;
use mesh_core::locality::Failover;
use mesh_core::resilience::{
    Backoff, FailureAccrual, FailurePenalty, Timeouts, parse_grpc_condition, parse_http_condition,
};
use mesh_core::retry::DEFAULT_LIMIT;
use mesh_core::units::{list_items, parse_bool, parse_duration};

use crate::invalid::Invalid;
use crate::kinds::ObjectMeta;
use crate::pod::meta_annotation as annotation;

/// The settings of the `retry.linkerd.io` annotations.
#[derive(Clone, Debug, PartialEq)]
pub struct Retries {
    /// The number of retries, at least one.
    pub limit: u16,
    /// The limit on an attempt.
    pub timeout: Option<Duration>,
    /// HTTP statuses to retry.
    pub http: Vec<RangeInclusive<u16>>,
    /// gRPC codes to retry.
    pub grpc: Vec<u16>,
}

/// Returns the invalid annotations of a Service or EgressNetwork. The controller ignores the group
/// of each: all timeouts, all retries, the failure accrual, the penalty.
#[must_use]
pub fn problems(meta: &ObjectMeta) -> Vec<Invalid> {
    let groups = [
        timeouts(meta).err(),
        retries(meta).err(),
        failure_accrual(meta).err(),
        failure_penalty(meta).err(),
    ];
    groups.into_iter().flatten().collect()
}

/// Returns the timeouts, if one of their annotations is set.
///
/// # Errors
///
/// The annotation that is not a duration.
pub fn timeouts(meta: &ObjectMeta) -> Result<Option<Timeouts>, Invalid> {
    let timeouts = Timeouts {
        request: duration(meta, keys::TIMEOUT_REQUEST)?,
        response: duration(meta, keys::TIMEOUT_RESPONSE)?,
        idle: duration(meta, keys::TIMEOUT_IDLE)?,
    };
    // A timeout of zero is set as well.
    Ok((timeouts != Timeouts::default()).then_some(timeouts))
}

/// Returns the retry settings, if one of their annotations is set.
///
/// # Errors
///
/// The first annotation that is invalid.
pub fn retries(meta: &ObjectMeta) -> Result<Option<Retries>, Invalid> {
    let set = [
        keys::RETRY_LIMIT,
        keys::RETRY_TIMEOUT,
        keys::RETRY_HTTP,
        keys::RETRY_GRPC,
    ];
    if !set.iter().any(|key| annotation(meta, key).is_some()) {
        return Ok(None);
    }
    let limit = number(meta, keys::RETRY_LIMIT, "a number up to 65535", |text| {
        text.parse().ok()
    })?;
    Ok(Some(Retries {
        // The default applies for a limit of 0, as in Linkerd.
        limit: limit.filter(|limit| *limit > 0).unwrap_or(DEFAULT_LIMIT),
        timeout: duration(meta, keys::RETRY_TIMEOUT)?,
        http: list(meta, keys::RETRY_HTTP, parse_http_condition)?,
        grpc: list(meta, keys::RETRY_GRPC, parse_grpc_condition)?,
    }))
}

/// The defaults of Linkerd.
mod accrual_default {
    use std::time::Duration;

    pub(super) const MAX_FAILURES: u32 = 7;
    pub(super) const MIN_PENALTY: Duration = Duration::from_secs(1);
    pub(super) const MAX_PENALTY: Duration = Duration::from_secs(60);
    pub(super) const JITTER: f64 = 0.5;
    pub(super) const THRESHOLD: f64 = 0.8;
    pub(super) const WINDOW: Duration = Duration::from_secs(10);
    pub(super) const MIN_REQUESTS: u32 = 5;
    pub(super) const PENALTY: Duration = Duration::from_secs(5);
    pub(super) const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);
}

/// The shortest window that proxies support.
const MIN_WINDOW: Duration = Duration::from_millis(10);
/// The largest minimum of requests that proxies support.
const MAX_MIN_REQUESTS: u32 = 1_000_000;
/// The longest penalty that proxies support, 49 days.
const MAX_LOAD_PENALTY: Duration = Duration::from_millis(u32::MAX as u64);

/// Returns the failure accrual, if its annotation is set.
///
/// # Errors
///
/// The first annotation that is invalid.
pub fn failure_accrual(meta: &ObjectMeta) -> Result<Option<FailureAccrual>, Invalid> {
    use accrual_default as default;

    let Some(mode) = annotation(meta, keys::FAILURE_ACCRUAL) else {
        return Ok(None);
    };
    let count = |text: &str| text.parse::<u32>().ok();
    let max_failures = number(meta, keys::FAILURE_ACCRUAL_MAX_FAILURES, "a number", count)?
        .unwrap_or(default::MAX_FAILURES);
    let backoff = backoff(meta)?;
    match mode {
        "consecutive" => Ok(Some(FailureAccrual::ConsecutiveFailures {
            max_failures,
            backoff,
        })),
        "unified" => {
            let ratio = |text: &str| {
                text.parse()
                    .ok()
                    .filter(|ratio| (0.0..=1.0).contains(ratio))
            };
            let threshold = number(
                meta,
                keys::FAILURE_ACCRUAL_THRESHOLD,
                "a number from 0 to 1",
                ratio,
            )?
            .unwrap_or(default::THRESHOLD);
            let window = duration(meta, keys::FAILURE_ACCRUAL_WINDOW)?.unwrap_or(default::WINDOW);
            if window < MIN_WINDOW && threshold > 0.0 {
                let problem = format!(
                    "{}ms is too short: expected at least {}ms, or a success rate threshold of 0",
                    window.as_millis(),
                    MIN_WINDOW.as_millis()
                );
                return Err(error(keys::FAILURE_ACCRUAL_WINDOW, problem));
            }
            let requests = |text: &str| count(text).filter(|count| *count <= MAX_MIN_REQUESTS);
            Ok(Some(FailureAccrual::Unified {
                success_rate_threshold: threshold,
                window,
                min_requests: number(
                    meta,
                    keys::FAILURE_ACCRUAL_MIN_REQUESTS,
                    "a number up to 1000000",
                    requests,
                )?
                .unwrap_or(default::MIN_REQUESTS),
                max_consecutive_failures: max_failures,
                backoff,
                honor_retry_after: number(
                    meta,
                    keys::HONOR_RETRY_AFTER,
                    "true or false",
                    parse_bool,
                )?
                .unwrap_or(false),
            }))
        }
        other => Err(error(
            keys::FAILURE_ACCRUAL,
            format!("{other:?} is neither \"consecutive\" nor \"unified\""),
        )),
    }
}

fn backoff(meta: &ObjectMeta) -> Result<Backoff, Invalid> {
    use accrual_default as default;

    let min = duration(meta, keys::FAILURE_ACCRUAL_MIN_PENALTY)?.unwrap_or(default::MIN_PENALTY);
    let max = duration(meta, keys::FAILURE_ACCRUAL_MAX_PENALTY)?.unwrap_or(default::MAX_PENALTY);
    if max.is_zero() || min > max {
        let problem = format!(
            "{}ms is not more than zero and at least the minimum penalty of {}ms",
            max.as_millis(),
            min.as_millis()
        );
        return Err(error(keys::FAILURE_ACCRUAL_MAX_PENALTY, problem));
    }
    let jitter = number(
        meta,
        keys::FAILURE_ACCRUAL_JITTER,
        "a number from 0 to 100",
        |text| {
            text.parse()
                .ok()
                .filter(|jitter| (0.0..=100.0).contains(jitter))
        },
    )?;
    Ok(Backoff {
        min,
        max,
        jitter: jitter.unwrap_or(default::JITTER),
    })
}

/// Returns how failures increase the latency estimate of an endpoint, if that is enabled.
///
/// # Errors
///
/// The first annotation that is invalid.
pub fn failure_penalty(meta: &ObjectMeta) -> Result<Option<FailurePenalty>, Invalid> {
    use accrual_default as default;

    let enabled = number(meta, keys::PENALIZE_FAILURES, "true or false", parse_bool)?;
    if enabled != Some(true) {
        return Ok(None);
    }
    let penalty = duration(meta, keys::LOAD_BIASER_PENALTY)?.unwrap_or(default::PENALTY);
    if penalty > MAX_LOAD_PENALTY {
        let problem = format!(
            "{}ms is too long: expected at most {}ms",
            penalty.as_millis(),
            MAX_LOAD_PENALTY.as_millis()
        );
        return Err(error(keys::LOAD_BIASER_PENALTY, problem));
    }
    Ok(Some(FailurePenalty {
        penalty,
        max_retry_after: duration(meta, keys::LOAD_BIASER_MAX_RETRY_AFTER)?
            .unwrap_or(default::MAX_RETRY_AFTER),
    }))
}

/// Returns the localities that clients of a Service prefer, if the annotation is set.
///
/// # Errors
///
/// The list is invalid.
pub fn failover(meta: &ObjectMeta) -> Result<Option<Failover>, Invalid> {
    let key = keys::LOCALITY_FAILOVER;
    annotation(meta, key)
        .map(|text| text.parse().map_err(|problem| error(key, problem)))
        .transpose()
}

fn duration(meta: &ObjectMeta, key: &str) -> Result<Option<Duration>, Invalid> {
    annotation(meta, key)
        .map(|text| parse_duration(text).map_err(|problem| error(key, problem)))
        .transpose()
}

fn number<T>(
    meta: &ObjectMeta,
    key: &str,
    expected: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Invalid> {
    annotation(meta, key)
        .map(|text| {
            parse(text.trim()).ok_or_else(|| error(key, format!("{text:?} is not {expected}")))
        })
        .transpose()
}

fn list<T>(
    meta: &ObjectMeta,
    key: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, Invalid> {
    annotation(meta, key)
        .into_iter()
        .flat_map(list_items)
        .map(|item| parse(item).map_err(|problem| error(key, problem)))
        .collect()
}

fn error(key: &str, problem: impl std::fmt::Display) -> Invalid {
    Invalid::new(format!("metadata.annotations[{key:?}]"), problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(pairs: &[(&str, &str)]) -> ObjectMeta {
        ObjectMeta {
            annotations: Some(
                pairs
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                    .collect(),
            ),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn any_retry_annotation_enables_retries() {
        assert_eq!(retries(&meta(&[])), Ok(None));
        let on = retries(&meta(&[(
            keys::RETRY_HTTP,
            "5xx, 409,502-504,gateway-error",
        )]))
        .unwrap();
        assert_eq!(
            on,
            Some(Retries {
                limit: 1,
                timeout: None,
                http: vec![500..=599, 409..=409, 502..=504, 502..=504],
                grpc: vec![],
            })
        );
        let limit = |text| {
            retries(&meta(&[(keys::RETRY_LIMIT, text)]))
                .unwrap()
                .unwrap()
                .limit
        };
        assert_eq!(limit("3"), 3);
        assert_eq!(limit("0"), 1);
        for (key, value) in [
            (keys::RETRY_LIMIT, "2"),
            (keys::RETRY_TIMEOUT, "1s"),
            (keys::RETRY_HTTP, "5xx"),
            (keys::RETRY_GRPC, "internal"),
        ] {
            assert!(retries(&meta(&[(key, value)])).unwrap().is_some(), "{key}");
        }
    }

    #[test]
    fn errors_name_invalid_annotation() {
        let check = |key: &str, value: &str, expect: &str| {
            let meta = meta(&[(keys::FAILURE_ACCRUAL, "unified"), (key, value)]);
            let error = retries(&meta)
                .map(drop)
                .and(timeouts(&meta).map(drop))
                .and(failure_accrual(&meta).map(drop))
                .unwrap_err();
            assert!(error.to_string().contains(expect), "{error}");
            assert!(error.to_string().contains(key), "{error}");
        };
        check(keys::RETRY_HTTP, "600", "not an HTTP status");
        check(keys::RETRY_HTTP, "504-502", "not an HTTP status");
        check(keys::RETRY_GRPC, "unknown", "is not cancelled");
        check(keys::RETRY_LIMIT, "-1", "65535");
        check(keys::TIMEOUT_REQUEST, "1.5s", "invalid duration");
        check(keys::FAILURE_ACCRUAL, "often", "neither");
        check(keys::FAILURE_ACCRUAL_MAX_PENALTY, "0", "more than zero");
        check(keys::HONOR_RETRY_AFTER, "yes", "true or false");
        check(keys::FAILURE_ACCRUAL_JITTER, "101", "0 to 100");
        check(keys::FAILURE_ACCRUAL_THRESHOLD, "NaN", "0 to 1");
        check(keys::FAILURE_ACCRUAL_WINDOW, "1ms", "10ms");
    }

    #[test]
    fn problems_have_one_annotation_of_each_group() {
        let invalid = problems(&meta(&[
            (keys::TIMEOUT_IDLE, "soon"),
            (keys::RETRY_LIMIT, "many"),
            (keys::RETRY_HTTP, "5xx"),
            (keys::FAILURE_ACCRUAL, "often"),
        ]));
        let fields: Vec<_> = invalid.iter().map(|invalid| &*invalid.field).collect();
        let expect = [keys::TIMEOUT_IDLE, keys::RETRY_LIMIT, keys::FAILURE_ACCRUAL];
        assert_eq!(
            fields,
            expect.map(|key| format!("metadata.annotations[{key:?}]"))
        );
        assert_eq!(problems(&meta(&[(keys::RETRY_LIMIT, "3")])), []);
    }

    #[test]
    fn failover_is_read_or_refused_with_its_annotation() {
        let read = |text| failover(&meta(&[(keys::LOCALITY_FAILOVER, text)]));
        assert_eq!(failover(&meta(&[])), Ok(None));
        assert_eq!(read("zone=50%"), Ok(Some("zone=50%".parse().unwrap())));
        let error = read("zone=0").unwrap_err();
        let field = format!("metadata.annotations[{:?}]", keys::LOCALITY_FAILOVER);
        assert_eq!(error.field, field);
        assert!(
            error.problem.contains("\"0\" is not a threshold"),
            "{error}"
        );
    }

    #[test]
    fn failure_accrual_has_defaults() {
        let consecutive = failure_accrual(&meta(&[(keys::FAILURE_ACCRUAL, "consecutive")]));
        assert_eq!(
            consecutive,
            Ok(Some(FailureAccrual::ConsecutiveFailures {
                max_failures: 7,
                backoff: Backoff {
                    min: Duration::from_secs(1),
                    max: Duration::from_secs(60),
                    jitter: 0.5,
                },
            }))
        );
        assert_eq!(failure_accrual(&meta(&[])), Ok(None));
        let penalty = |value| failure_penalty(&meta(&[(keys::PENALIZE_FAILURES, value)])).unwrap();
        assert_eq!(penalty("T").unwrap().penalty, Duration::from_secs(5));
        assert_eq!(penalty("false"), None);
    }
}
