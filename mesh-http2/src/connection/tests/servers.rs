//! Clients whose server sends hand-made frames.

use std::task::Poll;

use super::*;

/// `200`, by the index of the static table.
const OK: &[u8] = &[0x88];

/// A client that has received SETTINGS, with an incomplete request on stream 1.
fn client() -> (Connection, StreamId) {
    client_of(&Request::post("http://web/").body(()).unwrap())
}

fn client_of(request: &Request<()>) -> (Connection, StreamId) {
    let mut client = greeted(&config(Role::Client));
    let id = client.open(request, None, false);
    output(&mut client);
    (client, id)
}

/// `:status` with a value that is in no table.
fn status(status: &str) -> Vec<u8> {
    [&[0x08, 3], status.as_bytes()].concat()
}

#[test]
fn protocol_errors_of_servers_close_stream_or_connection() {
    let response = |flags, block: &[u8]| bytes(HEADERS, flags, 1, block);
    // `content-length: 5`, by the index of its name.
    let five = [OK, &[0x0f, 13, 1, b'5']].concat();
    let short = [
        response(END_HEADERS, &five),
        bytes(DATA, END_STREAM, 1, b"four"),
    ];
    let late = [response(BOTH, OK), bytes(DATA, 0, 1, b"x")];
    let open = [response(END_HEADERS, OK), response(END_HEADERS, OK)];
    let check = |expected, cases: &[Case<'_>]| check_cases(|| client().0, expected, cases);
    check(None, &[("a valid response", &[response(BOTH, OK)])]);
    check(
        Some((0, ErrorCode::PROTOCOL_ERROR)),
        &[
            (
                "a push",
                &[bytes(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])],
            ),
            ("a server-initiated stream", &[bytes(HEADERS, BOTH, 2, OK)]),
            ("an idle stream", &[bytes(HEADERS, BOTH, 3, OK)]),
            ("ENABLE_PUSH", &[bytes(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 1])]),
            ("idle RST_STREAM", &[bytes(RST_STREAM, 0, 3, &[0; 4])]),
            (
                "idle WINDOW_UPDATE",
                &[bytes(WINDOW_UPDATE, 0, 2, &[0, 0, 0, 1])],
            ),
        ],
    );
    check(
        Some((0, ErrorCode::FRAME_SIZE_ERROR)),
        &[("a short GOAWAY", &[bytes(GOAWAY, 0, 0, &[0; 4])])],
    );
    check(
        Some((1, ErrorCode::STREAM_CLOSED)),
        &[("DATA after the end", &late)],
    );
    check(
        Some((1, ErrorCode::PROTOCOL_ERROR)),
        &[
            ("DATA before HEADERS", &[bytes(DATA, 0, 1, b"x")]),
            ("a request", &[response(END_HEADERS, &[0x82])]),
            ("status 101", &[response(END_HEADERS, &status("101"))]),
            (
                "only an interim response",
                &[response(BOTH, &status("103"))],
            ),
            ("HEADERS after HEADERS without END_STREAM", &open),
            ("no body despite Content-Length", &[response(BOTH, &five)]),
            ("a body shorter than Content-Length", &short),
        ],
    );
}

#[test]
fn interim_responses_precede_the_final_response() {
    let (mut client, id) = client();
    let interims: Vec<u8> = ["100", "103", "102"]
        .iter()
        .flat_map(|interim| bytes(HEADERS, END_HEADERS, 1, &status(interim)))
        .collect();
    client.receive(&interims).unwrap();
    receive(&mut client, HEADERS, BOTH, 1, OK);
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
    let early_hints = bytes(HEADERS, END_HEADERS, 1, &status("103"));
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
    let block = [&status("103"), &field[..]].concat();
    let early_hints = bytes(HEADERS, END_HEADERS, 1, &block);
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
    let behind = bytes(HEADERS, END_HEADERS, 1, OK);
    receive(&mut client, HEADERS, BOTH, 1, OK);
    client.receive(&behind).unwrap();
    assert_error(&mut client, 1, ErrorCode::STREAM_CLOSED);
    drop_stream(&mut client, id);
    receive(&mut client, frame::PRIORITY, 0, 1, &[0]);
    client.receive(&behind).unwrap();
    assert_eq!(reported_error(&mut client), None);
}

/// A cancelled request is reset once.
#[test]
fn stream_error_on_cancelled_stream_is_ignored() {
    let (mut client, id) = client();
    receive(&mut client, HEADERS, BOTH, 1, OK);
    drop_stream(&mut client, id);
    assert_error(&mut client, 1, ErrorCode::CANCEL);
    receive(&mut client, frame::PRIORITY, 0, 1, &[0]);
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
        receive(&mut client, HEADERS, BOTH, 1, &block);
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
        receive(&mut client, HEADERS, END_HEADERS, 1, status);
        receive(&mut client, DATA, 0, 1, b"");
        assert_eq!(reported_error(&mut client), None);
        receive(&mut client, DATA, 0, 1, b"x");
        assert_error(&mut client, 1, ErrorCode::PROTOCOL_ERROR);
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
        receive(&mut client, SETTINGS, 0, 0, &[]);
        let request = Request::get("http://web/").body(()).unwrap();
        let id = client.open(&request, None, true);
        output(&mut client);
        let mut block = OK.to_vec();
        for n in 0..fields {
            block.extend([0, 6]);
            block.extend(format!("x{n:05}").into_bytes());
            block.extend([1, b'1']);
        }
        for frame in fragmented(0, &block) {
            take(&mut client, &frame);
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
    drop_stream(&mut client, first);
    let request = Request::get("http://web/").body(()).unwrap();
    for _ in 0..5_000 {
        let id = client.open(&request, None, true);
        let refused = bytes(RST_STREAM, 0, id.0, &[0, 0, 0, 7]);
        client.receive(&refused).unwrap();
        assert!(matches!(
            client.poll_response(id, noop_waker()),
            Poll::Ready(Err(Error::Reset(ErrorCode::REFUSED_STREAM)))
        ));
        drop_stream(&mut client, id);
        output(&mut client);
    }
    assert_eq!(client.stream_count(), 0);
    assert!(!client.is_drain_due());
}

#[test]
fn max_concurrent_streams_of_zero_delays_requests() {
    let (mut client, _) = client();
    let settings = |streams: u8| bytes(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, streams]);
    client.receive(&settings(0)).unwrap();
    let (flag, waker) = Flag::new();
    assert!(client.poll_ready(&waker).is_pending());
    client.receive(&settings(2)).unwrap();
    assert!(flag.was_woken());
    assert!(client.poll_ready(&waker).is_ready());
}

#[test]
fn a_hundred_requests_are_sent_before_the_settings_of_the_server() {
    let mut client = Connection::new(&config(Role::Client));
    let request = Request::get("http://web/").body(()).unwrap();
    for _ in 0..100 {
        assert!(client.poll_ready(noop_waker()).is_ready());
        client.open(&request, None, true);
    }
    let (flag, waker) = Flag::new();
    assert!(client.poll_ready(&waker).is_pending());
    receive(&mut client, SETTINGS, 0, 0, &[]);
    assert!(flag.was_woken());
    assert!(client.poll_ready(&waker).is_ready());
}

#[test]
fn connection_has_responded_with_the_first_field_block() {
    let mut client = greeted(&config(Role::Client));
    let get = Request::get("http://web/").body(()).unwrap();
    client.open(&get, None, true);
    assert!(!client.has_responded());
    receive(&mut client, HEADERS, END_HEADERS, 1, &[0x88]);
    assert!(client.has_responded());
    assert!(!serving().has_responded(), "a server");
}

/// Also of an interim response, when the block of another stream has followed.
#[test]
fn response_has_begun_with_any_field_block_of_its_stream() {
    const CONTINUE: &[u8] = &[0x48, 3, b'1', b'0', b'0'];
    let mut client = greeted(&config(Role::Client));
    let get = Request::get("http://web/").body(()).unwrap();
    let ids = [(); 3].map(|()| client.open(&get, None, true));
    let begun = |client: &Connection| ids.map(|id| client.has_response_begun(id));
    assert_eq!(begun(&client), [false; 3]);
    receive(&mut client, HEADERS, END_HEADERS, ids[0].0, CONTINUE);
    assert_eq!(begun(&client), [true, false, false]);
    receive(&mut client, HEADERS, END_HEADERS, ids[1].0, &[0x88]);
    assert_eq!(begun(&client), [true, true, false]);
    receive(&mut client, HEADERS, END_HEADERS, ids[2].0, &[0x88]);
    assert_eq!(begun(&client), [true; 3]);
}
