//! Messages to a collector of spans.

mod span;

use mesh_core::trace::{AttributeValue, Resource};

pub use self::span::EncodedSpan;
pub use crate::opentelemetry::collector::trace::v1::trace_service_client::TraceServiceClient;
pub use crate::opentelemetry::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    trace_service_server,
};
use crate::opentelemetry::common::v1::{AnyValue, KeyValue, any_value};
use crate::opentelemetry::resource::v1 as resource;
use crate::opentelemetry::trace::v1::{ResourceSpans, ScopeSpans};

/// Returns the message with the spans of one process.
pub fn export_request(resource: &Resource, spans: Vec<EncodedSpan>) -> ExportTraceServiceRequest {
    let spans = spans.into_iter().map(|span| span.0).collect();
    let spans = ResourceSpans {
        resource: Some(resource_to_proto(resource)),
        scope_spans: vec![ScopeSpans { spans }],
    };
    ExportTraceServiceRequest {
        resource_spans: vec![spans],
    }
}

fn resource_to_proto(resource: &Resource) -> resource::Resource {
    let attributes = resource.attributes.iter();
    resource::Resource {
        attributes: attributes
            .map(|(key, value)| attribute(key, value.clone()))
            .collect(),
    }
}

fn attribute(key: &str, value: AttributeValue) -> KeyValue {
    let value = match value {
        AttributeValue::Text(text) => any_value::Value::StringValue(text),
        AttributeValue::Integer(number) => any_value::Value::IntValue(number),
    };
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use mesh_core::trace::{Attributes, Span, SpanId, SpanKind, TraceFlags, TraceId};
    use prost::Message as _;

    use super::*;

    pub(super) fn span() -> Span {
        let mut attributes = Attributes::default();
        attributes.push("direction", "outbound");
        let started = UNIX_EPOCH + Duration::from_nanos(1_700_000_000_000_000_001);
        Span {
            trace_id: TraceId::parse(b"4bf92f3577b34da6a3ce929d0e0e4736").unwrap(),
            span_id: SpanId::parse(b"00f067aa0ba902b7").unwrap(),
            parent: SpanId::parse(b"b7ad6b7169203331").unwrap(),
            flags: TraceFlags::SAMPLED,
            trace_state: "vendor=1".into(),
            name: "/a".into(),
            kind: SpanKind::Client,
            started,
            ended: started + Duration::from_millis(2),
            attributes,
        }
    }

    #[test]
    fn encoded_span_is_that_of_the_protocol() {
        let resource = Resource {
            attributes: vec![("process.pid".to_owned(), AttributeValue::Integer(7))],
        };
        // Written by hand from the .proto files of the protocol: tag, length, content.
        let mut span_bytes: Vec<u8> = Vec::new();
        let mut field = |tag: u8, content: &[u8]| {
            span_bytes.extend([tag, u8::try_from(content.len()).unwrap()]);
            span_bytes.extend(content);
        };
        field(0x0a, &0x4bf92f3577b34da6a3ce929d0e0e4736_u128.to_be_bytes());
        field(0x12, &0x00f067aa0ba902b7_u64.to_be_bytes());
        field(0x1a, b"vendor=1");
        field(0x22, &0xb7ad6b7169203331_u64.to_be_bytes());
        field(0x2a, b"/a");
        span_bytes.extend([0x30, 3]);
        span_bytes.push(0x39);
        span_bytes.extend(1_700_000_000_000_000_001_u64.to_le_bytes());
        span_bytes.push(0x41);
        span_bytes.extend(1_700_000_000_002_000_001_u64.to_le_bytes());
        span_bytes.extend(b"\x4a\x17\x0a\x09direction\x12\x0a\x0a\x08outbound");
        span_bytes.extend([0x85, 0x01]);
        span_bytes.extend(0x301_u32.to_le_bytes());
        let length = u8::try_from(span_bytes.len()).unwrap();
        let mut expect = Vec::new();
        let spans = length + 2;
        // A length of 128 or more takes two bytes.
        assert!(length < 126 && spans < 128, "{length}");
        let resource_bytes = b"\x0a\x13\x0a\x11\x0a\x0bprocess.pid\x12\x02\x18\x07";
        let all = u8::try_from(resource_bytes.len()).unwrap() + 2 + spans;
        expect.extend([0x0a, all | 0x80, all >> 7]);
        expect.extend(resource_bytes);
        expect.extend([0x12, spans, 0x12, length]);
        expect.extend(span_bytes);
        let spans = vec![EncodedSpan::new(&span())];
        let encoded = export_request(&resource, spans).encode_to_vec();
        assert_eq!(encoded, expect);
    }
}
