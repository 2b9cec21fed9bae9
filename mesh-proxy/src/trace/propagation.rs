//! The trace context in the headers of a request: which headers are read, and how they are changed.
//!
//! The first format whose header is present counts: W3C Trace Context, `grpc-trace-bin`, `b3`, the
//! `x-b3-` headers. A request with an invalid header of that format has no context: it is forwarded
//! unchanged, because the proxy never begins a trace.

use http::HeaderMap;
use mesh_core::trace::{SpanId, TraceFlags, TraceId};

mod b3;
mod binary;
mod w3c;

/// The trace that a request belongs to, and the span that it was sent by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    format: Format,
    pub(crate) trace_id: TraceId,
    pub(crate) span_id: SpanId,
    pub(crate) flags: TraceFlags,
}

/// The headers that carry a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    TraceContext,
    Binary,
    B3Single,
    B3Multiple,
}

impl TraceContext {
    /// Reads the context of a request if it is sampled. Most are not; contexts of the most common
    /// format are recognised by one character.
    pub(crate) fn extract_sampled(headers: &HeaderMap) -> Option<Self> {
        if w3c::is_unsampled(headers) {
            return None;
        }
        Self::extract(headers).filter(|context| context.flags.is_sampled())
    }

    /// Reads the context of a request.
    fn extract(headers: &HeaderMap) -> Option<Self> {
        if headers.contains_key(&w3c::TRACEPARENT) {
            w3c::extract(headers)
        } else if headers.contains_key(&binary::GRPC_TRACE_BIN) {
            binary::extract(headers)
        } else if headers.contains_key(&b3::SINGLE) {
            b3::extract_single(headers)
        } else if headers.contains_key(&b3::TRACE_ID) {
            b3::extract_multiple(headers)
        } else {
            None
        }
    }

    /// Makes `span_id` the span that the request is sent by, in the format that the context was
    /// read from. Other headers stay as they are.
    pub(crate) fn inject(&self, span_id: SpanId, headers: &mut HeaderMap) {
        match self.format {
            Format::TraceContext => w3c::inject(self, span_id, headers),
            Format::Binary => binary::inject(self, span_id, headers),
            Format::B3Single => b3::inject_single(self, span_id, headers),
            Format::B3Multiple => b3::inject_multiple(self, span_id, headers),
        }
    }

    /// Returns the `tracestate` of a request with this context, to report it with a span. Empty if
    /// the format has none, or it is invalid; the headers of the request stay as they are.
    pub(crate) fn trace_state(&self, headers: &HeaderMap) -> Box<str> {
        match self.format {
            Format::TraceContext => w3c::trace_state(headers),
            Format::Binary | Format::B3Single | Format::B3Multiple => Box::default(),
        }
    }
}

/// Returns the value of a header that must occur once.
fn single<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then(|| value.as_bytes())
}

/// Sets a header to a text of visible ASCII characters.
fn set(headers: &mut HeaderMap, name: &http::HeaderName, value: &str) {
    if let Ok(value) = http::HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests;
