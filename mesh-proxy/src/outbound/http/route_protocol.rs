//! What differs between HTTP and gRPC routes when they are compiled: the conditions of retries, and
//! the metric families.

use std::ops::RangeInclusive;
use std::rc::Rc;

use mesh_core::resilience::Retry;
use mesh_runtime::metrics::Labels;

use crate::retry::{Conditions, ListedConditions, RetryPolicy};
use crate::telemetry::retry::{RetryFamilies, RetryMetrics};
use crate::telemetry::{RouteFamilies, RouteMetrics};

/// The retry conditions of HTTP or gRPC routes, which select the metric families too.
pub(super) trait RouteProtocol: Clone {
    fn conditions(&self) -> Conditions;
    fn metrics(families: &RouteFamilies, labels: Labels) -> RouteMetrics;
    fn retry_metrics(families: &RetryFamilies, labels: &Labels) -> RetryMetrics;
}

impl RouteProtocol for Vec<RangeInclusive<u16>> {
    fn conditions(&self) -> Conditions {
        Conditions::Listed(ListedConditions {
            statuses: self.clone(),
            ..ListedConditions::default()
        })
    }

    fn metrics(families: &RouteFamilies, labels: Labels) -> RouteMetrics {
        families.http(labels)
    }

    fn retry_metrics(families: &RetryFamilies, labels: &Labels) -> RetryMetrics {
        families.http(labels)
    }
}

impl RouteProtocol for Vec<u16> {
    fn conditions(&self) -> Conditions {
        Conditions::Listed(ListedConditions {
            grpc_codes: self.clone(),
            ..ListedConditions::default()
        })
    }

    fn metrics(families: &RouteFamilies, labels: Labels) -> RouteMetrics {
        families.grpc(labels)
    }

    fn retry_metrics(families: &RetryFamilies, labels: &Labels) -> RetryMetrics {
        families.grpc(labels)
    }
}

/// Returns the policy, unless it allows no retries.
pub(super) fn retry_policy<C: RouteProtocol>(retry: &Retry<C>) -> Option<Rc<RetryPolicy>> {
    let policy = RetryPolicy {
        conditions: retry.conditions.conditions(),
        max_retries: retry.max_retries,
        max_request_bytes: retry.max_request_bytes,
        timeout: retry.timeout,
        backoff: retry.backoff,
        budget: None,
    };
    (policy.max_retries > 0).then(|| Rc::new(policy))
}
