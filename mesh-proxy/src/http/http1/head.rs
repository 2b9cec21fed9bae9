//! Heads of requests and responses out of the bytes that were read. Pure; called by
//! [`super::connection`] for whole heads only, which [`end`] finds.
//!
//! httparse judges characters; what it lets pass although readers differ in it (bare line feeds,
//! repeated hosts, fragments, framing) is refused here. Values are slices of the bytes, so a head
//! costs one allocation whatever its size.

use bytes::Bytes;
use http::header::{EXPECT, HOST, HeaderMap, HeaderName, HeaderValue};
use http::uri::Authority;
use http::{Method, StatusCode, Uri, Version};
use memchr::memchr_iter;

use super::framing::{self, Asked, BodyLength, tokens};
use super::limits::USUAL_FIELDS;
use super::refused::Refused;
use crate::config::Http1Limits;
use crate::http::headers::may_be_trailer;

/// A request's head and what it means for the connection.
#[derive(Debug)]
pub(super) struct RequestHead {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) version: Version,
    pub(super) headers: HeaderMap,
    pub(super) body: BodyLength,
    pub(super) keeps_alive: bool,
    /// The client waits for a 100 before it sends the body.
    pub(super) expects_continue: bool,
}

/// A response's head.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    pub(crate) status: StatusCode,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) keeps_alive: bool,
    /// When it is not the one that everybody uses.
    pub(crate) reason: Option<Reason>,
}

/// The words behind a status, carried to the client as an extension of the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason(Bytes);

/// Where a head ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// This many bytes, with the empty line.
    At(usize),
    /// Not yet; the next look may begin at this byte.
    Later(usize),
}

/// Looks for the empty line from byte `from` on, where an earlier look has ended, in a head of at
/// most `max` bytes. A line feed that no carriage return precedes is refused: half of the world
/// takes it for a line end and the other half does not.
pub(super) fn end(bytes: &[u8], from: usize, max: u32) -> Result<End, Refused> {
    let (_, unseen) = bytes.split_at(from.min(bytes.len()));
    for feed in memchr_iter(b'\n', unseen) {
        let (line, _) = bytes.split_at(bytes.len() - unseen.len() + feed);
        if !line.ends_with(b"\r") {
            return Err(Refused::BareLineFeed);
        }
        if line.ends_with(b"\r\n\r") {
            check_size(line.len() + 1, max)?;
            return Ok(End::At(line.len() + 1));
        }
    }
    check_size(bytes.len(), max)?;
    Ok(End::Later(bytes.len()))
}

/// The whole head of a request.
pub(super) fn request(bytes: &Bytes, limits: &Http1Limits) -> Result<RequestHead, Refused> {
    with_fields(limits, |fields| parse_request(bytes, fields))
}

fn parse_request<'b>(
    bytes: &'b Bytes,
    fields: &mut [httparse::Header<'b>],
) -> Result<RequestHead, Refused> {
    let mut parsed = httparse::Request::new(fields);
    if parsed.parse(bytes)?.is_partial() {
        return Err(Refused::StartLine);
    }
    let (Some(method), Some(target), Some(minor)) = (parsed.method, parsed.path, parsed.version)
    else {
        return Err(Refused::StartLine);
    };
    let method = Method::from_bytes(method.as_bytes()).map_err(|_invalid| Refused::Method)?;
    let uri = target_of(&method, bytes.slice_ref(target.as_bytes()))?;
    let version = version_of(minor);
    check_host(bytes, parsed.headers)?;
    let headers = fields_of(bytes, parsed.headers)?;
    let body = framing::of_request(&method, version, &headers)?;
    Ok(RequestHead {
        keeps_alive: framing::keeps_alive(version, &headers),
        expects_continue: version == Version::HTTP_11
            && body != BodyLength::Bytes(0)
            && expects_continue(&headers),
        method,
        uri,
        version,
        headers,
        body,
    })
}

/// The whole head of a response.
pub(crate) fn response(bytes: &Bytes, limits: &Http1Limits) -> Result<ResponseHead, Refused> {
    with_fields(limits, |fields| parse_response(bytes, fields))
}

fn parse_response<'b>(
    bytes: &'b Bytes,
    fields: &mut [httparse::Header<'b>],
) -> Result<ResponseHead, Refused> {
    let mut parsed = httparse::Response::new(fields);
    if parsed.parse(bytes)?.is_partial() {
        return Err(Refused::StartLine);
    }
    let (Some(code), Some(minor)) = (parsed.code, parsed.version) else {
        return Err(Refused::StartLine);
    };
    let status = StatusCode::from_u16(code).map_err(|_invalid| Refused::Status)?;
    let version = version_of(minor);
    let reason = parsed.reason.unwrap_or_default();
    let usual = status.canonical_reason().unwrap_or_default();
    let headers = fields_of(bytes, parsed.headers)?;
    Ok(ResponseHead {
        reason: (reason != usual && !reason.is_empty())
            .then(|| Reason(bytes.slice_ref(reason.as_bytes()))),
        keeps_alive: framing::keeps_alive(version, &headers),
        status,
        version,
        headers,
    })
}

/// Trailers, with the empty line behind them. Fields that concern the framing or the way of a
/// message have no place there and are left out (RFC 9110, section 6.5.1): whoever merges trailers
/// into the headers would read another message.
pub(super) fn trailers(bytes: &Bytes, limits: &Http1Limits) -> Result<HeaderMap, Refused> {
    let mut trailers = with_fields(limits, |fields| {
        match httparse::parse_headers(bytes, fields)? {
            httparse::Status::Complete((_, fields)) => fields_of(bytes, fields),
            httparse::Status::Partial => Err(Refused::HeaderName),
        }
    })?;
    let misplaced: Vec<_> = trailers
        .keys()
        .filter(|name| !may_be_trailer(name))
        .cloned()
        .collect();
    for name in misplaced {
        trailers.remove(name);
    }
    Ok(trailers)
}

impl ResponseHead {
    /// How long the body is, of a response to what was `asked`.
    pub(crate) fn body(&self, asked: Asked) -> Result<BodyLength, Refused> {
        framing::of_response(asked, self.status, self.version, &self.headers)
    }
}

impl Reason {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

fn check_size(length: usize, max: u32) -> Result<(), Refused> {
    match length > max as usize {
        false => Ok(()),
        true => Err(Refused::HeadTooLarge),
    }
}

/// Parses into as many fields as a message may have. More than usual are worth an allocation only
/// when they are there.
fn with_fields<'b, T>(
    limits: &Http1Limits,
    parse: impl Fn(&mut [httparse::Header<'b>]) -> Result<T, Refused>,
) -> Result<T, Refused> {
    let max = usize::from(limits.fields);
    let mut usual = [httparse::EMPTY_HEADER; USUAL_FIELDS];
    match parse(&mut usual[..max.min(USUAL_FIELDS)]) {
        Err(Refused::TooManyHeaders) if max > USUAL_FIELDS => {
            parse(&mut vec![httparse::EMPTY_HEADER; max])
        }
        parsed => parsed,
    }
}

fn version_of(minor: u8) -> Version {
    match minor {
        0 => Version::HTTP_10,
        _ => Version::HTTP_11,
    }
}

/// `http::Uri` drops fragments, which must not be there, silently; and `*` is a target of OPTIONS
/// only.
fn target_of(method: &Method, target: Bytes) -> Result<Uri, Refused> {
    if target.contains(&b'#') || (&*target == b"*" && *method != Method::OPTIONS) {
        return Err(Refused::Target);
    }
    Uri::from_maybe_shared(target).map_err(|_invalid| Refused::Target)
}

fn fields_of(bytes: &Bytes, fields: &[httparse::Header<'_>]) -> Result<HeaderMap, Refused> {
    let mut headers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes())
            .map_err(|_invalid| Refused::HeaderName)?;
        let value = match field.value {
            // Empty slices may point nowhere.
            [] => HeaderValue::from_static(""),
            value => HeaderValue::from_maybe_shared(bytes.slice_ref(value))
                .map_err(|_invalid| Refused::HeaderValue)?,
        };
        headers.append(name, value);
    }
    Ok(headers)
}

/// A request may have no host (the address that was dialled says who is meant), but not two, and
/// none that names nobody.
fn check_host(bytes: &Bytes, fields: &[httparse::Header<'_>]) -> Result<(), Refused> {
    let is_host = |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case(HOST.as_str());
    let mut hosts = fields.iter().filter(is_host);
    let Some(host) = hosts.next() else {
        return Ok(());
    };
    if hosts.next().is_some() {
        return Err(Refused::SeveralHosts);
    }
    let names_nobody = host.value.contains(&b'@')
        || !(host.value.is_empty()
            || Authority::from_maybe_shared(bytes.slice_ref(host.value)).is_ok());
    if names_nobody {
        return Err(Refused::Host);
    }
    Ok(())
}

fn expects_continue(headers: &HeaderMap) -> bool {
    tokens(headers, EXPECT).any(|token| token.eq_ignore_ascii_case(b"100-continue"))
}

#[cfg(test)]
mod tests;
