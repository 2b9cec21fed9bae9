//! Time limits of attempts that end after their request's, and so have no effect.
//! [`mesh_objects::policy::outbound::time_limits`] decides which limits apply.

use std::sync::LazyLock;
use std::time::Duration;

use mesh_core::annotation::{RETRY_TIMEOUT, TIMEOUT_REQUEST};
use mesh_core::resilience::Timeouts;
use mesh_objects::model::{Object as Record, ParentKind, ParentRef, Route, TrafficSettings};
use mesh_objects::policy::outbound::time_limits;

use super::finding::Finding;
use super::objects::{Object, Objects, POLICY};

pub(super) fn analyze(objects: &Objects, findings: &mut Vec<Finding>) {
    for object in objects.iter() {
        match object.record() {
            Some(Record::PolicyHttpRoute(route) | Record::GatewayHttpRoute(route)) => {
                of_route(objects, object, route, findings);
            }
            Some(Record::GatewayGrpcRoute(route)) => of_route(objects, object, route, findings),
            _ => {
                let limits = traffic(object).map(|traffic| time_limits::<()>(traffic, None));
                if let Some(limits) = limits.and_then(exceeded) {
                    findings.push(finding(object, annotation(RETRY_TIMEOUT), limits));
                }
            }
        }
    }
}

fn of_route<M>(objects: &Objects, object: &Object, route: &Route<M>, findings: &mut Vec<Finding>) {
    for (at, rule) in route.rules.iter().enumerate() {
        let mut parents = route.parents.iter().filter_map(|it| parent(objects, it));
        let limits = |traffic| exceeded(time_limits(traffic, Some((route, rule))));
        let Some((attempt, request)) = parents.find_map(limits) else {
            continue;
        };
        let of_retries = route.retries.as_ref().and_then(|retries| retries.timeout);
        let of_request = route.timeouts.and_then(|timeouts| timeouts.request);
        let timeouts = format!("spec.rules[{at}].timeouts");
        let field = if of_retries == Some(attempt) {
            annotation(RETRY_TIMEOUT)
        } else if rule.backend_timeout == Some(attempt) {
            // The webhook denies these two in one rule of Linkerd's kind.
            if object.group == POLICY && rule.request_timeout == Some(request) {
                continue;
            }
            format!("{timeouts}.backendRequest")
        } else if of_request == Some(request) {
            annotation(TIMEOUT_REQUEST)
        } else if rule.request_timeout == Some(request) {
            format!("{timeouts}.request")
        } else {
            // Both are the parent's, which has the finding.
            continue;
        };
        findings.push(finding(object, field, (attempt, request)));
    }
}

/// Returns the settings of a parent to whose clients a route applies. They are the defaults of one
/// that is not among the objects.
fn parent<'a>(objects: &'a Objects, reference: &ParentRef) -> Option<&'a TrafficSettings> {
    static DEFAULT: LazyLock<TrafficSettings> = LazyLock::new(TrafficSettings::default);
    let (group, kind) = match reference.kind {
        ParentKind::Service => ("", "Service"),
        ParentKind::EgressNetwork => (POLICY, "EgressNetwork"),
        ParentKind::Server | ParentKind::Other => return None,
    };
    let name = &reference.name;
    let object = objects.find(group, kind, &name.namespace, &name.name);
    Some(object.and_then(traffic).unwrap_or(&DEFAULT))
}

fn traffic(object: &Object) -> Option<&TrafficSettings> {
    let service = object.service().map(|service| &service.traffic);
    service.or_else(|| Some(&object.egress_network()?.traffic))
}

/// Returns the time limits of attempt and request if the attempt's is longer.
fn exceeded((timeouts, attempt): (Timeouts, Option<Duration>)) -> Option<(Duration, Duration)> {
    let (attempt, request) = (attempt?, timeouts.request?);
    (attempt > request).then_some((attempt, request))
}

fn annotation(key: &str) -> String {
    format!("metadata.annotations[{key}]")
}

fn finding(object: &Object, field: String, (attempt, request): (Duration, Duration)) -> Finding {
    Finding::new(
        object,
        field,
        "timeout-order",
        format!(
            "an attempt may take {attempt:?}, but its request ends after {request:?}, so an attempt that hangs is never repeated"
        ),
        "shorten the limit of the attempt (backendRequest, retry.linkerd.io/timeout), or lengthen the request's (request, timeout.linkerd.io/request)",
    )
}
