//! How long is the body? RFC 9112, section 6, as functions of the head, stricter where the RFC
//! leaves a choice: whatever two parsers could read in two ways is refused. Called by
//! [`super::head`] and, for responses, by the client; also the keep-alive rules (section 9.3).

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, TRANSFER_ENCODING};
use http::{Method, StatusCode, Version};

use super::refused::Refused;

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLength {
    /// This many bytes; 0 for messages without a body.
    Bytes(u64),
    Chunked,
    /// Whatever comes until the connection ends. Responses only.
    UntilClose,
}

/// What a response's length depends on besides the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Head,
    Connect,
    Other,
}

impl Asked {
    pub(crate) fn by(method: &Method) -> Self {
        match *method {
            Method::HEAD => Self::Head,
            Method::CONNECT => Self::Connect,
            _ => Self::Other,
        }
    }
}

/// The body of a request.
pub(super) fn of_request(
    method: &Method,
    version: Version,
    headers: &HeaderMap,
) -> Result<BodyLength, Refused> {
    let Some(length) = declared(version, headers, Repeated::Refused)? else {
        return Ok(BodyLength::Bytes(0));
    };
    if *method == Method::CONNECT && length != BodyLength::Bytes(0) {
        return Err(Refused::ConnectBody);
    }
    Ok(length)
}

/// The body of a final response, or of a 101.
pub(super) fn of_response(
    asked: Asked,
    status: StatusCode,
    version: Version,
    headers: &HeaderMap,
) -> Result<BodyLength, Refused> {
    if asked == Asked::Connect && status.is_success() {
        // The headers mean nothing then (RFC 9110, section 9.3.6).
        return Ok(BodyLength::Bytes(0));
    }
    let declared = declared(version, headers, Repeated::IfEqual)?;
    if asked == Asked::Head || has_no_body(status) {
        return Ok(BodyLength::Bytes(0));
    }
    Ok(declared.unwrap_or(BodyLength::UntilClose))
}

/// Whether responses of this status never have a body.
pub(super) fn has_no_body(status: StatusCode) -> bool {
    status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED
}

/// What is thought of a `content-length` that is given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeated {
    /// Requests: honest clients do not do it.
    Refused,
    /// Responses of sloppy applications; RFC 9110, section 8.6 allows it when all are equal.
    IfEqual,
}

fn declared(
    version: Version,
    headers: &HeaderMap,
    repeated: Repeated,
) -> Result<Option<BodyLength>, Refused> {
    match (
        headers.contains_key(TRANSFER_ENCODING),
        headers.contains_key(CONTENT_LENGTH),
    ) {
        (false, false) => Ok(None),
        (true, true) => Err(Refused::LengthAndEncoding),
        (true, false) => chunked(version, headers).map(Some),
        (false, true) => content_length(headers, repeated)
            .map(BodyLength::Bytes)
            .map(Some),
    }
}

fn chunked(version: Version, headers: &HeaderMap) -> Result<BodyLength, Refused> {
    if version == Version::HTTP_10 {
        return Err(Refused::EncodingInHttp10);
    }
    let mut codings = tokens(headers, TRANSFER_ENCODING).peekable();
    let mut first = true;
    while let Some(coding) = codings.next() {
        let is_last = codings.peek().is_none();
        match (coding.eq_ignore_ascii_case(b"chunked"), is_last) {
            (true, true) if first => return Ok(BodyLength::Chunked),
            // Allowed, but it would have to be understood here to be checked, and by whoever comes
            // later.
            (true, true) => return Err(Refused::UnknownCoding),
            (true, false) | (false, true) => return Err(Refused::NotChunked),
            (false, false) => first = false,
        }
    }
    Err(Refused::NotChunked)
}

fn content_length(headers: &HeaderMap, repeated: Repeated) -> Result<u64, Refused> {
    let mut length = None;
    for value in tokens(headers, CONTENT_LENGTH) {
        let value = decimal(value).ok_or(Refused::Length)?;
        match length.replace(value) {
            None => {}
            Some(before) if before == value && repeated == Repeated::IfEqual => {}
            Some(_) => return Err(Refused::SeveralLengths),
        }
    }
    length.ok_or(Refused::Length)
}

/// Digits only: no sign, no space, no overflow.
pub(in crate::http) fn decimal(text: &[u8]) -> Option<u64> {
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
        return version == Version::HTTP_11;
    }
    let lists = |token: &[u8]| tokens(headers, CONNECTION).any(|t| t.eq_ignore_ascii_case(token));
    !lists(b"close") && (version == Version::HTTP_11 || lists(b"keep-alive"))
}

/// The elements of a comma-separated header, over all its lines, without the blanks around them.
pub(in crate::http) fn tokens(
    headers: &HeaderMap,
    name: HeaderName,
) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(name)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(trim)
}

/// Without blanks and tabs at either end, which is what HTTP calls whitespace.
fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

#[cfg(test)]
mod tests;
