//! Distributed tracing: the numbers of traces and spans, and the spans that a proxy reports.
//!
//! The terms are OpenTelemetry's. A span describes one request as one party saw it; its parent is
//! the span of the party that sent the request.

use std::fmt;
use std::time::SystemTime;

/// The number of a trace. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// The number of a span, unique within its trace. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

/// The trace flags of W3C Trace Context that this version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceFlags(u8);

/// Which side of a request a span describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// The request was received.
    Server,
    /// The request was sent.
    Client,
}

/// Identifies a span among all traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// The trace that the span belongs to.
    pub trace_id: TraceId,
    /// The span.
    pub span_id: SpanId,
}

/// One request, as one party saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The trace that the span belongs to.
    pub trace_id: TraceId,
    /// The span.
    pub span_id: SpanId,
    /// The span that caused this one, of another party or of the same.
    pub parent: SpanId,
    /// The flags of the trace.
    pub flags: TraceFlags,
    /// The `tracestate` of the request; empty if there is none, or none that is valid.
    pub trace_state: Box<str>,
    /// The purpose of the request.
    pub name: Box<str>,
    /// Which side of the request it is.
    pub kind: SpanKind,
    /// When the request began.
    pub started: SystemTime,
    /// When the header section of the response arrived, or when the request failed.
    pub ended: SystemTime,
    /// Other facts about the request, by the names of OpenTelemetry's conventions.
    pub attributes: Attributes,
}

/// Named texts in order of insertion. One allocation has all texts, since a span has a dozen of a
/// few bytes each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes {
    /// The names, and where the text of each ends.
    names: Vec<(&'static str, usize)>,
    texts: String,
}

/// The process that reports spans: its attributes by name, each name once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resource {
    /// The attributes.
    pub attributes: Vec<(String, AttributeValue)>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    /// A text.
    Text(String),
    /// A number.
    Integer(i64),
}

impl TraceId {
    /// Returns `None` for zero, which is not a trace.
    pub fn new(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// Parses lower-case hexadecimal digits: 32, or 16 for the lower half of the number, as B3
    /// allows.
    pub fn parse_short(text: &[u8]) -> Option<Self> {
        match text.len() {
            16 => {
                let mut bytes = [0; 16];
                bytes[8..].copy_from_slice(&parse_hex::<8>(text)?);
                Self::new(bytes)
            }
            _ => Self::parse(text),
        }
    }

    /// Parses 32 lower-case hexadecimal digits.
    pub fn parse(text: &[u8]) -> Option<Self> {
        Self::new(parse_hex(text)?)
    }

    /// Returns the bytes, most significant first.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl SpanId {
    /// Returns `None` for zero, which is not a span.
    pub fn new(bytes: [u8; 8]) -> Option<Self> {
        (bytes != [0; 8]).then_some(Self(bytes))
    }

    /// Parses 16 lower-case hexadecimal digits.
    pub fn parse(text: &[u8]) -> Option<Self> {
        Self::new(parse_hex(text)?)
    }

    /// Returns the bytes, most significant first.
    pub fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl TraceFlags {
    /// Only the flag that the trace is recorded.
    pub const SAMPLED: Self = Self(1);

    /// Keeps the known flags: sampled, and that the number of the trace is random (Trace Context
    /// level 2). A party must send the other bits as zero.
    pub fn new(bits: u8) -> Self {
        Self(bits & 0b11)
    }

    /// Whether the trace is recorded.
    pub fn is_sampled(self) -> bool {
        self.0 & Self::SAMPLED.0 != 0
    }

    /// Returns the bits of the flags.
    pub fn bits(self) -> u8 {
        self.0
    }
}

impl Attributes {
    /// Creates an empty list with space for `count` texts of `bytes` bytes in all.
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        Self {
            names: Vec::with_capacity(count),
            texts: String::with_capacity(bytes),
        }
    }

    /// Adds a text.
    pub fn push(&mut self, name: &'static str, text: &str) {
        self.texts.push_str(text);
        self.names.push((name, self.texts.len()));
    }

    /// Returns the names and their texts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let mut start = 0;
        self.names.iter().map(move |(name, end)| {
            let text = &self.texts[start..*end];
            start = *end;
            (*name, text)
        })
    }
}

/// Parses exactly `2 * N` lower-case hexadecimal digits.
pub fn parse_hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let (pairs, []) = text.as_chunks::<2>() else {
        return None;
    };
    let pairs: &[[u8; 2]; N] = pairs.try_into().ok()?;
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

fn write_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceId({self})")
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpanId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_lower_case_digits_of_exact_length_and_not_zero() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(TraceId::parse(trace.as_bytes()).unwrap().to_string(), trace);
        for invalid in [
            "",
            "0",
            "00000000000000000000000000000000",
            "4BF92F3577B34DA6A3CE929D0E0E4736",
            "4bf92f3577b34da6a3ce929d0e0e473",
            "4bf92f3577b34da6a3ce929d0e0e47361",
            "4bf92f3577b34da6a3ce929d0e0e473g",
            "4bf92f3577b34da6",
        ] {
            assert_eq!(TraceId::parse(invalid.as_bytes()), None, "{invalid}");
        }
        let span = "00f067aa0ba902b7";
        assert_eq!(SpanId::parse(span.as_bytes()).unwrap().to_string(), span);
        assert_eq!(SpanId::parse(b"0000000000000000"), None);
        assert_eq!(SpanId::parse(b"0f067aa0ba902b7"), None);
    }

    #[test]
    fn short_trace_number_is_the_lower_half() {
        let short = TraceId::parse_short(b"a3ce929d0e0e4736").unwrap();
        assert_eq!(short.to_string(), "0000000000000000a3ce929d0e0e4736");
        assert_eq!(TraceId::parse_short(b"0000000000000000"), None);
        assert_eq!(TraceId::parse_short(b"a3ce929d0e0e473"), None);
    }

    #[test]
    fn attributes_keep_their_order_and_texts() {
        let mut attributes = Attributes::with_capacity(1, 1);
        let all = [("a", "1"), ("b", ""), ("c", "é"), ("a", "2")];
        for (name, text) in all {
            attributes.push(name, text);
        }
        assert_eq!(attributes.iter().collect::<Vec<_>>(), all);
    }

    #[test]
    fn unknown_flags_are_cleared() {
        assert_eq!(TraceFlags::new(0xff).bits(), 0b11);
        assert!(TraceFlags::new(0xff).is_sampled());
        assert!(!TraceFlags::new(0xfe).is_sampled());
    }
}
