//! B3, the format of Zipkin: the header `b3`, or one `x-b3-` header for each field.
//!
//! Without a sampling decision (which B3 allows) a trace is not sampled, as in Linkerd's proxy.

use http::{HeaderMap, HeaderName};
use mesh_core::trace::{SpanId, TraceFlags, TraceId};

use super::{Format, TraceContext, set, single};

pub(super) static SINGLE: HeaderName = HeaderName::from_static("b3");
pub(super) static TRACE_ID: HeaderName = HeaderName::from_static("x-b3-traceid");
static SPAN_ID: HeaderName = HeaderName::from_static("x-b3-spanid");
static PARENT_SPAN_ID: HeaderName = HeaderName::from_static("x-b3-parentspanid");
static SAMPLED: HeaderName = HeaderName::from_static("x-b3-sampled");
static FLAGS: HeaderName = HeaderName::from_static("x-b3-flags");

/// Reads `<trace>-<span>[-<sampling>[-<parent>]]`. The form that has only the sampling decision is
/// not a context.
pub(super) fn extract_single(headers: &HeaderMap) -> Option<TraceContext> {
    let mut fields = single(headers, &SINGLE)?.split(|byte| *byte == b'-');
    let (trace_id, span_id) = (fields.next()?, fields.next()?);
    let is_sampled = match fields.next() {
        Some(b"1" | b"d") => true,
        Some(b"0") | None => false,
        Some(_) => return None,
    };
    if let Some(parent) = fields.next() {
        SpanId::parse(parent)?;
    }
    if fields.next().is_some() {
        return None;
    }
    Some(TraceContext {
        format: Format::B3Single,
        trace_id: TraceId::parse_short(trace_id)?,
        span_id: SpanId::parse(span_id)?,
        flags: flags(is_sampled),
    })
}

pub(super) fn extract_multiple(headers: &HeaderMap) -> Option<TraceContext> {
    let is_debug = headers.get(&FLAGS).is_some_and(|flags| flags == "1");
    let is_sampled = match headers.get(&SAMPLED) {
        // The words are of early versions.
        Some(_) => matches!(single(headers, &SAMPLED)?, b"1" | b"true"),
        None => false,
    };
    Some(TraceContext {
        format: Format::B3Multiple,
        trace_id: TraceId::parse_short(single(headers, &TRACE_ID)?)?,
        span_id: SpanId::parse(single(headers, &SPAN_ID)?)?,
        flags: flags(is_sampled || is_debug),
    })
}

/// Only sampled contexts are changed; the request keeps the decision and its debug flag.
pub(super) fn inject_single(context: &TraceContext, span_id: SpanId, headers: &mut HeaderMap) {
    let Some(old) = single(headers, &SINGLE) else {
        return;
    };
    let mut fields = old.split(|byte| *byte == b'-');
    let Some(trace_id) = fields.next().and_then(|id| str::from_utf8(id).ok()) else {
        return;
    };
    let sampling = match fields.nth(1) {
        Some(b"d") => 'd',
        _ => '1',
    };
    let parent = context.span_id;
    let value = format!("{trace_id}-{span_id}-{sampling}-{parent}");
    set(headers, &SINGLE, &value);
}

/// The number of the trace and the sampling decision stay as they are.
pub(super) fn inject_multiple(context: &TraceContext, span_id: SpanId, headers: &mut HeaderMap) {
    set(headers, &SPAN_ID, &span_id.to_string());
    set(headers, &PARENT_SPAN_ID, &context.span_id.to_string());
}

fn flags(is_sampled: bool) -> TraceFlags {
    TraceFlags::new(u8::from(is_sampled))
}
