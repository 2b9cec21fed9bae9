//! A client and a server, both ours.

use std::task::Poll;

use super::*;

struct Pair {
    client: Connection,
    server: Connection,
    /// How many bytes are handed over at a time.
    cut: usize,
}

impl Pair {
    fn new() -> Self {
        Self::with(&config(Role::Client), &config(Role::Server))
    }

    fn with(client: &Config, server: &Config) -> Self {
        let mut pair = Self {
            client: Connection::new(client),
            server: Connection::new(server),
            cut: usize::MAX,
        };
        pair.talk();
        pair
    }

    /// Until both have nothing more to say.
    fn talk(&mut self) {
        while !(self.client.output().is_empty() && self.server.output().is_empty()) {
            for bytes in output(&mut self.client).chunks(self.cut) {
                take(&mut self.server, bytes);
            }
            for bytes in output(&mut self.server).chunks(self.cut) {
                take(&mut self.client, bytes);
            }
        }
    }

    /// Opens a stream and lets the server take it.
    fn call(&mut self, request: &Request<()>, is_last: bool) -> (StreamId, AcceptedStream) {
        assert!(self.client.poll_ready(noop_waker()).is_ready());
        let id = self.client.open(request, is_last);
        self.talk();
        (id, self.server.next_request().unwrap())
    }
}

fn request() -> Request<()> {
    Request::post("http://web/path")
        .header("a", "1")
        .body(())
        .unwrap()
}

fn data(connection: &mut Connection, id: StreamId) -> Bytes {
    match connection.poll_body_frame(id, noop_waker()) {
        Poll::Ready(Some(Ok(BodyFrame::Data(data)))) => data,
        other => panic!("{other:?}"),
    }
}

/// Reads until nothing is there at the moment.
fn read(connection: &mut Connection, id: StreamId) -> usize {
    let mut length = 0;
    while let Poll::Ready(Some(Ok(BodyFrame::Data(data)))) =
        connection.poll_body_frame(id, noop_waker())
    {
        length += data.len();
    }
    length
}

/// Sends as much as there is room for.
fn fill(connection: &mut Connection, id: StreamId, most: usize) -> usize {
    let mut sent = 0;
    while sent < most
        && let Poll::Ready(Ok(room)) = connection.poll_capacity(id, noop_waker())
    {
        let n = room.min(most - sent);
        connection.send_data(id, vec![0; n].into(), false);
        sent += n;
    }
    sent
}

fn failure(connection: &mut Connection, id: StreamId) -> Error {
    match connection.poll_failure(id, noop_waker()) {
        Poll::Ready(error) => error,
        Poll::Pending => panic!("the stream has not failed"),
    }
}

fn trailers() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("checksum", "2".parse().unwrap());
    trailers
}

#[test]
fn messages_pass_both_ways_however_they_are_cut() {
    for cut in [1, 2, 8, 9, 10, 100, usize::MAX] {
        let mut pair = Pair::new();
        pair.cut = cut;
        let (id, accepted) = pair.call(&request(), false);
        assert_eq!(accepted.request.uri(), "http://web/path");
        assert_eq!(accepted.request.headers()["a"], "1");
        assert!(!accepted.is_headers_only && accepted.exceeded_limit.is_none());
        pair.client.send_data(id, "ask".into(), false);
        pair.client.send_trailers(id, &trailers());
        pair.talk();
        let theirs = accepted.id;
        let mut body = Vec::new();
        loop {
            match pair.server.poll_body_frame(theirs, noop_waker()) {
                Poll::Ready(Some(Ok(BodyFrame::Data(data)))) => body.extend_from_slice(&data),
                Poll::Ready(Some(Ok(BodyFrame::Trailers(got)))) => {
                    assert_eq!(got, trailers());
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(body, b"ask");
        assert!(pair.server.is_fully_read(theirs));
        assert!(matches!(
            pair.server.poll_body_frame(theirs, noop_waker()),
            Poll::Ready(None)
        ));

        let response = Response::builder().status(201).body(()).unwrap();
        pair.server.respond(theirs, &response, false);
        pair.server.send_data(theirs, "reply".into(), true);
        pair.talk();
        let Poll::Ready(Ok(head)) = pair.client.poll_response(id, noop_waker()) else {
            panic!("there is no response");
        };
        assert_eq!(head.status(), 201);
        assert_eq!(read(&mut pair.client, id), 5);
        for (side, id) in [(&mut pair.client, id), (&mut pair.server, theirs)] {
            side.drop_reader(id);
            side.drop_writer(id);
            assert_eq!(side.stream_count(), 0);
        }
        assert!(pair.client.output().is_empty() && pair.server.output().is_empty());
    }
}

#[test]
fn an_empty_body_is_not_no_body() {
    let mut pair = Pair::new();
    let (_, accepted) = pair.call(&request(), true);
    assert!(accepted.is_headers_only);
    let id = pair.client.open(&request(), false);
    pair.client.send_data(id, Bytes::new(), true);
    pair.talk();
    let accepted = pair.server.next_request().unwrap();
    assert!(!accepted.is_headers_only);
    assert!(matches!(
        pair.server.poll_body_frame(accepted.id, noop_waker()),
        Poll::Ready(None)
    ));
    pair.server.respond(accepted.id, &Response::new(()), true);
    pair.talk();
    assert!(pair.client.poll_response(id, noop_waker()).is_ready());
    assert!(pair.client.is_headers_only(id));
}

#[test]
fn a_reader_that_does_not_read_stops_the_sender() {
    let mut pair = Pair::new();
    let (id, accepted) = pair.call(&request(), false);
    let mut sent = 0;
    for _ in 0..10 {
        sent += fill(&mut pair.client, id, usize::MAX);
        pair.talk();
    }
    assert_eq!(sent, DEFAULT_WINDOW as usize);
    let (flag, waker) = Flag::new();
    assert!(pair.client.poll_capacity(id, &waker).is_pending());
    assert_eq!(read(&mut pair.server, accepted.id), sent);
    assert!(!flag.was_woken());
    pair.talk();
    assert!(flag.was_woken());
    assert_eq!(fill(&mut pair.client, id, usize::MAX), sent);
}

#[test]
fn streams_that_nobody_reads_do_not_hold_the_connections_window() {
    let mut pair = Pair::new();
    let (id, accepted) = pair.call(&request(), false);
    fill(&mut pair.client, id, usize::MAX);
    pair.talk();
    let (other, other_accepted) = pair.call(&request(), false);
    let (flag, waker) = Flag::new();
    assert!(
        pair.client.poll_capacity(other, &waker).is_pending(),
        "all of it is held"
    );
    // Nobody will read what has come, nor what comes.
    pair.server.drop_reader(accepted.id);
    pair.talk();
    assert!(flag.was_woken());
    assert_eq!(fill(&mut pair.client, other, 20_000), 20_000);
    pair.talk();
    assert_eq!(read(&mut pair.server, other_accepted.id), 20_000);
}

/// Slow readers hold as much as their own windows allow.
#[test]
fn streams_that_are_not_read_leave_the_others_their_share() {
    let server = Config {
        connection_window: LIMITS.max_concurrent_streams * DEFAULT_WINDOW,
        ..config(Role::Server)
    };
    let mut pair = Pair::with(&config(Role::Client), &server);
    for _ in 1..LIMITS.max_concurrent_streams {
        let (slow, _) = pair.call(&request(), false);
        assert_eq!(
            fill(&mut pair.client, slow, usize::MAX),
            DEFAULT_WINDOW as usize
        );
        pair.talk();
    }
    let (id, accepted) = pair.call(&request(), false);
    for round in 0..1000 {
        assert_eq!(fill(&mut pair.client, id, 1000), 1000, "in round {round}");
        pair.talk();
        assert_eq!(read(&mut pair.server, accepted.id), 1000);
        pair.talk();
    }
}

#[test]
fn windows_that_are_made_larger_are_used() {
    const LARGE: u32 = 1 << 20;
    let server = Config {
        stream_window: LARGE,
        connection_window: LARGE,
        ..config(Role::Server)
    };
    let mut pair = Pair::with(&config(Role::Client), &server);
    let (id, _) = pair.call(&request(), false);
    let mut sent = 0;
    for _ in 0..100 {
        sent += fill(&mut pair.client, id, usize::MAX);
        pair.talk();
    }
    assert_eq!(sent, LARGE as usize);
    // While streams are open.
    pair.server.set_windows(2 * LARGE, 2 * LARGE);
    pair.talk();
    for _ in 0..100 {
        sent += fill(&mut pair.client, id, usize::MAX);
        pair.talk();
    }
    assert_eq!(sent, 2 * LARGE as usize);
}

#[test]
fn smaller_windows_hold_from_the_beginning() {
    let server = Config {
        stream_window: 100,
        ..config(Role::Server)
    };
    let mut pair = Pair::with(&config(Role::Client), &server);
    let (id, accepted) = pair.call(&request(), false);
    for _ in 0..10 {
        assert_eq!(fill(&mut pair.client, id, usize::MAX), 100);
        pair.talk();
        assert_eq!(read(&mut pair.server, accepted.id), 100);
        pair.talk();
    }
}

#[test]
fn what_waits_to_be_written_is_bounded() {
    let server = Config {
        stream_window: 1 << 24,
        connection_window: 1 << 24,
        ..config(Role::Server)
    };
    let mut pair = Pair::with(&config(Role::Client), &server);
    let (id, _) = pair.call(&request(), false);
    let (other, _) = pair.call(&request(), false);
    fill(&mut pair.client, id, usize::MAX);
    assert!(pair.client.output().len() < 3 * send::DEFAULT_OUTPUT_LIMIT);
    let (flag, waker) = Flag::new();
    assert!(pair.client.poll_capacity(other, &waker).is_pending());
    let mut first = [IoSlice::new(&[])];
    assert_eq!(pair.client.output().slices(&mut first), 1);
    let first = first[0].to_vec();
    pair.server.receive(&first).unwrap();
    pair.client.advance_output(first.len());
    assert!(!flag.was_woken());
    pair.talk();
    assert!(flag.was_woken());
}

#[test]
fn resets_end_both_directions() {
    let mut pair = Pair::new();
    let (id, accepted) = pair.call(&request(), false);
    pair.client.send_data(id, "half".into(), false);
    pair.talk();
    let (flag, waker) = Flag::new();
    assert!(pair.server.poll_failure(accepted.id, &waker).is_pending());
    pair.client.reset(id, ErrorCode::CANCEL);
    pair.talk();
    assert!(flag.was_woken());
    assert_eq!(
        data(&mut pair.server, accepted.id),
        "half",
        "it has come before"
    );
    let broken = pair.server.poll_body_frame(accepted.id, noop_waker());
    assert!(matches!(
        broken,
        Poll::Ready(Some(Err(Error::Reset(ErrorCode::CANCEL))))
    ));
    // What was still on its way is no mistake.
    pair.server.respond(accepted.id, &Response::new(()), true);
    assert!(pair.server.output().is_empty());
}

#[test]
fn what_was_on_its_way_to_a_reset_stream_is_ignored() {
    let mut pair = Pair::new();
    let mut answers = Vec::new();
    // More than are remembered one by one.
    for _ in 0..100 {
        let (id, accepted) = pair.call(&request(), true);
        pair.server.respond(accepted.id, &Response::new(()), false);
        pair.server.send_data(accepted.id, "late".into(), false);
        pair.server.send_trailers(accepted.id, &trailers());
        pair.client.drop_reader(id);
        pair.client.drop_writer(id);
        assert_eq!(pair.client.stream_count(), 0);
        // Both are on the way at the same time.
        let reset = output(&mut pair.client);
        answers.push(output(&mut pair.server));
        pair.server.receive(&reset).unwrap();
        pair.server.drop_reader(accepted.id);
        pair.server.drop_writer(accepted.id);
        assert_eq!(pair.server.stream_count(), 0);
    }
    for answer in answers {
        pair.client.receive(&answer).unwrap();
    }
    // The window has got everything back.
    let (id, accepted) = pair.call(&request(), false);
    assert_eq!(fill(&mut pair.client, id, 60_000), 60_000);
    pair.talk();
    assert_eq!(read(&mut pair.server, accepted.id), 60_000);
}

/// RFC 9113, section 8.1.
#[test]
fn a_server_that_has_answered_may_not_want_the_rest() {
    let mut pair = Pair::new();
    let (id, accepted) = pair.call(&request(), false);
    pair.server.respond(accepted.id, &Response::new(()), false);
    pair.server.send_data(accepted.id, "enough".into(), true);
    pair.server.drop_reader(accepted.id);
    pair.server.drop_writer(accepted.id);
    pair.talk();
    assert!(matches!(
        failure(&mut pair.client, id),
        Error::Reset(ErrorCode::NO_ERROR)
    ));
    assert!(pair.client.poll_response(id, noop_waker()).is_ready());
    assert_eq!(data(&mut pair.client, id), "enough");
    assert!(matches!(
        pair.client.poll_body_frame(id, noop_waker()),
        Poll::Ready(None)
    ));
}

#[test]
fn streams_beyond_the_limit_wait() {
    let mut pair = Pair::new();
    let open: Vec<_> = (0..10).map(|_| pair.call(&request(), true)).collect();
    let (flag, waker) = Flag::new();
    assert!(pair.client.poll_ready(&waker).is_pending());
    pair.server.respond(open[3].1.id, &Response::new(()), true);
    pair.talk();
    assert!(flag.was_woken());
    assert!(pair.client.poll_ready(&waker).is_ready());
}

#[test]
fn who_leaves_lets_open_streams_end() {
    let mut pair = Pair::new();
    let (id, accepted) = pair.call(&request(), true);
    // On its way when the server begins to leave.
    let late = pair.client.open(&request(), true);
    pair.server.start_graceful_shutdown();
    pair.talk();
    assert!(pair.client.open_error().is_some());
    let late_accepted = pair.server.next_request().unwrap();
    for accepted in [accepted, late_accepted] {
        assert!(!pair.server.is_closed());
        pair.server.respond(accepted.id, &Response::new(()), true);
    }
    pair.talk();
    assert!(pair.server.is_closed());
    for id in [id, late] {
        assert!(matches!(
            pair.client.poll_response(id, noop_waker()),
            Poll::Ready(Ok(_))
        ));
    }
}

#[test]
fn streams_that_were_not_looked_at_are_told_apart() {
    let mut pair = Pair::new();
    let (first, _) = pair.call(&request(), true);
    let second = pair.client.open(&request(), true);
    let mut farewell = Vec::new();
    frame::write_goaway(&mut farewell, first.0, ErrorCode::ENHANCE_YOUR_CALM, "");
    pair.client.receive(&farewell).unwrap();
    let calm = ErrorCode::ENHANCE_YOUR_CALM;
    assert!(
        matches!(failure(&mut pair.client, second), Error::Unprocessed(reason) if reason == calm)
    );
    assert!(pair.client.poll_failure(first, noop_waker()).is_pending());
    pair.client.closed(None);
    assert!(
        matches!(failure(&mut pair.client, first), Error::PeerGoAway(reason) if reason == calm)
    );
}

#[test]
fn everybody_learns_that_the_connection_is_gone() {
    let mut pair = Pair::new();
    let (id, accepted) = pair.call(&request(), false);
    let wakers = [Flag::new(), Flag::new(), Flag::new()];
    assert!(pair.client.poll_response(id, &wakers[0].1).is_pending());
    assert!(pair.client.poll_failure(id, &wakers[1].1).is_pending());
    pair.client.register_driver(&wakers[2].1);
    pair.client.closed(None);
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
fn numbers_of_streams_are_not_used_twice() {
    let mut pair = Pair::new();
    pair.client.next_local_stream = MAX_STREAM;
    pair.server.last_peer_stream = MAX_STREAM - 2;
    pair.call(&request(), true);
    assert!(pair.client.open_error().is_some());
}

const MAX_STREAM: u32 = crate::window::MAX_WINDOW;

#[test]
fn pings_are_answered() {
    let mut pair = Pair::new();
    pair.client.ping();
    assert!(!pair.client.take_pong());
    pair.talk();
    assert!(pair.client.take_pong());
    assert!(!pair.client.take_pong());
}

/// Reading waits for writing, lest a peer that asks and never listens makes us remember all
/// answers.
#[test]
fn answers_that_nobody_takes_are_bounded() {
    let mut pair = Pair::new();
    let mut pings = Vec::new();
    for _ in 0..100 {
        frame::write_ping(&mut pings, 0, [0; 8]);
    }
    // Somebody who explains them all by messages.
    for _ in 0..1000 {
        if pair.server.is_congested() {
            return;
        }
        pair.server.flood.sent_message();
        for _ in 0..100 {
            pair.server.flood.sent_message();
        }
        pair.server.receive(&pings).unwrap();
    }
    panic!("{}", pair.server.output().len());
}
