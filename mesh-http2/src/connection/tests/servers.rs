//! Clients whose server sends hand-made frames.

use std::task::Poll;

use super::*;

const END_STREAM: u8 = frame::END_STREAM;
const END_HEADERS: u8 = frame::END_HEADERS;
const BOTH: u8 = END_STREAM | END_HEADERS;

/// `200`, by the index of the static table.
const OK: &[u8] = &[0x88];

/// A client that has received SETTINGS, with an incomplete request on stream 1.
fn client() -> (Connection, StreamId) {
    client_of(&Request::post("http://web/").body(()).unwrap())
}

fn client_of(request: &Request<()>) -> (Connection, StreamId) {
    let mut client = Connection::new(&config(Role::Client));
    client.receive(&bytes(frame::SETTINGS, 0, 0, &[])).unwrap();
    client
        .receive(&bytes(frame::SETTINGS, frame::ACK, 0, &[]))
        .unwrap();
    let id = client.open(request, false);
    output(&mut client);
    (client, id)
}

/// `:status` with a value that is in no table.
fn status(status: &str) -> Vec<u8> {
    [&[0x08, 3], status.as_bytes()].concat()
}

#[test]
fn protocol_errors_of_servers_close_stream_or_connection() {
    use frame::{DATA, GOAWAY, HEADERS, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE};
    let of_connection = |code| Some((0, code));
    let of_stream = |code| Some((1, code));
    let protocol_error = ErrorCode::PROTOCOL_ERROR;
    let ok = || bytes(HEADERS, END_HEADERS, 1, OK);
    // `content-length: 5`, by the index of its name.
    let five = [OK, &[0x0f, 13, 1, b'5']].concat();
    for (sent, expected, why) in [
        (vec![bytes(HEADERS, BOTH, 1, OK)], None, "a valid response"),
        (
            vec![bytes(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])],
            of_connection(protocol_error),
            "PUSH_PROMISE",
        ),
        (
            vec![bytes(HEADERS, BOTH, 2, OK)],
            of_connection(protocol_error),
            "a server-initiated stream",
        ),
        (
            vec![bytes(HEADERS, BOTH, 3, OK)],
            of_connection(protocol_error),
            "a response on an idle stream",
        ),
        (
            vec![bytes(DATA, 0, 1, b"x")],
            of_stream(protocol_error),
            "DATA before HEADERS",
        ),
        (
            vec![bytes(HEADERS, END_HEADERS, 1, &[0x82])],
            of_stream(protocol_error),
            "a request",
        ),
        (
            vec![bytes(HEADERS, END_HEADERS, 1, &status("101"))],
            of_stream(protocol_error),
            "101 Switching Protocols",
        ),
        (
            vec![bytes(HEADERS, BOTH, 1, &status("103"))],
            of_stream(protocol_error),
            "an interim response and nothing else",
        ),
        (
            vec![ok(), bytes(HEADERS, END_HEADERS, 1, OK)],
            of_stream(protocol_error),
            "HEADERS after HEADERS without END_STREAM",
        ),
        (
            vec![bytes(HEADERS, BOTH, 1, OK), bytes(DATA, 0, 1, b"x")],
            of_stream(ErrorCode::STREAM_CLOSED),
            "DATA after the end",
        ),
        (
            vec![bytes(HEADERS, BOTH, 1, &five)],
            of_stream(protocol_error),
            "no body despite Content-Length",
        ),
        (
            vec![
                bytes(HEADERS, END_HEADERS, 1, &five),
                bytes(DATA, END_STREAM, 1, b"four"),
            ],
            of_stream(protocol_error),
            "a body shorter than Content-Length",
        ),
        (
            vec![bytes(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 1])],
            of_connection(protocol_error),
            "SETTINGS_ENABLE_PUSH of a server",
        ),
        (
            vec![bytes(RST_STREAM, 0, 3, &[0; 4])],
            of_connection(protocol_error),
            "RST_STREAM on an idle stream",
        ),
        (
            vec![bytes(WINDOW_UPDATE, 0, 2, &[0, 0, 0, 1])],
            of_connection(protocol_error),
            "WINDOW_UPDATE on an idle stream",
        ),
        (
            vec![bytes(GOAWAY, 0, 0, &[0; 4])],
            of_connection(ErrorCode::FRAME_SIZE_ERROR),
            "a short GOAWAY",
        ),
    ] {
        let (mut client, id) = client();
        for frame in &sent {
            // Later frames have no effect.
            let _ends = client.receive(frame);
        }
        assert_eq!(reported_error(&mut client), expected, "{why}");
        assert_eq!(
            client.is_closed(),
            matches!(expected, Some((0, _))),
            "{why}"
        );
        let has_failed = client.poll_failure(id, noop_waker()).is_ready();
        assert_eq!(has_failed, expected.is_some(), "{why}");
    }
}

#[test]
fn interim_responses_precede_the_final_response() {
    let (mut client, id) = client();
    let interims: Vec<u8> = ["100", "103", "102"]
        .iter()
        .flat_map(|interim| bytes(frame::HEADERS, END_HEADERS, 1, &status(interim)))
        .collect();
    client.receive(&interims).unwrap();
    client.receive(&bytes(frame::HEADERS, BOTH, 1, OK)).unwrap();
    for expected in [100, 103, 102, 200] {
        let Poll::Ready(Ok(response)) = client.poll_response(id, noop_waker()) else {
            panic!("there is no {expected}");
        };
        assert_eq!(response.status(), expected);
    }
}

/// Too many interim responses end their stream only, whether or not they are read.
#[test]
fn interim_responses_are_limited() {
    let early_hints = bytes(frame::HEADERS, END_HEADERS, 1, &status("103"));
    for is_read in [false, true] {
        let (mut client, id) = client();
        for _ in 0..32 {
            client.receive(&early_hints).unwrap();
            assert!(!is_read || client.poll_response(id, noop_waker()).is_ready());
        }
        assert!(client.poll_failure(id, noop_waker()).is_pending());
        client.receive(&early_hints).unwrap();
        let calm = ErrorCode::ENHANCE_YOUR_CALM;
        assert_eq!(reported_error(&mut client), Some((1, calm)), "{is_read}");
    }
    // Few, but large: together they are limited like one header section.
    let (mut client, id) = client();
    let field = [&[0x00, 1, b'x', 0x7f, 0xed, 0x3f], &[b'y'; 8_300][..]].concat();
    let early_hints = bytes(
        frame::HEADERS,
        END_HEADERS,
        1,
        &[&status("103"), &field[..]].concat(),
    );
    client.receive(&early_hints).unwrap();
    assert!(client.poll_failure(id, noop_waker()).is_pending());
    client.receive(&early_hints).unwrap();
    assert!(client.poll_failure(id, noop_waker()).is_ready());
}

/// HEADERS after the end of the response reset the incomplete request; later frames get no
/// response.
#[test]
fn stream_error_after_response_is_reported_once() {
    let (mut client, id) = client();
    let behind = bytes(frame::HEADERS, END_HEADERS, 1, OK);
    client.receive(&bytes(frame::HEADERS, BOTH, 1, OK)).unwrap();
    client.receive(&behind).unwrap();
    assert_eq!(
        reported_error(&mut client),
        Some((1, ErrorCode::STREAM_CLOSED))
    );
    client.drop_reader(id);
    client.drop_writer(id);
    client.receive(&bytes(frame::PRIORITY, 0, 1, &[0])).unwrap();
    client.receive(&behind).unwrap();
    assert_eq!(reported_error(&mut client), None);
}

/// A cancelled request is reset once.
#[test]
fn stream_error_on_cancelled_stream_is_ignored() {
    let (mut client, id) = client();
    client.receive(&bytes(frame::HEADERS, BOTH, 1, OK)).unwrap();
    client.drop_reader(id);
    client.drop_writer(id);
    assert_eq!(reported_error(&mut client), Some((1, ErrorCode::CANCEL)));
    client.receive(&bytes(frame::PRIORITY, 0, 1, &[0])).unwrap();
    assert_eq!(reported_error(&mut client), None);
}

/// Responses without content may have the Content-Length of another response.
#[test]
fn content_length_of_response_without_content_is_ignored() {
    let head = Request::head("http://web/").body(()).unwrap();
    let get = Request::get("http://web/").body(()).unwrap();
    let not_modified = status("304");
    for (request, status) in [(&head, OK), (&get, &not_modified)] {
        let (mut client, id) = client_of(request);
        let block = [status, &[0x0f, 13, 1, b'5']].concat();
        client
            .receive(&bytes(frame::HEADERS, BOTH, 1, &block))
            .unwrap();
        assert_eq!(reported_error(&mut client), None);
        assert!(matches!(
            client.poll_response(id, noop_waker()),
            Poll::Ready(Ok(_))
        ));
    }
}

/// An HTTP/1 client would parse such a body as the next response.
#[test]
fn content_in_response_without_content_is_rejected() {
    let head = Request::head("http://web/").body(()).unwrap();
    let get = Request::get("http://web/").body(()).unwrap();
    let (no_content, not_modified) = (status("204"), status("304"));
    for (request, status) in [(&head, OK), (&get, &no_content), (&get, &not_modified)] {
        let (mut client, _) = client_of(request);
        client
            .receive(&bytes(frame::HEADERS, END_HEADERS, 1, status))
            .unwrap();
        client.receive(&bytes(frame::DATA, 0, 1, b"")).unwrap();
        assert_eq!(reported_error(&mut client), None);
        client.receive(&bytes(frame::DATA, 0, 1, b"x")).unwrap();
        assert_eq!(
            reported_error(&mut client),
            Some((1, ErrorCode::PROTOCOL_ERROR))
        );
    }
}

/// The limit leaves room for the fields that the proxy adds. The size of the section is
/// configurable.
#[test]
fn responses_with_too_many_field_names_are_stream_errors() {
    for (fields, is_accepted) in [(16_384, true), (16_385, false)] {
        let config = Config {
            limits: Limits {
                max_header_list_size: 2 << 20,
                ..LIMITS
            },
            ..config(Role::Client)
        };
        let mut client = Connection::new(&config);
        client.receive(&bytes(frame::SETTINGS, 0, 0, &[])).unwrap();
        let request = Request::get("http://web/").body(()).unwrap();
        let id = client.open(&request, true);
        output(&mut client);
        let mut block = OK.to_vec();
        for n in 0..fields {
            block.extend([0, 6]);
            block.extend(format!("x{n:05}").into_bytes());
            block.extend([1, b'1']);
        }
        let mut fragments = block.chunks(16_000).peekable();
        let mut kind = frame::HEADERS;
        while let Some(fragment) = fragments.next() {
            let is_last = fragments.peek().is_none();
            let flags = if is_last { END_HEADERS } else { 0 };
            take(&mut client, &bytes(kind, flags, 1, fragment));
            kind = frame::CONTINUATION;
        }
        match client.poll_response(id, noop_waker()) {
            Poll::Ready(Ok(mut response)) if is_accepted => {
                let added = response.headers_mut().insert("l5d-proxy-error", 1.into());
                assert_eq!(added, None);
            }
            Poll::Ready(Err(Error::StreamError(..))) if !is_accepted => {}
            other => panic!("{fields}: {:?}", other.map(|answer| answer.map(drop))),
        }
    }
}

/// A server may reset any number of requests.
#[test]
fn resets_by_servers_are_not_limited() {
    let (mut client, first) = client();
    client.reset(first, ErrorCode::CANCEL);
    client.drop_reader(first);
    client.drop_writer(first);
    let request = Request::get("http://web/").body(()).unwrap();
    for _ in 0..5_000 {
        let id = client.open(&request, true);
        let refused = bytes(frame::RST_STREAM, 0, id.0, &[0, 0, 0, 7]);
        client.receive(&refused).unwrap();
        assert!(matches!(
            client.poll_response(id, noop_waker()),
            Poll::Ready(Err(Error::Reset(ErrorCode::REFUSED_STREAM)))
        ));
        client.drop_reader(id);
        client.drop_writer(id);
        output(&mut client);
    }
    assert_eq!(client.stream_count(), 0);
    assert!(!client.is_drain_due());
}

#[test]
fn max_concurrent_streams_of_zero_delays_requests() {
    let (mut client, _) = client();
    let settings = |streams: u8| bytes(frame::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, streams]);
    client.receive(&settings(0)).unwrap();
    let (flag, waker) = Flag::new();
    assert!(client.poll_ready(&waker).is_pending());
    client.receive(&settings(2)).unwrap();
    assert!(flag.was_woken());
    assert!(client.poll_ready(&waker).is_ready());
}
