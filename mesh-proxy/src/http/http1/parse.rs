//! Parses the start lines and header sections of requests and responses ("headers" below). Pure;
//! [`find_end`] finds a complete header section, and [`super::connection`] passes it on.
//!
//! httparse validates characters. This module rejects what httparse accepts although recipients
//! differ in it: bare line feeds, repeated hosts, fragments, ambiguous framing. Field values are
//! slices of the input, so a header section costs one allocation whatever its size.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{EXPECT, HOST, HeaderMap, HeaderName, HeaderValue};
use http::uri::Authority;
use http::{Method, StatusCode, Uri, Version};
use memchr::memchr_iter;
use mesh_http2::RawTarget;
use mesh_planted::Bug;

use super::framing::{self, BodyLength, RequestMethod, list_elements};
use super::limits::STACK_FIELDS;
use crate::config::Http1Limits;
use crate::http::headers::{is_allowed_in_trailers, is_connection_field};
use crate::http::message_error::MessageError;
use crate::http::uri::is_host_and_port;

/// The longest target that [`Uri`] can represent.
const MAX_TARGET: usize = u16::MAX as usize - 1;

/// A parsed request line and header section.
#[derive(Debug)]
pub(super) struct ParsedRequest {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) version: Version,
    pub(super) headers: HeaderMap,
    pub(super) body_length: BodyLength,
    pub(super) keeps_alive: bool,
    /// The target, if `uri` cannot represent it. Boxed, because it is rare, and all requests are
    /// moved.
    pub(super) raw_target: Option<Box<RawTarget>>,
    /// The client waits for a 100 before it sends the body.
    pub(super) expects_continue: bool,
}

/// A parsed status line and header section.
#[derive(Debug)]
pub(crate) struct ParsedResponse {
    pub(crate) status: StatusCode,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) keeps_alive: bool,
    /// Whether the connection must not be used again, although the server keeps it open: only a
    /// lenient parser understands the response.
    pub(crate) must_close: bool,
    /// Whether it was parsed leniently.
    is_lenient: bool,
    /// The reason phrase after the status code, if it is not the standard one.
    pub(crate) reason: Option<Bytes>,
}

/// The result of [`find_end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderEnd {
    /// The length of the header section, with the empty line.
    At(usize),
    /// The end has not been received; the next search can start at this byte.
    Incomplete(usize),
}

/// Finds the empty line that ends a header section of at most `max` bytes. `from` is where the
/// previous search stopped. A line feed without a carriage return is rejected, because recipients
/// differ in whether it ends a line.
pub(super) fn find_end(bytes: &[u8], from: usize, max: u32) -> Result<HeaderEnd, MessageError> {
    let (_, unsearched) = bytes.split_at(from.min(bytes.len()));
    for feed in memchr_iter(b'\n', unsearched) {
        let (line, _) = bytes.split_at(bytes.len() - unsearched.len() + feed);
        if !line.ends_with(b"\r") {
            return Err(MessageError::BareLineFeed);
        }
        if line.ends_with(b"\r\n\r") {
            check_size(line.len() + 1, max)?;
            let missed = usize::from(Bug::HeadEndsEarly.is_planted());
            return Ok(HeaderEnd::At(line.len() + 1 - missed));
        }
    }
    check_size(bytes.len(), max)?;
    Ok(HeaderEnd::Incomplete(bytes.len()))
}

/// As [`find_end`], but a line feed without a carriage return ends a line.
pub(super) fn find_lenient_end(
    bytes: &[u8],
    from: usize,
    max: u32,
) -> Result<HeaderEnd, MessageError> {
    let (_, unsearched) = bytes.split_at(from.min(bytes.len()));
    for feed in memchr_iter(b'\n', unsearched) {
        let (line, _) = bytes.split_at(bytes.len() - unsearched.len() + feed);
        if line.ends_with(b"\n") || line.ends_with(b"\n\r") {
            check_size(line.len() + 1, max)?;
            return Ok(HeaderEnd::At(line.len() + 1));
        }
    }
    check_size(bytes.len(), max)?;
    Ok(HeaderEnd::Incomplete(bytes.len()))
}

/// Parses a complete request header section.
pub(super) fn parse_request(
    bytes: &Bytes,
    limits: &Http1Limits,
) -> Result<ParsedRequest, MessageError> {
    let parsed = with_field_buffer(
        &mut [MaybeUninit::uninit(); STACK_FIELDS],
        limits,
        |fields| parse_request_fields(bytes, fields),
    );
    if let Err(MessageError::InvalidStartLine | MessageError::InvalidTarget) = parsed
        && let Some(parsed) = parse_raw_request(bytes, limits)
    {
        return parsed;
    }
    parsed
}

/// Parses a request whose target no URI can represent: as the same request with the offending bytes
/// escaped. `None` if there are none.
fn parse_raw_request(
    bytes: &Bytes,
    limits: &Http1Limits,
) -> Option<Result<ParsedRequest, MessageError>> {
    let mut spaces = memchr_iter(b' ', bytes);
    let (begin, end) = (spaces.next()?, spaces.next()?);
    let (raw_target, escaped) = RawTarget::parse(&bytes.slice(begin + 1..end))?;
    let escaped = Bytes::from([&bytes[..=begin], &escaped, &bytes[end..]].concat());
    let parse = |fields: &mut [_]| parse_request_fields(&escaped, fields);
    let parsed = with_field_buffer(&mut [MaybeUninit::uninit(); STACK_FIELDS], limits, parse);
    Some(parsed.map(|parsed| ParsedRequest {
        raw_target: Some(Box::new(raw_target)),
        ..parsed
    }))
}

fn parse_request_fields<'b>(
    bytes: &'b Bytes,
    fields: &mut [UnreadField<'b>],
) -> Result<ParsedRequest, MessageError> {
    let mut parsed = httparse::Request::new(&mut []);
    if parsed
        .parse_with_uninit_headers(bytes, fields)?
        .is_partial()
    {
        return Err(MessageError::InvalidStartLine);
    }
    let (Some(method), Some(target), Some(minor)) = (parsed.method, parsed.path, parsed.version)
    else {
        return Err(MessageError::InvalidStartLine);
    };
    let method =
        Method::from_bytes(method.as_bytes()).map_err(|_invalid| MessageError::InvalidMethod)?;
    let uri = parse_target(&method, bytes.slice_ref(target.as_bytes()))?;
    let version = parse_version(minor);
    check_host(bytes, parsed.headers)?;
    let fields = parse_fields(bytes, parsed.headers)?;
    let keeps_alive = fields.keeps_alive(version);
    let headers = fields.headers;
    let body_length = framing::request_body_length(&method, version, &headers)?;
    Ok(ParsedRequest {
        raw_target: None,
        keeps_alive,
        expects_continue: version == Version::HTTP_11
            && body_length != BodyLength::Bytes(0)
            && expects_continue(&headers),
        method,
        uri,
        version,
        headers,
        body_length,
    })
}

/// Parses a complete response header section. `has_bare_line_feed`: a line feed without a carriage
/// return ends one of its lines, which only a lenient search finds.
pub(crate) fn parse_response(
    bytes: &Bytes,
    limits: &Http1Limits,
    has_bare_line_feed: bool,
) -> Result<ParsedResponse, MessageError> {
    let parse = |removes_blanks| {
        with_field_buffer(
            &mut [MaybeUninit::uninit(); STACK_FIELDS],
            limits,
            |fields| parse_response_fields(bytes, fields, removes_blanks),
        )
    };
    let mut parsed = parse(false);
    if limits.is_lenient {
        let has_blanks = matches!(parsed, Err(MessageError::InvalidFieldName));
        if has_blanks {
            parsed = parse(true);
        }
        if let Ok(parsed) = &mut parsed {
            parsed.is_lenient = true;
            parsed.must_close = has_blanks || has_bare_line_feed;
        }
    }
    parsed
}

/// `removes_blanks`: blanks between the name of a field and its colon are removed.
fn parse_response_fields<'b>(
    bytes: &'b Bytes,
    fields: &mut [UnreadField<'b>],
    removes_blanks: bool,
) -> Result<ParsedResponse, MessageError> {
    let mut parsed = httparse::Response::new(&mut []);
    let mut config = httparse::ParserConfig::default();
    config.allow_spaces_after_header_name_in_responses(removes_blanks);
    let read = config.parse_response_with_uninit_headers(&mut parsed, bytes, fields)?;
    if read.is_partial() {
        return Err(MessageError::InvalidStartLine);
    }
    let (Some(code), Some(minor)) = (parsed.code, parsed.version) else {
        return Err(MessageError::InvalidStartLine);
    };
    let status = StatusCode::from_u16(code).map_err(|_invalid| MessageError::InvalidStatus)?;
    let version = parse_version(minor);
    let reason = parsed.reason.unwrap_or_default();
    let standard = status.canonical_reason().unwrap_or_default();
    let fields = parse_fields(bytes, parsed.headers)?;
    Ok(ParsedResponse {
        reason: (reason != standard && !reason.is_empty() && !Bug::ReasonLost.is_planted())
            .then(|| bytes.slice_ref(reason.as_bytes())),
        must_close: false,
        is_lenient: false,
        keeps_alive: fields.keeps_alive(version),
        status,
        version,
        headers: fields.headers,
    })
}

/// Parses a trailer section. Fields that affect framing, routing or authorization are dropped (RFC
/// 9110, section 6.5.1), because a recipient that merges trailers into the headers would read a
/// different message.
pub(super) fn parse_trailers(
    bytes: &Bytes,
    limits: &Http1Limits,
) -> Result<HeaderMap, MessageError> {
    let mut standard = [httparse::EMPTY_HEADER; STACK_FIELDS];
    let mut trailers =
        with_field_buffer(
            &mut standard,
            limits,
            |fields| match httparse::parse_headers(bytes, fields)? {
                httparse::Status::Complete((_, fields)) => parse_fields(bytes, fields),
                httparse::Status::Partial => Err(MessageError::InvalidFieldName),
            },
        )?
        .headers;
    let misplaced: Vec<_> = trailers
        .keys()
        .filter(|name| !is_allowed_in_trailers(name))
        .cloned()
        .collect();
    for name in misplaced {
        trailers.remove(name);
    }
    Ok(trailers)
}

impl ParsedResponse {
    /// Returns the length of the body of a response to a request with `method`. Removes the framing
    /// fields that others overrule, which only a lenient response may have.
    pub(crate) fn take_body_length(
        &mut self,
        method: RequestMethod,
    ) -> Result<BodyLength, MessageError> {
        let (status, version) = (self.status, self.version);
        let length = framing::response_body_length(method, status, version, &self.headers);
        if !self.is_lenient {
            return length;
        }
        let length = match length {
            Ok(length) if !framing::contradicts_status(status, &self.headers) => return Ok(length),
            Ok(length) => length,
            Err(error) => {
                framing::lenient_body_length(method, status, version, &self.headers).ok_or(error)?
            }
        };
        // What follows may be a body that must not be there.
        self.must_close = true;
        framing::retain_effective(length, &mut self.headers);
        Ok(length)
    }
}

fn check_size(length: usize, max: u32) -> Result<(), MessageError> {
    if length > max as usize {
        return Err(MessageError::HeadersTooLarge);
    }
    Ok(())
}

/// Where httparse puts a field. It writes the fields of the section only: initialising the whole
/// buffer would take as long as parsing a short section.
type UnreadField<'b> = MaybeUninit<httparse::Header<'b>>;

/// Calls `parse` with a buffer for the allowed number of fields: `standard`, unless more than
/// [`STACK_FIELDS`] are allowed and present.
fn with_field_buffer<F: Copy, T>(
    standard: &mut [F; STACK_FIELDS],
    limits: &Http1Limits,
    parse: impl Fn(&mut [F]) -> Result<T, MessageError>,
) -> Result<T, MessageError> {
    let max = usize::from(limits.fields);
    let parsed = parse(&mut standard[..max.min(STACK_FIELDS)]);
    if max > STACK_FIELDS && matches!(parsed, Err(MessageError::TooManyFields)) {
        return parse(&mut vec![standard[0]; max]);
    }
    parsed
}

fn parse_version(minor: u8) -> Version {
    match minor {
        0 => Version::HTTP_10,
        _ => Version::HTTP_11,
    }
}

/// Rejects targets that no `Uri` can represent, fragments, which it would drop silently, and `*`
/// for methods other than OPTIONS.
fn parse_target(method: &Method, target: Bytes) -> Result<Uri, MessageError> {
    if target.len() > MAX_TARGET {
        return Err(MessageError::TargetTooLong);
    }
    if target.contains(&b'#') || (&*target == b"*" && *method != Method::OPTIONS) {
        return Err(MessageError::InvalidTarget);
    }
    Uri::from_maybe_shared(target).map_err(|_invalid| MessageError::InvalidTarget)
}

/// The fields of a message.
struct Fields {
    headers: HeaderMap,
    /// Most messages have none, and are then spared their lookups.
    has_connection_fields: bool,
}

impl Fields {
    /// Whether the sender of the message keeps the connection open after it.
    fn keeps_alive(&self, version: Version) -> bool {
        if self.has_connection_fields {
            return framing::keeps_alive(version, &self.headers);
        }
        framing::is_persistent(version)
    }
}

/// Fields that describe the connection come last: they are removed or replaced later, and the map
/// fills the place of a removed field with its last one, which would change the order of the
/// others.
fn parse_fields(bytes: &Bytes, fields: &[httparse::Header<'_>]) -> Result<Fields, MessageError> {
    let mut headers = HeaderMap::with_capacity(fields.len());
    let mut has_connection_fields = false;
    for is_last in [false, true] {
        has_connection_fields = is_last;
        for field in fields {
            if is_connection_field(field.name) != is_last {
                continue;
            }
            let name = HeaderName::from_bytes(field.name.as_bytes())
                .map_err(|_invalid| MessageError::InvalidFieldName)?;
            let value = match field.value {
                // An empty slice need not point into `bytes`.
                [] => HeaderValue::from_static(""),
                value => HeaderValue::from_maybe_shared(bytes.slice_ref(value))
                    .map_err(|_invalid| MessageError::InvalidFieldValue)?,
            };
            if Bug::RepeatedFieldLost.is_planted() {
                headers.remove(&name);
            }
            headers.append(name, value);
        }
        if headers.len() == fields.len() {
            break;
        }
    }
    Ok(Fields {
        headers,
        has_connection_fields,
    })
}

/// A request may lack a host, because the dialled address identifies the destination, but it may
/// not have two, or an invalid one.
fn check_host(bytes: &Bytes, fields: &[httparse::Header<'_>]) -> Result<(), MessageError> {
    let is_host = |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case(HOST.as_str());
    let mut hosts = fields.iter().filter(is_host);
    let Some(host) = hosts.next() else {
        return Ok(());
    };
    if hosts.next().is_some() {
        return Err(MessageError::MultipleHosts);
    }
    let is_authority = || Authority::from_maybe_shared(bytes.slice_ref(host.value)).is_ok();
    if !(host.value.is_empty() || (is_host_and_port(host.value) && is_authority())) {
        return Err(MessageError::InvalidHost);
    }
    Ok(())
}

fn expects_continue(headers: &HeaderMap) -> bool {
    list_elements(headers, EXPECT).any(|token| token.eq_ignore_ascii_case(b"100-continue"))
}

#[cfg(test)]
mod tests;
