//! W3C Trace Context: `traceparent` and `tracestate`.

use http::{HeaderMap, HeaderName};
use mesh_core::trace::{SpanId, TraceFlags, TraceId, parse_hex};

use super::{Format, TraceContext, set, single};

pub(super) static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The length of a `traceparent` of version 00: `00-<32 digits>-<16 digits>-<2 digits>`.
const LENGTH: usize = 55;

/// A version that is never used.
const INVALID_VERSION: u8 = 0xff;

/// The length of a `tracestate` that every party must forward (section 3.3.1.5). Longer ones are
/// forwarded too, but not reported with spans.
const MAX_STATE: usize = 512;

/// The most members of a `tracestate`, by its grammar.
const MAX_MEMBERS: usize = 32;

/// Returns whether the first `traceparent` says that its trace is not sampled. Its other content
/// and its validity do not matter then: the request has no sampled context.
pub(super) fn is_unsampled(headers: &HeaderMap) -> bool {
    let value = headers.get(&TRACEPARENT);
    let last_digit = value.and_then(|value| value.as_bytes().get(LENGTH - 1));
    // The flag is the lowest bit of the hexadecimal number.
    last_digit.is_some_and(|digit| b"02468ace".contains(digit))
}

/// Reads `traceparent`. A later version is read as version 00 with more fields after it, as the
/// specification requires.
pub(super) fn extract(headers: &HeaderMap) -> Option<TraceContext> {
    let value = single(headers, &TRACEPARENT)?;
    let (known, rest) = value.split_at_checked(LENGTH)?;
    let [version] = parse_hex(&known[..2])?;
    let is_delimited = [2, 35, 52].iter().all(|at| known[*at] == b'-');
    let is_complete = match version {
        0 => rest.is_empty(),
        INVALID_VERSION => false,
        _ => rest.first().is_none_or(|next| *next == b'-'),
    };
    if !is_delimited || !is_complete {
        return None;
    }
    let [flags] = parse_hex(&known[53..])?;
    Some(TraceContext {
        format: Format::TraceContext,
        trace_id: TraceId::parse(&known[3..35])?,
        span_id: SpanId::parse(&known[36..52])?,
        flags: TraceFlags::new(flags),
    })
}

pub(super) fn inject(context: &TraceContext, span_id: SpanId, headers: &mut HeaderMap) {
    let (trace_id, flags) = (context.trace_id, context.flags.bits());
    let value = format!("00-{trace_id}-{span_id}-{flags:02x}");
    set(headers, &TRACEPARENT, &value);
}

/// Returns the members of all `tracestate` headers, or an empty text if one is invalid or they are
/// too many or too long.
pub(super) fn trace_state(headers: &HeaderMap) -> Box<str> {
    let mut state = String::new();
    for value in headers.get_all(&TRACESTATE) {
        let Ok(value) = value.to_str() else {
            return Box::default();
        };
        if state.len() + value.len() > MAX_STATE {
            return Box::default();
        }
        if !state.is_empty() {
            state.push(',');
        }
        state.push_str(value);
    }
    let members: Vec<&str> = state
        .split(',')
        .map(|member| member.trim_matches([' ', '\t']))
        .filter(|member| !member.is_empty())
        .collect();
    let is_valid = members.len() <= MAX_MEMBERS && members.iter().all(|member| is_member(member));
    if is_valid {
        members.join(",").into()
    } else {
        Box::default()
    }
}

/// Whether a text is `key=value` with the characters that the grammar allows. `value.to_str` has
/// excluded control characters and those outside ASCII.
fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else {
        return false;
    };
    let is_key =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte);
    (1..=256).contains(&key.len())
        && key.bytes().all(is_key)
        && (1..=256).contains(&value.len())
        && !value.contains('=')
}
