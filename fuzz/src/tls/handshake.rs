//! Handshakes with rustls as oracle, in both roles: a peer sends the same messages to both, in
//! records of any size, with any padding and with anything between them. The proxy and rustls must
//! reject and accept the same messages and return the same data after the handshake. Memory use
//! must stay within the limits however much the peer sends.
//!
//! Input: properties of the handshake, then the peer's actions.

use std::cell::Cell;
use std::io::Read as _;

use mesh_proxy::fuzzing::{HandshakeDriver, MAX_BUFFERED, MAX_HANDSHAKE, RecordConnection};
use mesh_test_support::tls::sealing::{self, unencrypted};
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConnection, Connection, ServerConnection};

use super::handshake_config::Configs;
use super::scripted_peer::ScriptedPeer;
use super::{has_same_prefix, name};
use crate::input::Input;
use crate::memory;

thread_local! {
    static IS_WARM: Cell<bool> = const { Cell::new(false) };
    static CONFIGS: [Configs; 4] = std::array::from_fn(|n| Configs::new(n & 1 != 0, n & 2 != 0));
}

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

/// The most bytes that a peer sends with one action, and in one execution.
const MAX_ACTION_BYTES: usize = 400 << 10;
const MAX_SENT: usize = 3 << 20;

/// The most bytes that are received at a time: as from a socket, or all of them, as if detection
/// had read them before.
const PIECES: [usize; 2] = [16 << 10, usize::MAX];

/// The longest padding of a record.
const MAX_PADDING: usize = (1 << 14) + 300;

/// Longer than any record that rustls waits for.
const ANY_RECORD: usize = 20_000;

/// The most memory of the proxy's side: the bytes that the handshake buffers, twice while their
/// vector grows, and rustls' copies of a message of that length: parsed, in the transcript and in
/// between.
const MAX_MEMORY: usize = 8 * MAX_BUFFERED;

/// Additional memory for each byte that is received at a time: bytes after the handshake are
/// returned to the target in vectors that double their capacity.
const MEMORY_PER_BYTE: usize = 4;

/// The proxy is the server.
pub(crate) fn server(input: &[u8]) {
    run(input, |configs| {
        let oracle = ServerConnection::new(configs.server.clone()).expect("a server");
        let subject = UnbufferedServerConnection::new(configs.server.clone()).expect("a server");
        let peer = || ClientConnection::new(configs.peer_client.clone(), name()).expect("a client");
        TestSetup {
            oracle: Oracle(oracle.into()),
            subject: Subject::new(HandshakeDriver::server(subject)),
            peers: [(); 2].map(|()| ScriptedPeer::new(peer().into())),
        }
    });
}

/// The proxy is the client.
pub(crate) fn client(input: &[u8]) {
    run(input, |configs| {
        let oracle = ClientConnection::new(configs.client.clone(), name()).expect("a client");
        let subject =
            UnbufferedClientConnection::new(configs.client.clone(), name()).expect("a client");
        let peer = || ServerConnection::new(configs.peer_server.clone()).expect("a server");
        TestSetup {
            oracle: Oracle(oracle.into()),
            subject: Subject::new(HandshakeDriver::client(subject)),
            peers: [(); 2].map(|()| ScriptedPeer::new(peer().into())),
        }
    });
}

fn run(input: &[u8], setup: impl Fn(&Configs) -> TestSetup) {
    let mut input = Input(input);
    let choices = usize::from(input.byte());
    CONFIGS.with(|configs| {
        // Excludes memory that a thread allocates once from the measurement.
        IS_WARM.with(|is_warm| {
            if !is_warm.replace(true) {
                run_with(setup(&configs[0]), Input(&[1, 1, 1, 1, 10, 0, 9]));
            }
        });
        sealing::reset();
        let mut setup = setup(&configs[choices % configs.len()]);
        setup.subject.piece = PIECES[choices >> 2 & 1];
        run_with(setup, input);
    });
}

/// rustls and the proxy, each with its peer.
struct TestSetup {
    oracle: Oracle,
    subject: Subject,
    peers: [ScriptedPeer; 2],
}

fn run_with(setup: TestSetup, mut input: Input<'_>) {
    let TestSetup {
        mut oracle,
        mut subject,
        peers: [mut oracle_peer, mut subject_peer],
    } = setup;
    let mut sent = 0;
    // Clients send first.
    oracle_peer.receive(&oracle.receive(&[]).outgoing);
    subject_peer.receive(&subject.receive(&[]).outgoing);
    let (mut to_oracle, mut to_subject) = (Vec::new(), Vec::new());
    while !input.is_empty() && sent < MAX_SENT {
        let is_deferred = input.0[0] & 0x80 != 0;
        let action = PeerAction::decode(&mut input);
        action.encode(&mut oracle_peer, &mut to_oracle);
        action.encode(&mut subject_peer, &mut to_subject);
        if is_deferred && !input.is_empty() && to_subject.len() < MAX_ACTION_BYTES {
            continue;
        }
        sent += to_subject.len();
        let mut expected = oracle.receive(&to_oracle);
        let mut actual = subject.receive(&to_subject);
        to_oracle.clear();
        to_subject.clear();
        // One may reject a header when the other rejects the complete record, or after the next
        // read.
        if expected.is_rejected() && !actual.is_rejected() {
            actual.add(subject.receive(&[0; ANY_RECORD]));
        } else if actual.is_rejected() && !expected.is_rejected() && !expected.is_closed() {
            expected.add(oracle.receive(&[0; ANY_RECORD]));
        }
        if let State::Rejected(reason) = &expected.state {
            if !actual.is_rejected() {
                panic!("rustls rejects {action:?}, the proxy accepts it: {reason}");
            }
            let is_same = has_same_prefix(&expected.content, &actual.content);
            assert!(is_same, "different content before {action:?} was rejected");
            return;
        }
        if let State::Rejected(reason) = &actual.state {
            // rustls accepts empty handshake records, which RFC 8446, section 5.1, forbids. The
            // appended bytes make rustls reject the connection as well, unless it is closed.
            if !expected.is_closed() && sent < MAX_HANDSHAKE {
                panic!("rustls accepts {action:?}, the proxy rejects it: {reason}");
            }
            return;
        }
        let is_same = expected.content == actual.content;
        assert!(is_same, "{action:?} changed the content");
        assert_eq!(expected.state, actual.state, "after {action:?}");
        if let State::Closed { .. } = expected.state {
            return;
        }
        oracle_peer.receive(&expected.outgoing);
        subject_peer.receive(&actual.outgoing);
    }
}

/// An action of the peer, which is performed for both with their keys.
#[derive(Debug)]
enum PeerAction<'a> {
    /// The next pending record, truncated to `length` bytes unless 0. The rest stays pending.
    Part {
        length: u16,
        padding: usize,
    },
    /// All pending records, unchanged.
    All,
    /// The next pending record in fragments of `size` bytes.
    Fragments {
        size: u16,
        padding: usize,
    },
    /// An arbitrary record.
    Record {
        content_type: u8,
        content: &'a [u8],
        padding: usize,
    },
    /// The first `length` bytes of a handshake message with a declared length, in fragments of
    /// `size` bytes.
    Message {
        kind: u8,
        declared: u32,
        length: u16,
        size: u16,
        padding: usize,
    },
    Empty {
        content_type: u8,
        count: u8,
        padding: usize,
    },
    /// Application data with the current key.
    Data {
        length: usize,
        size: u16,
    },
    /// The next pending record with one flipped bit.
    Flipped {
        at: u16,
        bit: u8,
    },
    Unencrypted {
        content_type: u8,
        content: &'a [u8],
    },
    Raw(&'a [u8]),
}

impl<'a> PeerAction<'a> {
    fn decode(input: &mut Input<'a>) -> Self {
        let short = |input: &mut Input<'a>| {
            let length = usize::from(input.byte());
            input.take(length)
        };
        let padding = |input: &mut Input<'a>| usize::from(input.word()).min(MAX_PADDING);
        match (input.byte() & 0x7f) % 16 {
            0 => Self::Part {
                length: input.word(),
                padding: padding(input),
            },
            1 => Self::All,
            2 => Self::Fragments {
                size: input.word(),
                padding: padding(input),
            },
            3 => Self::Record {
                content_type: input.byte(),
                padding: padding(input),
                content: short(input),
            },
            4 => Self::Record {
                content_type: HANDSHAKE,
                padding: padding(input),
                content: short(input),
            },
            5 => Self::Message {
                kind: input.byte(),
                declared: u32::from(input.byte()) << 16 | u32::from(input.word()),
                length: input.word(),
                size: input.word(),
                padding: padding(input),
            },
            6 => Self::Empty {
                content_type: input.choose([HANDSHAKE, DATA, ALERT, CHANGE_CIPHER_SPEC]),
                count: input.byte(),
                padding: padding(input),
            },
            7 => Self::Unencrypted {
                content_type: CHANGE_CIPHER_SPEC,
                content: &[1],
            },
            8 => Self::Unencrypted {
                content_type: input.byte(),
                content: short(input),
            },
            9 => Self::Record {
                content_type: ALERT,
                padding: 0,
                content: input.take(2),
            },
            10 => Self::Data {
                length: usize::from(input.word()),
                size: 1000,
            },
            11 => Self::Data {
                length: 8 * usize::from(input.word()),
                size: input.word(),
            },
            12 => Self::Flipped {
                at: input.word(),
                bit: input.byte() % 8,
            },
            13 => Self::Raw(short(input)),
            14 => Self::Fragments {
                size: 1,
                padding: 0,
            },
            _ => Self::Message {
                kind: input.choose([1, 2, 8, 11, 13, 15, 20, 24]),
                declared: 0xffff,
                length: input.word(),
                size: 1,
                padding: padding(input),
            },
        }
    }

    fn encode(&self, peer: &mut ScriptedPeer, bytes: &mut Vec<u8>) {
        match *self {
            Self::Part { length, padding } => {
                let Some(mut record) = peer.pending.pop_front() else {
                    return;
                };
                let length = match usize::from(length) {
                    0 => record.content.len(),
                    length => length.min(record.content.len()),
                };
                let rest = record.content.split_off(length);
                bytes.extend(peer.seal(record.key, record.content_type, &record.content, padding));
                if !rest.is_empty() {
                    record.content = rest;
                    peer.pending.push_front(record);
                }
            }
            Self::All => {
                while let Some(record) = peer.pending.pop_front() {
                    bytes.extend(peer.seal(record.key, record.content_type, &record.content, 0));
                }
            }
            Self::Fragments { size, padding } => {
                let Some(record) = peer.pending.pop_front() else {
                    return;
                };
                fragments(
                    peer,
                    bytes,
                    record.key,
                    record.content_type,
                    &record.content,
                    size,
                    padding,
                );
            }
            Self::Record {
                content_type,
                content,
                padding,
            } => {
                let key = next_key(peer);
                bytes.extend(peer.seal(key, content_type, content, padding));
            }
            Self::Message {
                kind,
                declared,
                length,
                size,
                padding,
            } => {
                let [_, a, b, c] = declared.to_be_bytes();
                let mut message = vec![kind, a, b, c];
                message.resize(4 + usize::from(length), 0);
                let key = next_key(peer);
                fragments(peer, bytes, key, HANDSHAKE, &message, size, padding);
            }
            Self::Empty {
                content_type,
                count,
                padding,
            } => {
                let key = next_key(peer);
                for _ in 0..count {
                    if bytes.len() > MAX_ACTION_BYTES {
                        break;
                    }
                    bytes.extend(peer.seal(key, content_type, &[], padding));
                }
            }
            Self::Data { length, size } => {
                let key = peer.pending.back().map_or(peer.key, |record| record.key);
                fragments(peer, bytes, key, DATA, &vec![7; length], size, 0);
            }
            Self::Flipped { at, bit } => {
                let Some(record) = peer.pending.pop_front() else {
                    return;
                };
                let mut sealed = peer.seal(record.key, record.content_type, &record.content, 0);
                // Unencrypted records contain random bytes, which differ between the two peers.
                if record.key.is_some() {
                    let at = 5 + usize::from(at) % (sealed.len() - 5);
                    sealed[at] ^= 1 << bit;
                }
                bytes.extend(sealed);
            }
            Self::Unencrypted {
                content_type,
                content,
            } => bytes.extend(unencrypted(content_type, content)),
            Self::Raw(raw) => bytes.extend_from_slice(raw),
        }
    }
}

/// Returns the key of the next pending record.
fn next_key(peer: &ScriptedPeer) -> Option<usize> {
    peer.pending.front().map_or(peer.key, |record| record.key)
}

fn fragments(
    peer: &mut ScriptedPeer,
    bytes: &mut Vec<u8>,
    key: Option<usize>,
    content_type: u8,
    content: &[u8],
    size: u16,
    padding: usize,
) {
    let size = usize::from(size).clamp(1, 1 << 14);
    for part in content.chunks(size) {
        if bytes.len() > MAX_ACTION_BYTES {
            return;
        }
        bytes.extend(peer.seal(key, content_type, part, padding));
    }
}

/// The result of receiving bytes.
struct Outcome {
    outgoing: Vec<u8>,
    content: Vec<u8>,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Handshaking,
    Established,
    /// The peer has sent close_notify.
    Closed {
        was_established: bool,
    },
    Rejected(String),
}

impl Outcome {
    fn new() -> Self {
        Self {
            outgoing: Vec::new(),
            content: Vec::new(),
            state: State::Handshaking,
        }
    }

    fn is_rejected(&self) -> bool {
        matches!(self.state, State::Rejected(_))
    }

    fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    fn add(&mut self, later: Self) {
        self.outgoing.extend(later.outgoing);
        self.content.extend(later.content);
        self.state = later.state;
    }
}

/// rustls as the peer's counterpart.
struct Oracle(Connection);

impl Oracle {
    fn receive(&mut self, mut bytes: &[u8]) -> Outcome {
        let mut outcome = Outcome::new();
        loop {
            let state = self
                .0
                .process_new_packets()
                .map_err(|error| error.to_string());
            // Returns an error when all available content is read.
            let _would_block = self.0.reader().read_to_end(&mut outcome.content);
            while self.0.wants_write() {
                self.0.write_tls(&mut outcome.outgoing).expect("a vector");
            }
            let was_established = !self.0.is_handshaking();
            outcome.state = match state {
                Ok(state) if state.peer_has_closed() => State::Closed { was_established },
                Ok(_) if self.0.is_handshaking() => State::Handshaking,
                Ok(_) => State::Established,
                Err(reason) => State::Rejected(reason),
            };
            let is_open = matches!(outcome.state, State::Handshaking | State::Established);
            if !is_open || bytes.is_empty() {
                return outcome;
            }
            if let Err(error) = self.0.read_tls(&mut bytes) {
                outcome.state = State::Rejected(error.to_string());
                return outcome;
            }
        }
    }
}

/// The proxy's handshake and records as the peer's counterpart, with their memory use.
struct Subject {
    connection: SubjectConnection,
    memory: usize,
    /// The most bytes that are received at a time.
    piece: usize,
}

enum SubjectConnection {
    Handshaking(Box<HandshakeDriver>),
    Established(Box<RecordConnection>),
    Rejected(String),
}

impl Subject {
    fn new(handshake: HandshakeDriver) -> Self {
        Self {
            connection: SubjectConnection::Handshaking(Box::new(handshake)),
            memory: 0,
            piece: PIECES[0],
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> Outcome {
        let mut outcome = self.receive_piece(&[]);
        for piece in bytes.chunks(self.piece) {
            if matches!(outcome.state, State::Closed { .. }) {
                break;
            }
            outcome.add(self.receive_piece(piece));
        }
        outcome
    }

    fn receive_piece(&mut self, bytes: &[u8]) -> Outcome {
        let before = memory::start();
        let outcome = self.connection.receive(bytes);
        let peak = self.memory + memory::peak().saturating_sub(before);
        let limit = MAX_MEMORY + MEMORY_PER_BYTE * bytes.len();
        assert!(peak <= limit, "{peak} bytes of memory, limit {limit}");
        let returned = outcome.content.capacity() + outcome.outgoing.capacity();
        self.memory = (self.memory + memory::start()).saturating_sub(before + returned);
        outcome
    }
}

impl SubjectConnection {
    fn receive(&mut self, bytes: &[u8]) -> Outcome {
        let mut outcome = Outcome::new();
        match self {
            Self::Handshaking(handshake) => match handshake.advance(bytes) {
                Ok((is_done, outgoing)) => {
                    outcome.outgoing = outgoing;
                    if is_done {
                        outcome.add(self.finish());
                    }
                }
                Err(error) => *self = Self::Rejected(error.to_string()),
            },
            Self::Established(records) => {
                let opened = records.open(bytes);
                outcome.content = opened.content;
                outcome.state = State::Established;
                match opened.closed {
                    Ok(false) => {}
                    Ok(true) => {
                        outcome.state = State::Closed {
                            was_established: true,
                        }
                    }
                    Err(reason) => *self = Self::Rejected(reason),
                }
            }
            Self::Rejected(_) => {}
        }
        if let Self::Rejected(reason) = self {
            outcome.state = State::Rejected(reason.clone());
        }
        outcome
    }

    /// Completes the handshake and opens the bytes that followed it.
    fn finish(&mut self) -> Outcome {
        let rejected = Self::Rejected("handshake is already complete".to_owned());
        if let Self::Handshaking(handshake) = std::mem::replace(self, rejected) {
            *self = match handshake.finish() {
                Ok(records) => Self::Established(Box::new(records)),
                Err(error) => Self::Rejected(error.to_string()),
            };
        }
        self.receive(&[])
    }
}
