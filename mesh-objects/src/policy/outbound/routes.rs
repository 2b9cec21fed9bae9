//! Conversion of attached routes.

use std::time::Duration;

use mesh_core::policy::outbound::{
    Distribution, GrpcRoute, HttpRoute, OutboundRule, TcpRoute, TcpVerdict, TlsRoute,
};
use mesh_core::resilience::{Retry, Timeouts};
use mesh_core::retry::{DEFAULT_BACKOFF, DEFAULT_REQUEST_BYTES};
use mesh_core::route::{Route, Rule};
use mesh_k8s::traffic_annotations::Retries;

use super::backend::BackendBuilder;
use super::parent::RouteParent;
use crate::model::{self, ConnectionRoute, TrafficSettings};
use crate::policy::inbound::route_meta;

/// The settings of a route and one of its rules. The route's annotations replace the parent's: all
/// timeouts together, and all settings of retries together. A zero timeout means none.
#[derive(Default)]
pub(super) struct Overrides<'a> {
    timeouts: Option<Timeouts>,
    retries: Option<&'a Retries>,
    /// `timeouts.request` of the rule, which applies unless an annotation of the route sets the
    /// request timeout.
    request: Option<Duration>,
    /// `timeouts.backendRequest` of the rule.
    attempt: Option<Duration>,
}

impl<'a> Overrides<'a> {
    fn new<M>(route: &'a model::Route<M>, rule: &model::Rule<M>) -> Self {
        Self {
            timeouts: route.timeouts,
            retries: route.retries.as_ref(),
            request: rule.request_timeout,
            attempt: rule.backend_timeout,
        }
    }
}

/// Returns the time limits of a rule's requests and of their attempts. `traffic` is the parent's,
/// which also applies without a rule.
pub fn time_limits<M>(
    traffic: &TrafficSettings,
    rule: Option<(&model::Route<M>, &model::Rule<M>)>,
) -> (Timeouts, Option<Duration>) {
    let overrides = rule.map(|(route, rule)| Overrides::new(route, rule));
    let (timeouts, _, attempt) = limits(Some(traffic), overrides.unwrap_or_default());
    (timeouts, attempt)
}

pub(super) fn convert_http(parent: &RouteParent<'_>, route: &model::HttpRoute) -> HttpRoute {
    let conditions = |retries: &Retries| retries.http.clone();
    convert(parent, route, &BackendBuilder::for_http(parent), conditions)
}

pub(super) fn convert_grpc(parent: &RouteParent<'_>, route: &model::GrpcRoute) -> GrpcRoute {
    let conditions = |retries: &Retries| retries.grpc.clone();
    convert(parent, route, &BackendBuilder::for_grpc(parent), conditions)
}

pub(super) fn convert_tls(parent: &RouteParent<'_>, route: &ConnectionRoute) -> TlsRoute {
    let (backends, verdict) = connection_rule(parent, route);
    TlsRoute {
        meta: route_meta(&route.id),
        snis: route.hosts.clone(),
        backends,
        verdict,
    }
}

pub(super) fn convert_tcp(parent: &RouteParent<'_>, route: &ConnectionRoute) -> TcpRoute {
    let (backends, verdict) = connection_rule(parent, route);
    TcpRoute {
        meta: route_meta(&route.id),
        backends,
        verdict,
    }
}

/// Rules of connections have no matches, so which of several rules applies is undefined. Such a
/// route rejects its connections.
fn connection_rule(
    parent: &RouteParent<'_>,
    route: &ConnectionRoute,
) -> (Distribution, TcpVerdict) {
    match &*route.rules {
        [rule] => {
            let backends = BackendBuilder::for_connections(parent);
            let distribution = backends.distribution(rule.backends.as_ref());
            (distribution, TcpVerdict::Forward)
        }
        rules => {
            let problem = format!(
                "{} {} has {} rules, but needs exactly one",
                route.id.kind.as_str(),
                route.id.name,
                rules.len()
            );
            (Distribution::Empty, TcpVerdict::Invalid(problem.into()))
        }
    }
}

fn convert<M: Clone, C>(
    parent: &RouteParent<'_>,
    route: &model::Route<M>,
    backends: &BackendBuilder<'_>,
    conditions: impl Fn(&Retries) -> C,
) -> Route<M, OutboundRule<Retry<C>>> {
    let rule = |rule: &model::Rule<M>| {
        let overrides = Overrides::new(route, rule);
        let (timeouts, retry) = settings(parent, overrides, &conditions);
        Rule {
            matches: rule.matches.clone(),
            action: OutboundRule {
                filters: backends.filters(rule),
                backends: backends.distribution(rule.backends.as_ref()),
                timeouts,
                retry,
                allow_request_headers: parent.settings.allow_request_headers,
            },
        }
    };
    Route {
        meta: route_meta(&route.id),
        hosts: route.hosts.clone(),
        rules: route.rules.iter().map(rule).collect(),
    }
}

/// Returns the timeouts and retries of a rule.
pub(super) fn settings<C>(
    parent: &RouteParent<'_>,
    overrides: Overrides<'_>,
    conditions: impl Fn(&Retries) -> C,
) -> (Timeouts, Option<Retry<C>>) {
    let (timeouts, retries, attempt) = limits(parent.traffic(), overrides);
    let retry = retries.map(|retries| Retry {
        max_retries: retries.limit,
        max_request_bytes: DEFAULT_REQUEST_BYTES,
        conditions: conditions(retries),
        timeout: attempt,
        backoff: Some(DEFAULT_BACKOFF),
    });
    (timeouts, retry)
}

/// Returns the timeouts, the retries, and the time limit of an attempt.
fn limits<'a>(
    traffic: Option<&'a TrafficSettings>,
    overrides: Overrides<'a>,
) -> (Timeouts, Option<&'a Retries>, Option<Duration>) {
    let parent_timeouts = traffic.map(|traffic| traffic.timeouts).unwrap_or_default();
    let mut timeouts = overrides.timeouts.unwrap_or(parent_timeouts);
    let annotated = overrides.timeouts.and_then(|timeouts| timeouts.request);
    if annotated.is_none() && overrides.request.is_some() {
        timeouts.request = overrides.request;
    }
    let limit = |timeout: Option<Duration>| timeout.filter(|timeout| !timeout.is_zero());
    let mut timeouts = Timeouts {
        request: limit(timeouts.request),
        response: limit(timeouts.response),
        idle: limit(timeouts.idle),
    };
    let retries = overrides
        .retries
        .or_else(|| traffic.and_then(|traffic| traffic.retries.as_ref()));
    let attempt = retries.and_then(|retries| limit(retries.timeout));
    let attempt = attempt.or(overrides.attempt);
    // The API has a time limit of an attempt only in retries. Without them a request is a single
    // attempt.
    if let (None, Some(attempt)) = (retries, attempt) {
        let request = timeouts.request.unwrap_or(attempt);
        timeouts.request = Some(request.min(attempt));
    }
    (timeouts, retries, attempt)
}
