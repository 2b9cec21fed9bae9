//! `grpc-trace-bin`, the binary format of OpenCensus, in base64 as all binary headers of gRPC.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::{HeaderMap, HeaderName};
use mesh_core::trace::{SpanId, TraceFlags, TraceId};

use super::{Format, TraceContext, set, single};

pub(super) static GRPC_TRACE_BIN: HeaderName = HeaderName::from_static("grpc-trace-bin");

/// gRPC sends no padding and accepts it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

// The fields: a byte with the number of the field, and the content.
const TRACE_ID: u8 = 0;
const SPAN_ID: u8 = 1;
const TRACE_OPTIONS: u8 = 2;

/// The version, the number of the trace, the span, and the options.
const LENGTH: usize = 1 + (1 + 16) + (1 + 8) + (1 + 1);

/// The longest value that is decoded. Later fields are allowed and not known.
const MAX_VALUE: usize = 256;

/// Reads the known fields, up to the first unknown one, as Linkerd's proxy.
pub(super) fn extract(headers: &HeaderMap) -> Option<TraceContext> {
    let value = single(headers, &GRPC_TRACE_BIN)?;
    let mut bytes = [0; MAX_VALUE];
    let length = BASE64.decode_slice(value, &mut bytes).ok()?;
    let (version, mut rest) = bytes[..length].split_first()?;
    if *version != 0 {
        return None;
    }
    let (mut trace_id, mut span_id, mut options) = (None, None, None);
    while let Some((field, content)) = rest.split_first() {
        rest = match *field {
            TRACE_ID => take(content, &mut trace_id)?,
            SPAN_ID => take(content, &mut span_id)?,
            TRACE_OPTIONS => take(content, &mut options)?,
            _ => break,
        };
    }
    let [options] = options.unwrap_or([0]);
    Some(TraceContext {
        format: Format::Binary,
        trace_id: TraceId::new(trace_id?)?,
        span_id: SpanId::new(span_id?)?,
        flags: TraceFlags::new(options),
    })
}

/// Moves the content of a field, which must not be repeated, to `field`. Returns what follows.
fn take<'a, const N: usize>(content: &'a [u8], field: &mut Option<[u8; N]>) -> Option<&'a [u8]> {
    let (bytes, rest) = content.split_first_chunk()?;
    field.replace(*bytes).is_none().then_some(rest)
}

pub(super) fn inject(context: &TraceContext, span_id: SpanId, headers: &mut HeaderMap) {
    let mut bytes = Vec::with_capacity(LENGTH);
    bytes.extend([0, TRACE_ID]);
    bytes.extend(context.trace_id.as_bytes());
    bytes.push(SPAN_ID);
    bytes.extend(span_id.as_bytes());
    bytes.extend([TRACE_OPTIONS, context.flags.bits()]);
    set(headers, &GRPC_TRACE_BIN, &BASE64.encode(bytes));
}
