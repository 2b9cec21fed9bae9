//! Converts the events of the tap API.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use mesh_api::linkerd2::common::net::{TcpAddress, ip_address};
use mesh_api::linkerd2::tap::TapEvent as Message;
use mesh_api::linkerd2::tap::tap_event::http::{Event as HttpEvent, StreamId};
use mesh_api::linkerd2::tap::tap_event::{Event, ProxyDirection};
use mesh_api::linkerd2::viz::headers::header;
use mesh_api::linkerd2::viz::{Eos, Headers, HttpMethod, Scheme, eos, http_method, scheme};
use mesh_core::tap::{
    TapContext, TapDirection, TapEvent, TapEventKind, TapHeaders, TapStreamEnd, TapStreamId,
};

/// Returns `None` for an event of an unknown kind, or without a part that every event has.
pub(super) fn read(message: Message) -> Option<TapEvent> {
    let direction = match ProxyDirection::try_from(message.proxy_direction).ok()? {
        ProxyDirection::Inbound => TapDirection::Inbound,
        ProxyDirection::Outbound => TapDirection::Outbound,
        ProxyDirection::Unknown => return None,
    };
    let Event::Http(http) = message.event?;
    let (id, kind) = http_event(http.event?)?;
    let context = TapContext {
        direction,
        source: address(message.source?)?,
        source_labels: message
            .source_meta
            .unwrap_or_default()
            .labels
            .into_iter()
            .collect(),
        destination: address(message.destination?)?,
        destination_labels: message
            .destination_meta
            .unwrap_or_default()
            .labels
            .into_iter()
            .collect(),
        route_labels: message
            .route_meta
            .unwrap_or_default()
            .labels
            .into_iter()
            .collect(),
    };
    Some(TapEvent {
        context: Arc::new(context),
        id,
        kind,
    })
}

fn http_event(event: HttpEvent) -> Option<(TapStreamId, TapEventKind)> {
    let (id, kind) = match event {
        HttpEvent::RequestInit(request) => {
            let kind = TapEventKind::Request {
                method: method(request.method?)?,
                scheme: request.scheme.and_then(scheme_name).unwrap_or_default(),
                authority: request.authority,
                path: request.path,
                headers: request.headers.map(headers),
            };
            (request.id?, kind)
        }
        HttpEvent::ResponseInit(response) => {
            let kind = TapEventKind::Response {
                since_request: duration(response.since_request_init),
                status: StatusCode::from_u16(response.http_status.try_into().ok()?).ok()?,
                headers: response.headers.map(headers),
            };
            (response.id?, kind)
        }
        HttpEvent::ResponseEnd(end) => {
            let kind = TapEventKind::End {
                since_request: duration(end.since_request_init),
                since_response: duration(end.since_response_init),
                response_bytes: end.response_bytes,
                end: stream_end(end.eos),
                trailers: end.trailers.map(headers),
            };
            (end.id?, kind)
        }
    };
    let StreamId { base, stream } = id;
    Some((TapStreamId { base, stream }, kind))
}

fn method(method: HttpMethod) -> Option<Method> {
    let name = match method.r#type? {
        http_method::Type::Registered(number) => {
            let registered = http_method::Registered::try_from(number).ok()?;
            registered.as_str_name().to_owned()
        }
        http_method::Type::Unregistered(name) => name,
    };
    Method::from_bytes(name.as_bytes()).ok()
}

fn scheme_name(scheme: Scheme) -> Option<String> {
    match scheme.r#type? {
        scheme::Type::Registered(number) => {
            let registered = scheme::Registered::try_from(number).ok()?;
            Some(registered.as_str_name().to_ascii_lowercase())
        }
        scheme::Type::Unregistered(name) => Some(name),
    }
}

fn headers(headers: Headers) -> TapHeaders {
    let field = |field: mesh_api::linkerd2::viz::headers::Header| {
        let value = match field.value {
            Some(header::Value::ValueStr(text)) => text.into_bytes(),
            Some(header::Value::ValueBin(bytes)) => bytes,
            None => Vec::new(),
        };
        (field.name, value)
    };
    headers.headers.into_iter().map(field).collect()
}

/// A code that gRPC does not define, and that a proxy therefore cannot send, counts as unknown.
fn stream_end(eos: Option<Eos>) -> TapStreamEnd {
    const UNKNOWN: u16 = 2;
    match eos.and_then(|eos| eos.end) {
        Some(eos::End::GrpcStatusCode(code)) => {
            TapStreamEnd::GrpcStatus(code.try_into().unwrap_or(UNKNOWN))
        }
        Some(eos::End::ResetErrorCode(code)) => TapStreamEnd::Reset(code),
        None => TapStreamEnd::Complete,
    }
}

/// An absent or negative duration is zero.
fn duration(duration: Option<mesh_api::linkerd2::Duration>) -> Duration {
    let duration = duration.and_then(|duration| duration.try_into().ok());
    duration.unwrap_or_default()
}

fn address(address: TcpAddress) -> Option<SocketAddr> {
    let ip: IpAddr = match address.ip?.ip? {
        ip_address::Ip::Ipv4(bits) => Ipv4Addr::from_bits(bits).into(),
        ip_address::Ip::Ipv6(ip) => {
            let bits = (u128::from(ip.first) << 64) | u128::from(ip.last);
            Ipv6Addr::from_bits(bits).into()
        }
    };
    Some(SocketAddr::new(ip, address.port.try_into().ok()?))
}
