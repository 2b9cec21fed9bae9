//! Messages of the tap service that proxies serve.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use ipnet::IpNet;
use mesh_core::labels::Labels;
use mesh_core::tap::{
    AddrFilter, TapContext, TapDirection, TapEvent, TapEventKind, TapFilter, TapHeaders,
    TapRequest, TapStreamEnd, TapStreamId, TextFilter,
};

use crate::field::{InvalidField, each, optional, required};
use crate::proto::http_types::{Headers, HttpMethod, Scheme, headers, scheme};
use crate::proto::net::TcpAddress;
use crate::proto::tap as wire;
use crate::proto::tap::observe_request::{Extract, Match, extract, r#match as wire_match};
use crate::proto::tap::tap_event as wire_event;
use crate::proto::tap::tap_event::http as wire_http;
use crate::value::{duration, duration_to_proto, ip, port, socket_addr};

/// The most conditions that a filter consists of. Each is evaluated for each request of the proxy.
pub const MAX_FILTERS: usize = 1_000;

/// Converts a received subscription.
///
/// # Errors
///
/// The limit is zero, the filter is missing, invalid, of an unknown kind, or consists of more than
/// [`MAX_FILTERS`] conditions.
pub fn request(wire: wire::ObserveRequest) -> Result<TapRequest, InvalidField> {
    if wire.limit == 0 {
        return Err(InvalidField::not_a(
            "limit of at least 1",
            "limit",
            wire.limit,
        ));
    }
    let mut remaining = MAX_FILTERS;
    let filter = required("match", wire.r#match, |wire| filter(wire, &mut remaining))?;
    Ok(TapRequest {
        limit: wire.limit,
        filter,
        with_headers: extracts_headers(wire.extract),
    })
}

/// Converts a subscription to a request of the service.
pub fn request_to_proto(request: &TapRequest) -> wire::ObserveRequest {
    let headers = extract::http::Extract::Headers(extract::http::Headers {});
    let extract = Extract {
        extract: Some(extract::Extract::Http(extract::Http {
            extract: Some(headers),
        })),
    };
    wire::ObserveRequest {
        limit: request.limit,
        r#match: Some(filter_to_proto(&request.filter)),
        extract: request.with_headers.then_some(extract),
    }
}

/// Converts a received event.
///
/// # Errors
///
/// A required field is missing or invalid.
pub fn event(wire: wire::TapEvent) -> Result<TapEvent, InvalidField> {
    let direction = match wire.proxy_direction() {
        wire_event::ProxyDirection::Inbound => TapDirection::Inbound,
        wire_event::ProxyDirection::Outbound => TapDirection::Outbound,
        wire_event::ProxyDirection::Unknown => {
            return Err(InvalidField::unknown_kind("proxy_direction"));
        }
    };
    let endpoint = |meta: Option<wire_event::EndpointMeta>| meta.map(|meta| meta.labels);
    let context = TapContext {
        direction,
        source: required("source", wire.source, address)?,
        source_labels: labels(endpoint(wire.source_meta)),
        destination: required("destination", wire.destination, address)?,
        destination_labels: labels(endpoint(wire.destination_meta)),
        route_labels: labels(wire.route_meta.map(|meta| meta.labels)),
    };
    let (id, kind) = required("event", wire.event, |wire_event::Event::Http(http)| {
        required("http", http.event, event_kind)
    })?;
    Ok(TapEvent {
        context: Arc::new(context),
        id,
        kind,
    })
}

/// Converts an event to a message of the stream.
pub fn event_to_proto(event: &TapEvent) -> wire::TapEvent {
    let context = &*event.context;
    let endpoint = |labels: &Labels| wire_event::EndpointMeta {
        labels: labels_to_proto(labels),
    };
    let direction = match context.direction {
        TapDirection::Inbound => wire_event::ProxyDirection::Inbound,
        TapDirection::Outbound => wire_event::ProxyDirection::Outbound,
    };
    wire::TapEvent {
        source: Some(context.source.into()),
        source_meta: Some(endpoint(&context.source_labels)),
        route_meta: (!context.route_labels.is_empty()).then(|| wire_event::RouteMeta {
            labels: labels_to_proto(&context.route_labels),
        }),
        destination: Some(context.destination.into()),
        destination_meta: Some(endpoint(&context.destination_labels)),
        proxy_direction: direction.into(),
        event: Some(wire_event::Event::Http(wire_event::Http {
            event: Some(event_kind_to_proto(event.id, &event.kind)),
        })),
    }
}

fn extracts_headers(wire: Option<Extract>) -> bool {
    let Some(extract::Extract::Http(http)) = wire.and_then(|extract| extract.extract) else {
        return false;
    };
    matches!(http.extract, Some(extract::http::Extract::Headers(_)))
}

/// Converts a filter and reduces the number of conditions that it may still consist of.
fn filter(wire: Match, remaining: &mut usize) -> Result<TapFilter, InvalidField> {
    *remaining = remaining.checked_sub(1).ok_or_else(|| {
        InvalidField::not_a("filter of at most 1,000 conditions", "", "a larger filter")
    })?;
    let kind = wire.r#match.ok_or_else(|| InvalidField::missing("match"))?;
    Ok(match kind {
        wire_match::Match::All(all) => TapFilter::All(sequence("all", all, remaining)?),
        wire_match::Match::Any(any) => TapFilter::Any(sequence("any", any, remaining)?),
        wire_match::Match::Not(not) => TapFilter::Not(Box::new(filter(*not, remaining)?)),
        wire_match::Match::Source(source) => {
            TapFilter::Source(required("source", source.r#match, addr_filter)?)
        }
        wire_match::Match::Destination(destination) => {
            TapFilter::Destination(required("destination", destination.r#match, addr_filter)?)
        }
        wire_match::Match::Http(http) => required("http", http.r#match, http_filter)?,
        wire_match::Match::DestinationLabel(label) => TapFilter::DestinationLabel {
            name: label.key,
            value: label.value,
        },
        wire_match::Match::RouteLabel(label) => TapFilter::RouteLabel {
            name: label.key,
            value: label.value,
        },
    })
}

fn sequence(
    field: &str,
    wire: wire_match::Seq,
    remaining: &mut usize,
) -> Result<Vec<TapFilter>, InvalidField> {
    let remaining = std::cell::RefCell::new(remaining);
    each(field, wire.matches, |wire| {
        filter(wire, &mut remaining.borrow_mut())
    })
}

fn addr_filter(wire: wire_match::tcp::Match) -> Result<AddrFilter, InvalidField> {
    match wire {
        wire_match::tcp::Match::Netmask(netmask) => {
            let address = required("netmask.ip", netmask.ip, ip)?;
            let network = u8::try_from(netmask.mask)
                .ok()
                .and_then(|length| IpNet::new(address, length).ok());
            network.map(AddrFilter::Network).ok_or_else(|| {
                InvalidField::not_a(
                    "prefix length of this address",
                    "netmask.mask",
                    netmask.mask,
                )
            })
        }
        // One end stands for both.
        wire_match::tcp::Match::Ports(range) => {
            let (min, max) = match (range.min, range.max) {
                (0, max) => (max, max),
                (min, 0) => (min, min),
                both => both,
            };
            Ok(AddrFilter::Ports {
                min: port("ports.min", min)?,
                max: port("ports.max", max)?,
            })
        }
    }
}

fn http_filter(wire: wire_match::http::Match) -> Result<TapFilter, InvalidField> {
    Ok(match wire {
        wire_match::http::Match::Scheme(scheme) => TapFilter::Scheme(scheme_text(scheme)?),
        wire_match::http::Match::Method(wire) => TapFilter::Method(method(wire)?),
        wire_match::http::Match::Authority(text) => {
            TapFilter::Authority(required("authority", text.r#match, text_filter)?)
        }
        wire_match::http::Match::Path(text) => {
            TapFilter::Path(required("path", text.r#match, text_filter)?)
        }
    })
}

fn text_filter(wire: wire_match::http::string_match::Match) -> Result<TextFilter, InvalidField> {
    Ok(match wire {
        wire_match::http::string_match::Match::Exact(text) => TextFilter::Exact(text),
        wire_match::http::string_match::Match::Prefix(text) => TextFilter::Prefix(text),
    })
}

fn filter_to_proto(filter: &TapFilter) -> Match {
    let sequence = |filters: &[TapFilter]| wire_match::Seq {
        matches: filters.iter().map(filter_to_proto).collect(),
    };
    let label = |name: &String, value: &String| wire_match::Label {
        key: name.clone(),
        value: value.clone(),
    };
    let http = |kind| {
        wire_match::Match::Http(wire_match::Http {
            r#match: Some(kind),
        })
    };
    let kind = match filter {
        TapFilter::All(filters) => wire_match::Match::All(sequence(filters)),
        TapFilter::Any(filters) => wire_match::Match::Any(sequence(filters)),
        TapFilter::Not(filter) => wire_match::Match::Not(Box::new(filter_to_proto(filter))),
        TapFilter::Source(filter) => wire_match::Match::Source(addr_filter_to_proto(*filter)),
        TapFilter::Destination(filter) => {
            wire_match::Match::Destination(addr_filter_to_proto(*filter))
        }
        TapFilter::DestinationLabel { name, value } => {
            wire_match::Match::DestinationLabel(label(name, value))
        }
        TapFilter::RouteLabel { name, value } => wire_match::Match::RouteLabel(label(name, value)),
        TapFilter::Scheme(scheme) => http(wire_match::http::Match::Scheme(scheme.as_str().into())),
        TapFilter::Method(method) => http(wire_match::http::Match::Method(method.clone().into())),
        TapFilter::Authority(text) => http(wire_match::http::Match::Authority(
            text_filter_to_proto(text),
        )),
        TapFilter::Path(text) => http(wire_match::http::Match::Path(text_filter_to_proto(text))),
    };
    Match {
        r#match: Some(kind),
    }
}

fn addr_filter_to_proto(filter: AddrFilter) -> wire_match::Tcp {
    let kind = match filter {
        AddrFilter::Network(network) => wire_match::tcp::Match::Netmask(wire_match::tcp::Netmask {
            ip: Some(network.addr().into()),
            mask: network.prefix_len().into(),
        }),
        AddrFilter::Ports { min, max } => {
            wire_match::tcp::Match::Ports(wire_match::tcp::PortRange {
                min: min.into(),
                max: max.into(),
            })
        }
    };
    wire_match::Tcp {
        r#match: Some(kind),
    }
}

fn text_filter_to_proto(filter: &TextFilter) -> wire_match::http::StringMatch {
    let kind = match filter {
        TextFilter::Exact(text) => wire_match::http::string_match::Match::Exact(text.clone()),
        TextFilter::Prefix(text) => wire_match::http::string_match::Match::Prefix(text.clone()),
    };
    wire_match::http::StringMatch {
        r#match: Some(kind),
    }
}

fn method(wire: HttpMethod) -> Result<Method, InvalidField> {
    let text = format!("{wire:?}");
    Method::try_from(wire).map_err(|_error| InvalidField::not_a("method", "method", text))
}

fn scheme_text(wire: Scheme) -> Result<String, InvalidField> {
    let kind = wire.r#type.ok_or_else(|| InvalidField::missing("scheme"))?;
    Ok(match kind {
        scheme::Type::Registered(number) => match scheme::Registered::try_from(number) {
            Ok(scheme::Registered::Http) => "http".to_owned(),
            Ok(scheme::Registered::Https) => "https".to_owned(),
            Err(_unknown) => return Err(InvalidField::unknown_kind("scheme")),
        },
        scheme::Type::Unregistered(text) => text,
    })
}

/// Accepts port 0, which a peer without a port has.
fn address(wire: TcpAddress) -> Result<SocketAddr, InvalidField> {
    if wire.port == 0 {
        return Ok(SocketAddr::new(required("ip", wire.ip, ip)?, 0));
    }
    socket_addr(wire)
}

fn labels(wire: Option<HashMap<String, String>>) -> Labels {
    wire.into_iter().flatten().collect()
}

fn labels_to_proto(labels: &Labels) -> HashMap<String, String> {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    labels.iter().map(owned).collect()
}

fn event_kind(wire: wire_http::Event) -> Result<(TapStreamId, TapEventKind), InvalidField> {
    Ok(match wire {
        wire_http::Event::RequestInit(request) => {
            let kind = TapEventKind::Request {
                method: required("method", request.method, method)?,
                scheme: optional("scheme", request.scheme, scheme_text)?.unwrap_or_default(),
                authority: request.authority,
                path: request.path,
                headers: request.headers.map(fields),
            };
            (required("id", request.id, stream_id)?, kind)
        }
        wire_http::Event::ResponseInit(response) => {
            let kind = TapEventKind::Response {
                since_request: since("since_request_init", response.since_request_init)?,
                status: status(response.http_status)?,
                headers: response.headers.map(fields),
            };
            (required("id", response.id, stream_id)?, kind)
        }
        wire_http::Event::ResponseEnd(end) => {
            let kind = TapEventKind::End {
                since_request: since("since_request_init", end.since_request_init)?,
                since_response: since("since_response_init", end.since_response_init)?,
                response_bytes: end.response_bytes,
                end: stream_end(end.eos),
                trailers: end.trailers.map(fields),
            };
            (required("id", end.id, stream_id)?, kind)
        }
    })
}

fn event_kind_to_proto(id: TapStreamId, kind: &TapEventKind) -> wire_http::Event {
    let id = Some(wire_http::StreamId {
        base: id.base,
        stream: id.stream,
    });
    let fields = |headers: &Option<TapHeaders>| headers.as_deref().map(fields_to_proto);
    match kind {
        TapEventKind::Request {
            method,
            scheme,
            authority,
            path,
            headers,
        } => wire_http::Event::RequestInit(wire_http::RequestInit {
            id,
            method: Some(method.clone().into()),
            scheme: (!scheme.is_empty()).then(|| scheme.as_str().into()),
            authority: authority.clone(),
            path: path.clone(),
            headers: fields(headers),
        }),
        TapEventKind::Response {
            since_request,
            status,
            headers,
        } => wire_http::Event::ResponseInit(wire_http::ResponseInit {
            id,
            since_request_init: Some(duration_to_proto(*since_request)),
            http_status: status.as_u16().into(),
            headers: fields(headers),
        }),
        TapEventKind::End {
            since_request,
            since_response,
            response_bytes,
            end,
            trailers,
        } => wire_http::Event::ResponseEnd(wire_http::ResponseEnd {
            id,
            since_request_init: Some(duration_to_proto(*since_request)),
            since_response_init: Some(duration_to_proto(*since_response)),
            response_bytes: *response_bytes,
            eos: stream_end_to_proto(*end),
            trailers: fields(trailers),
        }),
    }
}

/// Proxies omit the time if there is none.
fn since(field: &str, wire: Option<prost_types::Duration>) -> Result<Duration, InvalidField> {
    Ok(optional(field, wire, duration)?.unwrap_or_default())
}

fn status(wire: u32) -> Result<StatusCode, InvalidField> {
    u16::try_from(wire)
        .ok()
        .and_then(|code| StatusCode::from_u16(code).ok())
        .ok_or_else(|| InvalidField::not_a("status code", "http_status", wire))
}

fn stream_id(wire: wire_http::StreamId) -> Result<TapStreamId, InvalidField> {
    Ok(TapStreamId {
        base: wire.base,
        stream: wire.stream,
    })
}

/// Statuses beyond 16 bits are unknown ones.
fn stream_end(wire: Option<wire::Eos>) -> TapStreamEnd {
    match wire.and_then(|eos| eos.end) {
        None => TapStreamEnd::Complete,
        Some(wire::eos::End::GrpcStatusCode(code)) => {
            TapStreamEnd::GrpcStatus(u16::try_from(code).unwrap_or(u16::MAX))
        }
        Some(wire::eos::End::ResetErrorCode(code)) => TapStreamEnd::Reset(code),
    }
}

fn stream_end_to_proto(end: TapStreamEnd) -> Option<wire::Eos> {
    let end = match end {
        TapStreamEnd::Complete => return None,
        TapStreamEnd::GrpcStatus(code) => wire::eos::End::GrpcStatusCode(code.into()),
        TapStreamEnd::Reset(code) => wire::eos::End::ResetErrorCode(code),
    };
    Some(wire::Eos { end: Some(end) })
}

fn fields(wire: Headers) -> TapHeaders {
    let pair = |header: headers::Header| (header.name, header.value);
    wire.headers.into_iter().map(pair).collect()
}

fn fields_to_proto(fields: &[(String, Vec<u8>)]) -> Headers {
    let pair = |(name, value): &(String, Vec<u8>)| headers::Header {
        name: name.clone(),
        value: value.clone(),
    };
    Headers {
        headers: fields.iter().map(pair).collect(),
    }
}

#[cfg(test)]
mod tests;
