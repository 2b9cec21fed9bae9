//! Events of taps in the JSON mapping.

use std::collections::BTreeMap;

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

use super::{ToJson, one_of, with_field};

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

impl ToJson for TcpAddress {
    fn to_json(&self) -> Value {
        json!({ "ip": self.ip.to_json(), "port": self.port })
    }
}

impl ToJson for BTreeMap<String, String> {
    fn to_json(&self) -> Value {
        json!(self)
    }
}

impl ToJson for EndpointMeta {
    fn to_json(&self) -> Value {
        json!({ "labels": self.labels.to_json() })
    }
}

impl ToJson for RouteMeta {
    fn to_json(&self) -> Value {
        json!({ "labels": self.labels.to_json() })
    }
}

impl ToJson for StreamId {
    fn to_json(&self) -> Value {
        json!({ "base": self.base, "stream": self.stream.to_json() })
    }
}

impl ToJson for HttpMethod {
    fn to_json(&self) -> Value {
        one_of(self.r#type.as_ref().map(|method| match method {
            http_method::Type::Registered(number) => {
                let known = http_method::Registered::try_from(*number);
                let name = known.map_or(json!(number), |known| json!(known.as_str_name()));
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
                let known = scheme::Registered::try_from(*number);
                let name = known.map_or(json!(number), |known| json!(known.as_str_name()));
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

impl ToJson for Headers {
    fn to_json(&self) -> Value {
        json!({ "headers": self.headers.to_json() })
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

impl ToJson for RequestInit {
    fn to_json(&self) -> Value {
        json!({
            "id": self.id.to_json(),
            "method": self.method.to_json(),
            "scheme": self.scheme.to_json(),
            "authority": self.authority,
            "path": self.path,
            "headers": self.headers.to_json(),
        })
    }
}

impl ToJson for ResponseInit {
    fn to_json(&self) -> Value {
        json!({
            "id": self.id.to_json(),
            "sinceRequestInit": self.since_request_init.to_json(),
            "httpStatus": self.http_status,
            "headers": self.headers.to_json(),
        })
    }
}

impl ToJson for ResponseEnd {
    fn to_json(&self) -> Value {
        json!({
            "id": self.id.to_json(),
            "sinceRequestInit": self.since_request_init.to_json(),
            "sinceResponseInit": self.since_response_init.to_json(),
            "responseBytes": self.response_bytes.to_json(),
            "eos": self.eos.to_json(),
            "trailers": self.trailers.to_json(),
        })
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
        let direction = ProxyDirection::try_from(self.proxy_direction)
            .map_or(json!(self.proxy_direction), |known| {
                json!(known.as_str_name())
            });
        let event = self.event.as_ref().map(|event| match event {
            Event::Http(http) => ("http", http.to_json()),
        });
        let object = json!({
            "source": self.source.to_json(),
            "sourceMeta": self.source_meta.to_json(),
            "destination": self.destination.to_json(),
            "destinationMeta": self.destination_meta.to_json(),
            "routeMeta": self.route_meta.to_json(),
            "proxyDirection": direction,
        });
        with_field(object, event)
    }
}
