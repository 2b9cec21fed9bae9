//! The profiles must disagree on messages that smuggling uses; otherwise the targets prove nothing.

use super::*;

fn read(bytes: &str, profile: &ParserProfile) -> Option<(String, usize)> {
    let message = message(bytes.as_bytes(), MessageKind::Request, profile).ok()??;
    Some((String::from_utf8(message.body).unwrap(), message.end))
}

#[test]
fn valid_messages_are_parsed_alike_by_all_profiles() {
    for (request, body) in [
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", ""),
        ("\r\nGET / HTTP/1.0\r\n\r\n", ""),
        ("POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\nab", "ab"),
        (
            "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n2;x=y\r\nab\r\n0\r\nt: 1\r\n\r\n",
            "ab",
        ),
    ] {
        for profile in &PROFILES {
            let expected = Some((body.to_owned(), request.len()));
            assert_eq!(read(request, profile), expected, "{request:?}, {profile:?}");
            let pipelined = format!("{request}GET /2 HTTP/1.1\r\n\r\n");
            let found = read(&pipelined, profile);
            assert_eq!(found, expected, "{request:?}, {profile:?}");
        }
        for end in 0..request.len() {
            let part = &request.as_bytes()[..end];
            assert_eq!(message(part, MessageKind::Request, &STRICT), Ok(None));
        }
    }
}

#[test]
fn profiles_disagree_on_ambiguous_messages() {
    for request in [
        "POST / HTTP/1.1\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nG",
        "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        "POST / HTTP/1.1\r\ncontent-length: 1, 2\r\n\r\nab",
        "POST / HTTP/1.1\r\ncontent-length: 2\r\ntransfer-encoding\x0b: chunked\r\n\r\nab",
        "POST / HTTP/1.1\r\ncontent-length: 2\r\ntransfer-encoding: xchunked\r\n\r\nab",
        "POST / HTTP/1.1\r\ncontent-length: 2\r\nx: y\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 2\r\nx: y\r\n transfer-encoding: chunked\r\n\r\nab",
        "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0x2\r\nab\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\nab\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2 \r\nab\r\n0\r\n\r\n",
    ] {
        let readings: Vec<_> = PROFILES
            .iter()
            .map(|profile| read(request, profile))
            .collect();
        let is_unanimous = readings
            .iter()
            .all(|reading| reading.is_some() && *reading == readings[0]);
        assert!(!is_unanimous, "{request:?}: {readings:?}");
    }
}

#[test]
fn responses_end_after_their_body() {
    let read = |bytes: &str, asked| {
        let message = message(bytes.as_bytes(), MessageKind::Response(asked), &STRICT)
            .unwrap()
            .unwrap();
        (message.body.len(), message.until_close)
    };
    use RequestMethod::{Connect, Head, Other};
    for (method, response, expected) in [
        (Other, "HTTP/1.1 200 OK\r\n\r\nabc", (3, true)),
        (
            Other,
            "HTTP/1.1 200\r\ncontent-length: 3\r\n\r\nabc",
            (3, false),
        ),
        (
            Head,
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n",
            (0, false),
        ),
        (
            Other,
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 3\r\n\r\n",
            (0, false),
        ),
        (Connect, "HTTP/1.1 200 OK\r\n\r\nabc", (0, false)),
    ] {
        assert_eq!(read(response, method), expected, "{response}");
    }
}
