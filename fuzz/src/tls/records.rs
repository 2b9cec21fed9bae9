//! The record layer of tunnels with rustls as oracle, in both roles: a peer with the keys sends the
//! same arbitrary records to both. Both must reject the same records and return the same content.
//!
//! Input: role and suite, then the peer's actions.

use std::io::Read as _;

use mesh_proxy::fuzzing::{HandshakeDriver, RecordConnection};
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConnection, Connection, ServerConnection};

use super::{Configs, SUITES, has_same_prefix, name};
use crate::input::Input;

thread_local! {
    static CONFIGS: [Configs; 3] = SUITES.map(Configs::new);
}

// Content types and handshake messages (RFC 8446, sections 5.1 and 4).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// The longest content that is sent, longer than a valid record.
const MAX_CONTENT: usize = (1 << 14) + 300;

/// Longer than any record that rustls waits for.
const ANY_RECORD: usize = 20_000;

pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let choices = input.byte();
    CONFIGS.with(|configs| {
        let configs = &configs[usize::from(choices >> 1) % configs.len()];
        match choices & 1 {
            0 => run_with(Oracle::server(configs), Subject::server(configs), input),
            _ => run_with(Oracle::client(configs), Subject::client(configs), input),
        }
    });
}

fn run_with(
    (mut oracle, mut oracle_peer): (Oracle, Peer),
    (mut subject, mut subject_peer): (Subject, Peer),
    mut input: Input<'_>,
) {
    while !input.is_empty() {
        let action = PeerAction::decode(&mut input);
        let mut expected = oracle.receive(&oracle_peer.encode(&action));
        let mut actual = subject.receive(&subject_peer.encode(&action));
        // One may reject a header when the other rejects the complete record.
        if expected.is_rejected && !actual.is_rejected {
            actual = subject.receive(&[0; ANY_RECORD]);
        } else if actual.is_rejected && !expected.is_rejected {
            expected = oracle.receive(&[0; ANY_RECORD]);
        }
        if expected.is_rejected {
            let is_rejected = actual.is_rejected;
            assert!(
                is_rejected,
                "rustls rejects {action:?}, the proxy accepts it"
            );
            let is_same = has_same_prefix(&expected.content, &actual.content);
            assert!(is_same, "different content before {action:?} was rejected");
            return;
        }
        if actual.is_rejected {
            let reason = actual.reason;
            panic!("rustls accepts {action:?}, the proxy rejects it: {reason}");
        }
        let is_same = expected.content == actual.content;
        assert!(is_same, "{action:?} changed the content");
        let is_same = expected.is_closed == actual.is_closed;
        assert!(is_same, "only one of them is closed by {action:?}");
        if expected.is_closed {
            return;
        }
    }
}

/// An action of the peer, which is performed for both with their keys.
#[derive(Debug)]
enum PeerAction<'a> {
    Record {
        content: Vec<u8>,
        content_type: u8,
    },
    /// A KeyUpdate; later records are sealed with the next key.
    Update(u8),
    /// A record with one flipped bit.
    Flipped {
        content: &'a [u8],
        at: u16,
        bit: u8,
    },
    /// An omitted record and the one after it.
    Lost(&'a [u8]),
    /// A record sent twice.
    Repeated(&'a [u8]),
    /// Arbitrary bytes.
    Raw(&'a [u8]),
    /// The first bytes of a record.
    Cut {
        content: &'a [u8],
        length: u16,
    },
}

impl<'a> PeerAction<'a> {
    fn decode(input: &mut Input<'a>) -> Self {
        let short = |input: &mut Input<'a>| {
            let length = usize::from(input.byte());
            input.take(length)
        };
        let record = |content_type, content| Self::Record {
            content,
            content_type,
        };
        match input.byte() % 16 {
            0 | 1 => record(DATA, short(input).to_vec()),
            2 => {
                let byte = input.byte();
                record(DATA, vec![byte; usize::from(input.word()).min(MAX_CONTENT)])
            }
            3 => record(input.byte(), short(input).to_vec()),
            4 | 5 => record(HANDSHAKE, short(input).to_vec()),
            6 => record(ALERT, vec![input.byte(), input.byte()]),
            7 => record(ALERT, short(input).to_vec()),
            8 | 9 => Self::Update(input.byte() % 3),
            10 => Self::Flipped {
                at: input.word(),
                bit: input.byte() % 8,
                content: short(input),
            },
            11 => match input.byte() % 4 {
                0 => Self::Lost(short(input)),
                1 => Self::Repeated(short(input)),
                2 => Self::Cut {
                    length: input.word(),
                    content: short(input),
                },
                _ => Self::Raw(short(input)),
            },
            12 => record(HANDSHAKE, ticket(short(input))),
            // Padding: zeros after the content type.
            13 => {
                let mut content = short(input).to_vec();
                content.push(input.choose([DATA, HANDSHAKE, ALERT, 20]));
                content.resize(content.len() + usize::from(input.word()) % MAX_CONTENT, 0);
                content.truncate(MAX_CONTENT);
                record(0, content)
            }
            14 => record(0, vec![0; usize::from(input.word()).min(MAX_CONTENT)]),
            _ => {
                let kind = input.byte();
                record(HANDSHAKE, message(kind, short(input)))
            }
        }
    }
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let [.., a, b, c] = (body.len() as u32).to_be_bytes();
    [&[kind, a, b, c], body].concat()
}

/// Encodes a ticket with this content.
fn ticket(text: &[u8]) -> Vec<u8> {
    let [.., high, low] = (text.len() as u32).to_be_bytes();
    let body = [&[0, 0, 14, 16, 1, 2, 3, 4, 1, 9, high, low], text, &[0, 0]].concat();
    message(NEW_SESSION_TICKET, &body)
}

/// A peer with the keys of its connection.
struct Peer(RecordConnection);

impl Peer {
    fn encode(&mut self, action: &PeerAction<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        match *action {
            PeerAction::Record {
                ref content,
                content_type,
            } => self.0.seal(&mut bytes, content, content_type),
            PeerAction::Update(body) => {
                let update = message(KEY_UPDATE, &[body]);
                self.0.seal(&mut bytes, &update, HANDSHAKE);
                self.0.advance_send_key();
            }
            PeerAction::Flipped { content, at, bit } => {
                self.0.seal(&mut bytes, content, DATA);
                let at = 5 + usize::from(at) % (bytes.len() - 5);
                bytes[at] ^= 1 << bit;
            }
            PeerAction::Lost(content) => {
                self.0.seal(&mut Vec::new(), content, DATA);
                self.0.seal(&mut bytes, content, DATA);
            }
            PeerAction::Repeated(content) => {
                self.0.seal(&mut bytes, content, DATA);
                bytes.extend_from_within(..);
            }
            PeerAction::Raw(raw) => bytes.extend_from_slice(raw),
            PeerAction::Cut { content, length } => {
                self.0.seal(&mut bytes, content, DATA);
                bytes.truncate(usize::from(length) % bytes.len());
            }
        }
        bytes
    }
}

/// The result of receiving bytes.
struct Outcome {
    content: Vec<u8>,
    is_rejected: bool,
    is_closed: bool,
    reason: String,
}

/// rustls as the peer's counterpart.
struct Oracle(Connection);

impl Oracle {
    fn server(configs: &Configs) -> (Self, Peer) {
        let server = ServerConnection::new(configs.server.clone()).expect("a server");
        Self(server.into()).perform_handshake(HandshakeDriver::client(client(configs)))
    }

    fn client(configs: &Configs) -> (Self, Peer) {
        let client = ClientConnection::new(configs.client.clone(), name()).expect("a client");
        Self(client.into()).perform_handshake(HandshakeDriver::server(server(configs)))
    }

    fn perform_handshake(mut self, mut peer: HandshakeDriver) -> (Self, Peer) {
        let mut to_peer = Vec::new();
        loop {
            let (is_done, bytes) = peer.advance(&to_peer).expect("a handshake");
            to_peer.clear();
            let outcome = self.receive(&bytes);
            assert!(!outcome.is_rejected, "{}", outcome.reason);
            while self.0.wants_write() {
                self.0.write_tls(&mut to_peer).expect("a vector");
            }
            if is_done && !self.0.is_handshaking() {
                break;
            }
        }
        // The server's ticket is not processed.
        (self, Peer(peer.finish().expect("keys")))
    }

    fn receive(&mut self, mut bytes: &[u8]) -> Outcome {
        let mut outcome = Outcome {
            content: Vec::new(),
            is_rejected: false,
            is_closed: false,
            reason: String::new(),
        };
        while !bytes.is_empty() && !outcome.is_closed {
            let read = self
                .0
                .read_tls(&mut bytes)
                .map_err(|error| error.to_string());
            let state = read.and_then(|_| {
                self.0
                    .process_new_packets()
                    .map_err(|error| error.to_string())
            });
            match state {
                Ok(state) => outcome.is_closed = state.peer_has_closed(),
                Err(reason) => {
                    outcome.is_rejected = true;
                    outcome.reason = reason;
                }
            }
            // Returns an error when all available content is read.
            let _would_block = self.0.reader().read_to_end(&mut outcome.content);
            if outcome.is_rejected {
                return outcome;
            }
        }
        outcome
    }
}

/// The proxy's record layer as the peer's counterpart.
struct Subject(RecordConnection);

impl Subject {
    fn server(configs: &Configs) -> (Self, Peer) {
        Self::perform_handshake(
            HandshakeDriver::server(server(configs)),
            HandshakeDriver::client(client(configs)),
        )
    }

    fn client(configs: &Configs) -> (Self, Peer) {
        Self::perform_handshake(
            HandshakeDriver::client(client(configs)),
            HandshakeDriver::server(server(configs)),
        )
    }

    fn perform_handshake(mut subject: HandshakeDriver, mut peer: HandshakeDriver) -> (Self, Peer) {
        let mut to_subject = Vec::new();
        loop {
            let (is_done, to_peer) = subject.advance(&to_subject).expect("a handshake");
            let (is_peer_done, outgoing) = peer.advance(&to_peer).expect("a handshake");
            to_subject = outgoing;
            if is_done && is_peer_done && to_subject.is_empty() {
                break;
            }
        }
        let mut subject = Self(subject.finish().expect("keys"));
        let tickets = subject.receive(&[]);
        let is_empty = !tickets.is_rejected && tickets.content.is_empty();
        assert!(is_empty, "{}", tickets.reason);
        (subject, Peer(peer.finish().expect("keys")))
    }

    fn receive(&mut self, bytes: &[u8]) -> Outcome {
        let opened = self.0.open(bytes);
        Outcome {
            content: opened.content,
            is_rejected: opened.closed.is_err(),
            is_closed: opened.closed == Ok(true),
            reason: opened.closed.err().unwrap_or_default(),
        }
    }
}

fn client(configs: &Configs) -> UnbufferedClientConnection {
    UnbufferedClientConnection::new(configs.client.clone(), name()).expect("a client")
}

fn server(configs: &Configs) -> UnbufferedServerConnection {
    UnbufferedServerConnection::new(configs.server.clone()).expect("a server")
}
