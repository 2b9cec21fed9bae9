//! The common fields of HTTP and gRPC rules except backends: time limits.

use mesh_core::resilience::Timeouts;
use prost_types::Duration;

use crate::field::{FieldContext, optional};
use crate::proto::http_route;
use crate::{InvalidField, value};

/// `deprecated` is the older field for the request's time limit, which is used if the newer one is
/// absent.
pub(super) fn timeouts(
    wire: Option<http_route::Timeouts>,
    deprecated: Option<Duration>,
) -> Result<Timeouts, InvalidField> {
    let wire = wire.unwrap_or_default();
    let read = || {
        Ok(Timeouts {
            request: optional("request", wire.request.or(deprecated), value::duration)?,
            response: optional("response", wire.response, value::duration)?,
            idle: optional("idle", wire.idle, value::duration)?,
        })
    };
    read().inside("timeouts")
}

pub(super) fn timeouts_to_proto(
    timeouts: Timeouts,
) -> (Option<http_route::Timeouts>, Option<Duration>) {
    let request = timeouts.request.map(value::duration_to_proto);
    let wire = http_route::Timeouts {
        request,
        response: timeouts.response.map(value::duration_to_proto),
        idle: timeouts.idle.map(value::duration_to_proto),
    };
    (Some(wire), request)
}
