//! The events of proxies as the viz extension's clients read them. The tap APIs of clusters and of
//! local nodes send them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::Method;
use mesh_core::labels::Labels;
use mesh_core::tap::{TapDirection, TapEvent, TapEventKind, TapHeaders, TapStreamEnd};

use crate::linkerd2::common::net::{IPv6, IpAddress, TcpAddress, ip_address};
use crate::linkerd2::tap::TapEvent as Message;
use crate::linkerd2::tap::tap_event::http::{
    Event as HttpEvent, RequestInit, ResponseEnd, ResponseInit, StreamId,
};
use crate::linkerd2::tap::tap_event::{EndpointMeta, Event, Http, ProxyDirection, RouteMeta};
use crate::linkerd2::viz::headers::{Header, header};
use crate::linkerd2::viz::{Eos, Headers, HttpMethod, Scheme, eos, http_method, scheme};

/// Converts an event. Header fields whose name is not `shown` are left out.
pub fn message(event: &TapEvent, shown: impl Fn(&str) -> bool) -> Message {
    let context = &event.context;
    let direction = match context.direction {
        TapDirection::Inbound => ProxyDirection::Inbound,
        TapDirection::Outbound => ProxyDirection::Outbound,
    };
    let endpoint = |labels: &Labels| EndpointMeta {
        labels: own_labels(labels),
    };
    Message {
        source: Some(address(context.source)),
        source_meta: Some(endpoint(&context.source_labels)),
        destination: Some(address(context.destination)),
        destination_meta: Some(endpoint(&context.destination_labels)),
        route_meta: (!context.route_labels.is_empty()).then(|| RouteMeta {
            labels: own_labels(&context.route_labels),
        }),
        proxy_direction: direction.into(),
        event: Some(Event::Http(Http {
            event: Some(http_event(event, &shown)),
        })),
    }
}

fn http_event(event: &TapEvent, is_shown: &dyn Fn(&str) -> bool) -> HttpEvent {
    let id = Some(StreamId {
        base: event.id.base,
        stream: event.id.stream,
    });
    let fields = |headers: &Option<TapHeaders>| {
        let headers = headers.as_ref()?;
        Some(shown(headers, is_shown))
    };
    match &event.kind {
        TapEventKind::Request {
            method,
            scheme,
            authority,
            path,
            headers,
        } => HttpEvent::RequestInit(RequestInit {
            id,
            method: Some(http_method(method)),
            scheme: (!scheme.is_empty()).then(|| http_scheme(scheme)),
            authority: authority.clone(),
            path: path.clone(),
            headers: fields(headers),
        }),
        TapEventKind::Response {
            since_request,
            status,
            headers,
        } => HttpEvent::ResponseInit(ResponseInit {
            id,
            since_request_init: duration(*since_request),
            http_status: status.as_u16().into(),
            headers: fields(headers),
        }),
        TapEventKind::End {
            since_request,
            since_response,
            response_bytes,
            end,
            trailers,
        } => HttpEvent::ResponseEnd(ResponseEnd {
            id,
            since_request_init: duration(*since_request),
            since_response_init: duration(*since_response),
            response_bytes: *response_bytes,
            eos: Some(stream_end(*end)),
            trailers: fields(trailers),
        }),
    }
}

/// Texts stay texts; other values are bytes.
fn shown(headers: &[(String, Vec<u8>)], is_shown: &dyn Fn(&str) -> bool) -> Headers {
    let shown = headers.iter().filter(|(name, _)| is_shown(name));
    let headers = shown.map(|(name, value)| {
        let value = match str::from_utf8(value) {
            Ok(text) => header::Value::ValueStr(text.to_owned()),
            Err(_error) => header::Value::ValueBin(value.clone()),
        };
        Header {
            name: name.clone(),
            value: Some(value),
        }
    });
    Headers {
        headers: headers.collect(),
    }
}

fn http_method(method: &Method) -> HttpMethod {
    let kind = match http_method::Registered::from_str_name(method.as_str()) {
        Some(registered) => http_method::Type::Registered(registered.into()),
        None => http_method::Type::Unregistered(method.to_string()),
    };
    HttpMethod { r#type: Some(kind) }
}

fn http_scheme(text: &str) -> Scheme {
    let kind = match scheme::Registered::from_str_name(&text.to_ascii_uppercase()) {
        Some(registered) => scheme::Type::Registered(registered.into()),
        None => scheme::Type::Unregistered(text.to_owned()),
    };
    Scheme { r#type: Some(kind) }
}

/// A complete response of another protocol than gRPC has no end.
fn stream_end(end: TapStreamEnd) -> Eos {
    let end = match end {
        TapStreamEnd::Complete => None,
        TapStreamEnd::GrpcStatus(code) => Some(eos::End::GrpcStatusCode(code.into())),
        TapStreamEnd::Reset(code) => Some(eos::End::ResetErrorCode(code)),
    };
    Eos { end }
}

/// Durations beyond the API's maximum are left out.
fn duration(duration: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(duration).ok()
}

fn address(addr: SocketAddr) -> TcpAddress {
    let ip = match addr.ip().to_canonical() {
        IpAddr::V4(ip) => ip_address::Ip::Ipv4(ip.to_bits()),
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            ip_address::Ip::Ipv6(IPv6 {
                first: (bits >> 64) as u64,
                last: bits as u64,
            })
        }
    };
    TcpAddress {
        ip: Some(IpAddress { ip: Some(ip) }),
        port: addr.port().into(),
    }
}

fn own_labels(labels: &Labels) -> BTreeMap<String, String> {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    labels.iter().map(owned).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::StatusCode;
    use mesh_core::tap::{TapContext, TapStreamId};

    use super::*;

    fn event(direction: TapDirection, kind: TapEventKind) -> TapEvent {
        let context = TapContext {
            direction,
            source: "[::ffff:10.0.0.1]:4000".parse().unwrap(),
            source_labels: [("tls", "true")].into(),
            destination: "[fd00::2]:80".parse().unwrap(),
            destination_labels: [("deployment", "web")].into(),
            route_labels: Labels::default(),
        };
        TapEvent {
            context: Arc::new(context),
            id: TapStreamId { base: 1, stream: 2 },
            kind,
        }
    }

    fn convert(event: &TapEvent) -> Message {
        message(event, |header| header != "authorization")
    }

    fn end(end: TapStreamEnd) -> TapEventKind {
        TapEventKind::End {
            since_request: Duration::from_millis(3),
            since_response: Duration::ZERO,
            response_bytes: 9,
            end,
            trailers: None,
        }
    }

    #[test]
    fn addresses_and_labels_are_those_of_the_event() {
        let labels = |meta: Option<EndpointMeta>| meta.unwrap().labels;
        let message = convert(&event(TapDirection::Outbound, end(TapStreamEnd::Complete)));
        assert_eq!(message.proxy_direction(), ProxyDirection::Outbound);
        let of = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        assert_eq!(labels(message.source_meta), of("tls", "true"));
        assert_eq!(labels(message.destination_meta), of("deployment", "web"));
        assert_eq!(message.route_meta, None);
        let (source, destination) = (message.source.unwrap(), message.destination.unwrap());
        assert_eq!(
            source.ip.unwrap().ip,
            Some(ip_address::Ip::Ipv4(0x0a00_0001))
        );
        let six = ip_address::Ip::Ipv6(IPv6 {
            first: 0xfd00 << 48,
            last: 2,
        });
        assert_eq!(destination.ip.unwrap().ip, Some(six));
        assert_eq!((source.port, destination.port), (4000, 80));
    }

    #[test]
    fn hidden_headers_are_left_out_and_other_bytes_are_kept() {
        let headers = vec![
            ("authorization".to_owned(), b"secret".to_vec()),
            ("x".to_owned(), b"text".to_vec()),
            ("y".to_owned(), vec![0xff]),
        ];
        let kind = TapEventKind::Response {
            since_request: Duration::ZERO,
            status: StatusCode::IM_A_TEAPOT,
            headers: Some(headers),
        };
        let Some(Event::Http(http)) = convert(&event(TapDirection::Inbound, kind)).event else {
            panic!("no event");
        };
        let Some(HttpEvent::ResponseInit(response)) = http.event else {
            panic!("{http:?}");
        };
        assert_eq!(response.http_status, 418);
        let shown = response.headers.unwrap().headers;
        let expected = [
            ("x", header::Value::ValueStr("text".to_owned())),
            ("y", header::Value::ValueBin(vec![0xff])),
        ];
        let expected = expected.map(|(name, value)| Header {
            name: name.to_owned(),
            value: Some(value),
        });
        assert_eq!(shown, expected);
    }

    #[test]
    fn registered_methods_and_schemes_are_numbers() {
        let method = |name: &str| http_method(&Method::from_bytes(name.as_bytes()).unwrap()).r#type;
        assert_eq!(method("POST"), Some(http_method::Type::Registered(1)));
        let purge = http_method::Type::Unregistered("PURGE".to_owned());
        assert_eq!(method("PURGE"), Some(purge));
        let https = scheme::Type::Registered(1);
        assert_eq!(http_scheme("https").r#type, Some(https));
        let grpc = scheme::Type::Unregistered("grpc".to_owned());
        assert_eq!(http_scheme("grpc").r#type, Some(grpc));
    }

    #[test]
    fn ends_of_streams() {
        let table = [
            (TapStreamEnd::Complete, None),
            (
                TapStreamEnd::GrpcStatus(14),
                Some(eos::End::GrpcStatusCode(14)),
            ),
            (TapStreamEnd::Reset(8), Some(eos::End::ResetErrorCode(8))),
        ];
        for (end, expected) in table {
            assert_eq!(stream_end(end), Eos { end: expected });
        }
    }
}
