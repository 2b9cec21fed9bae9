//! Servers that make their own frames, and what becomes of our streams and connections to them.

use std::task::Poll;

use super::*;

const END_STREAM: u8 = frame::END_STREAM;
const END_HEADERS: u8 = frame::END_HEADERS;
const BOTH: u8 = END_STREAM | END_HEADERS;

/// `200`, by the index of the static table.
const OK: &[u8] = &[0x88];

/// A client that has been greeted, with a request on stream 1 that goes on.
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
fn mistakes_end_what_they_concern() {
    use frame::{DATA, GOAWAY, HEADERS, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE};
    let of_connection = |reason| Some((0, reason));
    let of_stream = |reason| Some((1, reason));
    let protocol_error = ErrorCode::PROTOCOL_ERROR;
    let ok = || bytes(HEADERS, END_HEADERS, 1, OK);
    // `content-length: 5`, by the index of its name.
    let five = [OK, &[0x0f, 13, 1, b'5']].concat();
    for (sent, expected, why) in [
        (vec![bytes(HEADERS, BOTH, 1, OK)], None, "nothing"),
        (
            vec![bytes(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])],
            of_connection(protocol_error),
            "a push",
        ),
        (
            vec![bytes(HEADERS, BOTH, 2, OK)],
            of_connection(protocol_error),
            "a stream of the server's",
        ),
        (
            vec![bytes(HEADERS, BOTH, 3, OK)],
            of_connection(protocol_error),
            "a response to nothing",
        ),
        (
            vec![bytes(DATA, 0, 1, b"x")],
            of_stream(protocol_error),
            "data before a head",
        ),
        (
            vec![bytes(HEADERS, END_HEADERS, 1, &[0x82])],
            of_stream(protocol_error),
            "a request",
        ),
        (
            vec![bytes(HEADERS, END_HEADERS, 1, &status("101"))],
            of_stream(protocol_error),
            "an upgrade",
        ),
        (
            vec![bytes(HEADERS, BOTH, 1, &status("103"))],
            of_stream(protocol_error),
            "an interim response and nothing else",
        ),
        (
            vec![ok(), bytes(HEADERS, END_HEADERS, 1, OK)],
            of_stream(protocol_error),
            "a second head",
        ),
        (
            vec![bytes(HEADERS, BOTH, 1, OK), bytes(DATA, 0, 1, b"x")],
            of_stream(ErrorCode::STREAM_CLOSED),
            "data behind the end",
        ),
        (
            vec![bytes(HEADERS, BOTH, 1, &five)],
            of_stream(protocol_error),
            "no body where one is said to be",
        ),
        (
            vec![
                bytes(HEADERS, END_HEADERS, 1, &five),
                bytes(DATA, END_STREAM, 1, b"four"),
            ],
            of_stream(protocol_error),
            "a body that is too short",
        ),
        (
            vec![bytes(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 1])],
            of_connection(protocol_error),
            "pushes announced",
        ),
        (
            vec![bytes(RST_STREAM, 0, 3, &[0; 4])],
            of_connection(protocol_error),
            "a reset of nothing",
        ),
        (
            vec![bytes(WINDOW_UPDATE, 0, 2, &[0, 0, 0, 1])],
            of_connection(protocol_error),
            "a window of nothing",
        ),
        (
            vec![bytes(GOAWAY, 0, 0, &[0; 4])],
            of_connection(ErrorCode::FRAME_SIZE_ERROR),
            "half a farewell",
        ),
    ] {
        let (mut client, id) = client();
        for frame in &sent {
            // The next frames change nothing.
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
fn interim_responses_come_ahead_of_the_response() {
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

/// A server that only informs ends its stream and nothing else, whether or not somebody takes what
/// it says.
#[test]
fn interim_responses_are_limited() {
    let hint = bytes(frame::HEADERS, END_HEADERS, 1, &status("103"));
    for is_taken in [false, true] {
        let (mut client, id) = client();
        for _ in 0..32 {
            client.receive(&hint).unwrap();
            assert!(!is_taken || client.poll_response(id, noop_waker()).is_ready());
        }
        assert!(client.poll_failure(id, noop_waker()).is_pending());
        client.receive(&hint).unwrap();
        let calm = ErrorCode::ENHANCE_YOUR_CALM;
        assert_eq!(reported_error(&mut client), Some((1, calm)), "{is_taken}");
    }
    // Few, but large: no more is held of all of them than of one head.
    let (mut client, id) = client();
    let field = [&[0x00, 1, b'x', 0x7f, 0xed, 0x3f], &[b'y'; 8_300][..]].concat();
    let hint = bytes(
        frame::HEADERS,
        END_HEADERS,
        1,
        &[&status("103"), &field[..]].concat(),
    );
    client.receive(&hint).unwrap();
    assert!(client.poll_failure(id, noop_waker()).is_pending());
    client.receive(&hint).unwrap();
    assert!(client.poll_failure(id, noop_waker()).is_ready());
}

/// What comes behind the end of a response ends a request that goes on, and nothing is said of what
/// comes then.
#[test]
fn a_mistake_behind_the_end_is_answered_once() {
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

/// A request that nobody needs any more is given up once.
#[test]
fn a_mistake_on_a_stream_that_was_given_up_is_not_answered() {
    let (mut client, id) = client();
    client.receive(&bytes(frame::HEADERS, BOTH, 1, OK)).unwrap();
    client.drop_reader(id);
    client.drop_writer(id);
    assert_eq!(reported_error(&mut client), Some((1, ErrorCode::CANCEL)));
    client.receive(&bytes(frame::PRIORITY, 0, 1, &[0])).unwrap();
    assert_eq!(reported_error(&mut client), None);
}

/// Some responses say how long a body would be that they do not have.
#[test]
fn lengths_of_bodies_that_are_not_there_are_no_mistake() {
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

/// A reader in HTTP/1 would take them for the beginning of the next response.
#[test]
fn bodies_where_none_can_be_are_refused() {
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

/// As many as the proxy's own fields can be added to. The limit of the section's size is the
/// operator's.
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

/// A server that resets what it is asked has its reasons, however often.
#[test]
fn resets_by_servers_are_no_attack() {
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
fn a_server_may_allow_no_streams_for_now() {
    let (mut client, _) = client();
    let settings = |streams: u8| bytes(frame::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, streams]);
    client.receive(&settings(0)).unwrap();
    let (flag, waker) = Flag::new();
    assert!(client.poll_ready(&waker).is_pending());
    client.receive(&settings(2)).unwrap();
    assert!(flag.was_woken());
    assert!(client.poll_ready(&waker).is_ready());
}
