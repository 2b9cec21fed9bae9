//! The messages of filters, for all four kinds of routes.

use http::uri::Scheme;
use http::{HeaderName, HeaderValue, StatusCode};
use mesh_core::route::filter::{Filter, HeaderModifier, PathModifier, Ratio, Redirect};

use super::{header_name, header_value};
use crate::InvalidField;
use crate::field::{FieldContext, each, optional};
use crate::proto::grpc_route::GrpcFailureInjector;
use crate::proto::http_route::{
    HttpFailureInjector, PathModifier as WirePathModifier, Ratio as WireRatio,
    RequestHeaderModifier, RequestRedirect, ResponseHeaderModifier, path_modifier,
};
use crate::proto::http_types;
use crate::proto::http_types::headers::Header;
use crate::value::{number_u16, optional_port};

/// Defines the conversions of the filters of a kind of route. All have failures and changes of
/// request headers, some have others too.
macro_rules! filter_conversions {
    (
        $direction:ident::$route:ident, $failure:ident, $failure_to_proto:ident
        $(, $kind:ident: $field:literal = $filter:ident($read:ident, $write:ident))*
    ) => {
        pub(crate) fn filter(
            wire: crate::proto::$direction::$route::Filter,
        ) -> Result<Filter, InvalidField> {
            use crate::proto::$direction::$route::filter::Kind;
            match wire.kind {
                Some(Kind::FailureInjector(injector)) => {
                    route::$failure(injector).inside("failure_injector")
                }
                Some(Kind::RequestHeaderModifier(modifier)) => {
                    route::request_headers(modifier).inside("request_header_modifier")
                }
                $(Some(Kind::$kind(wire)) => route::$read(wire).inside($field),)*
                None => Ok(route::unknown_filter()),
            }
        }

        pub(crate) fn filter_to_proto(filter: &Filter) -> crate::proto::$direction::$route::Filter {
            use crate::proto::$direction::$route::filter::Kind;
            let kind = match filter {
                Filter::RequestHeaders(modifier) => {
                    Kind::RequestHeaderModifier(route::request_headers_to_proto(modifier))
                }
                $(Filter::$filter(filter) => Kind::$kind(route::$write(filter)),)*
                other => Kind::FailureInjector(route::$failure_to_proto(other)),
            };
            crate::proto::$direction::$route::Filter { kind: Some(kind) }
        }
    };
}

pub(crate) use filter_conversions;

/// A filter that only a newer version supports.
pub(crate) fn unknown_filter() -> Filter {
    Filter::InternalError("unsupported filter in the policy".into())
}

pub(crate) fn request_headers(wire: RequestHeaderModifier) -> Result<Filter, InvalidField> {
    header_modifier(wire.add, wire.set, &wire.remove).map(Filter::RequestHeaders)
}

pub(crate) fn response_headers(wire: ResponseHeaderModifier) -> Result<Filter, InvalidField> {
    header_modifier(wire.add, wire.set, &wire.remove).map(Filter::ResponseHeaders)
}

/// The common fields of the request and response header modifiers.
fn header_modifier(
    add: Option<http_types::Headers>,
    set: Option<http_types::Headers>,
    remove: &[String],
) -> Result<HeaderModifier, InvalidField> {
    let pairs = |headers: Option<http_types::Headers>| {
        each("headers", headers.unwrap_or_default().headers, |pair| {
            Ok((
                header_name("name", &pair.name)?,
                header_value("value", &pair.value)?,
            ))
        })
    };
    Ok(HeaderModifier {
        add: pairs(add).inside("add")?,
        set: pairs(set).inside("set")?,
        remove: each("remove", remove, |name| header_name("", name))?,
    })
}

pub(crate) fn request_headers_to_proto(modifier: &HeaderModifier) -> RequestHeaderModifier {
    RequestHeaderModifier {
        add: pairs_to_proto(&modifier.add),
        set: pairs_to_proto(&modifier.set),
        remove: modifier.remove.iter().map(ToString::to_string).collect(),
    }
}

pub(crate) fn response_headers_to_proto(modifier: &HeaderModifier) -> ResponseHeaderModifier {
    let RequestHeaderModifier { add, set, remove } = request_headers_to_proto(modifier);
    ResponseHeaderModifier { add, set, remove }
}

fn pairs_to_proto(pairs: &[(HeaderName, HeaderValue)]) -> Option<http_types::Headers> {
    let header = |(name, value): &(HeaderName, HeaderValue)| Header {
        name: name.to_string(),
        value: value.as_bytes().to_vec(),
    };
    Some(http_types::Headers {
        headers: pairs.iter().map(header).collect(),
    })
}

pub(crate) fn http_failure(wire: HttpFailureInjector) -> Result<Filter, InvalidField> {
    Ok(Filter::InjectHttpFailure {
        status: status("status", wire.status)?,
        message: wire.message.into(),
        ratio: ratio(wire.ratio)?,
    })
}

pub(crate) fn grpc_failure(wire: GrpcFailureInjector) -> Result<Filter, InvalidField> {
    Ok(Filter::InjectGrpcFailure {
        code: number_u16("code", wire.code)?,
        message: wire.message.into(),
        ratio: ratio(wire.ratio)?,
    })
}

/// The gRPC status INTERNAL.
const GRPC_INTERNAL: u16 = 13;

/// Converts a filter that ends a request. A filter without a message for HTTP routes fails every
/// request: omitting it silently would forward requests that the policy is meant to stop or change.
pub(crate) fn http_failure_to_proto(filter: &Filter) -> HttpFailureInjector {
    let (status, message, ratio) = match filter {
        Filter::InjectHttpFailure {
            status,
            message,
            ratio,
        } => (*status, message.to_string(), *ratio),
        other => (
            StatusCode::INTERNAL_SERVER_ERROR,
            failure_message(other),
            Ratio::ALL,
        ),
    };
    HttpFailureInjector {
        status: status.as_u16().into(),
        message,
        ratio: ratio_to_proto(ratio),
    }
}

/// Converts a filter that ends a call, like [`http_failure_to_proto`].
pub(crate) fn grpc_failure_to_proto(filter: &Filter) -> GrpcFailureInjector {
    let (code, message, ratio) = match filter {
        Filter::InjectGrpcFailure {
            code,
            message,
            ratio,
        } => (*code, message.to_string(), *ratio),
        other => (GRPC_INTERNAL, failure_message(other), Ratio::ALL),
    };
    GrpcFailureInjector {
        code: code.into(),
        message,
        ratio: ratio_to_proto(ratio),
    }
}

fn failure_message(filter: &Filter) -> String {
    match filter {
        Filter::InternalError(message) => message.to_string(),
        _ => "filter not supported by this kind of route".to_owned(),
    }
}

pub(crate) fn redirect(wire: RequestRedirect) -> Result<Filter, InvalidField> {
    Ok(Filter::Redirect(Redirect {
        scheme: optional("scheme", wire.scheme, |scheme| {
            Scheme::try_from(scheme.clone())
                .map_err(|_error| InvalidField::not_a("URI scheme", "", scheme.r#type))
        })?,
        host: (!wire.host.is_empty()).then(|| wire.host.into()),
        port: optional_port("port", wire.port)?,
        path: optional("path", wire.path, |path| match path.replace {
            Some(path_modifier::Replace::Full(path)) => Ok(PathModifier::Full(path.into())),
            Some(path_modifier::Replace::Prefix(path)) => Ok(PathModifier::Prefix(path.into())),
            None => Err(InvalidField::unknown_kind("replace")),
        })?,
        status: if wire.status == 0 {
            None
        } else {
            Some(status("status", wire.status)?)
        },
    }))
}

pub(crate) fn redirect_to_proto(redirect: &Redirect) -> RequestRedirect {
    let replace = |path: &PathModifier| match path {
        PathModifier::Full(path) => path_modifier::Replace::Full(path.to_string()),
        PathModifier::Prefix(path) => path_modifier::Replace::Prefix(path.to_string()),
    };
    RequestRedirect {
        scheme: redirect.scheme.as_ref().map(Into::into),
        host: redirect.host.as_deref().unwrap_or_default().to_owned(),
        path: redirect.path.as_ref().map(|path| WirePathModifier {
            replace: Some(replace(path)),
        }),
        port: redirect.port.unwrap_or_default().into(),
        status: redirect.status.map_or(0, |status| status.as_u16().into()),
    }
}

fn status(field: &str, wire: u32) -> Result<StatusCode, InvalidField> {
    number_u16(field, wire)
        .ok()
        .and_then(|status| StatusCode::from_u16(status).ok())
        .ok_or_else(|| InvalidField::not_a("HTTP status", field, wire))
}

/// An absent ratio means every request.
fn ratio(wire: Option<WireRatio>) -> Result<Ratio, InvalidField> {
    match wire {
        None => Ok(Ratio::ALL),
        Some(ratio) if ratio.denominator == 0 => Err(InvalidField::not_a(
            "number above zero",
            "ratio.denominator",
            0,
        )),
        Some(ratio) => Ok(Ratio {
            numerator: ratio.numerator,
            denominator: ratio.denominator,
        }),
    }
}

fn ratio_to_proto(ratio: Ratio) -> Option<WireRatio> {
    (ratio.denominator != 0).then_some(WireRatio {
        numerator: ratio.numerator,
        denominator: ratio.denominator,
    })
}
