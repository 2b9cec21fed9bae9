//! Events of taps in the JSON mapping.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mesh_api::linkerd2::common::net::ip_address::Ip;
use mesh_api::linkerd2::common::net::{IpAddress, TcpAddress};
use mesh_api::linkerd2::tap::TapEvent;
use mesh_api::linkerd2::tap::tap_event::http::{
    Event as HttpEvent, RequestInit, ResponseEnd, ResponseInit, StreamId,
};
use mesh_api::linkerd2::tap::tap_event::{EndpointMeta, Event, Http, ProxyDirection, RouteMeta};
use mesh_api::linkerd2::viz::headers::Header;
use mesh_api::linkerd2::viz::headers::header::Value as HeaderValue;
use mesh_api::linkerd2::viz::{Eos, Headers, HttpMethod, Scheme, eos, http_method, scheme};
use serde_json::{Value, json};

use super::{ToJson, enumerated, one_of, with_field};

messages! {
    TcpAddress { "ip": ip, "port": port, }
    EndpointMeta { "labels": labels, }
    RouteMeta { "labels": labels, }
    StreamId { "base": base, "stream": stream, }
    Headers { "headers": headers, }
    RequestInit {
        "id": id,
        "method": method,
        "scheme": scheme,
        "authority": authority,
        "path": path,
        "headers": headers,
    }
    ResponseInit {
        "id": id,
        "sinceRequestInit": since_request_init,
        "httpStatus": http_status,
        "headers": headers,
    }
    ResponseEnd {
        "id": id,
        "sinceRequestInit": since_request_init,
        "sinceResponseInit": since_response_init,
        "responseBytes": response_bytes,
        "eos": eos,
        "trailers": trailers,
    }
}

impl ToJson for IpAddress {
    fn to_json(&self) -> Value {
        one_of(self.ip.as_ref().map(|ip| match ip {
            Ip::Ipv4(bits) => ("ipv4", json!(bits)),
            Ip::Ipv6(ip) => (
                "ipv6",
                json!({ "first": ip.first.to_json(), "last": ip.last.to_json() }),
            ),
        }))
    }
}

impl ToJson for HttpMethod {
    fn to_json(&self) -> Value {
        one_of(self.r#type.as_ref().map(|method| match method {
            http_method::Type::Registered(number) => {
                let name = enumerated(*number, http_method::Registered::as_str_name);
                ("registered", name)
            }
            http_method::Type::Unregistered(name) => ("unregistered", json!(name)),
        }))
    }
}

impl ToJson for Scheme {
    fn to_json(&self) -> Value {
        one_of(self.r#type.as_ref().map(|scheme| match scheme {
            scheme::Type::Registered(number) => {
                let name = enumerated(*number, scheme::Registered::as_str_name);
                ("registered", name)
            }
            scheme::Type::Unregistered(name) => ("unregistered", json!(name)),
        }))
    }
}

impl ToJson for Header {
    fn to_json(&self) -> Value {
        let value = self.value.as_ref().map(|value| match value {
            HeaderValue::ValueStr(text) => ("valueStr", json!(text)),
            HeaderValue::ValueBin(bytes) => ("valueBin", json!(STANDARD.encode(bytes))),
        });
        with_field(json!({ "name": self.name }), value)
    }
}

impl ToJson for Eos {
    fn to_json(&self) -> Value {
        one_of(self.end.as_ref().map(|end| match end {
            eos::End::GrpcStatusCode(code) => ("grpcStatusCode", json!(code)),
            eos::End::ResetErrorCode(code) => ("resetErrorCode", json!(code)),
        }))
    }
}

impl ToJson for Http {
    fn to_json(&self) -> Value {
        one_of(self.event.as_ref().map(|event| match event {
            HttpEvent::RequestInit(init) => ("requestInit", init.to_json()),
            HttpEvent::ResponseInit(init) => ("responseInit", init.to_json()),
            HttpEvent::ResponseEnd(end) => ("responseEnd", end.to_json()),
        }))
    }
}

impl ToJson for TapEvent {
    fn to_json(&self) -> Value {
        let event = self.event.as_ref().map(|event| match event {
            Event::Http(http) => ("http", http.to_json()),
        });
        let object = json!({
            "source": self.source.to_json(),
            "sourceMeta": self.source_meta.to_json(),
            "destination": self.destination.to_json(),
            "destinationMeta": self.destination_meta.to_json(),
            "routeMeta": self.route_meta.to_json(),
            "proxyDirection": enumerated(self.proxy_direction, ProxyDirection::as_str_name),
        });
        with_field(object, event)
    }
}
