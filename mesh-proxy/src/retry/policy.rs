//! The decision of a retry policy. The policy belongs to a route rule or to a ServiceProfile's
//! route; request headers may have changed it.

use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use mesh_core::profile::{ProfileRoute, ResponseClass};
use mesh_core::resilience::{Backoff, Retry};
use mesh_core::retry::DEFAULT_REQUEST_BYTES;
use mesh_planted::Bug;

use super::budget::RetryBudget;
use crate::error::Kind;
use crate::http::ErrorCode;
use crate::http::body::Repeat;
use crate::telemetry::http::grpc_is_failure;

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
    /// The budget of a ServiceProfile, which each retry is taken from.
    pub(crate) budget: Option<Arc<RetryBudget>>,
}

/// The results that are retried.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Conditions {
    /// A route rule's: these responses, and the errors that Linkerd retries.
    Listed(ListedConditions),
    /// A ServiceProfile's: responses that the classes of its route declare failures.
    Failures(Vec<ResponseClass>),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ListedConditions {
    pub(crate) statuses: Vec<RangeInclusive<u16>>,
    /// gRPC status codes.
    pub(crate) grpc_codes: Vec<u16>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptEnd {
    /// `grpc_code` is the status of a gRPC call, if it is known before the response is forwarded.
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
    /// The result is returned, because it is none that the policy retries, or the client has
    /// received a part of it.
    Return,
    Retry,
    /// The result is returned although the policy would retry it: the limit of retries was reached.
    LimitExceeded,
    /// The same, because the request's body is not kept.
    NotKept,
    /// The same, because the budget is used up.
    OverBudget,
}

/// Most retries of one request under a ServiceProfile. The budget belongs to all requests: without
/// this limit, one of them could spend what the others need, and that without a pause.
const MAX_PROFILE_RETRIES: u16 = 10;

impl RetryPolicy {
    /// Returns the policy of a route rule, unless it allows no retries.
    pub(crate) fn of_rule<C: Clone + Into<Conditions>>(retry: &Retry<C>) -> Option<Rc<Self>> {
        let policy = Self {
            conditions: retry.conditions.clone().into(),
            max_retries: retry.max_retries,
            max_request_bytes: retry.max_request_bytes,
            timeout: retry.timeout,
            backoff: retry.backoff,
            budget: None,
        };
        (policy.max_retries > 0).then(|| Rc::new(policy))
    }

    /// Returns the policy of a ServiceProfile's route. As in Linkerd there are no retries without a
    /// budget, and no pauses between them.
    pub(crate) fn of_profile(
        route: &ProfileRoute,
        budget: Option<&Arc<RetryBudget>>,
    ) -> Option<Rc<Self>> {
        let budget = budget.filter(|_| route.retryable)?;
        Some(Rc::new(Self {
            conditions: Conditions::Failures(route.response_classes.clone()),
            max_retries: MAX_PROFILE_RETRIES,
            max_request_bytes: DEFAULT_REQUEST_BYTES,
            timeout: None,
            backoff: None,
            budget: Some(budget.clone()),
        }))
    }

    /// Decides what follows an attempt that ended with `end`, after `retries` retries. `withdraw`
    /// takes a retry from the budget; it is called last, because nothing else may prevent a retry
    /// that was paid for.
    pub(crate) fn decide(
        &self,
        end: AttemptEnd,
        retries: u16,
        repeat: Repeat,
        withdraw: impl FnOnce(&RetryBudget) -> bool,
    ) -> PolicyAction {
        if !self.conditions.include(end) || repeat == Repeat::Answered {
            PolicyAction::Return
        } else if retries >= self.max_retries + u16::from(Bug::RetryOnceMore.is_planted()) {
            PolicyAction::LimitExceeded
        } else if repeat == Repeat::NotKept {
            PolicyAction::NotKept
        } else if self
            .budget
            .as_deref()
            .is_some_and(|budget| !withdraw(budget))
        {
            PolicyAction::OverBudget
        } else {
            PolicyAction::Retry
        }
    }
}

impl Conditions {
    fn include(&self, end: AttemptEnd) -> bool {
        match (self, end) {
            (Self::Listed(listed), AttemptEnd::Response { status, grpc_code }) => {
                let status = status.as_u16();
                listed.statuses.iter().any(|range| range.contains(&status))
                    || grpc_code.is_some_and(|code| listed.grpc_codes.contains(&code))
            }
            (Self::Failures(classes), AttemptEnd::Response { status, grpc_code }) => {
                ResponseClass::classify(classes, status).unwrap_or_else(|| match grpc_code {
                    Some(code) => grpc_is_failure(code),
                    None => status.is_server_error(),
                })
            }
            (Self::Failures(_), _) | (_, AttemptEnd::Failed) => false,
            (
                Self::Listed(_),
                AttemptEnd::FailFast | AttemptEnd::TimedOut | AttemptEnd::Refused,
            ) => true,
        }
    }

    /// Whether the status of a gRPC call matters.
    pub(crate) fn depend_on_grpc(&self) -> bool {
        match self {
            Self::Listed(listed) => !listed.grpc_codes.is_empty(),
            Self::Failures(_) => true,
        }
    }
}

/// The conditions of an HTTPRoute.
impl From<Vec<RangeInclusive<u16>>> for Conditions {
    fn from(statuses: Vec<RangeInclusive<u16>>) -> Self {
        Self::Listed(ListedConditions {
            statuses,
            ..ListedConditions::default()
        })
    }
}

/// The conditions of a GRPCRoute.
impl From<Vec<u16>> for Conditions {
    fn from(grpc_codes: Vec<u16>) -> Self {
        Self::Listed(ListedConditions {
            grpc_codes,
            ..ListedConditions::default()
        })
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
    use mesh_core::profile::ResponseMatch;

    use super::PolicyAction::{LimitExceeded, NotKept, OverBudget, Retry, Return};
    use super::Repeat::{Answered, Possible};
    use super::*;

    fn policy(max_retries: u16) -> RetryPolicy {
        RetryPolicy {
            conditions: Conditions::Listed(ListedConditions {
                statuses: vec![429..=429, 502..=504],
                grpc_codes: vec![14],
            }),
            max_retries,
            max_request_bytes: 1,
            timeout: None,
            backoff: None,
            budget: None,
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
            let decided = policy(1).decide(end, 0, Possible, |_| unreachable!());
            assert_eq!(decided, expected, "{end:?}");
        }
    }

    #[test]
    fn limit_and_lost_body_end_retries() {
        let failure = response(503, None);
        for (retries, max_retries, repeat, expected) in [
            (0, 0, Possible, LimitExceeded),
            (0, 2, Possible, Retry),
            (1, 2, Possible, Retry),
            (2, 2, Possible, LimitExceeded),
            (3, 2, Possible, LimitExceeded),
            (0, 2, Repeat::NotKept, NotKept),
            (2, 2, Repeat::NotKept, LimitExceeded),
            (0, 2, Answered, Return),
            (u16::MAX, u16::MAX, Possible, LimitExceeded),
        ] {
            let decide = |end| policy(max_retries).decide(end, retries, repeat, |_| unreachable!());
            let decided = decide(failure);
            assert_eq!(decided, expected, "{retries} of {max_retries}, {repeat:?}");
            assert_eq!(decide(response(200, None)), Return);
        }
    }

    fn profile(response_classes: Vec<ResponseClass>) -> RetryPolicy {
        let settings = mesh_core::resilience::RetryBudget {
            ttl: Duration::from_secs(10),
            min_per_second: 1,
            ratio: 0.0,
        };
        RetryPolicy {
            conditions: Conditions::Failures(response_classes),
            budget: Some(Arc::new(RetryBudget::new(settings))),
            ..policy(1)
        }
    }

    #[test]
    fn failures_of_a_profile_are_decided_by_its_classes_first() {
        let not_found = ResponseClass {
            condition: ResponseMatch::Status { min: 404, max: 404 },
            is_failure: true,
        };
        let unavailable = ResponseClass {
            condition: ResponseMatch::Status { min: 503, max: 503 },
            is_failure: false,
        };
        for (end, is_retried) in [
            (response(200, None), false),
            (response(404, None), true),
            (response(404, Some(0)), true),
            (response(500, None), true),
            (response(503, None), false),
            (response(200, Some(0)), false),
            (response(200, Some(14)), true),
            (response(200, Some(5)), false),
            (AttemptEnd::FailFast, false),
            (AttemptEnd::TimedOut, false),
            (AttemptEnd::Refused, false),
            (AttemptEnd::Failed, false),
        ] {
            let policy = profile(vec![not_found.clone(), unavailable.clone()]);
            let expected = if is_retried { Retry } else { Return };
            assert_eq!(
                policy.decide(end, 0, Possible, |_| true),
                expected,
                "{end:?}"
            );
        }
    }

    #[test]
    fn budget_is_asked_only_for_retries_that_nothing_else_prevents() {
        let policy = profile(Vec::new());
        let (failure, success) = (response(500, None), response(200, None));
        assert_eq!(policy.decide(failure, 0, Possible, |_| false), OverBudget);
        for (end, retries, repeat, expected) in [
            (success, 0, Possible, Return),
            (failure, 1, Possible, LimitExceeded),
            (failure, 0, Repeat::NotKept, NotKept),
        ] {
            let decided = policy.decide(end, retries, repeat, |_| unreachable!());
            assert_eq!(decided, expected);
        }
    }

    /// Only then is a response read ahead to its trailers.
    #[test]
    fn conditions_on_statuses_of_http_do_not_depend_on_grpc() {
        assert!(!Conditions::from(vec![500..=599]).depend_on_grpc());
        assert!(Conditions::from(vec![14]).depend_on_grpc());
        assert!(Conditions::Failures(Vec::new()).depend_on_grpc());
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
