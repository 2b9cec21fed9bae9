//! Heads as bytes. Names are written in lower case, in the order of the map.

use std::io::Write as _;

use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use http::{Method, StatusCode, Uri, Version};

use super::head::Reason;

/// What a message says of its body. Framing headers that do not belong to it are left out; one that
/// is there already stays at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Whatever the headers say: there is no body, but there might have been one.
    AsGiven,
    /// Nothing may be said.
    None,
    Length(u64),
    Chunked,
    /// `content-length` as the headers have it, nothing else.
    GivenLength,
}

/// Writes a request's head.
pub(super) fn request(
    out: &mut Vec<u8>,
    (method, uri, version): (&Method, &Uri, Version),
    headers: &HeaderMap,
    framing: Framing,
) {
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    match uri.path_and_query() {
        Some(path) if uri.authority().is_none() => out.extend_from_slice(path.as_str().as_bytes()),
        // Writing to a vector cannot fail.
        _ => drop(write!(out, "{uri}")),
    }
    out.push(b' ');
    out.extend_from_slice(name_of(version));
    out.extend_from_slice(b"\r\n");
    fields(out, headers, framing, None);
}

/// Writes a response's head. `connection` replaces the header of that name.
pub(super) fn response(
    out: &mut Vec<u8>,
    (version, status, reason): (Version, StatusCode, Option<&Reason>),
    headers: &HeaderMap,
    framing: Framing,
    connection: Option<HeaderValue>,
) {
    out.extend_from_slice(name_of(version));
    out.push(b' ');
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    let usual = || status.canonical_reason().unwrap_or_default().as_bytes();
    out.extend_from_slice(reason.map_or_else(usual, Reason::as_bytes));
    out.extend_from_slice(b"\r\n");
    fields(out, headers, framing, connection);
}

fn name_of(version: Version) -> &'static [u8] {
    match version {
        Version::HTTP_10 => b"HTTP/1.0",
        _ => b"HTTP/1.1",
    }
}

/// Writes all fields and the empty line.
fn fields(
    out: &mut Vec<u8>,
    headers: &HeaderMap,
    framing: Framing,
    mut connection: Option<HeaderValue>,
) {
    let replaces_connection = connection.is_some();
    let mut is_framed = false;
    for (name, value) in headers {
        if *name == CONTENT_LENGTH {
            match framing {
                Framing::AsGiven | Framing::GivenLength => {}
                Framing::None | Framing::Chunked | Framing::Length(_) => continue,
            }
        } else if *name == TRANSFER_ENCODING {
            match framing {
                Framing::AsGiven => {}
                Framing::Chunked if !is_framed => {
                    is_framed = true;
                    field(out, name, &CHUNKED);
                    continue;
                }
                _ => continue,
            }
        } else if *name == CONNECTION && replaces_connection {
            if let Some(value) = connection.take() {
                field(out, name, &value);
            }
            continue;
        }
        field(out, name, value);
    }
    match framing {
        Framing::Length(length) => drop(write!(out, "content-length: {length}\r\n")),
        Framing::Chunked if !is_framed => field(out, &TRANSFER_ENCODING, &CHUNKED),
        _ => {}
    }
    if let Some(value) = connection {
        field(out, &CONNECTION, &value);
    }
    out.extend_from_slice(b"\r\n");
}

const CHUNKED: HeaderValue = HeaderValue::from_static("chunked");

/// Writes one field.
pub(super) fn field(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}
