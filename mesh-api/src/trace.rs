//! Messages to a collector of spans.

use std::time::{SystemTime, UNIX_EPOCH};

use mesh_core::trace::{AttributeValue, Resource, Span, SpanKind};

pub use crate::opentelemetry::collector::trace::v1::trace_service_client::TraceServiceClient;
pub use crate::opentelemetry::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    trace_service_server,
};
use crate::opentelemetry::common::v1::{AnyValue, KeyValue, any_value};
use crate::opentelemetry::resource::v1 as resource;
use crate::opentelemetry::trace::v1 as wire;
use crate::opentelemetry::trace::v1::{ResourceSpans, ScopeSpans, span};

/// The parent of a span of the proxy comes from a header, so the flags state that it is remote, as
/// those of Linkerd's proxy do.
const PARENT_IS_REMOTE: u32 = 0x300;

/// Converts the spans of one process.
pub fn export_request(resource: &Resource, spans: Vec<Span>) -> ExportTraceServiceRequest {
    let spans = spans.into_iter().map(span_to_proto).collect();
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

fn span_to_proto(span: Span) -> wire::Span {
    let kind = match span.kind {
        SpanKind::Server => span::SpanKind::Server,
        SpanKind::Client => span::SpanKind::Client,
    };
    let attributes = span.attributes.into_iter();
    wire::Span {
        trace_id: span.trace_id.as_bytes().to_vec(),
        span_id: span.span_id.as_bytes().to_vec(),
        trace_state: span.trace_state.into(),
        parent_span_id: span.parent.as_bytes().to_vec(),
        name: span.name.into(),
        kind: kind.into(),
        start_time_unix_nano: nanoseconds(span.started),
        end_time_unix_nano: nanoseconds(span.ended),
        attributes: attributes
            .map(|(key, value)| attribute(key, AttributeValue::Text(value.into())))
            .collect(),
        flags: u32::from(span.flags.bits()) | PARENT_IS_REMOTE,
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

/// Returns 0 for times before 1970, and the largest number for times after 2554.
fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mesh_core::trace::{SpanId, TraceFlags, TraceId};
    use prost::Message as _;

    use super::*;

    fn span() -> Span {
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
            attributes: vec![("direction", "outbound".into())],
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
        let encoded = export_request(&resource, vec![span()]).encode_to_vec();
        assert_eq!(encoded, expect);
    }

    #[test]
    fn size_of_a_span_covers_its_encoding() {
        let mut long = span();
        let attribute = (
            "http.request.header.content-length",
            "x".repeat(5000).into(),
        );
        long.attributes = vec![attribute; 20];
        for span in [span(), long] {
            let size = span.size();
            let encoded = span_to_proto(span).encoded_len();
            assert!(size >= encoded + 8, "{size} {encoded}");
        }
    }

    #[test]
    fn times_outside_the_range_are_clamped() {
        assert_eq!(nanoseconds(UNIX_EPOCH - Duration::from_secs(1)), 0);
        let late = UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert_eq!(nanoseconds(late), u64::MAX);
    }
}
