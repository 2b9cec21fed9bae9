//! A model of a drain: a proxy that ends while another one sends requests on an HTTP/2 connection
//! between them. Both ends of the connection are mesh-http2's own.
//!
//! Every order of their steps is checked: requests and SIGTERM at any time, frames that arrive one
//! by one and late, responses in any order, a PING that is not acknowledged in time:
//!
//! * No request fails: it gets its whole response, or its client knows that it was not processed
//!   and sends it again on another connection.
//! * A request that is sent again was not processed.
//! * A client that acknowledges the PING has to send nothing again.
//! * Every request and the connection end.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Poll, Waker, ready};

use bytes::Bytes;
use http::{Request, Response};
use mesh_http2::{BodyFrame, Config, Connection, Error, Limits, PendingInput, Role, StreamId};
use mesh_models::violated;
use stateright::{Model, Property};

/// A drain to check.
#[derive(Clone, Copy, Debug)]
struct Drain {
    /// The number of requests that the client has.
    requests: usize,
    /// Neither end has received the other's SETTINGS.
    is_new: bool,
    /// The acknowledgement of the PING may be late.
    may_time_out: bool,
    rules: Rules,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    AsBuilt,
    /// The server sends the final GOAWAY without the announcement.
    AtOnce,
    /// The server closes its socket without reading on, and its kernel answers frames with RST.
    WithoutLinger,
}

/// The steps of each end, in order. Both ends are deterministic, so that these orders determine the
/// state of the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    client: Vec<Step>,
    server: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// The next frame of the peer arrives.
    Receive,
    /// The client sends a request.
    Send,
    /// RST arrives.
    ReceiveReset,
    /// FIN arrives.
    ReceiveEnd,
    /// The server's application responds to the request of this number.
    Respond(usize),
    /// SIGTERM.
    Terminate,
    /// The time for the acknowledgement of the PING ends.
    TimeOut,
    /// The server closes its socket.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Client,
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Pending,
    Answered,
    /// The server has not processed it: it is sent again.
    Excluded,
    Failed,
}

/// A request of the client.
struct Sent {
    id: StreamId,
    has_head: bool,
    body: Vec<u8>,
    outcome: Outcome,
}

/// Both ends after the steps of a [`State`].
struct World {
    model: Drain,
    client: Connection,
    server: Connection,
    /// Frames in flight.
    to_client: VecDeque<Vec<u8>>,
    to_server: VecDeque<Vec<u8>>,
    sent: Vec<Sent>,
    /// The requests that have reached the application, in the order of `sent`.
    processed: Vec<StreamId>,
    responded: Vec<usize>,
    is_terminated: bool,
    /// The server has closed its socket.
    is_closed: bool,
    /// Its kernel has sent RST.
    is_reset: bool,
    /// The client has received FIN or RST.
    has_end: bool,
}

const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;

const LIMITS: Limits = Limits {
    max_concurrent_streams: 10,
    max_header_list_size: 16 * 1024,
    max_fields: 20,
    idle_frames: 1000,
    resets: 1000,
    stream_errors: 1000,
    field_lines: 1_000_000,
    pending_accept_resets: 5,
};

fn connection(role: Role) -> Connection {
    Connection::new(&Config::new(role, LIMITS))
}

/// Moves the output of a connection to the frames in flight.
fn flush(connection: &mut Connection, in_flight: &mut VecDeque<Vec<u8>>) {
    let mut bytes = Vec::new();
    while !connection.output().is_empty() {
        let mut slices = [IoSlice::new(&[]); 8];
        let count = connection.output().slices(&mut slices);
        let before = bytes.len();
        slices[..count]
            .iter()
            .for_each(|it| bytes.extend_from_slice(it));
        connection.advance_output(bytes.len() - before);
    }
    while !bytes.is_empty() {
        let length = match &bytes[..] {
            [b'P', b'R', b'I', ..] => PREFACE,
            [a, b, c, ..] => FRAME_HEADER + u32::from_be_bytes([0, *a, *b, *c]) as usize,
            _ => unreachable!("half a frame"),
        };
        let rest = bytes.split_off(length);
        in_flight.push_back(std::mem::replace(&mut bytes, rest));
    }
}

impl World {
    fn after(model: Drain, state: &State) -> Self {
        let mut world = Self {
            model,
            client: connection(Role::Client),
            server: connection(Role::Server),
            to_client: VecDeque::new(),
            to_server: VecDeque::new(),
            sent: Vec::new(),
            processed: Vec::new(),
            responded: Vec::new(),
            is_terminated: false,
            is_closed: false,
            is_reset: false,
            has_end: false,
        };
        world.flush();
        while !model.is_new && !(world.to_client.is_empty() && world.to_server.is_empty()) {
            for end in [End::Client, End::Server] {
                if world.is_possible(end, Step::Receive) {
                    world.take(end, Step::Receive);
                }
            }
        }
        let mut client = state.client.iter().copied().peekable();
        let mut server = state.server.iter().copied().peekable();
        // Each end waits for what the other one sends.
        while client.peek().is_some() || server.peek().is_some() {
            while let Some(step) = client.next_if(|step| world.is_possible(End::Client, *step)) {
                world.take(End::Client, step);
            }
            while let Some(step) = server.next_if(|step| world.is_possible(End::Server, *step)) {
                world.take(End::Server, step);
            }
        }
        world
    }

    fn is_possible(&mut self, end: End, step: Step) -> bool {
        match (end, step) {
            (End::Client, _) if self.has_end => false,
            (End::Client, Step::Receive) => !self.to_client.is_empty(),
            (End::Client, Step::Send) => {
                let ready = self.client.poll_ready(Waker::noop());
                self.sent.len() < self.model.requests && matches!(ready, Poll::Ready(Ok(())))
            }
            (End::Client, Step::ReceiveReset) => self.is_reset,
            (End::Client, Step::ReceiveEnd) => self.is_closed && self.to_client.is_empty(),
            (End::Client, _) => false,
            (End::Server, Step::Receive) => !self.to_server.is_empty(),
            (End::Server, Step::Respond(n)) => {
                n < self.processed.len() && !self.responded.contains(&n)
            }
            (End::Server, Step::Terminate) => !self.is_terminated,
            (End::Server, Step::TimeOut) => {
                let pending = self.server.pending_input();
                self.model.may_time_out && pending == Some(PendingInput::GoAwayPing)
            }
            (End::Server, Step::Close) => !self.is_closed && self.server.is_closed(),
            (End::Server, _) => false,
        }
    }

    fn take(&mut self, end: End, step: Step) {
        match (end, step) {
            (End::Client, Step::Receive) => {
                let frame = self.to_client.pop_front().unwrap_or_default();
                // An error is the connection's failure, which requests get.
                let _taken = self.client.receive(&frame);
            }
            (End::Client, Step::Send) => {
                let request = Request::get("http://web.test/").body(()).unwrap();
                let id = self.client.open(&request, None, true);
                self.sent.push(Sent {
                    id,
                    has_head: false,
                    body: Vec::new(),
                    outcome: Outcome::Pending,
                });
            }
            (End::Client, Step::ReceiveReset) => {
                let error = io::ErrorKind::ConnectionReset.into();
                self.client.handle_close(Some(error));
                self.has_end = true;
            }
            (End::Client, _) => {
                self.client.handle_close(None);
                self.has_end = true;
            }
            (End::Server, Step::Receive) if self.is_closed => {
                self.to_server.pop_front();
                self.is_reset |= self.model.rules == Rules::WithoutLinger;
            }
            (End::Server, Step::Receive) => {
                let frame = self.to_server.pop_front().unwrap_or_default();
                let _taken = self.server.receive(&frame);
                while let Some(accepted) = self.server.next_request() {
                    self.processed.push(accepted.id);
                }
            }
            (End::Server, Step::Respond(n)) => {
                let id = self.processed[n];
                self.server.respond(id, &Response::new(()), false);
                self.server.send_data(id, Bytes::from_static(BODY), true);
                self.server.drop_reader(id);
                self.server.drop_writer(id);
                self.responded.push(n);
            }
            (End::Server, Step::Terminate) => {
                self.server.start_graceful_shutdown();
                self.is_terminated = true;
                if self.model.rules == Rules::AtOnce {
                    self.server.handle_input_timeout();
                }
            }
            (End::Server, Step::TimeOut) => self.server.handle_input_timeout(),
            (End::Server, _) => self.is_closed = true,
        }
        self.read_responses();
        self.flush();
    }

    fn read_responses(&mut self) {
        for sent in &mut self.sent {
            if sent.outcome == Outcome::Pending
                && let Poll::Ready(outcome) = sent.poll(&mut self.client)
            {
                sent.outcome = outcome;
                self.client.drop_reader(sent.id);
                self.client.drop_writer(sent.id);
            }
        }
    }

    fn flush(&mut self) {
        flush(&mut self.client, &mut self.to_server);
        if !self.is_closed {
            flush(&mut self.server, &mut self.to_client);
        }
    }

    fn steps(&mut self) -> Vec<(End, Step)> {
        let mut steps = vec![
            (End::Client, Step::Receive),
            (End::Client, Step::Send),
            (End::Client, Step::ReceiveReset),
            (End::Client, Step::ReceiveEnd),
            (End::Server, Step::Receive),
            (End::Server, Step::Terminate),
            (End::Server, Step::TimeOut),
            (End::Server, Step::Close),
        ];
        steps.extend((0..self.processed.len()).map(|n| (End::Server, Step::Respond(n))));
        steps.retain(|(end, step)| self.is_possible(*end, *step));
        steps
    }

    fn has(&self, outcome: Outcome) -> bool {
        self.sent.iter().any(|sent| sent.outcome == outcome)
    }
}

const BODY: &[u8] = b"ok";

impl Sent {
    /// Reads what has arrived of the response.
    fn poll(&mut self, client: &mut Connection) -> Poll<Outcome> {
        if !self.has_head {
            match ready!(client.poll_response(self.id, Waker::noop())) {
                Ok(_response) => self.has_head = true,
                Err(Error::Unprocessed(_)) => return Poll::Ready(Outcome::Excluded),
                Err(_lost) => return Poll::Ready(Outcome::Failed),
            }
        }
        loop {
            match ready!(client.poll_body_frame(self.id, Waker::noop())) {
                Some(Ok(BodyFrame::Data(data))) => self.body.extend_from_slice(&data),
                None if self.body == BODY => return Poll::Ready(Outcome::Answered),
                _ => return Poll::Ready(Outcome::Failed),
            }
        }
    }
}

impl Model for Drain {
    type State = State;
    type Action = (End, Step);

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<(End, Step)>) {
        actions.extend(World::after(*self, state).steps());
    }

    fn next_state(&self, last: &State, (end, step): (End, Step)) -> Option<State> {
        let mut state = last.clone();
        match end {
            End::Client => state.client.push(step),
            End::Server => state.server.push(step),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(FAILED, |model: &Self, state: &State| {
                !World::after(*model, state).has(Outcome::Failed)
            }),
            Property::always(PROCESSED, |model: &Self, state: &State| {
                let world = World::after(*model, state);
                let mut processed = world.sent.iter().take(world.processed.len());
                processed.all(|sent| sent.outcome != Outcome::Excluded)
            }),
            Property::always(ENDS, |model: &Self, state: &State| {
                let mut world = World::after(*model, state);
                !world.steps().is_empty() || !world.has(Outcome::Pending) && world.has_end
            }),
            Property::sometimes("all requests are served", |model: &Self, state: &State| {
                let world = World::after(*model, state);
                let answered = world
                    .sent
                    .iter()
                    .filter(|it| it.outcome == Outcome::Answered);
                answered.count() == model.requests && world.has_end
            }),
        ];
        if self.may_time_out {
            properties.push(Property::sometimes(
                "a request is sent again",
                |model: &Self, state: &State| World::after(*model, state).has(Outcome::Excluded),
            ));
        } else {
            properties.push(Property::always(AGAIN, |model: &Self, state: &State| {
                !World::after(*model, state).has(Outcome::Excluded)
            }));
        }
        properties
    }
}

const FAILED: &str = "no request fails";
const PROCESSED: &str = "a request that is sent again was not processed";
const ENDS: &str = "every request and the connection end";
const AGAIN: &str = "a client that acknowledges the PING sends nothing again";
const NONE: [&str; 0] = [];

const AS_BUILT: Drain = Drain {
    requests: 3,
    is_new: false,
    may_time_out: false,
    rules: Rules::AsBuilt,
};

#[test]
fn drain_fails_no_request() {
    assert_eq!(violated(AS_BUILT), NONE);
}

#[test]
fn late_acknowledgement_causes_requests_to_be_sent_again() {
    let late = Drain {
        may_time_out: true,
        ..AS_BUILT
    };
    assert_eq!(violated(late), NONE);
}

#[test]
fn drain_of_a_new_connection_fails_no_request() {
    let new = Drain {
        requests: 1,
        is_new: true,
        may_time_out: true,
        ..AS_BUILT
    };
    assert_eq!(violated(new), NONE);
}

#[test]
fn without_announcement_requests_have_to_be_sent_again() {
    let at_once = Drain {
        rules: Rules::AtOnce,
        ..AS_BUILT
    };
    assert_eq!(violated(at_once), [AGAIN]);
}

#[test]
fn socket_that_is_closed_without_reading_on_loses_responses() {
    let without = Drain {
        may_time_out: true,
        rules: Rules::WithoutLinger,
        ..AS_BUILT
    };
    assert_eq!(violated(without), [FAILED]);
}
