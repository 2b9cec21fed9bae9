//! Which frames are free, which spend the budgets, and which close the connection.

use std::cell::Cell;

use super::FloodAction::{Close, Continue, Drain};
use super::*;

const LIMITS: Limits = Limits {
    max_concurrent_streams: 100,
    max_header_list_size: 1 << 16,
    max_fields: 100,
    idle_frames: 100,
    resets: 100,
    stream_errors: 200,
    field_lines: 200,
    pending_accept_resets: 10,
};

thread_local! {
    static NOW: Cell<Instant> = Cell::new(Instant::now());
}

fn clock() -> Instant {
    NOW.get()
}

fn advance(by: Duration) {
    NOW.set(NOW.get() + by);
}

fn header(kind: u8, flags: u8, length: u32, stream: u32) -> FrameHeader {
    FrameHeader {
        length,
        kind,
        flags,
        stream,
    }
}

fn server() -> FloodLimiter {
    FloodLimiter::new(Role::Server, &LIMITS, clock)
}

/// Receives a frame on a stream that accepts it.
fn receive(limiter: &mut FloodLimiter, frame: FrameHeader) -> FloodAction {
    match frame.kind {
        frame::HEADERS => {
            limiter.record_message();
            Continue
        }
        frame::DATA => limiter.record_data(frame.length, frame.ends_stream()),
        _ => limiter.record_frame(frame, false),
    }
}

/// Repeats `frames` until an action other than [`Continue`], and returns the number of frames and
/// the action; `None` if none occurs.
fn until_action(limiter: &mut FloodLimiter, frames: &[FrameHeader]) -> Option<(u32, FloodAction)> {
    let mut count = 0;
    for frame in frames.iter().cycle().take(20_000) {
        count += 1;
        match receive(limiter, *frame) {
            Continue => {}
            action => return Some((count, action)),
        }
    }
    None
}

/// A request on the next stream after `count` others.
fn request(count: u32) -> FrameHeader {
    header(frame::HEADERS, frame::END_STREAM, 30, count * 2 + 1)
}

#[test]
fn idle_frames_close_the_connection() {
    let idle = Close(LimitExceeded::IdleFrames);
    let unknown = 42;
    for (frame, taken) in [
        (header(frame::SETTINGS, 0, 6, 0), 11),
        (header(frame::SETTINGS, frame::ACK, 0, 0), 101),
        (header(frame::PING, 0, 8, 0), 51),
        (header(frame::PING, frame::ACK, 8, 0), 101),
        (header(frame::PRIORITY, 0, 5, 3), 101),
        (header(frame::GOAWAY, 0, 8, 0), 11),
        (header(frame::WINDOW_UPDATE, 0, 4, 0), 101),
        (header(unknown, 0, 1000, 0), 101),
        (header(frame::DATA, 0, 0, 1), 101),
    ] {
        let ended = until_action(&mut server(), &[frame]);
        assert_eq!(ended, Some((taken, idle)), "{frame:?}");
    }
}

#[test]
fn frames_that_messages_earn_are_free() {
    let window_update = header(frame::WINDOW_UPDATE, 0, 4, 0);
    let data = header(frame::DATA, 0, 1, 1);
    let ping = header(frame::PING, 0, 8, 0);
    for frames in [
        vec![request(1)],
        vec![data],
        vec![data, window_update, window_update, ping],
        vec![request(1), window_update, window_update, ping],
        vec![header(frame::DATA, frame::END_STREAM, 0, 1)],
    ] {
        assert_eq!(until_action(&mut server(), &frames), None, "{frames:?}");
    }
    // A download that the client acknowledges with every frame.
    let mut limiter = server();
    for _ in 0..10_000 {
        limiter.record_sent_message();
        for frame in [window_update, window_update, ping] {
            assert_eq!(limiter.record_frame(frame, false), Continue);
        }
    }
    // A thousand frames are in flight before the first of them is acknowledged.
    let mut limiter = server();
    for _ in 0..1_000 {
        limiter.record_sent_message();
    }
    for _ in 0..2_000 {
        assert_eq!(limiter.record_frame(window_update, false), Continue);
    }
    // Acknowledgements of sent PINGs.
    for _ in 0..10_000 {
        limiter.record_sent_acknowledged_frame();
        let pong = header(frame::PING, frame::ACK, 8, 0);
        assert_eq!(limiter.record_frame(pong, false), Continue);
    }
}

#[test]
fn time_refills_the_budget_of_idle_frames() {
    let mut limiter = server();
    let ping = header(frame::PING, 0, 8, 0);
    // Ten points a second.
    for _ in 0..10_000 {
        assert_eq!(limiter.record_frame(ping, false), Continue);
        advance(Duration::from_millis(210));
    }
}

#[test]
fn resets_replace_the_connection_and_then_end_it() {
    let reset = |count| header(frame::RST_STREAM, 0, 4, count * 2 + 1);
    let mut limiter = server();
    let mut actions = Vec::new();
    for count in 0..1000 {
        // The client can only know after a round trip.
        let has_sent_goaway = count > 500;
        limiter.record_opened_stream();
        for frame in [request(count), reset(count)] {
            match limiter.record_frame(frame, has_sent_goaway) {
                Continue => {}
                action => actions.push((count, action)),
            }
        }
    }
    assert_eq!(actions[0], (99, Drain(LimitExceeded::Resets)));
    let (count, action) = actions[1];
    assert!((501..601).contains(&count), "{count}");
    assert_eq!(action, Close(LimitExceeded::Resets));
    // Half of the streams may be reset.
    let mut limiter = server();
    for count in 0..10_000 {
        limiter.record_opened_stream();
        assert_eq!(limiter.record_frame(request(count), false), Continue);
        if count % 2 == 0 {
            assert_eq!(limiter.record_frame(reset(count), false), Continue);
        }
    }
    // A server may reset any number of streams.
    let mut limiter = FloodLimiter::new(Role::Client, &LIMITS, clock);
    assert_eq!(until_action(&mut limiter, &[reset(1)]), None);
}

#[test]
fn discarded_frames_spend_the_budget_unless_they_are_large() {
    let mut limiter = server();
    for _ in 0..100 {
        assert_eq!(limiter.record_discarded_frame(255), Continue);
    }
    let idle = Close(LimitExceeded::IdleFrames);
    assert_eq!(limiter.record_discarded_frame(255), idle);
    assert_eq!(limiter.record_discarded_frame(256), Continue);
    // A reset accounts for the frames that may have been in flight.
    limiter.record_sent_reset(0);
    for _ in 0..100 {
        assert_eq!(limiter.record_discarded_frame(0), Continue);
    }
    assert_eq!(limiter.record_discarded_frame(0), idle);
}

/// A peer that writes a byte at a time may have a frame in flight for each byte of the window.
#[test]
fn content_within_the_window_of_a_reset_stream_is_free() {
    let mut limiter = server();
    for _ in 0..100 {
        assert_eq!(limiter.record_discarded_frame(0), Continue);
    }
    limiter.record_sent_reset(70_000);
    for _ in 0..69_000 {
        assert_eq!(limiter.record_discarded_frame(1), Continue);
    }
    assert_eq!(limiter.record_discarded_frame(1_000), Continue);
    // Then the allowance of the reset, and nothing.
    for _ in 0..100 {
        assert_eq!(limiter.record_discarded_frame(1), Continue);
    }
    let idle = Close(LimitExceeded::IdleFrames);
    assert_eq!(limiter.record_discarded_frame(1), idle);
}

/// Returns the indices of the stream errors that drain and that close the connection.
fn stream_error_indices(
    limiter: &mut FloodLimiter,
    cause: fn(&mut FloodLimiter) -> FloodAction,
) -> (usize, usize) {
    let actions: Vec<_> = (0..200).map(|_| cause(limiter)).collect();
    let first = |wanted| actions.iter().position(|action| *action == wanted);
    (
        first(Drain(LimitExceeded::StreamErrors)).unwrap(),
        first(Close(LimitExceeded::StreamErrors)).unwrap(),
    )
}

#[test]
fn stream_errors_drain_and_then_close_the_connection() {
    let mut client = FloodLimiter::new(Role::Client, &LIMITS, clock);
    let record_error = FloodLimiter::record_stream_error;
    assert_eq!(stream_error_indices(&mut server(), record_error), (9, 19));
    assert_eq!(stream_error_indices(&mut client, record_error), (99, 199));
    let refuse = FloodLimiter::record_refused_stream;
    assert_eq!(stream_error_indices(&mut server(), refuse), (99, 199));
    let expand = |limiter: &mut FloodLimiter| limiter.record_expansion(8 * 1024);
    assert_eq!(stream_error_indices(&mut server(), expand), (49, 99));
    assert_eq!(server().record_expansion(4 * 1024 - 1), Continue);
    let far = Close(LimitExceeded::StreamErrors);
    assert_eq!(server().record_expansion(usize::MAX), far);
}

#[test]
fn time_refills_the_budget_of_stream_errors() {
    let mut limiter = server();
    // Twenty points return each second, and a stream error costs ten.
    for _ in 0..1_000 {
        assert_eq!(limiter.record_stream_error(), Continue);
        advance(Duration::from_millis(550));
    }
}
