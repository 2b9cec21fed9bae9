//! What fields of a header block make: requests, responses and trailers, or nothing that may be
//! passed on (RFC 9113, section 8).

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::{self, Authority, PathAndQuery, Scheme};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
};

use crate::hpack::{Encoder, Field, PseudoHeader};

/// A header list as its fields come in.
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

/// Why a message that is not malformed is not taken. Nothing is kept of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldSectionLimit {
    #[error("the header list is too large")]
    Size,
    #[error("there are too many header fields")]
    FieldCount,
}

/// What no message may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedMessage(pub(crate) &'static str);

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

impl FieldSection {
    /// `size` is what the field counts for. Of a section that is refused already, fields that the
    /// client has sent by reference to a table are only counted: there may be thousands.
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
        let is_known = matches!(field, Cow::Borrowed(_));
        if self.malformed.is_some() || (self.exceeded_limit.is_some() && is_known) {
            return;
        }
        match &*field {
            Field::Malformed(why) => self.malformed = Some(why),
            Field::PseudoHeader(_) if self.has_regular => {
                self.malformed = Some("a pseudo-header field stands behind another field");
            }
            Field::PseudoHeader(pseudo) => self.pseudo(pseudo.clone()),
            Field::Regular(name, value) => {
                self.has_regular = true;
                if is_connection_specific(name) || (*name == TE && *value != "trailers") {
                    self.malformed = Some("a field concerns the connection");
                } else if self.exceeded_limit.is_none() {
                    self.regular(field.into_owned(), max_fields);
                }
            }
        }
    }

    fn regular(&mut self, field: Field, max_fields: usize) {
        let Field::Regular(name, value) = field else {
            return;
        };
        if self.headers.len() >= max_fields {
            self.reject(FieldSectionLimit::FieldCount);
        } else if self.headers.try_append(name, value).is_err() {
            self.reject(FieldSectionLimit::Size);
        }
    }

    /// Refuses the message; the first reason stays.
    pub(crate) fn reject(&mut self, refused: FieldSectionLimit) {
        if self.exceeded_limit.is_none() {
            self.exceeded_limit = Some(refused);
            self.headers = HeaderMap::new();
        }
    }

    fn pseudo(&mut self, pseudo: PseudoHeader) {
        let is_first = match pseudo {
            PseudoHeader::Method(method) => self.method.replace(method).is_none(),
            PseudoHeader::Scheme(scheme) => self.scheme.replace(scheme).is_none(),
            PseudoHeader::Authority(authority) => self.authority.replace(authority).is_none(),
            PseudoHeader::Path(path) => self.path.replace(path).is_none(),
            PseudoHeader::Status(status) => self.status.replace(status).is_none(),
        };
        if !is_first {
            self.malformed = Some("a pseudo-header field comes twice");
        }
    }

    /// Bytes of all fields, with what each counts for besides.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn exceeded_limit(&self) -> Option<FieldSectionLimit> {
        self.exceeded_limit
    }

    pub(crate) fn into_request(self) -> Result<Request<()>, MalformedMessage> {
        self.check()?;
        if self.status.is_some() {
            return Err(MalformedMessage("a request has a status"));
        }
        let method = self
            .method
            .ok_or(MalformedMessage("a request has no method"))?;
        let mut parts = uri::Parts::default();
        if let Some(authority) = self.authority {
            let authority = Authority::from_maybe_shared(authority);
            parts.authority =
                Some(authority.map_err(|_why| MalformedMessage("the authority is none"))?);
        }
        if method == Method::CONNECT {
            if self.scheme.is_some() || self.path.is_some() || parts.authority.is_none() {
                return Err(MalformedMessage(
                    "a CONNECT has more or less than an authority",
                ));
            }
        } else {
            let scheme = self
                .scheme
                .ok_or(MalformedMessage("a request has no scheme"))?;
            let scheme = Scheme::try_from(&*scheme);
            let scheme = scheme.map_err(|_why| MalformedMessage("the scheme is none"))?;
            // There is no URI of a scheme and a path.
            parts.scheme = parts.authority.is_some().then_some(scheme);
            let path = self.path.ok_or(MalformedMessage("a request has no path"))?;
            if path.is_empty() {
                return Err(MalformedMessage("the path is empty"));
            }
            let path = PathAndQuery::from_maybe_shared(path);
            parts.path_and_query = Some(path.map_err(|_why| MalformedMessage("the path is none"))?);
        }
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() =
            Uri::from_parts(parts).map_err(|_why| MalformedMessage("the URI is none"))?;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.headers;
        Ok(request)
    }

    /// A request that is not to be served: what is left of it.
    pub(crate) fn into_rejected_request(self) -> Result<Request<()>, MalformedMessage> {
        self.check()?;
        let mut request = Request::new(());
        *request.method_mut() = self.method.unwrap_or_default();
        *request.version_mut() = Version::HTTP_2;
        Ok(request)
    }

    pub(crate) fn into_response(self) -> Result<Response<()>, MalformedMessage> {
        self.check()?;
        if self.has_request_fields() {
            return Err(MalformedMessage(
                "a response has pseudo-header fields of a request",
            ));
        }
        let mut response = Response::new(());
        *response.status_mut() = self
            .status
            .ok_or(MalformedMessage("a response has no status"))?;
        *response.version_mut() = Version::HTTP_2;
        *response.headers_mut() = self.headers;
        Ok(response)
    }

    pub(crate) fn into_trailers(self) -> Result<HeaderMap, MalformedMessage> {
        self.check()?;
        if self.has_request_fields() || self.status.is_some() {
            return Err(MalformedMessage("trailers have pseudo-header fields"));
        }
        Ok(self.headers)
    }

    fn check(&self) -> Result<(), MalformedMessage> {
        self.malformed
            .map_or(Ok(()), |why| Err(MalformedMessage(why)))
    }

    fn has_request_fields(&self) -> bool {
        self.method.is_some()
            || self.scheme.is_some()
            || self.authority.is_some()
            || self.path.is_some()
    }
}

/// RFC 9113, section 8.2.2.
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

/// How long the body will be, if the head says so. All that it says must be the same.
pub(crate) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, MalformedMessage> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter().map(decimal);
    let Some(first) = lengths.next() else {
        return Ok(None);
    };
    if first.is_none() || lengths.any(|length| length != first) {
        return Err(MalformedMessage(
            "the content length is none, or there are several",
        ));
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

pub(crate) fn write_request<B>(encoder: &mut Encoder, block: &mut Vec<u8>, request: &Request<B>) {
    let (method, uri) = (request.method(), request.uri());
    encoder.begin(block);
    encoder.field(block, ":method", method.as_str().as_bytes());
    if *method != Method::CONNECT {
        let scheme = uri.scheme_str().unwrap_or("http");
        encoder.field(block, ":scheme", scheme.as_bytes());
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        encoder.field(block, ":path", path.as_bytes());
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
        match value.is_sensitive() {
            true => encoder.sensitive(block, name.as_str(), value.as_bytes()),
            false => encoder.field(block, name.as_str(), value.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests;
