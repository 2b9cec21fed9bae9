//! Messages, whole and in pieces.

use super::*;

fn read(role: Role, bytes: &[u8], piece: usize) -> Reader {
    let mut reader = Reader::new(role);
    bytes.chunks(piece).for_each(|piece| reader.feed(piece));
    reader
}

/// Reads in pieces of every size; the messages must not depend on it.
fn both(role: Role, bytes: &[u8]) -> Reader {
    let whole = read(role, bytes, bytes.len());
    for piece in 1..bytes.len() {
        let pieces = read(role, bytes, piece);
        assert_eq!(pieces.messages, whole.messages, "pieces of {piece}");
        assert_eq!(pieces.malformed, whole.malformed, "pieces of {piece}");
    }
    whole
}

#[test]
fn requests_follow_each_other() {
    let reader = both(
        Role::Requests,
        b"POST /a HTTP/1.1\r\nHost: x\r\ncontent-length: 3\r\n\r\nabcGET /b HTTP/1.0\r\n\r\n",
    );
    let [first, second] = reader.messages() else {
        panic!("{:?}", reader.messages());
    };
    assert_eq!(
        (first.body.as_slice(), first.end),
        (&b"abc"[..], End::Complete)
    );
    assert_eq!(value(&first.fields, "host"), Some(&b"x"[..]));
    assert_eq!(value(&second.fields, ":path"), Some(&b"/b"[..]));
    assert!(!reader.is_within_message());
}

#[test]
fn empty_lines_are_ignored_before_requests_only() {
    let reader = both(Role::Requests, b"\r\n\r\nGET / HTTP/1.1\r\n\r\n\r\n");
    assert_eq!((reader.messages().len(), reader.malformed()), (1, None));
    let reader = both(Role::Responses, b"\r\nHTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(reader.malformed(), Some("not HTTP/1"));
}

#[test]
fn chunks_and_trailers_are_read() {
    let reader = both(
        Role::Responses,
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
          3;x=y\r\nabc\r\n0\r\nt: 1\r\n\r\n",
    );
    let [message] = reader.messages() else {
        panic!("{:?}", reader.messages());
    };
    assert_eq!(message.interim.len(), 1);
    assert_eq!(
        (message.body.as_slice(), message.end),
        (&b"abc"[..], End::Complete)
    );
    assert_eq!(message.trailers, [(b"t".to_vec(), b"1".to_vec())]);
}

#[test]
fn response_without_length_ends_with_fin_and_is_cut_by_rst() {
    for (complete, end) in [(true, End::Complete), (false, End::Cut)] {
        let mut reader = read(Role::Responses, b"HTTP/1.1 200 OK\r\n\r\nabc", 100);
        reader.end(complete);
        assert_eq!(reader.messages()[0].end, end);
    }
}

#[test]
fn response_to_head_has_no_body() {
    let mut requests = read(Role::Requests, b"HEAD / HTTP/1.1\r\n\r\n", 100);
    let mut reader = Reader::new(Role::Responses);
    Reader::relate(&mut requests, &mut reader);
    reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n");
    assert_eq!(reader.messages()[0].end, End::Complete);
}

#[test]
fn bytes_after_switching_protocols_are_a_tunnel() {
    let reader = both(
        Role::Responses,
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n\x81\x01a",
    );
    assert_eq!(reader.tunnel(), Some(&b"\x81\x01a"[..]));
}

#[test]
fn ambiguous_messages_are_malformed() {
    let requests: [&[u8]; 8] = [
        b"GET / HTTP/1.1\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\n folded\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: +1\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0x1\r\n",
    ];
    for request in requests {
        let text = String::from_utf8_lossy(request);
        assert!(
            both(Role::Requests, request).malformed().is_some(),
            "{text}"
        );
    }
}

#[test]
fn responses_are_read_leniently_with_a_note() {
    let cases: [(&[u8], &str); 7] = [
        (b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok", BARE_LINE_FEED),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length : 2\r\n\r\nok",
            BLANK_BEFORE_COLON,
        ),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx: a\r\n b\r\n\r\nok",
            head::FOLDED,
        ),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\nok",
            REPEATED_LENGTH,
        ),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            LENGTH_AND_CHUNKED,
        ),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\nok",
            IDENTITY,
        ),
        (
            b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
            UNASKED_SWITCH,
        ),
    ];
    for (response, reason) in cases {
        let reader = both(Role::Responses, response);
        assert_eq!(reader.malformed(), None, "{reason}");
        let message = &reader.messages()[0];
        assert_eq!(message.irregular, Some(reason));
        let body: &[u8] = if reason == UNASKED_SWITCH { b"" } else { b"ok" };
        assert_eq!(message.body, body, "{reason}");
    }
}

/// What follows a request to upgrade is a tunnel, or the next request.
#[test]
fn response_decides_what_follows_a_request_to_upgrade() {
    let upgrade = b"GET / HTTP/1.1\r\nupgrade: x\r\n\r\n";
    for (response, is_accepted) in [
        (&b"HTTP/1.1 101 Switching Protocols\r\n\r\n"[..], true),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", false),
    ] {
        let mut requests = read(Role::Requests, upgrade, 100);
        let mut responses = Reader::new(Role::Responses);
        requests.feed(b"GET /next HTTP/1.1\r\n\r\n");
        Reader::relate(&mut requests, &mut responses);
        assert_eq!((requests.messages().len(), requests.tunnel()), (1, None));
        responses.feed(response);
        Reader::relate(&mut requests, &mut responses);
        let tunnel = is_accepted.then_some(&b"GET /next HTTP/1.1\r\n\r\n"[..]);
        assert_eq!(requests.tunnel(), tunnel);
        assert_eq!(requests.messages().len(), if is_accepted { 1 } else { 2 });
    }
}
