//! Profiles: routes, traffic splits and opaqueness of a destination.

use std::ops::RangeInclusive;
use std::time::Duration;

use mesh_core::identity::Identity;
use mesh_core::profile::{
    Profile, ProfileRoute, RequestMatch, ResponseClass, ResponseMatch, WeightedAuthority,
};
use mesh_core::resilience::RetryBudget;
use mesh_core::route::AnchoredRegex;

use super::{endpoint, endpoint_to_proto};
use crate::field::{FieldContext, each, optional, required};
use crate::meta::{self, meta};
use crate::proto::destination::{self as wire, request_match, response_match};
use crate::{InvalidField, route, value};

/// Range of the time that a request counts towards a retry budget.
const BUDGET_TTL: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);
/// Maximum of retries per request in a retry budget.
const BUDGET_RATIO: RangeInclusive<f32> = 0.0..=1000.0;

/// Converts a received profile. Invalid parts with a harmless default are omitted: an invalid name,
/// a retry budget out of range (no retries), a traffic split to an invalid authority.
///
/// # Errors
///
/// Another field is invalid.
pub fn profile(profile: wire::DestinationProfile) -> Result<Profile, InvalidField> {
    let fqn = profile.fully_qualified_name;
    Ok(Profile {
        fqn: matches!(Identity::parse(&fqn), Ok(Identity::Dns(_))).then(|| fqn.into()),
        opaque: profile.opaque_protocol,
        routes: each("routes", profile.routes, profile_route)?.into(),
        retry_budget: profile.retry_budget.and_then(retry_budget),
        overrides: profile
            .dst_overrides
            .into_iter()
            .filter(|dst| dst.weight > 0)
            .filter(|dst| dst.authority.parse::<http::uri::Authority>().is_ok())
            .map(|dst| WeightedAuthority {
                authority: dst.authority.into(),
                weight: dst.weight,
            })
            .collect(),
        endpoint: optional("endpoint", profile.endpoint, endpoint)?,
        parent: optional("parent_ref", profile.parent_ref, meta)?,
        source: optional("profile_ref", profile.profile_ref, meta)?,
        uid: None,
    })
}

/// Converts a profile to a message.
pub fn profile_to_proto(profile: &Profile) -> wire::DestinationProfile {
    wire::DestinationProfile {
        fully_qualified_name: profile.fqn.as_deref().unwrap_or_default().to_owned(),
        opaque_protocol: profile.opaque,
        routes: profile.routes.iter().map(profile_route_to_proto).collect(),
        retry_budget: profile.retry_budget.map(retry_budget_to_proto),
        dst_overrides: profile
            .overrides
            .iter()
            .map(|dst| wire::WeightedDst {
                authority: dst.authority.to_string(),
                weight: dst.weight,
                backend_ref: None,
            })
            .collect(),
        endpoint: profile.endpoint.as_ref().map(endpoint_to_proto),
        parent_ref: profile.parent.as_ref().map(meta::to_proto),
        profile_ref: profile.source.as_ref().map(meta::to_proto),
    }
}

fn profile_route(wire: wire::Route) -> Result<ProfileRoute, InvalidField> {
    Ok(ProfileRoute {
        condition: required("condition", wire.condition, request_match)?,
        response_classes: each("response_classes", wire.response_classes, |class| {
            Ok(ResponseClass {
                condition: required("condition", class.condition, response_match)?,
                is_failure: class.is_failure,
            })
        })?,
        labels: value::labels(wire.metrics_labels),
        retryable: wire.is_retryable,
        timeout: optional("timeout", wire.timeout, value::duration)?,
    })
}

fn profile_route_to_proto(route: &ProfileRoute) -> wire::Route {
    wire::Route {
        condition: Some(request_match_to_proto(&route.condition)),
        response_classes: route
            .response_classes
            .iter()
            .map(|class| wire::ResponseClass {
                condition: Some(response_match_to_proto(&class.condition)),
                is_failure: class.is_failure,
            })
            .collect(),
        metrics_labels: value::labels_to_proto(&route.labels),
        is_retryable: route.retryable,
        timeout: route.timeout.map(value::duration_to_proto),
    }
}

fn request_match(wire: wire::RequestMatch) -> Result<RequestMatch, InvalidField> {
    match wire.r#match {
        Some(request_match::Match::All(seq)) => {
            each("all", seq.matches, request_match).map(RequestMatch::All)
        }
        Some(request_match::Match::Any(seq)) => {
            each("any", seq.matches, request_match).map(RequestMatch::Any)
        }
        Some(request_match::Match::Not(part)) => request_match(*part)
            .map(|part| RequestMatch::Not(Box::new(part)))
            .inside("not"),
        Some(request_match::Match::Path(path)) => AnchoredRegex::new(&path.regex)
            .map(RequestMatch::Path)
            .map_err(|_error| InvalidField::not_a("regular expression", "path.regex", path.regex)),
        Some(request_match::Match::Method(method)) => route::method(method)
            .map(RequestMatch::Method)
            .inside("method"),
        None => Err(InvalidField::unknown_kind("match")),
    }
}

fn request_match_to_proto(condition: &RequestMatch) -> wire::RequestMatch {
    let seq = |parts: &[RequestMatch]| request_match::Seq {
        matches: parts.iter().map(request_match_to_proto).collect(),
    };
    let condition = match condition {
        RequestMatch::All(parts) => request_match::Match::All(seq(parts)),
        RequestMatch::Any(parts) => request_match::Match::Any(seq(parts)),
        RequestMatch::Not(part) => {
            request_match::Match::Not(Box::new(request_match_to_proto(part)))
        }
        RequestMatch::Path(regex) => request_match::Match::Path(wire::PathMatch {
            regex: regex.as_str().to_owned(),
        }),
        RequestMatch::Method(method) => request_match::Match::Method(method.clone().into()),
    };
    wire::RequestMatch {
        r#match: Some(condition),
    }
}

fn response_match(wire: wire::ResponseMatch) -> Result<ResponseMatch, InvalidField> {
    match wire.r#match {
        Some(response_match::Match::All(seq)) => {
            each("all", seq.matches, response_match).map(ResponseMatch::All)
        }
        Some(response_match::Match::Any(seq)) => {
            each("any", seq.matches, response_match).map(ResponseMatch::Any)
        }
        Some(response_match::Match::Not(part)) => response_match(*part)
            .map(|part| ResponseMatch::Not(Box::new(part)))
            .inside("not"),
        Some(response_match::Match::Status(range)) => status_range(range).inside("status"),
        None => Err(InvalidField::unknown_kind("match")),
    }
}

/// A bound of zero is absent, and one bound alone means a single status.
fn status_range(wire: wire::HttpStatusRange) -> Result<ResponseMatch, InvalidField> {
    let min = if wire.min == 0 { wire.max } else { wire.min };
    let max = if wire.max == 0 { wire.min } else { wire.max };
    let (min, max) = (
        value::number_u16("min", min)?,
        value::number_u16("max", max)?,
    );
    if min == 0 || min > max {
        return Err(InvalidField::not_a("range of statuses", "", (min, max)));
    }
    Ok(ResponseMatch::Status { min, max })
}

fn response_match_to_proto(condition: &ResponseMatch) -> wire::ResponseMatch {
    let seq = |parts: &[ResponseMatch]| response_match::Seq {
        matches: parts.iter().map(response_match_to_proto).collect(),
    };
    let condition = match condition {
        ResponseMatch::All(parts) => response_match::Match::All(seq(parts)),
        ResponseMatch::Any(parts) => response_match::Match::Any(seq(parts)),
        ResponseMatch::Not(part) => {
            response_match::Match::Not(Box::new(response_match_to_proto(part)))
        }
        ResponseMatch::Status { min, max } => {
            response_match::Match::Status(wire::HttpStatusRange {
                min: (*min).into(),
                max: (*max).into(),
            })
        }
    };
    wire::ResponseMatch {
        r#match: Some(condition),
    }
}

fn retry_budget(wire: wire::RetryBudget) -> Option<RetryBudget> {
    let ttl = value::duration(wire.ttl?).ok()?;
    let usable = BUDGET_TTL.contains(&ttl) && BUDGET_RATIO.contains(&wire.retry_ratio);
    usable.then_some(RetryBudget {
        ttl,
        min_per_second: wire.min_retries_per_second,
        ratio: wire.retry_ratio,
    })
}

fn retry_budget_to_proto(budget: RetryBudget) -> wire::RetryBudget {
    wire::RetryBudget {
        retry_ratio: budget.ratio,
        min_retries_per_second: budget.min_per_second,
        ttl: Some(value::duration_to_proto(budget.ttl)),
    }
}
