//! The table of what is explained, what is paid for, and what ends a connection.

use std::cell::Cell;

use super::*;

const LIMITS: Limits = Limits {
    streams: 100,
    header_list: 1 << 16,
    fields: 100,
    idle_frames: 100,
    resets: 100,
    mistakes: 200,
    unseen_resets: 10,
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

fn head(kind: u8, flags: u8, length: u32, stream: u32) -> Head {
    Head {
        length,
        kind,
        flags,
        stream,
    }
}

fn server() -> Account {
    Account::new(Role::Server, &LIMITS, clock)
}

/// Receives a frame on a stream that accepts it.
fn receive(account: &mut Account, frame: Head) -> Verdict {
    match frame.kind {
        frame::HEADERS => {
            account.carries();
            Verdict::GoOn
        }
        frame::DATA => account.data(frame.length, frame.ends_stream()),
        _ => account.received(frame, false),
    }
}

/// How many of `frames`, over and over, are taken before a verdict; `None` when that is more than
/// anybody would send.
fn until_verdict(account: &mut Account, frames: &[Head]) -> Option<(u32, Verdict)> {
    let mut count = 0;
    for frame in frames.iter().cycle().take(20_000) {
        count += 1;
        match receive(account, *frame) {
            Verdict::GoOn => {}
            verdict => return Some((count, verdict)),
        }
    }
    None
}

/// A request on the next stream after `count` others.
fn request(count: u32) -> Head {
    head(frame::HEADERS, frame::END_STREAM, 30, count * 2 + 1)
}

#[test]
fn frames_that_carry_nothing_end_the_connection() {
    let idle = Verdict::Cut(Violation::IdleFrames);
    let unknown = 42;
    for (frame, taken) in [
        (head(frame::SETTINGS, 0, 6, 0), 11),
        (head(frame::SETTINGS, frame::ACK, 0, 0), 101),
        (head(frame::PING, 0, 8, 0), 51),
        (head(frame::PING, frame::ACK, 8, 0), 101),
        (head(frame::PRIORITY, 0, 5, 3), 101),
        (head(frame::GOAWAY, 0, 8, 0), 11),
        (head(frame::WINDOW_UPDATE, 0, 4, 0), 101),
        (head(unknown, 0, 1000, 0), 101),
        (head(frame::DATA, 0, 0, 1), 101),
    ] {
        let ended = until_verdict(&mut server(), &[frame]);
        assert_eq!(ended, Some((taken, idle)), "{frame:?}");
    }
}

#[test]
fn what_messages_explain_is_free() {
    let window_update = head(frame::WINDOW_UPDATE, 0, 4, 0);
    let data = head(frame::DATA, 0, 1, 1);
    let ping = head(frame::PING, 0, 8, 0);
    for frames in [
        vec![request(1)],
        vec![data],
        vec![data, window_update, window_update, ping],
        vec![request(1), window_update, window_update, ping],
        vec![head(frame::DATA, frame::END_STREAM, 0, 1)],
    ] {
        assert_eq!(until_verdict(&mut server(), &frames), None, "{frames:?}");
    }
    // A download that the client acknowledges with every frame, and nothing from it otherwise.
    let mut account = server();
    for _ in 0..10_000 {
        account.sent_message();
        for frame in [window_update, window_update, ping] {
            assert_eq!(account.received(frame, false), Verdict::GoOn);
        }
    }
    // A thousand frames are under way before the first of them is acknowledged.
    let mut account = server();
    for _ in 0..1_000 {
        account.sent_message();
    }
    for _ in 0..2_000 {
        assert_eq!(account.received(window_update, false), Verdict::GoOn);
    }
    // Our own pings.
    for _ in 0..10_000 {
        account.sent_question();
        let pong = head(frame::PING, frame::ACK, 8, 0);
        assert_eq!(account.received(pong, false), Verdict::GoOn);
    }
}

#[test]
fn time_refills_the_budget() {
    let mut account = server();
    let ping = head(frame::PING, 0, 8, 0);
    // Ten points a second.
    for _ in 0..10_000 {
        assert_eq!(account.received(ping, false), Verdict::GoOn);
        advance(Duration::from_millis(210));
    }
}

#[test]
fn resets_replace_the_connection_and_then_end_it() {
    let reset = |count| head(frame::RST_STREAM, 0, 4, count * 2 + 1);
    let mut account = server();
    let mut verdicts = Vec::new();
    for count in 0..1000 {
        // It takes a while until the client can know.
        let is_told = count > 500;
        account.opened();
        for frame in [request(count), reset(count)] {
            match account.received(frame, is_told) {
                Verdict::GoOn => {}
                verdict => verdicts.push((count, verdict)),
            }
        }
    }
    assert_eq!(verdicts[0], (99, Verdict::Retire(Violation::Resets)));
    let (count, verdict) = verdicts[1];
    assert!((501..601).contains(&count), "{count}");
    assert_eq!(verdict, Verdict::Cut(Violation::Resets));
    // Half of them may be.
    let mut account = server();
    for count in 0..10_000 {
        account.opened();
        assert_eq!(account.received(request(count), false), Verdict::GoOn);
        if count % 2 == 0 {
            assert_eq!(account.received(reset(count), false), Verdict::GoOn);
        }
    }
    // Servers may refuse what they are asked.
    let mut account = Account::new(Role::Client, &LIMITS, clock);
    assert_eq!(until_verdict(&mut account, &[reset(1)]), None);
}

#[test]
fn discarded_frames_spend_the_budget_unless_they_are_large() {
    let mut account = server();
    for _ in 0..100 {
        assert_eq!(account.discarded(255), Verdict::GoOn);
    }
    assert_eq!(account.discarded(255), Verdict::Cut(Violation::IdleFrames));
    assert_eq!(account.discarded(256), Verdict::GoOn);
    // A reset accounts for the frames that may have been in flight.
    account.sent_reset();
    for _ in 0..100 {
        assert_eq!(account.discarded(0), Verdict::GoOn);
    }
    assert_eq!(account.discarded(0), Verdict::Cut(Violation::IdleFrames));
}

/// The index of the verdict that replaces the connection, and of the one that ends it.
fn mistakes(account: &mut Account, make: fn(&mut Account) -> Verdict) -> (usize, usize) {
    let verdicts: Vec<_> = (0..200).map(|_| make(account)).collect();
    let first = |wanted| verdicts.iter().position(|verdict| *verdict == wanted);
    (
        first(Verdict::Retire(Violation::Mistakes)).unwrap(),
        first(Verdict::Cut(Violation::Mistakes)).unwrap(),
    )
}

#[test]
fn stream_errors_replace_the_connection_and_then_end_it() {
    let mut client = Account::new(Role::Client, &LIMITS, clock);
    assert_eq!(mistakes(&mut server(), Account::mistake), (9, 19));
    assert_eq!(mistakes(&mut client, Account::mistake), (99, 199));
    assert_eq!(mistakes(&mut server(), Account::refused), (99, 199));
    let expand = |account: &mut Account| account.expanded(8 * 1024);
    assert_eq!(mistakes(&mut server(), expand), (49, 99));
    assert_eq!(server().expanded(4 * 1024 - 1), Verdict::GoOn);
    let far = Verdict::Cut(Violation::Mistakes);
    assert_eq!(server().expanded(usize::MAX), far);
}

#[test]
fn stream_errors_are_forgiven_over_time() {
    let mut account = server();
    // Twenty points return each second, and a stream error costs ten.
    for _ in 0..1_000 {
        assert_eq!(account.mistake(), Verdict::GoOn);
        advance(Duration::from_millis(550));
    }
}
