//! How a request is put on the wire. The decision is pure; see [`super::server`] for the one about
//! responses.

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Version};
use http_body::Body as _;

use super::{Connection, Encoder, Error, Framing, encode};
use crate::http::{Body, Request, uri};

/// What is known of a body before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Empty,
    Length(u64),
    Nothing,
}

impl Known {
    pub(super) fn of(body: &Body) -> Self {
        match (body.is_empty(), body.size_hint().exact()) {
            (true, _) => Self::Empty,
            (false, Some(length)) => Self::Length(length),
            (false, None) => Self::Nothing,
        }
    }
}

/// Queues the head of a request, to be written together with the beginning of its body.
pub(crate) fn begin(
    connection: &Connection,
    request: &Request,
    body: &Body,
) -> Result<Encoder, Error> {
    let (framing, encoder) = frame(
        request.method(),
        request.version(),
        request.headers(),
        Known::of(body),
    )?;
    let target = uri::http1_form(request);
    connection.write(|output| {
        output.restart();
        let line = (request.method(), &target, request.version());
        encode::request(output.flat(), line, request.headers(), framing);
    });
    Ok(encoder)
}

fn frame(
    method: &Method,
    version: Version,
    headers: &HeaderMap,
    known: Known,
) -> Result<(Framing, Encoder), Error> {
    if *method == Method::CONNECT {
        return Ok((Framing::None, Encoder::Bytes(0)));
    }
    if let Some(length) = given_length(headers) {
        return Ok((Framing::GivenLength, Encoder::Bytes(length)));
    }
    match known {
        // A request without framing has no body, and says so best by saying nothing.
        Known::Empty => Ok((Framing::None, Encoder::Bytes(0))),
        Known::Length(length) => Ok((Framing::Length(length), Encoder::Bytes(length))),
        Known::Nothing if version == Version::HTTP_10 => Err(Error::Unframed),
        Known::Nothing => Ok((Framing::Chunked, Encoder::Chunked)),
    }
}

/// The `content-length` of a message, if it has one that can be relied on.
pub(super) fn given_length(headers: &HeaderMap) -> Option<u64> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next()?.to_str().ok()?.parse().ok()?;
    lengths.next().is_none().then_some(length)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn bodies_are_framed() {
        let check = |version: Version, length: Option<&'static str>, known: Known| {
            let mut headers = HeaderMap::new();
            if let Some(length) = length {
                headers.insert(CONTENT_LENGTH, HeaderValue::from_static(length));
            }
            frame(&Method::POST, version, &headers, known).ok()
        };
        let (old, new) = (Version::HTTP_10, Version::HTTP_11);
        let given = |length| Some((Framing::GivenLength, Encoder::Bytes(length)));
        let length = |length| Some((Framing::Length(length), Encoder::Bytes(length)));
        let nothing = Some((Framing::None, Encoder::Bytes(0)));
        assert_eq!(check(new, None, Known::Empty), nothing);
        assert_eq!(check(new, Some("0"), Known::Empty), given(0));
        assert_eq!(check(new, Some("5"), Known::Length(5)), given(5));
        assert_eq!(check(new, Some("5"), Known::Nothing), given(5));
        assert_eq!(check(old, Some("5"), Known::Nothing), given(5));
        assert_eq!(check(new, Some("x"), Known::Length(5)), length(5));
        assert_eq!(check(new, None, Known::Length(5)), length(5));
        assert_eq!(
            check(new, None, Known::Nothing),
            Some((Framing::Chunked, Encoder::Chunked))
        );
        assert_eq!(check(old, None, Known::Nothing), None);
    }
}
