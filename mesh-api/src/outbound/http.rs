//! Outbound HTTP routes.

use std::ops::RangeInclusive;

use mesh_core::policy::outbound::{HttpRoute, OutboundRule, TcpVerdict};
use mesh_core::resilience::Retry;
use mesh_core::route::filter::{Filter, RequestKind};
use mesh_core::route::{Route, Rule};

use super::rule;
use crate::field::{FieldContext, each, optional, required};
use crate::meta::{self, meta};
use crate::proto::outbound::http_route::retry;
use crate::proto::outbound::http_route::retry::conditions::StatusRange;
use crate::{InvalidField, route, value};

rule::conversions!(http_route, Http, HttpRoute, http_match, http_match_to_proto);
route::filter_conversions!(
    outbound::http_route, http_failure, http_failure_to_proto,
    ResponseHeaderModifier: "response_header_modifier"
        = ResponseHeaders(response_headers, response_headers_to_proto),
    Redirect: "redirect" = Redirect(redirect, redirect_to_proto)
);

/// The statuses that are retried.
type Conditions = Vec<RangeInclusive<u16>>;

fn retry_conditions(wire: retry::Conditions) -> Result<Conditions, InvalidField> {
    each("conditions.status_ranges", wire.status_ranges, |range| {
        let start = value::number_u16("start", range.start)?;
        let end = value::number_u16("end", range.end)?;
        if start > end {
            return Err(InvalidField::not_a(
                "status of at least the start of its range",
                "end",
                end,
            ));
        }
        Ok(start..=end)
    })
}

fn retry_conditions_to_proto(statuses: &Conditions) -> retry::Conditions {
    let range = |range: &RangeInclusive<u16>| StatusRange {
        start: (*range.start()).into(),
        end: (*range.end()).into(),
    };
    retry::Conditions {
        status_ranges: statuses.iter().map(range).collect(),
    }
}
