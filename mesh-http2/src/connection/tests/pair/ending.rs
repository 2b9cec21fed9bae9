//! The end of a connection: GOAWAY, shutdown, and the errors of its streams.

use std::sync::mpsc;

use super::*;

#[test]
fn graceful_shutdown_completes_open_streams() {
    let mut pair = Pair::new();
    let (id, accepted) = pair.call(&request(), true);
    // In flight when the server starts to shut down.
    let late = pair.client.open(&request(), None, true);
    pair.server.start_graceful_shutdown();
    pair.exchange();
    assert!(pair.client.open_error().is_some());
    let late_accepted = pair.server.next_request().unwrap();
    for accepted in [accepted, late_accepted] {
        assert!(!pair.server.is_closed());
        pair.server.respond(accepted.id, &Response::new(()), true);
    }
    pair.exchange();
    assert!(pair.server.is_closed());
    for id in [id, late] {
        assert!(matches!(
            pair.client.poll_response(id, noop_waker()),
            Poll::Ready(Ok(_))
        ));
    }
}

/// RFC 9113, section 6.8.
#[test]
fn client_that_leaves_after_goaway_sends_its_own() {
    let mut pair = Pair::new();
    let (_, accepted) = pair.call(&request(), true);
    pair.server.start_graceful_shutdown();
    pair.exchange();
    pair.client.start_graceful_shutdown();
    let frames = sent_frames(&mut pair.client);
    let [(header, payload)] = &frames[..] else {
        panic!("{frames:?}");
    };
    assert_eq!(header.kind, GOAWAY);
    assert_eq!(frame::goaway(payload), Ok((0, ErrorCode::NO_ERROR)));
    assert!(!pair.client.is_closed(), "a stream is open");
    pair.server.respond(accepted.id, &Response::new(()), true);
    pair.exchange();
    assert!(pair.client.is_closed());
}

#[test]
fn goaway_distinguishes_unprocessed_streams() {
    let mut pair = Pair::new();
    let (first, _) = pair.call(&request(), true);
    let second = pair.client.open(&request(), None, true);
    let mut goaway = Vec::new();
    frame::write_goaway(&mut goaway, first.0, ErrorCode::ENHANCE_YOUR_CALM, "");
    pair.client.receive(&goaway).unwrap();
    let calm = ErrorCode::ENHANCE_YOUR_CALM;
    assert!(matches!(failure(&mut pair.client, second), Error::Unprocessed(code) if code == calm));
    assert!(pair.client.poll_failure(first, noop_waker()).is_pending());
    pair.client.handle_close(None);
    assert!(matches!(failure(&mut pair.client, first), Error::PeerGoAway(code) if code == calm));
}

#[test]
fn closing_wakes_driver_and_streams() {
    let mut pair = Pair::new();
    let (id, accepted) = pair.call(&request(), false);
    let wakers = [Flag::new(), Flag::new(), Flag::new()];
    assert!(pair.client.poll_response(id, &wakers[0].1).is_pending());
    assert!(pair.client.poll_failure(id, &wakers[1].1).is_pending());
    pair.client.register_driver(&wakers[2].1);
    pair.client.handle_close(None);
    assert!(wakers.iter().all(|(flag, _)| flag.was_woken()));
    assert!(matches!(failure(&mut pair.client, id), Error::Closed));
    pair.server.abort(ErrorCode::NO_ERROR);
    assert!(matches!(
        failure(&mut pair.server, accepted.id),
        Error::Closed
    ));
    assert!(pair.server.is_closed());
}

#[test]
fn streams_are_woken_in_their_order_when_the_connection_ends() {
    let mut pair = Pair::new();
    let (sender, woken) = mpsc::channel();
    let count = LIMITS.max_concurrent_streams;
    for number in 0..count {
        let id = pair.client.open(&request(), None, true);
        let woken = sender.clone();
        let waker = Waker::from(Arc::new(Numbered { number, woken }));
        assert!(pair.client.poll_response(id, &waker).is_pending());
    }
    let mut goaway = Vec::new();
    frame::write_goaway(&mut goaway, 0, ErrorCode::NO_ERROR, "");
    pair.client.receive(&goaway).unwrap();
    let woken: Vec<u32> = woken.try_iter().collect();
    assert_eq!(woken, (0..count).collect::<Vec<_>>());
}

/// Records its number when it is woken.
struct Numbered {
    number: u32,
    woken: mpsc::Sender<u32>,
}

impl Wake for Numbered {
    fn wake(self: Arc<Self>) {
        self.woken.send(self.number).unwrap();
    }
}
