//! Windows of streams and of the connection, and padding, which they count too.

use std::task::Poll;

use super::*;

/// Only the padding is returned to the windows before the data is read.
#[test]
fn padding_does_not_widen_the_windows() {
    let mut server = serving();
    let payload = [&[10][..], &[b'x'; 15_000], &[0; 10]].concat();
    let padded = bytes(DATA, PADDED, 1, &payload);
    let refused = (0..10).position(|_| {
        let mut rest = &padded[..];
        while let Ok(taken) = server.receive(rest) {
            rest = &rest[taken..];
            if rest.is_empty() {
                return false;
            }
        }
        true
    });
    assert_eq!(refused, Some(4), "after 65,535 bytes");
}

#[test]
fn data_beyond_window_is_rejected() {
    let frame = bytes(DATA, 0, 1, &[0; 16_384]);
    let mut server = serving();
    for _ in 0..3 {
        server.receive(&frame).unwrap();
        assert_eq!(reported_error(&mut server), None);
    }
    // The windows of the stream and the connection have the same size.
    server.receive(&frame).unwrap_err();
    assert_error(&mut server, 0, ErrorCode::FLOW_CONTROL_ERROR);

    let larger = Config {
        connection_window: 1 << 20,
        ..config(Role::Server)
    };
    let mut server = Connection::new(&larger);
    server.receive(PREFACE).unwrap();
    receive(&mut server, SETTINGS, 0, 0, &[]);
    receive(&mut server, HEADERS, END_HEADERS, 1, POST);
    for _ in 0..4 {
        server.receive(&frame).unwrap();
    }
    assert_error(&mut server, 1, ErrorCode::FLOW_CONTROL_ERROR);
}

/// Before the acknowledgement the client may use the window that the protocol begins with.
#[test]
fn data_beyond_a_smaller_window_is_accepted_until_its_acknowledgement() {
    let mut server = Connection::new(&Config {
        stream_window: 100,
        ..config(Role::Server)
    });
    server.receive(PREFACE).unwrap();
    receive(&mut server, SETTINGS, 0, 0, &[]);
    receive(&mut server, HEADERS, END_HEADERS, 1, POST);
    receive(&mut server, DATA, 0, 1, &[0; 1000]);
    assert_eq!(reported_error(&mut server), None);
    receive(&mut server, SETTINGS, frame::ACK, 0, &[]);
    receive(&mut server, DATA, 0, 1, b"x");
    assert_error(&mut server, 1, ErrorCode::FLOW_CONTROL_ERROR);
}

#[test]
fn padding_is_removed_from_data() {
    let mut server = serving();
    let payload = [&[3][..], b"data", &[0; 3]].concat();
    for cut in 1..payload.len() + 9 {
        for piece in bytes(DATA, PADDED, 1, &payload).chunks(cut) {
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
    let payload = [&[255, b'x', b'y'][..], &[0; 255]].concat();
    for _ in 0..1000 {
        receive(&mut server, DATA, PADDED, 1, &payload);
        let piece = server.poll_body_frame(StreamId(1), noop_waker());
        assert!(matches!(piece, Poll::Ready(Some(Ok(_)))));
    }
}

#[test]
fn initial_window_size_changes_open_streams() {
    let mut server = server();
    receive(&mut server, HEADERS, BOTH, 1, GET);
    let id = server.next_request().unwrap().id;
    server.respond(id, &Response::new(()), false);
    let capacity = |server: &mut Connection| {
        let capacity = server.poll_capacity(id, noop_waker());
        capacity.map(Result::unwrap)
    };
    let limit = send::DEFAULT_OUTPUT_LIMIT.min(65_535);
    assert_eq!(capacity(&mut server), Poll::Ready(limit));
    server.send_data(id, vec![0; 1000].into(), false);
    output(&mut server);
    let window = |size: u32| bytes(SETTINGS, 0, 0, &[&[0, 4][..], &size.to_be_bytes()].concat());
    server.receive(&window(500)).unwrap();
    assert!(capacity(&mut server).is_pending(), "500 too many");
    let (flag, waker) = Flag::new();
    assert!(server.poll_capacity(id, &waker).is_pending());
    server.receive(&window(1700)).unwrap();
    assert!(flag.was_woken());
    assert_eq!(capacity(&mut server), Poll::Ready(700));
}
