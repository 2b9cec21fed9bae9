//! An event as JSON, with Linkerd's keys.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mesh_core::labels::Labels;
use mesh_core::tap::{TapDirection, TapEvent, TapEventKind, TapHeaders, TapStreamEnd};
use serde_json::{Map, Value, json};

pub(super) fn document(event: &TapEvent) -> Value {
    let context = &*event.context;
    let direction = match context.direction {
        TapDirection::Inbound => "INBOUND",
        TapDirection::Outbound => "OUTBOUND",
    };
    let (key, mut detail) = detail(&event.kind);
    detail["id"] = json!({"base": event.id.base, "stream": event.id.stream});
    json!({
        "source": endpoint(context.source, &context.source_labels),
        "destination": endpoint(context.destination, &context.destination_labels),
        "routeMeta": object(&context.route_labels),
        "proxyDirection": direction,
        key: detail,
    })
}

/// Returns the key of an event, and its value without the number of the request.
fn detail(kind: &TapEventKind) -> (&'static str, Value) {
    match kind {
        TapEventKind::Request {
            method,
            scheme,
            authority,
            path,
            headers,
        } => (
            "requestInitEvent",
            json!({
                "method": method.as_str(),
                "scheme": scheme.to_ascii_uppercase(),
                "authority": authority,
                "path": path,
                "headers": fields(headers.as_ref()),
            }),
        ),
        TapEventKind::Response {
            since_request,
            status,
            headers,
        } => (
            "responseInitEvent",
            json!({
                "sinceRequestInit": duration(*since_request),
                "httpStatus": status.as_u16(),
                "headers": fields(headers.as_ref()),
            }),
        ),
        TapEventKind::End {
            since_request,
            since_response,
            response_bytes,
            end,
            trailers,
        } => {
            let mut value = json!({
                "sinceRequestInit": duration(*since_request),
                "sinceResponseInit": duration(*since_response),
                "responseBytes": response_bytes,
                "trailers": fields(trailers.as_ref()),
                "grpcStatusCode": 0,
            });
            match end {
                TapStreamEnd::Complete => {}
                TapStreamEnd::GrpcStatus(code) => value["grpcStatusCode"] = json!(code),
                TapStreamEnd::Reset(code) => value["resetErrorCode"] = json!(code),
            }
            ("responseEndEvent", value)
        }
    }
}

fn endpoint(addr: SocketAddr, labels: &Labels) -> Value {
    json!({"ip": addr.ip(), "port": addr.port(), "metadata": object(labels)})
}

fn object(labels: &Labels) -> Value {
    let pairs = labels
        .iter()
        .map(|(name, value)| (name.to_owned(), json!(value)));
    Value::Object(pairs.collect())
}

/// Returns the fields of the header section or of the trailers; null if there are none.
fn fields(headers: Option<&TapHeaders>) -> Value {
    let field = |(name, value): &(String, Vec<u8>)| match str::from_utf8(value) {
        Ok(text) => json!({"name": name, "valueStr": text}),
        Err(_not_text) => json!({"name": name, "valueBin": STANDARD.encode(value)}),
    };
    headers.map_or(Value::Null, |headers| headers.iter().map(field).collect())
}

/// Returns a duration as the fields of its protobuf message. Zeros are left out.
fn duration(duration: Duration) -> Value {
    let mut parts = Map::new();
    if duration.as_secs() > 0 {
        parts.insert("seconds".to_owned(), json!(duration.as_secs()));
    }
    if duration.subsec_nanos() > 0 {
        parts.insert("nanos".to_owned(), json!(duration.subsec_nanos()));
    }
    Value::Object(parts)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Method, StatusCode};
    use mesh_core::tap::{TapContext, TapStreamId};

    use super::*;

    fn document_of(kind: TapEventKind) -> Value {
        let context = TapContext {
            direction: TapDirection::Outbound,
            source: "10.0.0.1:5000".parse().unwrap(),
            source_labels: [("pod", "client-1")].into_iter().collect(),
            destination: "10.0.0.2:80".parse().unwrap(),
            destination_labels: Labels::default(),
            route_labels: Labels::default(),
        };
        document(&TapEvent {
            context: Arc::new(context),
            id: TapStreamId { base: 1, stream: 2 },
            kind,
        })
    }

    #[test]
    fn events_have_keys_of_linkerd() {
        let fields = vec![
            ("a".to_owned(), b"text".to_vec()),
            ("b".to_owned(), vec![0xff, 0]),
        ];
        let request = document_of(TapEventKind::Request {
            method: Method::GET,
            scheme: "http".to_owned(),
            authority: "web".to_owned(),
            path: "/".to_owned(),
            headers: Some(fields),
        });
        assert_eq!(
            request,
            json!({
                "source": {"ip": "10.0.0.1", "port": 5000, "metadata": {"pod": "client-1"}},
                "destination": {"ip": "10.0.0.2", "port": 80, "metadata": {}},
                "routeMeta": {},
                "proxyDirection": "OUTBOUND",
                "requestInitEvent": {
                    "id": {"base": 1, "stream": 2},
                    "method": "GET",
                    "scheme": "HTTP",
                    "authority": "web",
                    "path": "/",
                    "headers": [
                        {"name": "a", "valueStr": "text"},
                        {"name": "b", "valueBin": "/wA="},
                    ],
                },
            })
        );
        let response = document_of(TapEventKind::Response {
            since_request: Duration::from_millis(1_500),
            status: StatusCode::NOT_FOUND,
            headers: None,
        });
        assert_eq!(
            response["responseInitEvent"],
            json!({
                "id": {"base": 1, "stream": 2},
                "sinceRequestInit": {"seconds": 1, "nanos": 500_000_000},
                "httpStatus": 404,
                "headers": null,
            })
        );
        let end = document_of(TapEventKind::End {
            since_request: Duration::ZERO,
            since_response: Duration::ZERO,
            response_bytes: 7,
            end: TapStreamEnd::Reset(8),
            trailers: None,
        });
        assert_eq!(
            end["responseEndEvent"],
            json!({
                "id": {"base": 1, "stream": 2},
                "sinceRequestInit": {},
                "sinceResponseInit": {},
                "responseBytes": 7,
                "trailers": null,
                "grpcStatusCode": 0,
                "resetErrorCode": 8,
            })
        );
    }
}
