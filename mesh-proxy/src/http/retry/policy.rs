//! The decision of a retry policy. The policy belongs to a route rule or to a ServiceProfile's
//! route; request headers may have changed it.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::StatusCode;
use mesh_core::resilience::Backoff;

use crate::error::Kind;
use crate::http::ErrorCode;

/// When and how often a request is sent again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RetryPolicy {
    pub(crate) conditions: Conditions,
    pub(crate) max_retries: u16,
    /// Requests with longer bodies are not retried.
    pub(crate) max_request_bytes: usize,
    /// Time limit of each attempt but the last, from the end of the request to the response's
    /// headers.
    pub(crate) timeout: Option<Duration>,
    pub(crate) backoff: Option<Backoff>,
}

/// The responses that are retried.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Conditions {
    pub(crate) statuses: Vec<RangeInclusive<u16>>,
    /// gRPC status codes.
    pub(crate) grpc_codes: Vec<u16>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptEnd {
    /// `grpc_code` is that of a gRPC call, if it is known before the response is forwarded.
    Response {
        status: StatusCode,
        grpc_code: Option<u16>,
    },
    /// No endpoint became available in time.
    FailFast,
    /// The time limit of the attempt expired.
    TimedOut,
    /// The endpoint has reset the stream with `REFUSED_STREAM`: it has not processed the request.
    Refused,
    /// Another error. What can be repeated safely has been, as without a policy.
    Failed,
}

/// What follows an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyAction {
    /// The result is returned, because it is none that the policy retries.
    Return,
    Retry,
    /// The result is returned although the policy would retry it: there were as many retries.
    LimitExceeded,
    /// The same, because the request's body is not kept.
    NotKept,
}

impl RetryPolicy {
    /// Decides what follows an attempt that ended with `end`, after `retries` retries. `is_kept`:
    /// the request's body can be sent again.
    pub(crate) fn decide(&self, end: AttemptEnd, retries: u16, is_kept: bool) -> PolicyAction {
        if !self.conditions.include(end) {
            PolicyAction::Return
        } else if retries >= self.max_retries {
            PolicyAction::LimitExceeded
        } else if !is_kept {
            PolicyAction::NotKept
        } else {
            PolicyAction::Retry
        }
    }
}

impl Conditions {
    fn include(&self, end: AttemptEnd) -> bool {
        match end {
            AttemptEnd::Response { status, grpc_code } => {
                let status = status.as_u16();
                self.statuses.iter().any(|range| range.contains(&status))
                    || grpc_code.is_some_and(|code| self.grpc_codes.contains(&code))
            }
            AttemptEnd::FailFast | AttemptEnd::TimedOut | AttemptEnd::Refused => true,
            AttemptEnd::Failed => false,
        }
    }

    /// Whether the status of a gRPC call matters.
    pub(crate) fn depend_on_grpc(&self) -> bool {
        !self.grpc_codes.is_empty()
    }
}

impl From<&Kind> for AttemptEnd {
    fn from(kind: &Kind) -> Self {
        match kind {
            Kind::FailFast => Self::FailFast,
            Kind::ResponseTimeout => Self::TimedOut,
            Kind::Reset(ErrorCode::REFUSED_STREAM) => Self::Refused,
            _ => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PolicyAction::{LimitExceeded, NotKept, Retry, Return};
    use super::*;

    fn policy(max_retries: u16) -> RetryPolicy {
        RetryPolicy {
            conditions: Conditions {
                statuses: vec![429..=429, 502..=504],
                grpc_codes: vec![14],
            },
            max_retries,
            max_request_bytes: 1,
            timeout: None,
            backoff: None,
        }
    }

    fn response(status: u16, grpc_code: Option<u16>) -> AttemptEnd {
        AttemptEnd::Response {
            status: StatusCode::from_u16(status).unwrap(),
            grpc_code,
        }
    }

    #[test]
    fn conditions_select_responses_and_errors() {
        for (end, is_retried) in [
            (response(200, None), false),
            (response(429, None), true),
            (response(430, None), false),
            (response(500, None), false),
            (response(502, None), true),
            (response(504, None), true),
            (response(505, None), false),
            (response(200, Some(0)), false),
            (response(200, Some(13)), false),
            (response(200, Some(14)), true),
            (response(503, Some(0)), true),
            (AttemptEnd::FailFast, true),
            (AttemptEnd::TimedOut, true),
            (AttemptEnd::Refused, true),
            (AttemptEnd::Failed, false),
        ] {
            let expected = if is_retried { Retry } else { Return };
            assert_eq!(policy(1).decide(end, 0, true), expected, "{end:?}");
        }
    }

    #[test]
    fn limit_and_lost_body_end_retries() {
        let failure = response(503, None);
        for (retries, max_retries, is_kept, expected) in [
            (0, 0, true, LimitExceeded),
            (0, 2, true, Retry),
            (1, 2, true, Retry),
            (2, 2, true, LimitExceeded),
            (3, 2, true, LimitExceeded),
            (0, 2, false, NotKept),
            (2, 2, false, LimitExceeded),
            (u16::MAX, u16::MAX, true, LimitExceeded),
        ] {
            let decided = policy(max_retries).decide(failure, retries, is_kept);
            assert_eq!(decided, expected, "{retries} of {max_retries}, {is_kept}");
            let success = policy(max_retries).decide(response(200, None), retries, is_kept);
            assert_eq!(success, Return);
        }
    }

    #[test]
    fn errors_are_retried_as_in_linkerd() {
        for (kind, expected) in [
            (Kind::FailFast, AttemptEnd::FailFast),
            (Kind::ResponseTimeout, AttemptEnd::TimedOut),
            (Kind::Reset(ErrorCode::REFUSED_STREAM), AttemptEnd::Refused),
            (Kind::Reset(ErrorCode::CANCEL), AttemptEnd::Failed),
            (Kind::LoadShed, AttemptEnd::Failed),
            (Kind::Io, AttemptEnd::Failed),
            (Kind::ConnectTimeout, AttemptEnd::Failed),
            (Kind::NoDispatcher, AttemptEnd::Failed),
        ] {
            assert_eq!(AttemptEnd::from(&kind), expected, "{kind:?}");
        }
    }
}
