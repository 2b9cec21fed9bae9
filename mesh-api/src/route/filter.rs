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

/// A header modifier to be converted into one of the two messages.
pub(crate) struct Headers<'a>(pub(crate) &'a HeaderModifier);

impl Headers<'_> {
    fn pairs(pairs: &[(HeaderName, HeaderValue)]) -> Option<http_types::Headers> {
        let header = |(name, value): &(HeaderName, HeaderValue)| Header {
            name: name.to_string(),
            value: value.as_bytes().to_vec(),
        };
        Some(http_types::Headers {
            headers: pairs.iter().map(header).collect(),
        })
    }

    fn removed(&self) -> Vec<String> {
        self.0.remove.iter().map(ToString::to_string).collect()
    }
}

impl From<Headers<'_>> for RequestHeaderModifier {
    fn from(headers: Headers<'_>) -> Self {
        Self {
            add: Headers::pairs(&headers.0.add),
            set: Headers::pairs(&headers.0.set),
            remove: headers.removed(),
        }
    }
}

impl From<Headers<'_>> for ResponseHeaderModifier {
    fn from(headers: Headers<'_>) -> Self {
        Self {
            add: Headers::pairs(&headers.0.add),
            set: Headers::pairs(&headers.0.set),
            remove: headers.removed(),
        }
    }
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

/// A filter that ends a request, to be converted into the message of one direction. A filter
/// without a message of that direction fails every request: omitting it silently would forward
/// requests that the policy is meant to stop.
pub(crate) struct Failure<'a>(pub(crate) &'a Filter);

/// The gRPC status INTERNAL.
const GRPC_INTERNAL: u32 = 13;

impl From<Failure<'_>> for HttpFailureInjector {
    fn from(Failure(filter): Failure<'_>) -> Self {
        let (status, message, ratio) = match filter {
            Filter::InjectHttpFailure {
                status,
                message,
                ratio,
            } => (*status, message.to_string(), *ratio),
            other => (
                StatusCode::INTERNAL_SERVER_ERROR,
                Failure(other).message(),
                Ratio::ALL,
            ),
        };
        Self {
            status: status.as_u16().into(),
            message,
            ratio: ratio_to_proto(ratio),
        }
    }
}

impl From<Failure<'_>> for GrpcFailureInjector {
    fn from(Failure(filter): Failure<'_>) -> Self {
        let (code, message, ratio) = match filter {
            Filter::InjectGrpcFailure {
                code,
                message,
                ratio,
            } => (u32::from(*code), message.to_string(), *ratio),
            other => (GRPC_INTERNAL, Failure(other).message(), Ratio::ALL),
        };
        Self {
            code,
            message,
            ratio: ratio_to_proto(ratio),
        }
    }
}

impl Failure<'_> {
    fn message(&self) -> String {
        match self.0 {
            Filter::InternalError(message) => message.to_string(),
            _ => "filter not supported by this kind of route".to_owned(),
        }
    }
}

pub(crate) fn redirect(wire: RequestRedirect) -> Result<Redirect, InvalidField> {
    Ok(Redirect {
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
    })
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

pub(crate) fn status(field: &str, wire: u32) -> Result<StatusCode, InvalidField> {
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
