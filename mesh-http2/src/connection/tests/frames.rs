//! Single invalid frames, and whether they end the stream or the connection.

use std::task::Poll;

use super::*;

const GET: &[u8] = &[0x82, 0x86, 0x84, 0x01, 3, b'w', b'e', b'b'];
const POST: &[u8] = &[0x83, 0x86, 0x84, 0x01, 3, b'w', b'e', b'b'];

const END_STREAM: u8 = frame::END_STREAM;
const END_HEADERS: u8 = frame::END_HEADERS;
const BOTH: u8 = END_STREAM | END_HEADERS;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// A server that has received the client's preface.
fn server() -> Connection {
    let mut server = Connection::new(&config(Role::Server));
    server.receive(PREFACE).unwrap();
    server.receive(&bytes(frame::SETTINGS, 0, 0, &[])).unwrap();
    server
        .receive(&bytes(frame::SETTINGS, frame::ACK, 0, &[]))
        .unwrap();
    output(&mut server);
    server
}

/// A server with an incomplete request on stream 1.
fn serving() -> Connection {
    let mut server = server();
    server
        .receive(&bytes(frame::HEADERS, END_HEADERS, 1, POST))
        .unwrap();
    server
}

/// The response to a frame after RST_STREAM does not depend on whether the stream's owner has
/// noticed the reset.
#[test]
fn frame_after_received_reset_is_a_stream_error() {
    for kind in [frame::DATA, frame::HEADERS] {
        let mut server = serving();
        let id = server.next_request().unwrap().id;
        server
            .receive(&bytes(frame::RST_STREAM, 0, 1, &[0, 0, 0, 8]))
            .unwrap();
        assert!(server.poll_failure(id, noop_waker()).is_ready());
        let behind = bytes(kind, BOTH, 1, &[0x88]);
        server.receive(&behind).unwrap();
        assert_eq!(
            reported_error(&mut server),
            Some((1, ErrorCode::STREAM_CLOSED))
        );
        // The stream is reset only once.
        server.receive(&behind).unwrap();
        assert_eq!(reported_error(&mut server), None);
    }
    // A sent reset may cross frames of the peer.
    let mut server = serving();
    let id = server.next_request().unwrap().id;
    server.reset(id, ErrorCode::CANCEL);
    output(&mut server);
    server.receive(&bytes(frame::DATA, 0, 1, b"x")).unwrap();
    assert_eq!(reported_error(&mut server), None);
}

#[test]
fn protocol_errors_close_stream_or_connection() {
    use frame::{
        CONTINUATION, DATA, GOAWAY, HEADERS, PING, PUSH_PROMISE, RST_STREAM, SETTINGS,
        WINDOW_UPDATE,
    };
    let post = || bytes(HEADERS, END_HEADERS, 1, POST);
    let get = || bytes(HEADERS, BOTH, 1, GET);
    let long = |kind, payload: &[u8]| bytes(kind, END_HEADERS, 1, payload);
    let of_connection = |code| Some((0, code));
    let of_stream = |code| Some((1, code));
    let protocol_error = ErrorCode::PROTOCOL_ERROR;
    let size = ErrorCode::FRAME_SIZE_ERROR;
    let flow = ErrorCode::FLOW_CONTROL_ERROR;
    for (sent, expected, why) in [
        (vec![get()], None, "a valid request"),
        (vec![bytes(200, 0xff, 77, b"?")], None, "an unknown frame"),
        (
            vec![bytes(DATA, 0, 0, b"x")],
            of_connection(protocol_error),
            "DATA on stream 0",
        ),
        (
            vec![bytes(DATA, 0, 3, b"x")],
            of_connection(protocol_error),
            "DATA on an idle stream",
        ),
        (
            vec![get(), bytes(DATA, 0, 1, b"x")],
            of_stream(ErrorCode::STREAM_CLOSED),
            "DATA after the end",
        ),
        (
            vec![post(), bytes(DATA, PADDED, 1, &[5, 0])],
            of_connection(protocol_error),
            "too much padding",
        ),
        (
            vec![post(), bytes(DATA, PADDED, 1, &[])],
            of_connection(protocol_error),
            "a missing padding length",
        ),
        (
            vec![bytes(HEADERS, BOTH, 0, GET)],
            of_connection(protocol_error),
            "HEADERS on stream 0",
        ),
        (
            vec![bytes(HEADERS, BOTH, 2, GET)],
            of_connection(protocol_error),
            "a server-initiated stream",
        ),
        (
            vec![get(), bytes(HEADERS, BOTH, 1, GET)],
            of_stream(ErrorCode::STREAM_CLOSED),
            "HEADERS after the end",
        ),
        (
            vec![post(), bytes(HEADERS, END_HEADERS, 1, &[])],
            of_stream(protocol_error),
            "trailers without END_STREAM",
        ),
        (
            vec![post(), bytes(HEADERS, BOTH, 1, GET)],
            of_stream(protocol_error),
            "a request in trailers",
        ),
        (
            vec![bytes(HEADERS, BOTH, 1, &[0xbe])],
            of_connection(ErrorCode::COMPRESSION_ERROR),
            "an unknown table index",
        ),
        (
            vec![bytes(HEADERS, BOTH, 1, &[0x82])],
            of_stream(protocol_error),
            "an incomplete request",
        ),
        (
            vec![bytes(
                HEADERS,
                BOTH | PRIORITY,
                1,
                &[&[0, 0, 0, 1, 9], GET].concat(),
            )],
            of_stream(protocol_error),
            "a stream that depends on itself",
        ),
        (
            vec![bytes(HEADERS, 0, 1, GET), bytes(PING, 0, 0, &[0; 8])],
            of_connection(protocol_error),
            "an interrupted field block",
        ),
        (
            vec![
                bytes(HEADERS, 0, 1, GET),
                bytes(CONTINUATION, END_HEADERS, 3, &[]),
            ],
            of_connection(protocol_error),
            "a CONTINUATION of another stream",
        ),
        (
            vec![get(), long(CONTINUATION, &[])],
            of_connection(protocol_error),
            "a CONTINUATION without HEADERS",
        ),
        (
            vec![get(), bytes(frame::PRIORITY, 0, 1, &[0; 4])],
            of_stream(size),
            "a short PRIORITY",
        ),
        (
            vec![get(), bytes(frame::PRIORITY, 0, 1, &[0, 0, 0, 1, 0])],
            of_stream(protocol_error),
            "a PRIORITY on itself",
        ),
        (
            vec![bytes(frame::PRIORITY, 0, 0, &[0; 5])],
            of_connection(protocol_error),
            "PRIORITY on stream 0",
        ),
        (
            vec![bytes(RST_STREAM, 0, 1, &[0; 4])],
            of_connection(protocol_error),
            "RST_STREAM on an idle stream",
        ),
        (
            vec![bytes(RST_STREAM, 0, 0, &[0; 4])],
            of_connection(protocol_error),
            "RST_STREAM on stream 0",
        ),
        (
            vec![get(), bytes(RST_STREAM, 0, 1, &[0; 3])],
            of_connection(size),
            "a short RST_STREAM",
        ),
        (
            vec![bytes(SETTINGS, 0, 1, &[])],
            of_connection(protocol_error),
            "SETTINGS on a stream",
        ),
        (
            vec![bytes(SETTINGS, 0, 0, &[0; 5])],
            of_connection(size),
            "an incomplete setting",
        ),
        (
            vec![bytes(SETTINGS, 1, 0, &[0; 6])],
            of_connection(size),
            "SETTINGS with ACK and a payload",
        ),
        (
            vec![bytes(PUSH_PROMISE, END_HEADERS, 1, &[0; 4])],
            of_connection(protocol_error),
            "PUSH_PROMISE",
        ),
        (
            vec![bytes(PING, 0, 0, &[0; 7])],
            of_connection(size),
            "a short PING",
        ),
        (
            vec![bytes(PING, 0, 1, &[0; 8])],
            of_connection(protocol_error),
            "PING on a stream",
        ),
        (
            vec![bytes(GOAWAY, 0, 0, &[0; 7])],
            of_connection(size),
            "a short GOAWAY",
        ),
        (
            vec![bytes(GOAWAY, 0, 1, &[0; 8])],
            of_connection(protocol_error),
            "GOAWAY on a stream",
        ),
        (
            vec![bytes(WINDOW_UPDATE, 0, 0, &[0; 4])],
            of_connection(protocol_error),
            "WINDOW_UPDATE with increment 0",
        ),
        (
            vec![bytes(WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255])],
            of_connection(flow),
            "a window overflow",
        ),
        (
            vec![bytes(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])],
            of_connection(protocol_error),
            "WINDOW_UPDATE on an idle stream",
        ),
        (
            vec![post(), bytes(WINDOW_UPDATE, 0, 1, &[0; 4])],
            of_stream(protocol_error),
            "a stream's WINDOW_UPDATE with increment 0",
        ),
        (
            vec![post(), bytes(WINDOW_UPDATE, 0, 1, &[0x7f, 255, 255, 255])],
            of_stream(flow),
            "a stream's window overflow",
        ),
        (
            vec![bytes(WINDOW_UPDATE, 0, 0, &[0; 3])],
            of_connection(size),
            "a short WINDOW_UPDATE",
        ),
        (
            vec![bytes(HEADERS, END_HEADERS, 1, &[0; 16_385])],
            of_connection(size),
            "a large frame",
        ),
    ] {
        let mut server = server();
        let mut received = Ok(0);
        for frame in &sent {
            received = received.and_then(|_| server.receive(frame));
        }
        assert_eq!(reported_error(&mut server), expected, "{why}");
        let ends = matches!(expected, Some((0, _)));
        assert_eq!(received.is_err(), ends, "{why}");
        assert_eq!(server.is_closed(), ends, "{why}");
    }
}

#[test]
fn invalid_preface_closes_connection() {
    for (sent, why) in [
        (b"GET / HTTP/1.1\r\n".to_vec(), "another protocol_error"),
        (
            [PREFACE, &bytes(frame::PING, 0, 0, &[0; 8])].concat(),
            "PING before SETTINGS",
        ),
        (
            [PREFACE, &bytes(frame::SETTINGS, 1, 0, &[])].concat(),
            "SETTINGS with ACK first",
        ),
    ] {
        let mut server = Connection::new(&config(Role::Server));
        assert_eq!(server.pending_input(), Some(PendingInput::Preface));
        server.receive(&sent).expect_err(why);
    }
}

#[test]
fn body_must_match_content_length() {
    // `content-length: 5`, by the index of its name.
    let five = &[POST, &[0x0f, 13, 1, b'5']].concat();
    for (data, ends, is_right) in [
        (&b"12345"[..], true, true),
        (b"1234", true, false),
        (b"123456", false, false),
    ] {
        let mut server = server();
        server
            .receive(&bytes(frame::HEADERS, END_HEADERS, 1, five))
            .unwrap();
        let flags = if ends { END_STREAM } else { 0 };
        server.receive(&bytes(frame::DATA, flags, 1, data)).unwrap();
        let expected = (!is_right).then_some((1, ErrorCode::PROTOCOL_ERROR));
        assert_eq!(reported_error(&mut server), expected, "{data:?}");
    }
    let mut server = server();
    server
        .receive(&bytes(frame::HEADERS, BOTH, 1, five))
        .unwrap();
    assert_eq!(
        reported_error(&mut server),
        Some((1, ErrorCode::PROTOCOL_ERROR))
    );
    assert!(server.next_request().is_none());
}

#[test]
fn data_beyond_window_is_rejected() {
    let frame = bytes(frame::DATA, 0, 1, &[0; 16_384]);
    let mut server = serving();
    for _ in 0..3 {
        server.receive(&frame).unwrap();
        assert_eq!(reported_error(&mut server), None);
    }
    // The windows of the stream and the connection have the same size.
    server.receive(&frame).unwrap_err();
    assert_eq!(
        reported_error(&mut server),
        Some((0, ErrorCode::FLOW_CONTROL_ERROR))
    );

    let larger = Config {
        connection_window: 1 << 20,
        ..config(Role::Server)
    };
    let mut server = Connection::new(&larger);
    server.receive(PREFACE).unwrap();
    server.receive(&bytes(frame::SETTINGS, 0, 0, &[])).unwrap();
    server
        .receive(&bytes(frame::HEADERS, END_HEADERS, 1, POST))
        .unwrap();
    for _ in 0..4 {
        server.receive(&frame).unwrap();
    }
    assert_eq!(
        reported_error(&mut server),
        Some((1, ErrorCode::FLOW_CONTROL_ERROR))
    );
}

#[test]
fn padding_is_removed_from_data() {
    let mut server = serving();
    let payload = [&[3][..], b"data", &[0; 3]].concat();
    for cut in 1..payload.len() + 9 {
        for piece in bytes(frame::DATA, PADDED, 1, &payload).chunks(cut) {
            server.receive(piece).unwrap();
        }
        let id = StreamId(1);
        let Poll::Ready(Some(Ok(BodyFrame::Data(data)))) = server.poll_body_frame(id, noop_waker())
        else {
            panic!("there is no data");
        };
        assert_eq!(data, "data");
    }
}

/// Padding is subject to flow control, but never read.
#[test]
fn padding_releases_flow_control_capacity() {
    let mut server = serving();
    let payload = [&[255, b'x'][..], &[0; 255]].concat();
    for _ in 0..1000 {
        server
            .receive(&bytes(frame::DATA, PADDED, 1, &payload))
            .unwrap();
        let piece = server.poll_body_frame(StreamId(1), noop_waker());
        assert!(matches!(piece, Poll::Ready(Some(Ok(_)))));
    }
}

/// Also when the client continues to use the stream.
#[test]
fn stream_error_is_reported_once() {
    let mut server = serving();
    let on_itself = [0, 0, 0, 1, 0];
    for n in 0..3 {
        server
            .receive(&bytes(frame::PRIORITY, 0, 1, &on_itself))
            .unwrap();
        let expected = (n == 0).then_some((1, ErrorCode::PROTOCOL_ERROR));
        assert_eq!(reported_error(&mut server), expected);
        let id = StreamId(1);
        server.drop_reader(id);
        server.drop_writer(id);
    }
}

#[test]
fn stream_reset_before_acceptance_is_not_returned() {
    let mut server = server();
    let reset = |server: &mut Connection, n: u32| {
        let stream = 2 * n + 1;
        server.receive(&bytes(frame::HEADERS, BOTH, stream, GET))?;
        server.receive(&bytes(frame::RST_STREAM, 0, stream, &[0, 0, 0, 8]))
    };
    for n in 0..5 {
        reset(&mut server, n).unwrap();
    }
    assert_eq!(server.stream_count(), 0);
    assert!(server.next_request().is_none());
    for n in 5..10 {
        reset(&mut server, n).unwrap();
    }
    reset(&mut server, 10).unwrap_err();
    assert_eq!(
        reported_error(&mut server),
        Some((0, ErrorCode::ENHANCE_YOUR_CALM))
    );
    assert_eq!(
        server.take_limit_exceeded(),
        Some(LimitExceeded::PendingAcceptResets)
    );
}

#[test]
fn field_section_size_is_limited() {
    // A field of about a kilobyte, as a literal.
    let large = [&[0, 1, b'x', 0x7f, 0xe9, 0x07][..], &[b'v'; 1128]].concat();
    let request = |fields: usize| [GET, &large.repeat(fields)].concat();
    let send = |server: &mut Connection, block: &[u8]| {
        let mut pieces = block.chunks(16_000).peekable();
        let mut kind = frame::HEADERS;
        while let Some(piece) = pieces.next() {
            let end = if pieces.peek().is_none() {
                END_HEADERS
            } else {
                0
            };
            let first = if kind == frame::HEADERS {
                END_STREAM
            } else {
                0
            };
            server.receive(&bytes(kind, end | first, 1, piece))?;
            kind = frame::CONTINUATION;
        }
        Ok::<_, Error>(())
    };
    for (fields, refused) in [
        (13, None),
        (15, Some(FieldSectionLimit::Size)),
        (50, Some(FieldSectionLimit::Size)),
    ] {
        let mut server = server();
        send(&mut server, &request(fields)).unwrap();
        assert_eq!(
            server.next_request().unwrap().exceeded_limit,
            refused,
            "{fields}"
        );
        assert_eq!(reported_error(&mut server), None);
    }
    let mut many = server();
    send(&mut many, &[GET, &[0x90; 21]].concat()).unwrap();
    assert_eq!(
        many.next_request().unwrap().exceeded_limit,
        Some(FieldSectionLimit::FieldCount)
    );
    let mut server = server();
    send(&mut server, &request(60)).unwrap_err();
    assert_eq!(
        server.take_limit_exceeded(),
        Some(LimitExceeded::HeaderSize)
    );
}

#[test]
fn incomplete_preface_and_field_block_are_pending_input() {
    let mut server = server();
    assert_eq!(server.pending_input(), None);
    let header = bytes(frame::HEADERS, END_STREAM, 1, GET);
    server.receive(&header[..12]).unwrap();
    assert_eq!(server.pending_input(), Some(PendingInput::FieldBlock(1)));
    server.receive(&header[12..]).unwrap();
    assert_eq!(server.pending_input(), Some(PendingInput::FieldBlock(1)));
    server
        .receive(&bytes(frame::CONTINUATION, END_HEADERS, 1, &[]))
        .unwrap();
    assert_eq!(server.pending_input(), None);
    // DATA has no time limit here.
    server
        .receive(&bytes(frame::HEADERS, END_HEADERS, 3, POST))
        .unwrap();
    server
        .receive(&bytes(frame::DATA, 0, 3, b"slow")[..11])
        .unwrap();
    assert_eq!(server.pending_input(), None);
}

#[test]
fn initial_window_size_changes_open_streams() {
    let mut server = server();
    server
        .receive(&bytes(frame::HEADERS, BOTH, 1, GET))
        .unwrap();
    let id = server.next_request().unwrap().id;
    server.respond(id, &Response::new(()), false);
    assert_eq!(
        server.poll_capacity(id, noop_waker()).map(Result::unwrap),
        Poll::Ready(send::DEFAULT_OUTPUT_LIMIT.min(65_535))
    );
    server.send_data(id, vec![0; 1000].into(), false);
    output(&mut server);
    let window = |size: u32| {
        bytes(
            frame::SETTINGS,
            0,
            0,
            &[&[0, 4][..], &size.to_be_bytes()].concat(),
        )
    };
    server.receive(&window(500)).unwrap();
    assert!(
        server.poll_capacity(id, noop_waker()).is_pending(),
        "500 too many"
    );
    let (flag, waker) = Flag::new();
    assert!(server.poll_capacity(id, &waker).is_pending());
    server.receive(&window(1700)).unwrap();
    assert!(flag.was_woken());
    assert_eq!(
        server.poll_capacity(id, noop_waker()).map(Result::unwrap),
        Poll::Ready(700)
    );
}

proptest::proptest! {
    /// Every frame is accepted or rejected.
    #[test]
    fn arbitrary_frames_do_not_panic(
        frames in proptest::collection::vec(
            (0_u8..11, 0_u8.., 0_u32..8, proptest::collection::vec(0_u8.., 0..40), 1_usize..60),
            0..60,
        ),
        is_server: bool,
    ) {
        let role = if is_server { Role::Server } else { Role::Client };
        let mut connection = Connection::new(&config(role));
        if is_server {
            connection.receive(PREFACE).unwrap();
        }
        connection.receive(&bytes(frame::SETTINGS, 0, 0, &[])).unwrap();
        let mut open = Vec::new();
        for (n, (kind, flags, stream, payload, cut)) in frames.into_iter().enumerate() {
            if !is_server && connection.poll_ready(noop_waker()).is_ready() {
                let request = Request::post("http://web/").body(()).unwrap();
                if connection.open_error().is_none() {
                    open.push(connection.open(&request, n % 2 == 0));
                }
            }
            let payload = match kind {
                // So that some requests are complete.
                frame::HEADERS if n % 3 == 0 => [POST, &payload].concat(),
                frame::HEADERS => if is_server { POST.to_vec() } else { vec![0x88] },
                _ => payload,
            };
            let flags = if kind == frame::HEADERS { flags | END_HEADERS } else { flags };
            for piece in bytes(kind, flags, stream, &payload).chunks(cut) {
                if connection.receive(piece).is_err() {
                    break;
                }
            }
            while let Some(accepted) = connection.next_request() {
                open.push(accepted.id);
            }
            for id in &open {
                let _ = connection.poll_response(*id, noop_waker());
                let _ = connection.poll_body_frame(*id, noop_waker());
                if n % 5 == 0 {
                    connection.respond(*id, &Response::new(()), false);
                }
                if let Poll::Ready(Ok(room)) = connection.poll_capacity(*id, noop_waker()) {
                    connection.send_data(*id, vec![0; room.min(cut)].into(), n % 7 == 0);
                }
            }
            if n % 11 == 0 && let Some(id) = open.pop() {
                connection.drop_reader(id);
                connection.drop_writer(id);
            }
            if n % 4 == 0 {
                output(&mut connection);
            }
        }
        for id in open {
            connection.drop_writer(id);
            connection.drop_reader(id);
        }
        output(&mut connection);
        assert_eq!(connection.open_local_streams + connection.open_peer_streams, connection.stream_count() as u32);
    }
}
