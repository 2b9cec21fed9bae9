//! The table of what is explained, what is paid for, and what ends a connection.

use super::*;

const LIMITS: Http2Limits = Http2Limits {
    idle_frames: 100,
    resets: 100,
    mistakes: 200,
};

const END_STREAM: u8 = 1;
const ACK: u8 = 1;

fn head(kind: u8, flags: u8, length: u32, stream: u32) -> Head {
    Head {
        length,
        kind,
        flags,
        stream,
    }
}

fn server() -> Account {
    Account::new(Role::Server, &LIMITS)
}

/// How many of `frames`, over and over, are taken before a verdict; `None` when that is more than anybody would send.
fn until_verdict(account: &mut Account, frames: &[Head]) -> Option<(u32, Verdict)> {
    let mut count = 0;
    for frame in frames.iter().cycle().take(20_000) {
        count += 1;
        match account.received(frame) {
            Verdict::GoOn => {}
            verdict => return Some((count, verdict)),
        }
    }
    None
}

/// A request on the next stream after `count` others.
fn request(count: u32) -> Head {
    head(Head::HEADERS, END_STREAM, 30, count * 2 + 1)
}

#[tokio::test(start_paused = true)]
async fn frames_that_carry_nothing_end_the_connection() {
    let idle = Verdict::Cut(Violation::IdleFrames);
    let (priority, goaway, window_update, unknown) = (2, 7, 8, 42);
    for (frame, taken, verdict) in [
        (head(Head::SETTINGS, 0, 6, 0), 11, idle),
        (head(Head::SETTINGS, ACK, 0, 0), 101, idle),
        (head(Head::PING, 0, 8, 0), 51, idle),
        (head(Head::PING, ACK, 8, 0), 101, idle),
        (head(priority, 0, 5, 3), 101, idle),
        (head(goaway, 0, 8, 0), 101, idle),
        (head(window_update, 0, 4, 0), 101, idle),
        (head(unknown, 0, 1000, 0), 101, idle),
        (head(Head::CONTINUATION, 0, 0, 1), 101, idle),
        (
            head(Head::DATA, 0, 0, 1),
            50,
            Verdict::Retire(Violation::EmptyData),
        ),
    ] {
        let ended = until_verdict(&mut server(), &[frame]);
        assert_eq!(ended, Some((taken, verdict)), "{frame:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_messages_explain_is_free() {
    let window_update = head(8, 0, 4, 0);
    let data = head(Head::DATA, 0, 1, 1);
    let ping = head(Head::PING, 0, 8, 0);
    for frames in [
        vec![request(1)],
        vec![head(Head::DATA, 0, 1, 1)],
        vec![data, window_update, window_update, ping],
        vec![request(1), window_update, window_update, ping],
        vec![head(Head::DATA, END_STREAM, 0, 1)],
    ] {
        assert_eq!(until_verdict(&mut server(), &frames), None, "{frames:?}");
    }
    // A download that the client acknowledges with every frame, and nothing from it otherwise.
    let mut account = server();
    for _ in 0..10_000 {
        assert_eq!(account.sent(&head(Head::DATA, 0, 10, 1)), Verdict::GoOn);
        for frame in [window_update, window_update, ping] {
            assert_eq!(account.received(&frame), Verdict::GoOn);
        }
    }
    // A thousand frames are under way before the first of them is acknowledged.
    let mut account = server();
    for _ in 0..1_000 {
        assert_eq!(account.sent(&head(Head::DATA, 0, 10, 1)), Verdict::GoOn);
    }
    for _ in 0..2_000 {
        assert_eq!(account.received(&window_update), Verdict::GoOn);
    }
    // Our own pings.
    for _ in 0..10_000 {
        assert_eq!(account.sent(&ping), Verdict::GoOn);
        let pong = head(Head::PING, ACK, 8, 0);
        assert_eq!(account.received(&pong), Verdict::GoOn);
    }
}

#[tokio::test(start_paused = true)]
async fn time_refills_the_budget() {
    let mut account = server();
    let ping = head(Head::PING, 0, 8, 0);
    // Ten points a second.
    for _ in 0..10_000 {
        assert_eq!(account.received(&ping), Verdict::GoOn);
        tokio::time::advance(Duration::from_millis(210)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn resets_replace_the_connection_and_then_end_it() {
    let reset = |count| head(Head::RST_STREAM, 0, 4, count * 2 + 1);
    let mut account = server();
    let mut verdicts = Vec::new();
    for count in 0..1000 {
        for frame in [request(count), reset(count)] {
            match account.received(&frame) {
                Verdict::GoOn => {}
                verdict => verdicts.push((count, verdict)),
            }
        }
        if count == 500 {
            // It takes a while until the client can know.
            account.sent(&head(Head::GOAWAY, 0, 8, 0));
        }
    }
    assert_eq!(verdicts[0], (99, Verdict::Retire(Violation::Resets)));
    let (count, verdict) = verdicts[1];
    assert!((501..601).contains(&count), "{count}");
    assert_eq!(verdict, Verdict::Cut(Violation::Resets));
    // Half of them may be.
    let mut account = server();
    for count in 0..10_000 {
        assert_eq!(account.received(&request(count)), Verdict::GoOn);
        if count % 2 == 0 {
            assert_eq!(account.received(&reset(count)), Verdict::GoOn);
        }
    }
    // Servers may refuse what they are asked.
    let mut account = Account::new(Role::Client, &LIMITS);
    assert_eq!(until_verdict(&mut account, &[reset(1)]), None);
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_replaced_before_the_library_ends_it() {
    let mut account = server();
    let reset = head(Head::RST_STREAM, 0, 4, 1);
    let verdicts: Vec<_> = (0..200).map(|_| account.sent(&reset)).collect();
    assert_eq!(verdicts[98], Verdict::GoOn);
    assert_eq!(verdicts[99], Verdict::Retire(Violation::Mistakes));
    assert!(verdicts[100..].iter().all(|v| *v == Verdict::GoOn));
}
