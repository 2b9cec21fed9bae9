//! Conversion between field sections and requests, responses and trailers (RFC 9113, section 8).

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::{self, Authority, PathAndQuery, Scheme};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
};
use mesh_planted::Bug;

use crate::hpack::{Encoder, Field, PseudoHeader};
use crate::raw_target::RawTarget;

/// A field section. The decoder adds fields to it.
#[derive(Debug, Default)]
pub(crate) struct FieldSection {
    method: Option<Method>,
    scheme: Option<Bytes>,
    authority: Option<Bytes>,
    path: Option<Bytes>,
    status: Option<StatusCode>,
    headers: HeaderMap,
    size: usize,
    has_regular: bool,
    malformed: Option<&'static str>,
    exceeded_limit: Option<FieldSectionLimit>,
}

/// The limit that a field section exceeds. Its fields are discarded, and its message must be
/// rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldSectionLimit {
    /// [`Limits::max_header_list_size`](crate::Limits::max_header_list_size).
    #[error("field section too large")]
    Size,
    /// [`Limits::max_fields`](crate::Limits::max_fields).
    #[error("too many field lines")]
    FieldCount,
}

/// A malformed message (RFC 9113, section 8.1.1) and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedMessage(pub(crate) &'static str);

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

impl FieldSection {
    /// Adds a field, which counts for `size` bytes. If the section is already rejected, fields that
    /// the peer has sent by reference to a table are only counted, because there may be thousands.
    pub(crate) fn add(
        &mut self,
        field: Cow<'_, Field>,
        size: usize,
        max_size: usize,
        max_fields: usize,
    ) {
        self.size += size;
        if self.size > max_size {
            self.reject(FieldSectionLimit::Size);
        }
        let is_indexed = matches!(field, Cow::Borrowed(_));
        if self.malformed.is_some() || (self.exceeded_limit.is_some() && is_indexed) {
            return;
        }
        match &*field {
            Field::Malformed(reason) => self.malformed = Some(reason),
            Field::PseudoHeader(_) if self.has_regular => {
                self.malformed = Some("pseudo-header field after a regular field");
            }
            Field::PseudoHeader(pseudo) => self.set_pseudo_header(pseudo.clone()),
            Field::Regular(name, value) => {
                self.has_regular = true;
                if is_connection_specific(name) || (*name == TE && *value != "trailers") {
                    self.malformed = Some("connection-specific field");
                } else if self.exceeded_limit.is_none() {
                    self.append(field.into_owned(), max_fields);
                }
            }
        }
    }

    fn append(&mut self, field: Field, max_fields: usize) {
        let Field::Regular(name, value) = field else {
            return;
        };
        if Bug::Http2RepeatedFieldLost.is_planted() {
            self.headers.remove(&name);
        }
        if self.headers.len() >= max_fields {
            self.reject(FieldSectionLimit::FieldCount);
        } else if self.headers.try_append(name, value).is_err() {
            self.reject(FieldSectionLimit::Size);
        }
    }

    /// Rejects the message. The first limit is kept.
    pub(crate) fn reject(&mut self, limit: FieldSectionLimit) {
        if self.exceeded_limit.is_none() {
            self.exceeded_limit = Some(limit);
            self.headers = HeaderMap::new();
        }
    }

    fn set_pseudo_header(&mut self, pseudo: PseudoHeader) {
        let is_first = match pseudo {
            PseudoHeader::Method(method) => self.method.replace(method).is_none(),
            PseudoHeader::Scheme(scheme) => self.scheme.replace(scheme).is_none(),
            PseudoHeader::Authority(authority) => self.authority.replace(authority).is_none(),
            PseudoHeader::Path(path) => self.path.replace(path).is_none(),
            PseudoHeader::Status(status) => self.status.replace(status).is_none(),
        };
        if !is_first {
            self.malformed = Some("duplicate pseudo-header field");
        }
    }

    /// The size of the section, with the overhead of each field.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn exceeded_limit(&self) -> Option<FieldSectionLimit> {
        self.exceeded_limit
    }

    /// Returns the request, and its target if no URI can represent it.
    pub(crate) fn into_request(
        self,
    ) -> Result<(Request<()>, Option<Box<RawTarget>>), MalformedMessage> {
        self.check_malformed()?;
        if self.status.is_some() {
            return Err(MalformedMessage(":status in a request"));
        }
        let method = self
            .method
            .ok_or(MalformedMessage("request without :method"))?;
        let mut parts = uri::Parts::default();
        let mut raw_target = None;
        if let Some(authority) = self.authority {
            let authority = Authority::from_maybe_shared(authority);
            parts.authority =
                Some(authority.map_err(|_error| MalformedMessage("invalid :authority"))?);
        }
        if method == Method::CONNECT {
            if self.scheme.is_some() || self.path.is_some() || parts.authority.is_none() {
                return Err(MalformedMessage(
                    "CONNECT request without :authority, or with :scheme or :path",
                ));
            }
        } else {
            let scheme = self
                .scheme
                .ok_or(MalformedMessage("request without :scheme"))?;
            let scheme = Scheme::try_from(&*scheme);
            let scheme = scheme.map_err(|_error| MalformedMessage("invalid :scheme"))?;
            // A URI cannot have a scheme and a path without an authority.
            parts.scheme = parts.authority.is_some().then_some(scheme);
            let path = self.path.ok_or(MalformedMessage("request without :path"))?;
            let (path, raw) = parse_path(&method, path)?;
            parts.path_and_query = Some(path);
            raw_target = raw;
        }
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() =
            Uri::from_parts(parts).map_err(|_error| MalformedMessage("invalid URI"))?;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.headers;
        Ok((request, raw_target))
    }

    /// Returns the method of a rejected request.
    pub(crate) fn into_rejected_request(self) -> Result<Request<()>, MalformedMessage> {
        self.check_malformed()?;
        let mut request = Request::new(());
        *request.method_mut() = self.method.unwrap_or_default();
        *request.version_mut() = Version::HTTP_2;
        Ok(request)
    }

    pub(crate) fn into_response(self) -> Result<Response<()>, MalformedMessage> {
        self.check_malformed()?;
        if self.has_request_fields() {
            return Err(MalformedMessage(
                "request pseudo-header field in a response",
            ));
        }
        let mut response = Response::new(());
        *response.status_mut() = self
            .status
            .ok_or(MalformedMessage("response without :status"))?;
        *response.version_mut() = Version::HTTP_2;
        *response.headers_mut() = self.headers;
        Ok(response)
    }

    pub(crate) fn into_trailers(self) -> Result<HeaderMap, MalformedMessage> {
        self.check_malformed()?;
        if self.has_request_fields() || self.status.is_some() {
            return Err(MalformedMessage("pseudo-header field in a trailer section"));
        }
        Ok(self.headers)
    }

    fn check_malformed(&self) -> Result<(), MalformedMessage> {
        self.malformed
            .map_or(Ok(()), |reason| Err(MalformedMessage(reason)))
    }

    fn has_request_fields(&self) -> bool {
        self.method.is_some()
            || self.scheme.is_some()
            || self.authority.is_some()
            || self.path.is_some()
    }
}

/// Parses `:path`. The targets of HTTP/1 in origin-form and asterisk-form are valid, and no others.
fn parse_path(
    method: &Method,
    path: Bytes,
) -> Result<(PathAndQuery, Option<Box<RawTarget>>), MalformedMessage> {
    const INVALID: MalformedMessage = MalformedMessage("invalid :path");
    let is_asterisk = || &*path == b"*" && *method == Method::OPTIONS;
    // The parser of URIs discards a fragment.
    if !(path.starts_with(b"/") || is_asterisk()) || path.contains(&b'#') {
        return Err(INVALID);
    }
    // Without another reference, the bytes of nearly all paths become the URI's as they are.
    if !RawTarget::is_possible(&path) {
        let path = PathAndQuery::from_maybe_shared(path).map_err(|_invalid| INVALID)?;
        return Ok((path, None));
    }
    if let Ok(path) = PathAndQuery::from_maybe_shared(path.clone()) {
        return Ok((path, None));
    }
    let (raw_target, escaped) = RawTarget::parse(&path).ok_or(INVALID)?;
    let path = PathAndQuery::from_maybe_shared(escaped).map_err(|_too_long| INVALID)?;
    Ok((path, Some(Box::new(raw_target))))
}

/// Connection-specific fields (RFC 9113, section 8.2.2).
fn is_connection_specific(name: &HeaderName) -> bool {
    [
        CONNECTION,
        TRANSFER_ENCODING,
        UPGRADE,
        KEEP_ALIVE,
        PROXY_CONNECTION,
    ]
    .contains(name)
}

/// Returns the value of Content-Length. Several values must be equal.
pub(crate) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, MalformedMessage> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter().map(decimal);
    let Some(first) = lengths.next() else {
        return Ok(None);
    };
    if first.is_none() || lengths.any(|length| length != first) {
        return Err(MalformedMessage("invalid or contradictory Content-Length"));
    }
    Ok(first)
}

fn decimal(value: &HeaderValue) -> Option<u64> {
    let digits = value.as_bytes();
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// Writes a request. `raw_path` replaces the path and query of the URI.
pub(crate) fn write_request<B>(
    encoder: &mut Encoder,
    block: &mut Vec<u8>,
    request: &Request<B>,
    raw_path: Option<&Bytes>,
) {
    let (method, uri) = (request.method(), request.uri());
    encoder.begin(block);
    encoder.field(block, ":method", method.as_str().as_bytes());
    if *method != Method::CONNECT {
        let scheme = uri.scheme_str().unwrap_or("http");
        encoder.field(block, ":scheme", scheme.as_bytes());
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        encoder.field(
            block,
            ":path",
            raw_path.map_or(path.as_bytes(), |raw| &raw[..]),
        );
    }
    if let Some(authority) = uri.authority() {
        encoder.field(block, ":authority", authority.as_str().as_bytes());
    }
    write_fields(encoder, block, request.headers());
}

pub(crate) fn write_response<B>(
    encoder: &mut Encoder,
    block: &mut Vec<u8>,
    response: &Response<B>,
) {
    encoder.begin(block);
    encoder.field(block, ":status", response.status().as_str().as_bytes());
    write_fields(encoder, block, response.headers());
}

pub(crate) fn write_trailers(encoder: &mut Encoder, block: &mut Vec<u8>, trailers: &HeaderMap) {
    encoder.begin(block);
    write_fields(encoder, block, trailers);
}

fn write_fields(encoder: &mut Encoder, block: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        if value.is_sensitive() {
            encoder.sensitive(block, name.as_str(), value.as_bytes());
        } else {
            encoder.field(block, name.as_str(), value.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
