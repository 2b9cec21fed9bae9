//! Single invalid frames, and whether they end the stream or the connection.

use std::task::Poll;

use super::*;

const PRIORITY: u8 = 0x20;

#[test]
fn preface_in_pieces_is_followed_by_frames() {
    for cut in 1..PREFACE.len() {
        let mut server = Connection::new(&config(Role::Server));
        take(&mut server, &PREFACE[..cut]);
        take(
            &mut server,
            &[&PREFACE[cut..], &bytes(SETTINGS, 0, 0, &[])].concat(),
        );
        assert!(server.has_peer_settings(), "{cut}");
    }
}

/// The response to a frame after RST_STREAM does not depend on whether the stream's owner has
/// noticed the reset.
#[test]
fn frame_after_received_reset_is_a_stream_error() {
    for kind in [DATA, HEADERS] {
        let mut server = serving();
        let id = server.next_request().unwrap().id;
        receive(&mut server, RST_STREAM, 0, 1, &[0, 0, 0, 8]);
        assert!(server.poll_failure(id, noop_waker()).is_ready());
        let behind = bytes(kind, BOTH, 1, &[0x88]);
        server.receive(&behind).unwrap();
        assert_error(&mut server, 1, ErrorCode::STREAM_CLOSED);
        // The stream is reset only once.
        server.receive(&behind).unwrap();
        assert_eq!(reported_error(&mut server), None);
    }
    // A sent reset may cross frames of the peer.
    let mut server = serving();
    let id = server.next_request().unwrap().id;
    server.reset(id, ErrorCode::CANCEL);
    output(&mut server);
    receive(&mut server, DATA, 0, 1, b"x");
    assert_eq!(reported_error(&mut server), None);
}

#[test]
fn protocol_errors_close_stream_or_connection() {
    let post = || bytes(HEADERS, END_HEADERS, 1, POST);
    let get = || bytes(HEADERS, BOTH, 1, GET);
    let headers = |flags, stream, block: &[u8]| bytes(HEADERS, flags, stream, block);
    let data = |flags, stream, payload: &[u8]| bytes(DATA, flags, stream, payload);
    let priority = |stream, payload: &[u8]| bytes(frame::PRIORITY, 0, stream, payload);
    let reset = |stream, payload: &[u8]| bytes(RST_STREAM, 0, stream, payload);
    let update = |stream, payload: &[u8]| bytes(WINDOW_UPDATE, 0, stream, payload);
    let continuation = |stream| bytes(CONTINUATION, END_HEADERS, stream, &[]);
    let interrupted = [headers(0, 1, GET), bytes(PING, 0, 0, &[0; 8])];
    let extended = [headers(0, 1, GET), bytes(200, 0, 1, &[])];
    let overflow = [0x7f, 255, 255, 255];
    let on_itself = [&[0, 0, 0, 1, 9], GET].concat();
    let check = |expected, cases: &[Case<'_>]| check_cases(server, expected, cases);
    let unknown = [0x7f, 0xff, 0, 0, 0, 1];
    let largest_window = bytes(SETTINGS, 0, 0, &[0, 4, 0x7f, 255, 255, 255]);
    check(
        None,
        &[
            ("a valid request", &[get()]),
            ("an unknown frame", &[bytes(200, 0xff, 77, b"?")]),
            ("an unknown setting", &[bytes(SETTINGS, 0, 0, &unknown)]),
            ("undefined flags", &[bytes(SETTINGS, 0xfe, 0, &unknown)]),
            ("a reserved bit", &[update(0, &[0x80, 0, 0, 1])]),
            (
                "an update after the end",
                &[get(), update(1, &[0, 0, 0, 1])],
            ),
            ("a reset after the end", &[get(), reset(1, &[0; 4])]),
            ("a PRIORITY of an idle stream", &[priority(9, &[0; 5])]),
            ("an unknown error code", &[post(), reset(1, &[255; 4])]),
        ],
    );
    check(
        Some((0, ErrorCode::PROTOCOL_ERROR)),
        &[
            ("DATA on stream 0", &[data(0, 0, b"x")]),
            ("DATA on an idle stream", &[data(0, 3, b"x")]),
            ("too much padding", &[post(), data(PADDED, 1, &[5, 0])]),
            (
                "padding as long as DATA",
                &[post(), data(PADDED, 1, &[2, 0])],
            ),
            ("no padding length", &[post(), data(PADDED, 1, &[])]),
            ("padding of HEADERS", &[headers(BOTH | PADDED, 1, &[2, 0])]),
            ("HEADERS on stream 0", &[headers(BOTH, 0, GET)]),
            ("a server-initiated stream", &[headers(BOTH, 2, GET)]),
            ("an interrupted field block", &interrupted),
            ("an unknown frame in a field block", &extended),
            ("another stream", &[headers(0, 1, GET), continuation(3)]),
            ("CONTINUATION without HEADERS", &[get(), continuation(1)]),
            ("PRIORITY on stream 0", &[priority(0, &[0; 5])]),
            ("RST_STREAM on an idle stream", &[reset(1, &[0; 4])]),
            ("RST_STREAM on stream 0", &[reset(0, &[0; 4])]),
            ("SETTINGS on a stream", &[bytes(SETTINGS, 0, 1, &[])]),
            ("a push", &[bytes(PUSH_PROMISE, END_HEADERS, 1, &[0; 4])]),
            ("PING on a stream", &[bytes(PING, 0, 1, &[0; 8])]),
            ("GOAWAY on a stream", &[bytes(GOAWAY, 0, 1, &[0; 8])]),
            ("an increment of 0", &[update(0, &[0; 4])]),
            ("an idle stream's update", &[update(1, &[0, 0, 0, 1])]),
            (
                "an idle stream's PRIORITY on itself",
                &[priority(9, &[0, 0, 0, 9, 0])],
            ),
        ],
    );
    check(
        Some((0, ErrorCode::FRAME_SIZE_ERROR)),
        &[
            ("a short RST_STREAM", &[get(), reset(1, &[0; 3])]),
            ("an incomplete setting", &[bytes(SETTINGS, 0, 0, &[0; 5])]),
            ("ACK with a payload", &[bytes(SETTINGS, 1, 0, &[0; 6])]),
            ("a short PING", &[bytes(PING, 0, 0, &[0; 7])]),
            ("a short GOAWAY", &[bytes(GOAWAY, 0, 0, &[0; 7])]),
            ("a short WINDOW_UPDATE", &[update(0, &[0; 3])]),
            ("a large frame", &[headers(END_HEADERS, 1, &[0; 16_385])]),
            ("no padding length", &[headers(BOTH | PADDED, 1, &[])]),
            ("an idle stream's short PRIORITY", &[priority(9, &[0; 4])]),
        ],
    );
    check(
        Some((0, ErrorCode::COMPRESSION_ERROR)),
        &[("an unknown table index", &[headers(BOTH, 1, &[0xbe])])],
    );
    check(
        Some((0, ErrorCode::FLOW_CONTROL_ERROR)),
        &[
            ("a window overflow", &[update(0, &overflow)]),
            (
                "an overflow by SETTINGS",
                &[post(), update(1, &[0, 0, 0, 1]), largest_window],
            ),
        ],
    );
    check(
        Some((0, ErrorCode::STREAM_CLOSED)),
        &[("a smaller stream", &[headers(BOTH, 3, GET), get()])],
    );
    let eleven: Vec<_> = (0..11).map(|n| headers(BOTH, 2 * n + 1, GET)).collect();
    check(
        Some((21, ErrorCode::REFUSED_STREAM)),
        &[("a stream beyond the limit", &eleven)],
    );
    check(
        Some((1, ErrorCode::STREAM_CLOSED)),
        &[
            ("DATA after the end", &[get(), data(0, 1, b"x")]),
            ("HEADERS after the end", &[get(), get()]),
        ],
    );
    let depends_on_itself = [headers(BOTH | PRIORITY, 1, &on_itself)];
    let is_prioritized_on_itself = [get(), priority(1, &[0, 0, 0, 1, 0])];
    check(
        Some((1, ErrorCode::PROTOCOL_ERROR)),
        &[
            ("endless trailers", &[post(), headers(END_HEADERS, 1, &[])]),
            ("a request in trailers", &[post(), get()]),
            ("an incomplete request", &[headers(BOTH, 1, &[0x82])]),
            ("a stream that depends on itself", &depends_on_itself),
            ("a PRIORITY on itself", &is_prioritized_on_itself),
            ("an increment of 0", &[post(), update(1, &[0; 4])]),
        ],
    );
    check(
        Some((1, ErrorCode::FRAME_SIZE_ERROR)),
        &[("a short PRIORITY", &[get(), priority(1, &[0; 4])])],
    );
    check(
        Some((1, ErrorCode::FLOW_CONTROL_ERROR)),
        &[("a window overflow", &[post(), update(1, &overflow)])],
    );
}

#[test]
fn connections_begin_with_preface_and_settings() {
    let output = output(&mut Connection::new(&config(Role::Client)));
    let after_preface = output.strip_prefix(PREFACE).unwrap();
    assert_eq!(after_preface[3], SETTINGS);
    let no_push = [0, 2, 0, 0, 0, 0];
    assert!(after_preface[9..].as_chunks().0.contains(&no_push));
    let frames = sent_frames(&mut Connection::new(&config(Role::Server)));
    assert_eq!((frames[0].0.kind, frames[0].0.flags), (SETTINGS, 0));
    let (settings, _) = frames[0].1.as_chunks::<6>();
    assert!(settings.iter().all(|setting| setting[1] != no_push[1]));
}

#[test]
fn settings_and_pings_are_acknowledged_and_acknowledgements_are_not() {
    let mut server = server();
    for (kind, payload) in [(SETTINGS, &[0, 3, 0, 0, 0, 9][..]), (PING, b"12345678")] {
        receive(&mut server, kind, 0, 0, payload);
        let frames = sent_frames(&mut server);
        let [(header, sent)] = &frames[..] else {
            panic!("{frames:?}");
        };
        assert_eq!((header.kind, header.flags, header.stream), (kind, 1, 0));
        let expected = if kind == PING { payload } else { &[] };
        assert_eq!(sent, expected);
        receive(&mut server, kind, frame::ACK, 0, expected);
        assert!(sent_frames(&mut server).is_empty(), "{kind}");
    }
}

/// RFC 7541, section 4.2: also a size that the same SETTINGS replace.
#[test]
fn smallest_table_size_of_settings_precedes_the_last() {
    let mut server = server();
    let sizes = [0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 16, 0];
    receive(&mut server, SETTINGS, 0, 0, &sizes);
    receive(&mut server, HEADERS, BOTH, 1, GET);
    let id = server.next_request().unwrap().id;
    output(&mut server);
    server.respond(id, &Response::new(()), true);
    let frames = sent_frames(&mut server);
    // Sizes 0 and 4,096, and `:status: 200`.
    assert_eq!(frames[0].1, [0x20, 0x3f, 0xe1, 0x1f, 0x88]);
}

/// Streams after the final GOAWAY are discarded, though not for HPACK and flow control.
#[test]
fn last_stream_of_goaway_does_not_increase() {
    let mut server = server();
    receive(&mut server, HEADERS, END_HEADERS, 1, POST);
    server.start_graceful_shutdown();
    receive(&mut server, PING, frame::ACK, 0, &GOAWAY_PING_PAYLOAD);
    let adds_entry = [GET, &[0x40, 1, b'x', 1, b'y']].concat();
    receive(&mut server, HEADERS, END_HEADERS, 3, &adds_entry);
    for _ in 0..3 {
        receive(&mut server, DATA, 0, 3, &[0; 16_384]);
    }
    let refers_to_entry = [GET, &[0xbe]].concat();
    receive(&mut server, HEADERS, BOTH, 5, &refers_to_entry);
    server.abort(ErrorCode::NO_ERROR);
    let frames = sent_frames(&mut server);
    let goaways = frames.iter().filter(|(header, _)| header.kind == GOAWAY);
    let last: Vec<u32> = goaways.map(|it| frame::goaway(&it.1).unwrap().0).collect();
    assert_eq!(last, [crate::window::MAX_WINDOW, 1, 1]);
    let is_update = |header: &frame::FrameHeader| header.kind == WINDOW_UPDATE;
    assert!(frames.iter().any(|(header, _)| is_update(header)));
}

#[test]
fn invalid_preface_closes_connection() {
    for (sent, why) in [
        (b"GET / HTTP/1.1\r\n".to_vec(), "another protocol"),
        (
            [PREFACE, &bytes(PING, 0, 0, &[0; 8])].concat(),
            "PING before SETTINGS",
        ),
        (
            [PREFACE, &bytes(SETTINGS, 1, 0, &[])].concat(),
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
        receive(&mut server, HEADERS, END_HEADERS, 1, five);
        let flags = if ends { END_STREAM } else { 0 };
        receive(&mut server, DATA, flags, 1, data);
        let expected = (!is_right).then_some((1, ErrorCode::PROTOCOL_ERROR));
        assert_eq!(reported_error(&mut server), expected, "{data:?}");
    }
    let mut server = server();
    receive(&mut server, HEADERS, BOTH, 1, five);
    assert_error(&mut server, 1, ErrorCode::PROTOCOL_ERROR);
    assert!(server.next_request().is_none());
}

/// Also when the client continues to use the stream.
#[test]
fn stream_error_is_reported_once() {
    let mut server = serving();
    let on_itself = [0, 0, 0, 1, 0];
    for n in 0..3 {
        receive(&mut server, frame::PRIORITY, 0, 1, &on_itself);
        let expected = (n == 0).then_some((1, ErrorCode::PROTOCOL_ERROR));
        assert_eq!(reported_error(&mut server), expected);
        let id = StreamId(1);
        drop_stream(&mut server, id);
    }
}

#[test]
fn stream_reset_before_acceptance_is_not_returned() {
    let mut server = server();
    let reset = |server: &mut Connection, n: u32| {
        let stream = 2 * n + 1;
        server.receive(&bytes(HEADERS, BOTH, stream, GET))?;
        server.receive(&bytes(RST_STREAM, 0, stream, &[0, 0, 0, 8]))
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
    assert_error(&mut server, 0, ErrorCode::ENHANCE_YOUR_CALM);
    let limit = server.take_limit_exceeded();
    assert_eq!(limit, Some(LimitExceeded::PendingAcceptResets));
}

#[test]
fn field_section_size_is_limited() {
    // A field of about a kilobyte, as a literal.
    let large = [&[0, 1, b'x', 0x7f, 0xe9, 0x07][..], &[b'v'; 1128]].concat();
    let request = |fields: usize| [GET, &large.repeat(fields)].concat();
    let send = |server: &mut Connection, block: &[u8]| {
        let mut frames = fragmented(END_STREAM, block).into_iter();
        frames.try_for_each(|frame| server.receive(&frame).map(drop))
    };
    for (fields, refused) in [
        (13, None),
        (15, Some(FieldSectionLimit::Size)),
        (50, Some(FieldSectionLimit::Size)),
    ] {
        let mut server = server();
        send(&mut server, &request(fields)).unwrap();
        let request = server.next_request().unwrap();
        assert_eq!(request.exceeded_limit, refused, "{fields}");
        assert_eq!(reported_error(&mut server), None);
    }
    let mut many = server();
    send(&mut many, &[GET, &[0x90; 21]].concat()).unwrap();
    let limit = many.next_request().unwrap().exceeded_limit;
    assert_eq!(limit, Some(FieldSectionLimit::FieldCount));
    let mut server = server();
    send(&mut server, &request(60)).unwrap_err();
    let limit = server.take_limit_exceeded();
    assert_eq!(limit, Some(LimitExceeded::HeaderSize));
}

/// Each field counts for its name, its value and 32 bytes (RFC 9113, section 6.5.2).
#[test]
fn field_section_of_exactly_the_announced_size_is_accepted() {
    let size: u32 = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "web"),
    ]
    .map(|(name, value)| (name.len() + value.len() + 32) as u32)
    .iter()
    .sum();
    for (limit, refused) in [(size, None), (size - 1, Some(FieldSectionLimit::Size))] {
        let limits = Limits {
            max_header_list_size: limit,
            ..LIMITS
        };
        let mut server = greeted(&Config {
            limits,
            ..config(Role::Server)
        });
        receive(&mut server, HEADERS, BOTH, 1, GET);
        assert_eq!(server.next_request().unwrap().exceeded_limit, refused);
    }
}

/// The frames that a section of the announced size fills, and a quarter more.
#[test]
fn continuations_of_a_field_block_are_limited() {
    for (size, most) in [(16 * 1024, 5), (256 * 1024, 20)] {
        let limits = Limits {
            max_header_list_size: size,
            ..LIMITS
        };
        let mut server = greeted(&Config {
            limits,
            ..config(Role::Server)
        });
        receive(&mut server, HEADERS, END_STREAM, 1, GET);
        for _ in 0..most {
            receive(&mut server, CONTINUATION, 0, 1, &[0x82]);
        }
        let more = bytes(CONTINUATION, 0, 1, &[0x82]);
        server.receive(&more).unwrap_err();
        let limit = server.take_limit_exceeded();
        assert_eq!(limit, Some(LimitExceeded::HeaderSize), "{size}");
    }
}

#[test]
fn incomplete_preface_and_field_block_are_pending_input() {
    let mut server = server();
    assert_eq!(server.pending_input(), None);
    let header = bytes(HEADERS, END_STREAM, 1, GET);
    server.receive(&header[..12]).unwrap();
    assert_eq!(server.pending_input(), Some(PendingInput::FieldBlock(1)));
    server.receive(&header[12..]).unwrap();
    assert_eq!(server.pending_input(), Some(PendingInput::FieldBlock(1)));
    receive(&mut server, CONTINUATION, END_HEADERS, 1, &[]);
    assert_eq!(server.pending_input(), None);
    // DATA has no time limit here.
    receive(&mut server, HEADERS, END_HEADERS, 3, POST);
    server.receive(&bytes(DATA, 0, 3, b"slow")[..11]).unwrap();
    assert_eq!(server.pending_input(), None);
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
        receive(&mut connection, SETTINGS, 0, 0, &[]);
        let mut open = Vec::new();
        for (n, (kind, flags, stream, payload, cut)) in frames.into_iter().enumerate() {
            if !is_server && connection.poll_ready(noop_waker()).is_ready() {
                let request = Request::post("http://web/").body(()).unwrap();
                if connection.open_error().is_none() {
                    open.push(connection.open(&request, None, n % 2 == 0));
                }
            }
            let payload = match kind {
                // So that some requests are complete.
                HEADERS if n % 3 == 0 => [POST, &payload].concat(),
                HEADERS => if is_server { POST.to_vec() } else { vec![0x88] },
                _ => payload,
            };
            let flags = if kind == HEADERS { flags | END_HEADERS } else { flags };
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
                drop_stream(&mut connection, id);
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
