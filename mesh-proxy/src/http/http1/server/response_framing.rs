//! Chooses the framing of a response and whether the connection is kept. Pure.

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, StatusCode, Version};

use crate::http::Response;
use crate::http::http1::framing::{self, RequestMethod};
use crate::http::http1::request::{BodySize, content_length};
use crate::http::http1::{BodyEncoder, FramingHeaders};
use crate::http::message_context::MessageContext;

/// The attributes of a request that affect the framing of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestInfo {
    pub(super) method: RequestMethod,
    pub(super) version: Version,
    /// The client keeps the connection open.
    pub(super) keeps_alive: bool,
}

/// The framing of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResponseFraming {
    pub(super) version: Version,
    pub(super) headers: FramingHeaders,
    pub(super) encoder: BodyEncoder,
    pub(super) has_body: bool,
    pub(super) keeps_alive: bool,
    request_version: Version,
    /// The connection closes, and `connection` has to list the `upgrade` of the response.
    has_upgrade: bool,
}

impl ResponseFraming {
    pub(super) fn new(info: RequestInfo, response: &Response, must_close: bool) -> Self {
        let closes = must_close || MessageContext::of(response.extensions()).closes_connection;
        choose(
            info,
            (response.version(), response.status(), response.headers()),
            BodySize::new(response.body()),
            closes,
        )
    }

    /// Returns the `connection` header to send; `None` leaves the response's own.
    pub(super) fn connection(&self) -> Option<HeaderValue> {
        match (self.keeps_alive, self.request_version) {
            // The default of HTTP/1.0, and of 1.1 below.
            (false, Version::HTTP_10) => None,
            (true, Version::HTTP_10) => Some(HeaderValue::from_static("keep-alive")),
            (true, _) => None,
            (false, _) if self.has_upgrade => Some(HeaderValue::from_static("close, upgrade")),
            (false, _) => Some(HeaderValue::from_static("close")),
        }
    }
}

fn choose(
    info: RequestInfo,
    (version, status, headers): (Version, StatusCode, &HeaderMap),
    size: BodySize,
    closes: bool,
) -> ResponseFraming {
    // The server's version is forwarded, but never a later one than the client's.
    let version = match (info.version, version) {
        (Version::HTTP_10, _) | (_, Version::HTTP_10) => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    let (headers_framing, encoder) = choose_headers(info.method, version, (status, headers), size);
    let server_closes =
        headers.contains_key(CONNECTION) && !framing::keeps_alive(Version::HTTP_11, headers);
    let keeps_alive = info.keeps_alive
        && !closes
        && !server_closes
        && encoder != BodyEncoder::UntilClose
        // A client of HTTP/1.1 closes after a response of HTTP/1.0.
        && version == info.version;
    ResponseFraming {
        version,
        headers: headers_framing,
        encoder,
        has_body: !(info.method == RequestMethod::Head || framing::never_has_body(status)),
        keeps_alive,
        request_version: info.version,
        has_upgrade: !keeps_alive && headers.contains_key(UPGRADE),
    }
}

fn choose_headers(
    method: RequestMethod,
    version: Version,
    (status, headers): (StatusCode, &HeaderMap),
    size: BodySize,
) -> (FramingHeaders, BodyEncoder) {
    if method == RequestMethod::Head || status == StatusCode::NOT_MODIFIED {
        return (FramingHeaders::Unchanged, BodyEncoder::Length(0));
    }
    if framing::never_has_body(status) {
        return (FramingHeaders::Omit, BodyEncoder::Length(0));
    }
    if let Some(length) = content_length(headers) {
        return (
            FramingHeaders::KeepContentLength,
            BodyEncoder::Length(length),
        );
    }
    match size {
        BodySize::Empty => (FramingHeaders::ContentLength(0), BodyEncoder::Length(0)),
        BodySize::Exact(length) => (
            FramingHeaders::ContentLength(length),
            BodyEncoder::Length(length),
        ),
        BodySize::Unknown if version == Version::HTTP_11 => {
            (FramingHeaders::Chunked, BodyEncoder::Chunked)
        }
        BodySize::Unknown => (FramingHeaders::Omit, BodyEncoder::UntilClose),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Version = Version::HTTP_10;
    const NEW: Version = Version::HTTP_11;

    fn info(version: Version, keeps_alive: bool) -> RequestInfo {
        RequestInfo {
            method: RequestMethod::Other,
            version,
            keeps_alive,
        }
    }

    #[test]
    fn response_framing_follows_request_and_body_size() {
        let parts = RequestInfo {
            method: RequestMethod::Head,
            ..info(NEW, true)
        };
        let length: &[(&str, &str)] = &[("content-length", "5")];
        let bad: &[(&str, &str)] = &[("content-length", "x")];
        type Row<'a> = (
            RequestInfo,
            Version,
            u16,
            &'a [(&'static str, &'static str)],
            BodySize,
            FramingHeaders,
            BodyEncoder,
            bool,
        );
        let rows: &[Row<'_>] = &[
            (
                info(NEW, true),
                NEW,
                200,
                &[],
                BodySize::Empty,
                FramingHeaders::ContentLength(0),
                BodyEncoder::Length(0),
                true,
            ),
            (
                info(NEW, true),
                NEW,
                200,
                length,
                BodySize::Unknown,
                FramingHeaders::KeepContentLength,
                BodyEncoder::Length(5),
                true,
            ),
            (
                info(NEW, true),
                NEW,
                200,
                bad,
                BodySize::Exact(3),
                FramingHeaders::ContentLength(3),
                BodyEncoder::Length(3),
                true,
            ),
            (
                info(NEW, true),
                NEW,
                200,
                &[],
                BodySize::Exact(3),
                FramingHeaders::ContentLength(3),
                BodyEncoder::Length(3),
                true,
            ),
            (
                info(NEW, true),
                NEW,
                200,
                &[],
                BodySize::Unknown,
                FramingHeaders::Chunked,
                BodyEncoder::Chunked,
                true,
            ),
            (
                info(NEW, true),
                Version::HTTP_2,
                200,
                &[],
                BodySize::Unknown,
                FramingHeaders::Chunked,
                BodyEncoder::Chunked,
                true,
            ),
            (
                info(NEW, true),
                OLD,
                200,
                &[],
                BodySize::Unknown,
                FramingHeaders::Omit,
                BodyEncoder::UntilClose,
                false,
            ),
            (
                info(OLD, true),
                NEW,
                200,
                &[],
                BodySize::Unknown,
                FramingHeaders::Omit,
                BodyEncoder::UntilClose,
                false,
            ),
            (
                info(OLD, true),
                NEW,
                200,
                length,
                BodySize::Unknown,
                FramingHeaders::KeepContentLength,
                BodyEncoder::Length(5),
                true,
            ),
            (
                info(NEW, true),
                NEW,
                204,
                length,
                BodySize::Empty,
                FramingHeaders::Omit,
                BodyEncoder::Length(0),
                true,
            ),
            (
                info(NEW, true),
                NEW,
                304,
                length,
                BodySize::Empty,
                FramingHeaders::Unchanged,
                BodyEncoder::Length(0),
                true,
            ),
            (
                parts,
                NEW,
                200,
                length,
                BodySize::Empty,
                FramingHeaders::Unchanged,
                BodyEncoder::Length(0),
                true,
            ),
        ];
        for (info, version, status, fields, size, framing, encoder, keeps_alive) in rows {
            let status = StatusCode::from_u16(*status).unwrap();
            let mut headers = HeaderMap::new();
            for (name, value) in *fields {
                headers.insert(*name, HeaderValue::from_static(value));
            }
            let chosen = choose(*info, (*version, status, &headers), *size, false);
            let found = (chosen.headers, chosen.encoder, chosen.keeps_alive);
            let expected = (*framing, *encoder, *keeps_alive);
            assert_eq!(
                found, expected,
                "{info:?} {version:?} {status} {fields:?} {size:?}"
            );
        }
    }

    #[test]
    fn connection_header_matches_persistence_and_client_version() {
        let check = |info: RequestInfo,
                     version: Version,
                     server_header: Option<&'static str>,
                     closes: bool| {
            let mut headers = HeaderMap::new();
            if let Some(server_header) = server_header {
                headers.insert(CONNECTION, HeaderValue::from_static(server_header));
            }
            let parts = (version, StatusCode::OK, &headers);
            let framing = choose(info, parts, BodySize::Empty, closes);
            let connection = framing.connection();
            (
                framing.keeps_alive,
                connection.map(|value| value.to_str().unwrap().to_owned()),
            )
        };
        let close = || Some("close".to_owned());
        assert_eq!(check(info(NEW, true), NEW, None, false), (true, None));
        assert_eq!(check(info(NEW, false), NEW, None, false), (false, close()));
        assert_eq!(check(info(NEW, true), NEW, None, true), (false, close()));
        assert_eq!(
            check(info(NEW, true), NEW, Some("close"), false),
            (false, close())
        );
        assert_eq!(check(info(NEW, true), OLD, None, false), (false, close()));
        let kept = (true, Some("keep-alive".to_owned()));
        assert_eq!(check(info(OLD, true), OLD, None, false), kept);
        assert_eq!(check(info(OLD, true), NEW, None, false), kept);
        assert_eq!(check(info(OLD, false), OLD, None, false), (false, None));
    }

    #[test]
    fn connection_is_kept_unless_either_side_closes_it() {
        for (client, server, expected) in [
            (true, None, true),
            (true, Some("keep-alive"), true),
            (true, Some("upgrade"), true),
            (true, Some("close"), false),
            (true, Some("keep-alive, Close"), false),
            (false, None, false),
            (false, Some("keep-alive"), false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(server) = server {
                headers.insert(CONNECTION, server.parse().unwrap());
            }
            let message = (NEW, StatusCode::OK, &headers);
            let framing = choose(info(NEW, client), message, BodySize::Exact(1), false);
            assert_eq!(framing.keeps_alive, expected, "{client} {server:?}");
        }
    }
}
