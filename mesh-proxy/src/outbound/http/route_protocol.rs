//! HTTP and gRPC routes are compiled alike, except for the conditions of retries and the metric
//! families.

use std::ops::RangeInclusive;

use mesh_runtime::metrics::Labels;

use crate::retry::Conditions;
use crate::telemetry::retry::{RetryFamilies, RetryMetrics};
use crate::telemetry::{RouteFamilies, RouteMetrics};

/// The retry conditions of HTTP or gRPC routes, which select the metric families too.
pub(super) trait RouteProtocol: Clone + Into<Conditions> {
    fn metrics(families: &RouteFamilies, labels: Labels) -> RouteMetrics;
    fn retry_metrics(families: &RetryFamilies, labels: &Labels) -> RetryMetrics;
}

impl RouteProtocol for Vec<RangeInclusive<u16>> {
    fn metrics(families: &RouteFamilies, labels: Labels) -> RouteMetrics {
        families.http(labels)
    }

    fn retry_metrics(families: &RetryFamilies, labels: &Labels) -> RetryMetrics {
        families.http(labels)
    }
}

impl RouteProtocol for Vec<u16> {
    fn metrics(families: &RouteFamilies, labels: Labels) -> RouteMetrics {
        families.grpc(labels)
    }

    fn retry_metrics(families: &RetryFamilies, labels: &Labels) -> RetryMetrics {
        families.grpc(labels)
    }
}
