//! Encodes a span as the message `opentelemetry.proto.trace.v1.Span`.
//!
//! By hand: the generated message owns each name and each text, and measures the attributes anew
//! for each message around them, so that a span of eleven attributes takes 1.7 µs instead of 0.5
//! (decision 0076).

use std::time::{SystemTime, UNIX_EPOCH};

use mesh_core::trace::{Span, SpanKind};
use prost::Message as _;

use crate::opentelemetry::trace::v1 as wire;

/// The parent of a span of the proxy comes from a header, so the flags state that it is remote, as
/// in Linkerd's proxy.
const PARENT_IS_REMOTE: u32 = 0x300;

/// Wire types of protobuf.
const VARINT: u8 = 0;
const FIXED_64: u8 = 1;
const LENGTH_DELIMITED: u8 = 2;
const FIXED_32: u8 = 5;

/// The numbers of a span, its times, kind and flags, with what precedes each text.
const FIXED_PART: usize = 96;
/// What precedes name and text of an attribute.
const ATTRIBUTE: usize = 12;

/// A span as the message of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedSpan(pub(super) Vec<u8>);

/// A message that is being written. The `.proto` files have the numbers of its fields.
struct Message(Vec<u8>);

impl EncodedSpan {
    /// Encodes a span. Fields with the value zero or an empty text are left out.
    pub fn new(span: &Span) -> Self {
        Self(encode(span))
    }

    /// Returns the length of the message.
    #[expect(clippy::len_without_is_empty, reason = "a span always has a number")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Decodes the message.
    pub fn decode(&self) -> Result<wire::Span, prost::DecodeError> {
        wire::Span::decode(&self.0[..])
    }
}

fn encode(span: &Span) -> Vec<u8> {
    let kind = match span.kind {
        SpanKind::Server => wire::span::SpanKind::Server,
        SpanKind::Client => wire::span::SpanKind::Client,
    };
    let attributes = span.attributes.iter();
    let attributes: usize = attributes
        .map(|(name, text)| ATTRIBUTE + name.len() + text.len())
        .sum();
    let texts = span.trace_state.len() + span.name.len();
    let mut message = Message(Vec::with_capacity(FIXED_PART + texts + attributes));
    message.bytes(1, span.trace_id.as_bytes());
    message.bytes(2, span.span_id.as_bytes());
    message.text(3, &span.trace_state);
    message.bytes(4, span.parent.as_bytes());
    message.text(5, &span.name);
    message.key(6, VARINT);
    message.varint(kind as usize);
    message.key(7, FIXED_64);
    message.0.extend(nanoseconds(span.started).to_le_bytes());
    message.key(8, FIXED_64);
    message.0.extend(nanoseconds(span.ended).to_le_bytes());
    for (name, text) in span.attributes.iter() {
        message.attribute(9, name, text);
    }
    message.key(16, FIXED_32);
    let flags = u32::from(span.flags.bits()) | PARENT_IS_REMOTE;
    message.0.extend(flags.to_le_bytes());
    message.0
}

impl Message {
    fn key(&mut self, field: usize, wire_type: u8) {
        self.varint(field << 3 | usize::from(wire_type));
    }

    fn varint(&mut self, mut number: usize) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Begins a field of `length` bytes, which follow.
    fn length(&mut self, field: usize, length: usize) {
        self.key(field, LENGTH_DELIMITED);
        self.varint(length);
    }

    fn bytes(&mut self, field: usize, bytes: &[u8]) {
        self.length(field, bytes.len());
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: usize, text: &str) {
        if !text.is_empty() {
            self.bytes(field, text.as_bytes());
        }
    }

    /// Writes a message `KeyValue`, whose value is a message `AnyValue` with a text. An empty text
    /// is a value, too.
    fn attribute(&mut self, field: usize, name: &str, text: &str) {
        let value = length_of_field(text.len());
        self.length(field, length_of_field(name.len()) + length_of_field(value));
        self.bytes(1, name.as_bytes());
        self.length(2, value);
        self.bytes(1, text.as_bytes());
    }
}

/// Returns the length of a field with `bytes` bytes, whose number is less than 16.
fn length_of_field(bytes: usize) -> usize {
    1 + prost::length_delimiter_len(bytes) + bytes
}

/// Returns 0 for times before 1970, and the largest number for times after 2554.
fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::span;
    use super::*;

    #[test]
    fn generated_message_has_the_same_encoding() {
        for length in [0, 1, 127, 128, 300, 5000, 70_000] {
            let mut span = span();
            let text = "x".repeat(length);
            span.attributes.push("url.full", &text);
            span.name = text.clone().into();
            let encoded = EncodedSpan::new(&span);
            let read = encoded.decode().unwrap();
            assert_eq!(read.name, text);
            assert_eq!(read.attributes.len(), 2);
            assert_eq!(read.encode_to_vec(), encoded.0, "{length}");
        }
    }

    #[test]
    fn times_outside_the_range_are_clamped() {
        assert_eq!(nanoseconds(UNIX_EPOCH - Duration::from_secs(1)), 0);
        let late = UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert_eq!(nanoseconds(late), u64::MAX);
    }
}
