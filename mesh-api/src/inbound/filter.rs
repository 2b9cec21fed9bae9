//! Filters of inbound routes. A filter without a message of this direction fails its requests
//! instead of being omitted.

use mesh_core::route::filter::Filter;

use crate::field::FieldContext;
use crate::proto::grpc_route::GrpcFailureInjector;
use crate::proto::http_route::{HttpFailureInjector, RequestHeaderModifier};
use crate::proto::inbound::grpc_route::filter::Kind as GrpcKind;
use crate::proto::inbound::http_route::filter::Kind as HttpKind;
use crate::proto::inbound::{grpc_route, http_route};
use crate::{InvalidField, route};

pub(super) fn http(wire: http_route::Filter) -> Result<Filter, InvalidField> {
    match wire.kind {
        Some(HttpKind::FailureInjector(injector)) => {
            route::http_failure(injector).inside("failure_injector")
        }
        Some(HttpKind::RequestHeaderModifier(modifier)) => {
            route::request_headers(modifier).inside("request_header_modifier")
        }
        Some(HttpKind::Redirect(redirect)) => route::redirect(redirect)
            .map(Filter::Redirect)
            .inside("redirect"),
        None => Ok(route::unknown_filter()),
    }
}

/// Inbound routes do not change responses.
pub(super) fn http_to_proto(filter: &Filter) -> Option<http_route::Filter> {
    let kind = match filter {
        Filter::ResponseHeaders(_) => return None,
        Filter::RequestHeaders(modifier) => {
            HttpKind::RequestHeaderModifier(RequestHeaderModifier::from(route::Headers(modifier)))
        }
        Filter::Redirect(redirect) => HttpKind::Redirect(route::redirect_to_proto(redirect)),
        other => HttpKind::FailureInjector(HttpFailureInjector::from(route::Failure(other))),
    };
    Some(http_route::Filter { kind: Some(kind) })
}

pub(super) fn grpc(wire: grpc_route::Filter) -> Result<Filter, InvalidField> {
    match wire.kind {
        Some(GrpcKind::FailureInjector(injector)) => {
            route::grpc_failure(injector).inside("failure_injector")
        }
        Some(GrpcKind::RequestHeaderModifier(modifier)) => {
            route::request_headers(modifier).inside("request_header_modifier")
        }
        None => Ok(route::unknown_filter()),
    }
}

pub(super) fn grpc_to_proto(filter: &Filter) -> Option<grpc_route::Filter> {
    let kind = match filter {
        Filter::ResponseHeaders(_) => return None,
        Filter::RequestHeaders(modifier) => {
            GrpcKind::RequestHeaderModifier(RequestHeaderModifier::from(route::Headers(modifier)))
        }
        other => GrpcKind::FailureInjector(GrpcFailureInjector::from(route::Failure(other))),
    };
    Some(grpc_route::Filter { kind: Some(kind) })
}
