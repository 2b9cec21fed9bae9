//! Writes start lines and header sections. Names are in lower case and in the order of the map.

use std::io::Write as _;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use http::{Method, StatusCode, Uri, Version};
use mesh_planted::Bug;

/// The framing headers that are written. Those that do not apply are omitted; existing ones keep
/// their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FramingHeaders {
    /// As in the headers: there is no body, but the same request with GET would have had one.
    Unchanged,
    /// None.
    Omit,
    ContentLength(u64),
    Chunked,
    /// The `content-length` of the headers only.
    KeepContentLength,
}

/// Writes a request line and the headers. `raw_path` replaces the path and query of the URI.
pub(super) fn write_request(
    out: &mut Vec<u8>,
    (method, uri, version): (&Method, &Uri, Version),
    raw_path: Option<&Bytes>,
    headers: &HeaderMap,
    framing: FramingHeaders,
) {
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    // Writing to a vector cannot fail.
    match (uri.path_and_query(), raw_path) {
        (_, Some(raw_path)) => {
            if let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) {
                let _infallible = write!(out, "{scheme}://{authority}");
            }
            out.extend_from_slice(raw_path);
        }
        (Some(path), None) if uri.authority().is_none() => {
            out.extend_from_slice(path.as_str().as_bytes());
        }
        _ => {
            let _infallible = write!(out, "{uri}");
        }
    }
    out.push(b' ');
    out.extend_from_slice(version_name(version));
    out.extend_from_slice(b"\r\n");
    write_fields(out, headers, framing, None);
}

/// Writes a status line and the headers. `connection` replaces the header of that name.
pub(super) fn write_response(
    out: &mut Vec<u8>,
    (version, status, reason): (Version, StatusCode, Option<&Bytes>),
    headers: &HeaderMap,
    framing: FramingHeaders,
    connection: Option<HeaderValue>,
) {
    out.extend_from_slice(version_name(version));
    out.push(b' ');
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    let usual = || status.canonical_reason().unwrap_or_default().as_bytes();
    out.extend_from_slice(reason.map_or_else(usual, Bytes::as_ref));
    out.extend_from_slice(b"\r\n");
    write_fields(out, headers, framing, connection);
}

fn version_name(version: Version) -> &'static [u8] {
    match version {
        Version::HTTP_10 => b"HTTP/1.0",
        _ => b"HTTP/1.1",
    }
}

/// Writes all fields and the empty line.
fn write_fields(
    out: &mut Vec<u8>,
    headers: &HeaderMap,
    framing: FramingHeaders,
    mut connection: Option<HeaderValue>,
) {
    let replaces_connection = connection.is_some();
    let mut is_chunked_written = false;
    for (name, value) in headers {
        if *name == CONTENT_LENGTH {
            match framing {
                _ if Bug::LengthOfZeroRemoved.is_planted() && *value == "0" => continue,
                FramingHeaders::Unchanged | FramingHeaders::KeepContentLength => {}
                FramingHeaders::Omit
                | FramingHeaders::Chunked
                | FramingHeaders::ContentLength(_) => continue,
            }
        } else if *name == TRANSFER_ENCODING {
            match framing {
                FramingHeaders::Unchanged => {}
                FramingHeaders::Chunked if !is_chunked_written => {
                    is_chunked_written = true;
                    write_field(out, name, &CHUNKED);
                    continue;
                }
                _ => continue,
            }
        } else if *name == CONNECTION && replaces_connection {
            if let Some(value) = connection.take() {
                write_field(out, name, &value);
            }
            continue;
        }
        write_field(out, name, value);
    }
    match framing {
        FramingHeaders::ContentLength(length) => {
            let _infallible = write!(out, "content-length: {length}\r\n");
        }
        FramingHeaders::Chunked
            if !is_chunked_written || Bug::TransferEncodingTwice.is_planted() =>
        {
            write_field(out, &TRANSFER_ENCODING, &CHUNKED);
        }
        _ => {}
    }
    if let Some(value) = connection {
        write_field(out, &CONNECTION, &value);
    }
    out.extend_from_slice(b"\r\n");
}

const CHUNKED: HeaderValue = HeaderValue::from_static("chunked");

pub(super) fn write_field(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    let start = out.len();
    out.extend_from_slice(name.as_str().as_bytes());
    if Bug::NamesInCapitals.is_planted() {
        out[start].make_ascii_uppercase();
    }
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_line_without_reason_phrase_ends_with_a_space() {
        let mut out = Vec::new();
        let status = StatusCode::from_u16(299).unwrap();
        let line = (Version::HTTP_11, status, None);
        write_response(
            &mut out,
            line,
            &HeaderMap::new(),
            FramingHeaders::Omit,
            None,
        );
        assert_eq!(out, b"HTTP/1.1 299 \r\n\r\n");
    }

    #[test]
    fn framing_fields_are_those_of_the_body_that_is_written() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("5"));
        for coding in ["gzip", "chunked"] {
            headers.append(TRANSFER_ENCODING, HeaderValue::from_static(coding));
        }
        headers.insert("x-last", HeaderValue::from_static("1"));
        let (length, chunked) = ("content-length: 5\r\n", "transfer-encoding: chunked\r\n");
        let last = "x-last: 1\r\n";
        for (framing, expected) in [
            // A field keeps its place.
            (FramingHeaders::Chunked, format!("{chunked}{last}")),
            (FramingHeaders::KeepContentLength, format!("{length}{last}")),
            (FramingHeaders::Omit, last.to_owned()),
            (
                FramingHeaders::ContentLength(7),
                format!("{last}content-length: 7\r\n"),
            ),
        ] {
            let mut out = Vec::new();
            write_fields(&mut out, &headers, framing, None);
            let written = String::from_utf8(out).unwrap().to_ascii_lowercase();
            assert_eq!(written, format!("{expected}\r\n"), "{framing:?}");
        }
    }
}
