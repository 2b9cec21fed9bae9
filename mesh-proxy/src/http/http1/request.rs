//! Chooses the framing of a request, and queues its headers. For responses see [`super::server`].

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Version};
use http_body::Body as _;
use mesh_planted::Bug;

use super::{BodyEncoder, Connection, Error, FramingHeaders, encode, parse_decimal};
use crate::http::{Body, Request, uri};

/// The size of a body, as known before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodySize {
    Empty,
    Exact(u64),
    Unknown,
}

impl BodySize {
    pub(super) fn new(body: &Body) -> Self {
        match (body.is_empty(), body.size_hint().exact()) {
            (true, _) => Self::Empty,
            (false, Some(length)) => Self::Exact(length),
            (false, None) => Self::Unknown,
        }
    }
}

/// Queues the headers of a request, to be written with the beginning of its body.
pub(crate) fn begin_request(
    connection: &Connection,
    request: &Request,
    body: &Body,
) -> Result<BodyEncoder, Error> {
    let (framing, encoder) = choose_framing(
        request.method(),
        request.version(),
        request.headers(),
        BodySize::new(body),
    )?;
    let target = uri::http1_form(request);
    connection.write(|output| {
        output.begin_message();
        let line = (request.method(), &target, request.version());
        output.append(|buffer| {
            let raw_path = uri::raw_path(request);
            encode::write_request(buffer, line, raw_path, request.headers(), framing);
        });
    });
    Ok(encoder)
}

fn choose_framing(
    method: &Method,
    version: Version,
    headers: &HeaderMap,
    size: BodySize,
) -> Result<(FramingHeaders, BodyEncoder), Error> {
    if *method == Method::CONNECT {
        return Ok((FramingHeaders::Omit, BodyEncoder::Length(0)));
    }
    if let Some(length) = content_length(headers) {
        return Ok((
            FramingHeaders::KeepContentLength,
            BodyEncoder::Length(length),
        ));
    }
    match size {
        // A request without framing headers has no body.
        BodySize::Empty if Bug::LengthOfZeroAdded.is_planted() => {
            Ok((FramingHeaders::ContentLength(0), BodyEncoder::Length(0)))
        }
        BodySize::Empty => Ok((FramingHeaders::Omit, BodyEncoder::Length(0))),
        BodySize::Exact(length) => Ok((
            FramingHeaders::ContentLength(length),
            BodyEncoder::Length(length),
        )),
        BodySize::Unknown if version == Version::HTTP_10 => Err(Error::UnframedBody),
        BodySize::Unknown => Ok((FramingHeaders::Chunked, BodyEncoder::Chunked)),
    }
}

/// Returns the `content-length` of a message, if it is single and valid.
pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let length = parse_decimal(lengths.next()?.as_bytes())?;
    lengths.next().is_none().then_some(length)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn request_framing_follows_content_length_and_body_size() {
        let check = |version: Version, length: Option<&'static str>, size: BodySize| {
            let mut headers = HeaderMap::new();
            if let Some(length) = length {
                headers.insert(CONTENT_LENGTH, HeaderValue::from_static(length));
            }
            choose_framing(&Method::POST, version, &headers, size).ok()
        };
        let (old, new) = (Version::HTTP_10, Version::HTTP_11);
        let kept = |length| {
            Some((
                FramingHeaders::KeepContentLength,
                BodyEncoder::Length(length),
            ))
        };
        let length = |length| {
            Some((
                FramingHeaders::ContentLength(length),
                BodyEncoder::Length(length),
            ))
        };
        let omitted = Some((FramingHeaders::Omit, BodyEncoder::Length(0)));
        assert_eq!(check(new, None, BodySize::Empty), omitted);
        assert_eq!(check(new, Some("0"), BodySize::Empty), kept(0));
        assert_eq!(check(new, Some("5"), BodySize::Exact(5)), kept(5));
        assert_eq!(check(new, Some("5"), BodySize::Unknown), kept(5));
        assert_eq!(check(old, Some("5"), BodySize::Unknown), kept(5));
        assert_eq!(check(new, Some("x"), BodySize::Exact(5)), length(5));
        assert_eq!(check(new, None, BodySize::Exact(5)), length(5));
        assert_eq!(
            check(new, None, BodySize::Unknown),
            Some((FramingHeaders::Chunked, BodyEncoder::Chunked))
        );
        assert_eq!(check(old, None, BodySize::Unknown), None);
    }
}
