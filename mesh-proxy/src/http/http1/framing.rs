//! Message body length (RFC 9112, section 6) and persistence (section 9.3), as functions of the
//! headers. Where the RFC leaves a choice, whatever two parsers could read differently is rejected.

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, TRANSFER_ENCODING};
use http::{Method, StatusCode, Version};
use mesh_planted::Bug;

use crate::http::message_error::MessageError;

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLength {
    /// This many bytes; 0 for messages without a body.
    Bytes(u64),
    Chunked,
    /// Everything until the connection is closed. Responses only.
    UntilClose,
}

/// The request methods that affect the length of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestMethod {
    Head,
    Connect,
    Other,
}

impl RequestMethod {
    pub(crate) fn new(method: &Method) -> Self {
        match *method {
            Method::HEAD => Self::Head,
            Method::CONNECT => Self::Connect,
            _ => Self::Other,
        }
    }
}

/// Returns the length of a request's body.
pub(super) fn request_body_length(
    method: &Method,
    version: Version,
    headers: &HeaderMap,
) -> Result<BodyLength, MessageError> {
    let Some(length) = declared_length(version, headers, RepeatedLength::Reject)? else {
        return Ok(BodyLength::Bytes(0));
    };
    if *method == Method::CONNECT && length != BodyLength::Bytes(0) {
        return Err(MessageError::ConnectWithBody);
    }
    Ok(length)
}

/// Returns the length of the body of a final response, or of a 101.
pub(super) fn response_body_length(
    method: RequestMethod,
    status: StatusCode,
    version: Version,
    headers: &HeaderMap,
) -> Result<BodyLength, MessageError> {
    if method == RequestMethod::Connect && status.is_success() {
        // Framing headers have no meaning here (RFC 9110, section 9.3.6).
        return Ok(BodyLength::Bytes(0));
    }
    let declared = declared_length(version, headers, RepeatedLength::AllowEqual)?;
    let is_head = method == RequestMethod::Head && !Bug::HeadHasBody.is_planted();
    if is_head || never_has_body(status) {
        return Ok(BodyLength::Bytes(0));
    }
    Ok(declared.unwrap_or(BodyLength::UntilClose))
}

pub(super) fn never_has_body(status: StatusCode) -> bool {
    status.is_informational()
        || (status == StatusCode::NO_CONTENT && !Bug::NoContentHasBody.is_planted())
        || (status == StatusCode::NOT_MODIFIED && !Bug::NotModifiedHasBody.is_planted())
}

/// Whether framing fields declare a body that a response of this status cannot have. A 304 has the
/// `content-length` of another response.
pub(super) fn contradicts_status(status: StatusCode, headers: &HeaderMap) -> bool {
    let declares_length = || {
        let mut lengths = list_elements(headers, CONTENT_LENGTH);
        lengths.any(|length| parse_decimal(length) != Some(0))
    };
    never_has_body(status)
        && status != StatusCode::SWITCHING_PROTOCOLS
        && (headers.contains_key(TRANSFER_ENCODING)
            || (status != StatusCode::NOT_MODIFIED && declares_length()))
}

/// Returns the length of a response of the pod's own application that [`response_body_length`]
/// rejects, where clients agree on it: Transfer-Encoding takes precedence over a valid
/// Content-Length (RFC 9112, section 6.3), `identity` alone declares nothing, and where no body can
/// follow, the fields do not matter.
pub(super) fn lenient_body_length(
    method: RequestMethod,
    status: StatusCode,
    version: Version,
    headers: &HeaderMap,
) -> Option<BodyLength> {
    if method == RequestMethod::Head || never_has_body(status) {
        return Some(BodyLength::Bytes(0));
    }
    if !headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    if headers.contains_key(CONTENT_LENGTH) {
        content_length(headers, RepeatedLength::AllowEqual).ok()?;
        return chunked(version, headers).ok();
    }
    let mut codings = list_elements(headers, TRANSFER_ENCODING);
    let is_identity = codings
        .next()
        .is_some_and(|coding| coding.eq_ignore_ascii_case(b"identity"));
    (is_identity && codings.next().is_none()).then_some(BodyLength::UntilClose)
}

/// Removes the framing fields that `length` overrules.
pub(super) fn retain_effective(length: BodyLength, headers: &mut HeaderMap) {
    headers.remove(CONTENT_LENGTH);
    if length != BodyLength::Chunked {
        headers.remove(TRANSFER_ENCODING);
    }
}

/// Writes a `content-length` whose equal values are repeated, in several fields or in one, once:
/// the next recipient may refuse the repetition.
pub(crate) fn unify_content_length(headers: &mut HeaderMap) {
    let is_repeated = list_elements(headers, CONTENT_LENGTH).nth(1).is_some();
    if is_repeated && let Ok(Some(length)) = content_length(headers, RepeatedLength::AllowEqual) {
        headers.insert(CONTENT_LENGTH, length.into());
    }
}

/// How a repeated `content-length` is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RepeatedLength {
    /// For requests.
    Reject,
    /// For responses of careless applications; RFC 9110, section 8.6 allows it if all values are
    /// equal.
    AllowEqual,
}

fn declared_length(
    version: Version,
    headers: &HeaderMap,
    repeated: RepeatedLength,
) -> Result<Option<BodyLength>, MessageError> {
    let length = content_length(headers, repeated);
    match (headers.contains_key(TRANSFER_ENCODING), length) {
        (false, length) => Ok(length?.map(BodyLength::Bytes)),
        (true, Ok(None)) => chunked(version, headers).map(Some),
        (true, Ok(Some(_)) | Err(_)) => Err(MessageError::LengthAndTransferEncoding),
    }
}

fn chunked(version: Version, headers: &HeaderMap) -> Result<BodyLength, MessageError> {
    if version == Version::HTTP_10 {
        return Err(MessageError::TransferEncodingInHttp10);
    }
    let mut codings = list_elements(headers, TRANSFER_ENCODING).peekable();
    let mut first = true;
    while let Some(coding) = codings.next() {
        let is_last = codings.peek().is_none();
        match (coding.eq_ignore_ascii_case(b"chunked"), is_last) {
            (true, true) if first => return Ok(BodyLength::Chunked),
            // Valid, but neither this proxy nor every later recipient can decode it.
            (true, true) => return Err(MessageError::UnsupportedTransferCoding),
            (true, false) | (false, true) => return Err(MessageError::ChunkedNotFinal),
            (false, false) => first = false,
        }
    }
    Err(MessageError::ChunkedNotFinal)
}

/// Returns the declared length, if there is one.
fn content_length(
    headers: &HeaderMap,
    repeated: RepeatedLength,
) -> Result<Option<u64>, MessageError> {
    let mut length = None;
    for value in list_elements(headers, CONTENT_LENGTH) {
        let value = parse_decimal(value).ok_or(MessageError::InvalidContentLength)?;
        match length.replace(value) {
            None => {}
            Some(before) if before == value && repeated == RepeatedLength::AllowEqual => {}
            Some(_) => return Err(MessageError::MultipleContentLengths),
        }
    }
    Ok(length)
}

/// Parses digits only: no sign, no space, no overflow.
pub(in crate::http) fn parse_decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Whether the sender of a message keeps the connection open after it.
pub(super) fn keeps_alive(version: Version, headers: &HeaderMap) -> bool {
    if !headers.contains_key(CONNECTION) {
        return is_persistent(version);
    }
    let lists =
        |token: &[u8]| list_elements(headers, CONNECTION).any(|t| t.eq_ignore_ascii_case(token));
    (!lists(b"close") || Bug::CloseIgnored.is_planted())
        && (version == Version::HTTP_11 || lists(b"keep-alive"))
}

/// Whether connections of this version are kept open by default.
pub(super) fn is_persistent(version: Version) -> bool {
    version == Version::HTTP_11
}

/// Returns the elements of a comma-separated header, from all its lines, without whitespace around
/// them.
pub(super) fn list_elements(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(name)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(trim_whitespace)
}

/// Removes leading and trailing spaces and tabs (OWS).
fn trim_whitespace(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

#[cfg(test)]
mod tests;
