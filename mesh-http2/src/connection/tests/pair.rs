//! A client and a server of this crate, connected to each other.

use std::task::{Poll, Waker};

use super::*;

mod ending;
mod sent_frames;

struct Pair {
    client: Connection,
    server: Connection,
    /// Bytes that are transferred at a time.
    cut: usize,
}

impl Pair {
    fn new() -> Self {
        Self::with(&config(Role::Server))
    }

    fn with(server: &Config) -> Self {
        let mut pair = Self {
            client: Connection::new(&config(Role::Client)),
            server: Connection::new(server),
            cut: usize::MAX,
        };
        pair.exchange();
        pair
    }

    /// Transfers bytes until both have no output.
    fn exchange(&mut self) {
        while !(self.client.output().is_empty() && self.server.output().is_empty()) {
            for bytes in output(&mut self.client).chunks(self.cut) {
                take(&mut self.server, bytes);
            }
            for bytes in output(&mut self.server).chunks(self.cut) {
                take(&mut self.client, bytes);
            }
        }
    }

    /// Opens a stream and accepts it on the server.
    fn call(&mut self, request: &Request<()>, is_last: bool) -> (StreamId, AcceptedStream) {
        assert!(self.client.poll_ready(noop_waker()).is_ready());
        let id = self.client.open(request, None, is_last);
        self.exchange();
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

/// Whether the body has been read to its end.
fn has_ended(connection: &mut Connection, id: StreamId) -> bool {
    matches!(
        connection.poll_body_frame(id, noop_waker()),
        Poll::Ready(None)
    )
}

/// Reads all data that was received, and returns its length.
fn read(connection: &mut Connection, id: StreamId) -> usize {
    let mut length = 0;
    while let Poll::Ready(Some(Ok(BodyFrame::Data(data)))) =
        connection.poll_body_frame(id, noop_waker())
    {
        length += data.len();
    }
    length
}

/// Sends as much as flow control allows, at most `most` bytes.
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
fn messages_arrive_in_fragments_of_any_size() {
    for cut in [1, 2, 8, 9, 10, 100, usize::MAX] {
        let mut pair = Pair::new();
        pair.cut = cut;
        let (id, accepted) = pair.call(&request(), false);
        assert_eq!(accepted.request.uri(), "http://web/path");
        assert_eq!(accepted.request.headers()["a"], "1");
        assert!(!accepted.is_headers_only && accepted.exceeded_limit.is_none());
        pair.client.send_data(id, "ask".into(), false);
        pair.client.send_trailers(id, &trailers());
        pair.exchange();
        let accepted_id = accepted.id;
        let mut body = Vec::new();
        loop {
            match pair.server.poll_body_frame(accepted_id, noop_waker()) {
                Poll::Ready(Some(Ok(BodyFrame::Data(data)))) => body.extend_from_slice(&data),
                Poll::Ready(Some(Ok(BodyFrame::Trailers(got)))) => {
                    assert_eq!(got, trailers());
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(body, b"ask");
        assert!(pair.server.is_fully_read(accepted_id));
        assert!(has_ended(&mut pair.server, accepted_id));

        let response = Response::builder().status(201).body(()).unwrap();
        pair.server.respond(accepted_id, &response, false);
        pair.server.send_data(accepted_id, "reply".into(), true);
        pair.exchange();
        let Poll::Ready(Ok(head)) = pair.client.poll_response(id, noop_waker()) else {
            panic!("no response received");
        };
        assert_eq!(head.status(), 201);
        assert_eq!(read(&mut pair.client, id), 5);
        for (side, id) in [(&mut pair.client, id), (&mut pair.server, accepted_id)] {
            drop_stream(side, id);
            assert_eq!(side.stream_count(), 0);
        }
        assert!(pair.client.output().is_empty() && pair.server.output().is_empty());
    }
}

#[test]
fn empty_body_differs_from_no_body() {
    let mut pair = Pair::new();
    let (_, accepted) = pair.call(&request(), true);
    assert!(accepted.is_headers_only);
    let id = pair.client.open(&request(), None, false);
    pair.client.send_data(id, Bytes::new(), true);
    pair.exchange();
    let accepted = pair.server.next_request().unwrap();
    assert!(!accepted.is_headers_only);
    assert!(has_ended(&mut pair.server, accepted.id));
    pair.server.respond(accepted.id, &Response::new(()), true);
    pair.exchange();
    assert!(pair.client.poll_response(id, noop_waker()).is_ready());
    assert!(pair.client.is_headers_only(id));
}

#[test]
fn unread_stream_blocks_its_sender() {
    let mut pair = Pair::new();
    let (id, accepted) = pair.call(&request(), false);
    let mut sent = 0;
    for _ in 0..10 {
        sent += fill(&mut pair.client, id, usize::MAX);
        pair.exchange();
    }
    assert_eq!(sent, DEFAULT_WINDOW as usize);
    let (flag, waker) = Flag::new();
    assert!(pair.client.poll_capacity(id, &waker).is_pending());
    assert_eq!(read(&mut pair.server, accepted.id), sent);
    assert!(!flag.was_woken());
    pair.exchange();
    assert!(flag.was_woken());
    assert_eq!(fill(&mut pair.client, id, usize::MAX), sent);
}

#[test]
fn dropped_reader_releases_connection_window() {
    let mut pair = Pair::new();
    let (id, accepted) = pair.call(&request(), false);
    fill(&mut pair.client, id, usize::MAX);
    pair.exchange();
    let (other, other_accepted) = pair.call(&request(), false);
    let (flag, waker) = Flag::new();
    assert!(
        pair.client.poll_capacity(other, &waker).is_pending(),
        "the connection's window is used up"
    );
    // Neither received nor later data will be read.
    pair.server.drop_reader(accepted.id);
    assert!(pair.server.streams[&accepted.id.0].inbound.data.is_empty());
    pair.exchange();
    assert!(flag.was_woken());
    assert_eq!(fill(&mut pair.client, other, 20_000), 20_000);
    pair.exchange();
    assert_eq!(read(&mut pair.server, other_accepted.id), 20_000);
}

#[test]
fn reader_waits_from_a_poll_without_data_until_data_arrives() {
    let mut pair = Pair::new();
    let (id, accepted) = pair.call(&request(), false);
    let reader = accepted.id;
    assert!(!pair.server.is_reader_waiting(reader));
    assert!(
        pair.server
            .poll_body_frame(reader, noop_waker())
            .is_pending()
    );
    assert!(pair.server.is_reader_waiting(reader));
    fill(&mut pair.client, id, 1);
    pair.exchange();
    assert!(!pair.server.is_reader_waiting(reader));
    read(&mut pair.server, reader);
    assert!(pair.server.is_reader_waiting(reader));
    pair.server.drop_reader(reader);
    assert!(!pair.server.is_reader_waiting(reader));
}

/// Slow readers hold at most their own windows.
#[test]
fn unread_streams_do_not_block_others() {
    let mut pair = Pair::with(&Config {
        connection_window: LIMITS.max_concurrent_streams * DEFAULT_WINDOW,
        ..config(Role::Server)
    });
    for _ in 1..LIMITS.max_concurrent_streams {
        let (slow, _) = pair.call(&request(), false);
        let sent = fill(&mut pair.client, slow, usize::MAX);
        assert_eq!(sent, DEFAULT_WINDOW as usize);
        pair.exchange();
    }
    let (id, accepted) = pair.call(&request(), false);
    for round in 0..1000 {
        assert_eq!(fill(&mut pair.client, id, 1000), 1000, "in round {round}");
        pair.exchange();
        assert_eq!(read(&mut pair.server, accepted.id), 1000);
        pair.exchange();
    }
}

#[test]
fn enlarged_windows_are_used() {
    const LARGE: u32 = 1 << 20;
    let mut pair = Pair::with(&Config {
        stream_window: LARGE,
        connection_window: LARGE,
        ..config(Role::Server)
    });
    let (id, _) = pair.call(&request(), false);
    let mut sent = 0;
    for _ in 0..100 {
        sent += fill(&mut pair.client, id, usize::MAX);
        pair.exchange();
    }
    assert_eq!(sent, LARGE as usize);
    // While streams are open.
    pair.server.set_windows(2 * LARGE, 2 * LARGE);
    pair.exchange();
    for _ in 0..100 {
        sent += fill(&mut pair.client, id, usize::MAX);
        pair.exchange();
    }
    assert_eq!(sent, 2 * LARGE as usize);
}

#[test]
fn smaller_initial_window_is_enforced_from_the_start() {
    let mut pair = Pair::with(&Config {
        stream_window: 100,
        ..config(Role::Server)
    });
    let (id, accepted) = pair.call(&request(), false);
    for _ in 0..10 {
        assert_eq!(fill(&mut pair.client, id, usize::MAX), 100);
        pair.exchange();
        assert_eq!(read(&mut pair.server, accepted.id), 100);
        pair.exchange();
    }
}

#[test]
fn widened_window_holds_more_of_one_stream_and_only_as_much_as_its_message_needs() {
    let mut pair = Pair::with(&Config {
        stream_window: 100,
        widened_stream_window: 400,
        ..config(Role::Server)
    });
    let (id, accepted) = pair.call(&request(), false);
    let (other, other_accepted) = pair.call(&request(), false);
    let id_at_server = accepted.id;
    assert_eq!(pair.server.missing_window(id_at_server), 300);
    pair.server.widen_window(id_at_server, u32::MAX);
    assert_eq!(pair.server.missing_window(id_at_server), 0, "widened once");
    pair.exchange();
    assert_eq!(fill(&mut pair.client, id, usize::MAX), 400);
    assert_eq!(fill(&mut pair.client, other, usize::MAX), 100);
    pair.exchange();
    // The whole window is released again.
    assert_eq!(read(&mut pair.server, id_at_server), 400);
    pair.exchange();
    assert_eq!(fill(&mut pair.client, id, usize::MAX), 400);
    pair.client.send_data(other, Bytes::new(), true);
    pair.exchange();
    assert_eq!(pair.server.missing_window(other_accepted.id), 0, "complete");

    for (length, missing) in [("100", 0), ("150", 50), ("1000", 300)] {
        let mut request = request();
        request
            .headers_mut()
            .insert("content-length", length.parse().unwrap());
        let (_, accepted) = pair.call(&request, false);
        assert_eq!(pair.server.missing_window(accepted.id), missing, "{length}");
    }
}

#[test]
fn window_widened_with_the_request_holds_more_of_its_response() {
    let mut pair = Pair::new();
    pair.client = Connection::new(&Config {
        stream_window: 100,
        widened_stream_window: 400,
        ..config(Role::Client)
    });
    pair.server = Connection::new(&config(Role::Server));
    pair.exchange();
    for (method, window) in [(http::Method::GET, 400), (http::Method::HEAD, 100)] {
        let mut request = request();
        *request.method_mut() = method;
        let id = pair.client.open(&request, None, true);
        assert_eq!(pair.client.missing_window(id), window - 100);
        pair.client.widen_window(id, u32::MAX);
        pair.exchange();
        let accepted = pair.server.next_request().unwrap();
        pair.server.respond(accepted.id, &Response::new(()), false);
        let held = fill(&mut pair.server, accepted.id, usize::MAX);
        assert_eq!(held, window as usize);
        pair.exchange();
        assert_eq!(pair.client.missing_window(id), 0, "widened once");
    }
}

#[test]
fn buffered_output_is_limited() {
    let mut pair = Pair::with(&Config {
        stream_window: 1 << 24,
        connection_window: 1 << 24,
        ..config(Role::Server)
    });
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
    pair.exchange();
    assert!(flag.was_woken());
}

#[test]
fn reset_ends_both_directions() {
    let mut pair = Pair::new();
    let (id, accepted) = pair.call(&request(), false);
    pair.client.send_data(id, "half".into(), false);
    pair.exchange();
    let (flag, waker) = Flag::new();
    assert!(pair.server.poll_failure(accepted.id, &waker).is_pending());
    pair.client.reset(id, ErrorCode::CANCEL);
    pair.exchange();
    assert!(flag.was_woken());
    // Received before the reset.
    assert_eq!(data(&mut pair.server, accepted.id), "half");
    let broken = pair.server.poll_body_frame(accepted.id, noop_waker());
    assert!(matches!(
        broken,
        Poll::Ready(Some(Err(Error::Reset(ErrorCode::CANCEL))))
    ));
    // A response to a stream that was reset meanwhile is ignored.
    pair.server.respond(accepted.id, &Response::new(()), true);
    assert!(pair.server.output().is_empty());
}

#[test]
fn frames_in_flight_to_reset_streams_are_ignored() {
    let mut pair = Pair::new();
    let mut responses = Vec::new();
    // More streams than [`ResetStreams`](super::super::ending::ResetStreams) stores.
    for _ in 0..100 {
        let (id, accepted) = pair.call(&request(), true);
        pair.server.respond(accepted.id, &Response::new(()), false);
        pair.server.send_data(accepted.id, "late".into(), false);
        pair.server.send_trailers(accepted.id, &trailers());
        drop_stream(&mut pair.client, id);
        assert_eq!(pair.client.stream_count(), 0);
        // The reset and the response cross.
        let reset = output(&mut pair.client);
        responses.push(output(&mut pair.server));
        pair.server.receive(&reset).unwrap();
        drop_stream(&mut pair.server, accepted.id);
        assert_eq!(pair.server.stream_count(), 0);
    }
    for response in responses {
        pair.client.receive(&response).unwrap();
    }
    // All capacity of the connection's window was released.
    let (id, accepted) = pair.call(&request(), false);
    assert_eq!(fill(&mut pair.client, id, 60_000), 60_000);
    pair.exchange();
    assert_eq!(read(&mut pair.server, accepted.id), 60_000);
}

/// RFC 9113, section 8.1.
#[test]
fn server_may_reset_with_no_error_after_response() {
    let mut pair = Pair::new();
    let (id, accepted) = pair.call(&request(), false);
    pair.server.respond(accepted.id, &Response::new(()), false);
    pair.server.send_data(accepted.id, "enough".into(), true);
    drop_stream(&mut pair.server, accepted.id);
    pair.exchange();
    assert!(matches!(
        failure(&mut pair.client, id),
        Error::Reset(ErrorCode::NO_ERROR)
    ));
    assert!(pair.client.poll_response(id, noop_waker()).is_ready());
    assert_eq!(data(&mut pair.client, id), "enough");
    assert!(has_ended(&mut pair.client, id));
}

#[test]
fn streams_beyond_the_limit_wait_for_closed_ones() {
    let mut pair = Pair::new();
    let open: Vec<_> = (0..10).map(|_| pair.call(&request(), true)).collect();
    let (flag, waker) = Flag::new();
    assert!(pair.client.poll_ready(&waker).is_pending());
    pair.server.respond(open[3].1.id, &Response::new(()), true);
    pair.exchange();
    assert!(flag.was_woken());
    assert!(pair.client.poll_ready(&waker).is_ready());
}

#[test]
fn exhausted_stream_ids_prevent_new_streams() {
    let mut pair = Pair::new();
    pair.client.next_local_stream = MAX_STREAM;
    pair.server.last_peer_stream = MAX_STREAM - 2;
    pair.call(&request(), true);
    assert!(pair.client.open_error().is_some());
}

const MAX_STREAM: u32 = crate::window::MAX_WINDOW;

#[test]
fn ping_acknowledgement_is_reported_once() {
    let mut pair = Pair::new();
    pair.client.ping();
    assert!(!pair.client.take_pong());
    pair.exchange();
    assert!(pair.client.take_pong());
    assert!(!pair.client.take_pong());
}

/// Reading stops while much output is buffered, because a peer that sends requests and never reads
/// would make the connection buffer all responses.
#[test]
fn unread_responses_congest_connection() {
    let mut pair = Pair::new();
    let mut pings = Vec::new();
    for _ in 0..100 {
        frame::write_ping(&mut pings, 0, [0; 8]);
    }
    // Message frames that earn all the PINGs.
    for _ in 0..1000 {
        if pair.server.is_congested() {
            return;
        }
        pair.server.flood.record_sent_message();
        for _ in 0..100 {
            pair.server.flood.record_sent_message();
        }
        pair.server.receive(&pings).unwrap();
    }
    panic!("{}", pair.server.output().len());
}
