//! Hostile peers: how many frames a connection processes before it ends, and how many in one turn.

use std::sync::LazyLock;

use super::*;

/// More than any limit of these tests.
const MANY: u32 = 10_000;

/// A constant clock, so that no budget is refilled.
fn config(role: Role) -> Config {
    static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);
    Config {
        clock: || *NOW,
        ..super::config(role)
    }
}

fn server() -> Connection {
    greeted(&config(Role::Server))
}

/// The stream of the `n`th request.
fn stream(n: u32) -> u32 {
    2 * n + 1
}

/// Returns the number of units that the connection accepts before it is closed, and the limit that
/// closed it.
fn until_end(
    connection: &mut Connection,
    unit: impl Fn(u32) -> Vec<u8>,
) -> (u32, Option<LimitExceeded>) {
    for n in 0..MANY {
        if connection.receive(&unit(n)).is_err() {
            return (n, connection.take_limit_exceeded());
        }
        output(connection);
    }
    panic!("the connection is still open");
}

/// A server that has reset stream 1 while the client was still sending.
fn resetting() -> Connection {
    let mut server = server();
    receive(&mut server, HEADERS, END_HEADERS, 1, POST);
    let id = server.next_request().unwrap().id;
    server.reset(id, ErrorCode::CANCEL);
    drop_stream(&mut server, id);
    server
}

#[test]
fn frames_on_reset_streams_close_the_connection() {
    // The budget, the frames that one request earns, and those that may have been in flight.
    let paid = LIMITS.idle_frames + 10 + 100;
    // Content within the window of the stream may be in flight, too.
    let in_flight = config(Role::Server).stream_window / 10;
    for (frame, free, why) in [
        (bytes(DATA, END_STREAM, 1, &[]), 0, "empty data"),
        (bytes(DATA, 0, 1, &[b'x'; 10]), in_flight, "a little data"),
        (bytes(HEADERS, BOTH, 1, &[]), 0, "trailers"),
        (bytes(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]), 0, "updates"),
    ] {
        let (taken, violation) = until_end(&mut resetting(), |_| frame.clone());
        assert!((free..=paid + free).contains(&taken), "{why}: {taken}");
        assert_eq!(violation, Some(LimitExceeded::IdleFrames), "{why}");
    }
    // Larger DATA frames are free: a client uploads a body that the server does not read.
    let mut server = resetting();
    let data = bytes(DATA, 0, 1, &[0; 256]);
    for _ in 0..MANY {
        server.receive(&data).unwrap();
        output(&mut server);
    }
}

#[test]
fn resets_of_closed_streams_close_a_connection_to_a_server() {
    let mut client = greeted(&config(Role::Client));
    let request = Request::get("http://web/").body(()).unwrap();
    client.open(&request, None, true);
    let reset = bytes(RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    let (taken, violation) = until_end(&mut client, |_| reset.clone());
    assert!(taken <= LIMITS.idle_frames + 10, "{taken}");
    assert_eq!(violation, Some(LimitExceeded::IdleFrames));
}

#[test]
fn streams_opened_after_the_final_goaway_close_the_connection() {
    let mut server = server();
    server.start_graceful_shutdown();
    receive(&mut server, PING, frame::ACK, 0, &GOAWAY_PING_PAYLOAD);
    // Streams that the client opens before it receives the GOAWAY are ignored.
    let post = |n| bytes(HEADERS, END_HEADERS, stream(n), POST);
    let (taken, violation) = until_end(&mut server, post);
    assert!(taken <= LIMITS.idle_frames + 10, "{taken}");
    assert_eq!(violation, Some(LimitExceeded::IdleFrames));
}

#[test]
fn stream_errors_close_the_connection_at_a_tenth_of_the_points_and_reach_no_application() {
    let mistakes: [fn(u32) -> Vec<u8>; 3] = [
        |n| {
            let mut unit = bytes(HEADERS, END_HEADERS, stream(n), POST);
            unit.extend(bytes(WINDOW_UPDATE, 0, stream(n), &[0; 4]));
            unit
        },
        |n| {
            let mut unit = bytes(HEADERS, BOTH, stream(n), GET);
            unit.extend(bytes(DATA, 0, stream(n), b"x"));
            unit
        },
        |n| bytes(HEADERS, BOTH, stream(n), &[0x82]),
    ];
    for mistake in mistakes {
        let mut server = server();
        let mut is_drain_due = None;
        let (taken, violation) = until_end(&mut server, mistake);
        assert_eq!((taken, violation), (99, Some(LimitExceeded::StreamErrors)));

        let mut server = self::server();
        for n in 0..99 {
            server.receive(&mistake(n)).unwrap();
            assert!(server.next_request().is_none(), "a request was accepted");
            if server.is_drain_due() {
                is_drain_due.get_or_insert(n);
            }
        }
        assert_eq!(is_drain_due, Some(49));
        assert_eq!(server.stream_count(), 0);
    }
}

/// A server with the budget of a client without a certificate.
fn server_with_field_lines() -> Connection {
    greeted(&Config {
        limits: Limits {
            max_fields: 200,
            max_header_list_size: 1 << 18,
            field_lines: 8192,
            ..LIMITS
        },
        ..config(Role::Server)
    })
}

/// Responds to the requests, so that only their field lines count.
fn respond_to_all(server: &mut Connection) {
    while let Some(AcceptedStream { id, .. }) = server.next_request() {
        server.drop_reader(id);
        server.respond(id, &Response::new(()), true);
        server.drop_writer(id);
    }
}

#[test]
fn short_field_lines_drain_and_close_the_connection() {
    // Cookie crumbs of one byte and none, a name and value of one byte each, with and without an
    // entry in the table, and references to entries.
    let crumbs = [&[0x60, 1, b'x'][..], &[0x60, 0]];
    let named = [&[0x40, 1, b'x', 1, b'y'][..], &[0x00, 1, b'x', 1, b'y']];
    let references = [&[0xbe][..], &[0x90]];
    for line in [crumbs, named, references].concat() {
        let mut server = server_with_field_lines();
        let block = [GET, &[0x60, 1, b'x'], &line.repeat(120)].concat();
        let (mut sent, mut drained_at) = (0, None);
        let limit = loop {
            let request = bytes(HEADERS, BOTH, stream(sent), &block);
            if server.receive(&request).is_err() {
                break server.take_limit_exceeded();
            }
            respond_to_all(&mut server);
            output(&mut server);
            sent += 1;
            if server.is_drain_due() {
                drained_at.get_or_insert(sent);
            }
            assert!(sent < MANY, "{line:?}");
        };
        assert_eq!(limit, Some(LimitExceeded::FieldLines), "{line:?}");
        assert!((70..200).contains(&sent), "{line:?}: {sent}");
        let drained_at = drained_at.unwrap();
        assert!(drained_at.abs_diff(sent / 2) <= 2, "{line:?}: {drained_at}");
    }
}

/// As in browsers whose cookies fill the table, and in clients of gRPC.
#[test]
fn honest_field_lines_are_not_limited() {
    // Sixty crumbs of thirty bytes. Later requests refer to them.
    let crumb = |n: u8| [&[0x60, 30][..], &[n; 30]].concat();
    let crumbs: Vec<u8> = (b'0'..b'0' + 60).flat_map(crumb).collect();
    let references: Vec<u8> = (0xbe..=0xf9).collect();
    // A short path, deadline and date, all added to the table each time.
    let short = [
        &[0x82, 0x86, 0x44, 2, b'/', b'a'][..],
        &[0x40, 12],
        b"grpc-timeout",
        &[2, b'1', b'S'],
        &[0x61, 1, b'9'],
    ]
    .concat();
    for (first, others) in [
        ([GET, &crumbs].concat(), [GET, &references].concat()),
        (short.clone(), short),
    ] {
        let mut server = server_with_field_lines();
        for n in 0..MANY {
            let block = if n == 0 { &first } else { &others };
            take(&mut server, &bytes(HEADERS, BOTH, stream(n), block));
            respond_to_all(&mut server);
            output(&mut server);
        }
        assert!(!server.is_drain_due());
    }
}

#[test]
fn more_than_two_table_size_updates_close_the_connection() {
    for (updates, is_valid) in [(2, true), (3, false)] {
        let block = [&[0x20].repeat(updates), GET].concat();
        let received = server().receive(&bytes(HEADERS, BOTH, 1, &block));
        assert_eq!(received.is_ok(), is_valid, "{updates}");
    }
}

/// An entry of 4,000 bytes of the dynamic table, and one of the static table, many times each.
#[test]
fn field_sections_that_repeat_table_entries_are_rejected_and_close_the_connection() {
    let wide = Config {
        limits: Limits {
            max_header_list_size: 256 * 1024,
            max_fields: 100,
            ..LIMITS
        },
        ..config(Role::Server)
    };
    // A literal of 3,900 bytes.
    let value = [&[0x7f, 0xbd, 0x1d][..], &[b'v'; 3_900]].concat();
    let entry = [&[0x40, 1, b'x'][..], &value].concat();
    let dynamic = [GET, &entry, &[0xbe; 60]].concat();
    let dynamic_again = [GET, &[0xbe; 60]].concat();
    let fixed = [GET, &[0x90; 4_000]].concat();
    for (first, block, refused) in [
        (&dynamic[..], &dynamic_again, FieldSectionLimit::Size),
        (GET, &fixed, FieldSectionLimit::FieldCount),
    ] {
        let mut server = greeted(&wide);
        receive(&mut server, HEADERS, BOTH, 1, first);
        server.next_request().unwrap();
        let again = |n| bytes(HEADERS, BOTH, stream(n + 1), block);
        server.receive(&again(0)).unwrap();
        assert_eq!(server.next_request().unwrap().exceeded_limit, Some(refused));
        let (taken, violation) = until_end(&mut server, |n| again(n + 1));
        assert!(taken <= 30, "{taken}");
        assert_eq!(violation, Some(LimitExceeded::StreamErrors));
    }
}

/// The whole dynamic table once in each request.
#[test]
fn field_sections_that_use_the_whole_table_are_accepted() {
    let mut encoder = Encoder::new();
    let mut server = server();
    for n in 0..200 {
        let mut block = GET.to_vec();
        for crumb in 0..14 {
            let value = [b'a' + crumb; 200];
            encoder.field(&mut block, "cookie", &value);
        }
        let header = bytes(HEADERS, BOTH, stream(n), &block);
        take(&mut server, &header);
        let accepted = server.next_request().unwrap();
        assert_eq!(accepted.exceeded_limit, None);
        server.respond(accepted.id, &Response::new(()), true);
        drop_stream(&mut server, accepted.id);
        output(&mut server);
    }
    assert!(!server.is_drain_due());
}

#[test]
fn field_blocks_may_be_fragmented_anywhere() {
    let block = [GET, &[0x40, 1, b'x', 3, b'1', b'2', b'3'], &[0x90, 0xbe]].concat();
    for first in 0..=block.len() {
        for second in first..=block.len() {
            let mut server = server();
            receive(&mut server, HEADERS, END_STREAM, 1, &block[..first]);
            receive(&mut server, CONTINUATION, 0, 1, &block[first..second]);
            assert!(server.next_request().is_none());
            let end = bytes(CONTINUATION, END_HEADERS, 1, &block[second..]);
            server.receive(&end).unwrap();
            let request = server.next_request().unwrap().request;
            assert_eq!(request.uri(), "http://web/", "{first} {second}");
            assert_eq!(request.headers().get_all("x").iter().count(), 2);
            assert_eq!(request.headers()["accept-encoding"], "gzip, deflate");
        }
    }
    // A block that ends within a field line is an error, however it is fragmented.
    for end in 1..block.len() {
        let mut server = server();
        receive(&mut server, HEADERS, END_STREAM, 1, &block[..end]);
        let last = bytes(CONTINUATION, END_HEADERS, 1, &[]);
        if server.receive(&last).is_err() {
            assert_error(&mut server, 0, ErrorCode::COMPRESSION_ERROR);
        }
    }
}

#[test]
fn a_turn_is_bounded_by_work() {
    for (frame, why) in [
        (bytes(PING, frame::ACK, 0, &[0; 8]), "answers"),
        (bytes(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), "updates"),
        (bytes(DATA, 0, 1, b"x"), "data"),
    ] {
        let mut server = server();
        receive(&mut server, HEADERS, END_HEADERS, 1, POST);
        let taken = server.receive(&frame.repeat(20_000)).unwrap() / frame.len();
        assert!((511..=512).contains(&taken), "{why}: {taken}");
        assert!(server.work() >= WORK_PER_TURN, "{why}");
    }
    // A field section that is much longer than its block takes a turn of its own.
    let bomb = |n| bytes(HEADERS, BOTH, stream(n), &[GET, &[0x90; 1_000]].concat());
    let mut server = server();
    let all: Vec<u8> = (0..5).flat_map(bomb).collect();
    let one = all.len() / 5;
    let mut rest = &all[..];
    for _ in 0..5 {
        let taken = server.receive(rest).unwrap();
        assert_eq!(taken, one);
        rest = &rest[taken..];
    }
    // Bulk data fits into one turn.
    let mut server = greeted(&Config {
        stream_window: 1 << 20,
        connection_window: 1 << 20,
        ..config(Role::Server)
    });
    receive(&mut server, HEADERS, END_HEADERS, 1, POST);
    let bulk = bytes(DATA, 0, 1, &[0; 16_384]).repeat(16);
    assert_eq!(server.receive(&bulk).unwrap(), bulk.len());
}

/// A field block that the client begins meanwhile does not restart the timer.
#[test]
fn unacknowledged_goaway_ping_is_followed_by_the_final_goaway() {
    let mut server = server();
    server.start_graceful_shutdown();
    assert_eq!(server.pending_input(), Some(PendingInput::GoAwayPing));
    receive(&mut server, HEADERS, END_STREAM, 1, GET);
    assert_eq!(server.pending_input(), Some(PendingInput::GoAwayPing));
    output(&mut server);
    server.handle_input_timeout();
    let frames = sent_frames(&mut server);
    let [(header, payload)] = &frames[..] else {
        panic!("{frames:?}");
    };
    assert_eq!(header.kind, GOAWAY);
    assert_eq!(frame::goaway(payload), Ok((0, ErrorCode::NO_ERROR)));
    assert!(server.is_closed(), "nothing is open");
}

#[test]
fn data_is_little_work_for_its_bytes() {
    let mut server = serving();
    let frame = bytes(DATA, 0, 1, &[0; 16_000]);
    server.receive(&frame).unwrap();
    let work = server.work();
    assert!((15..32).contains(&work), "{work}");
    // The rest of a frame that arrives in pieces.
    let (begin, rest) = frame.split_at(8_000);
    server.receive(begin).unwrap();
    server.receive(rest).unwrap();
    let work = server.work();
    assert!((7..16).contains(&work), "{work}");
}

/// A client may exceed the limit of concurrent streams before it knows it.
#[test]
fn refused_streams_cost_less_than_errors() {
    let mut server = server();
    for number in 0..LIMITS.max_concurrent_streams + 500 {
        receive(&mut server, HEADERS, BOTH, 2 * number + 1, GET);
        output(&mut server);
    }
    assert!(server.failure().is_none());
}
