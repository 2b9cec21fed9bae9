//! How a response is put on the wire, decided from the request, the response, and whether the
//! connection can go on. Pure.

use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue, StatusCode, Version};

use crate::http::Response;
use crate::http::http1::framing::{self, Asked};
use crate::http::http1::request::{Known, given_length};
use crate::http::http1::{Encoder, Framing};
use crate::http::respond::CloseConnection;

/// What must be remembered of a request to answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) asked: Asked,
    pub(super) version: Version,
    /// The client keeps the connection open.
    pub(super) keeps_alive: bool,
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) version: Version,
    pub(super) framing: Framing,
    pub(super) encoder: Encoder,
    pub(super) has_body: bool,
    pub(super) keeps_alive: bool,
    asked_in: Version,
}

impl Plan {
    pub(super) fn of(facts: Facts, response: &Response, is_leaving: bool) -> Self {
        let closes = is_leaving || response.extensions().get::<CloseConnection>().is_some();
        decide(
            facts,
            (response.version(), response.status(), response.headers()),
            Known::of(response.body()),
            closes,
        )
    }

    /// What the response says about the connection; `None`: what its headers say.
    pub(super) fn connection(&self) -> Option<HeaderValue> {
        match (self.keeps_alive, self.asked_in) {
            // This is what clients expect of HTTP/1.0 anyway, and of 1.1.
            (false, Version::HTTP_10) => None,
            (true, Version::HTTP_10) => Some(HeaderValue::from_static("keep-alive")),
            (true, _) => None,
            (false, _) => Some(HeaderValue::from_static("close")),
        }
    }
}

fn decide(
    facts: Facts,
    (version, status, headers): (Version, StatusCode, &HeaderMap),
    known: Known,
    closes: bool,
) -> Plan {
    // The server's version is passed on, but nobody gets a later one than he speaks.
    let version = match (facts.version, version) {
        (Version::HTTP_10, _) | (_, Version::HTTP_10) => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    let (framing, encoder) = frame(facts.asked, version, (status, headers), known);
    let server_closes =
        headers.contains_key(CONNECTION) && !framing::keeps_alive(Version::HTTP_11, headers);
    Plan {
        version,
        framing,
        encoder,
        has_body: !(facts.asked == Asked::Head || framing::has_no_body(status)),
        keeps_alive: facts.keeps_alive
            && !closes
            && !server_closes
            && encoder != Encoder::Close
            // A client of HTTP/1.1 that gets a response of HTTP/1.0 closes.
            && version == facts.version,
        asked_in: facts.version,
    }
}

fn frame(
    asked: Asked,
    version: Version,
    (status, headers): (StatusCode, &HeaderMap),
    known: Known,
) -> (Framing, Encoder) {
    if asked == Asked::Head || status == StatusCode::NOT_MODIFIED {
        return (Framing::AsGiven, Encoder::Bytes(0));
    }
    if framing::has_no_body(status) {
        return (Framing::None, Encoder::Bytes(0));
    }
    if let Some(length) = given_length(headers) {
        return (Framing::GivenLength, Encoder::Bytes(length));
    }
    match known {
        Known::Empty => (Framing::Length(0), Encoder::Bytes(0)),
        Known::Length(length) => (Framing::Length(length), Encoder::Bytes(length)),
        Known::Nothing if version == Version::HTTP_11 => (Framing::Chunked, Encoder::Chunked),
        Known::Nothing => (Framing::None, Encoder::Close),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Version = Version::HTTP_10;
    const NEW: Version = Version::HTTP_11;

    fn facts(version: Version, keeps_alive: bool) -> Facts {
        Facts {
            asked: Asked::Other,
            version,
            keeps_alive,
        }
    }

    #[test]
    fn bodies_are_framed() {
        let head = Facts {
            asked: Asked::Head,
            ..facts(NEW, true)
        };
        let length: &[(&str, &str)] = &[("content-length", "5")];
        let bad: &[(&str, &str)] = &[("content-length", "x")];
        type Row<'a> = (
            Facts,
            Version,
            u16,
            &'a [(&'static str, &'static str)],
            Known,
            Framing,
            Encoder,
            bool,
        );
        let rows: &[Row<'_>] = &[
            (
                facts(NEW, true),
                NEW,
                200,
                &[],
                Known::Empty,
                Framing::Length(0),
                Encoder::Bytes(0),
                true,
            ),
            (
                facts(NEW, true),
                NEW,
                200,
                length,
                Known::Nothing,
                Framing::GivenLength,
                Encoder::Bytes(5),
                true,
            ),
            (
                facts(NEW, true),
                NEW,
                200,
                bad,
                Known::Length(3),
                Framing::Length(3),
                Encoder::Bytes(3),
                true,
            ),
            (
                facts(NEW, true),
                NEW,
                200,
                &[],
                Known::Length(3),
                Framing::Length(3),
                Encoder::Bytes(3),
                true,
            ),
            (
                facts(NEW, true),
                NEW,
                200,
                &[],
                Known::Nothing,
                Framing::Chunked,
                Encoder::Chunked,
                true,
            ),
            (
                facts(NEW, true),
                Version::HTTP_2,
                200,
                &[],
                Known::Nothing,
                Framing::Chunked,
                Encoder::Chunked,
                true,
            ),
            (
                facts(NEW, true),
                OLD,
                200,
                &[],
                Known::Nothing,
                Framing::None,
                Encoder::Close,
                false,
            ),
            (
                facts(OLD, true),
                NEW,
                200,
                &[],
                Known::Nothing,
                Framing::None,
                Encoder::Close,
                false,
            ),
            (
                facts(OLD, true),
                NEW,
                200,
                length,
                Known::Nothing,
                Framing::GivenLength,
                Encoder::Bytes(5),
                true,
            ),
            (
                facts(NEW, true),
                NEW,
                204,
                length,
                Known::Empty,
                Framing::None,
                Encoder::Bytes(0),
                true,
            ),
            (
                facts(NEW, true),
                NEW,
                304,
                length,
                Known::Empty,
                Framing::AsGiven,
                Encoder::Bytes(0),
                true,
            ),
            (
                head,
                NEW,
                200,
                length,
                Known::Empty,
                Framing::AsGiven,
                Encoder::Bytes(0),
                true,
            ),
        ];
        for (facts, version, status, fields, known, framing, encoder, keeps_alive) in rows {
            let status = StatusCode::from_u16(*status).unwrap();
            let mut headers = HeaderMap::new();
            for (name, value) in *fields {
                headers.insert(*name, HeaderValue::from_static(value));
            }
            let plan = decide(*facts, (*version, status, &headers), *known, false);
            let found = (plan.framing, plan.encoder, plan.keeps_alive);
            let expected = (*framing, *encoder, *keeps_alive);
            assert_eq!(
                found, expected,
                "{facts:?} {version:?} {status} {fields:?} {known:?}"
            );
        }
    }

    #[test]
    fn connections_are_kept_or_closed_in_words_that_the_client_knows() {
        let check = |facts: Facts, answered: Version, says: Option<&'static str>, closes: bool| {
            let mut headers = HeaderMap::new();
            if let Some(says) = says {
                headers.insert(CONNECTION, HeaderValue::from_static(says));
            }
            let head = (answered, StatusCode::OK, &headers);
            let plan = decide(facts, head, Known::Empty, closes);
            let connection = plan.connection();
            (
                plan.keeps_alive,
                connection.map(|value| value.to_str().unwrap().to_owned()),
            )
        };
        let close = || Some("close".to_owned());
        assert_eq!(check(facts(NEW, true), NEW, None, false), (true, None));
        assert_eq!(check(facts(NEW, false), NEW, None, false), (false, close()));
        assert_eq!(check(facts(NEW, true), NEW, None, true), (false, close()));
        assert_eq!(
            check(facts(NEW, true), NEW, Some("close"), false),
            (false, close())
        );
        assert_eq!(check(facts(NEW, true), OLD, None, false), (false, close()));
        let kept = (true, Some("keep-alive".to_owned()));
        assert_eq!(check(facts(OLD, true), OLD, None, false), kept);
        assert_eq!(check(facts(OLD, true), NEW, None, false), kept);
        assert_eq!(check(facts(OLD, false), OLD, None, false), (false, None));
    }
}
