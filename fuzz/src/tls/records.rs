//! The record layer of tunnels against the TLS library's, in both roles: a peer that holds the keys
//! sends what it likes, and the same to both. What the library refuses must be refused, and what
//! the library hands on must come out byte for byte.
//!
//! Input: role and suite, then what the peer sends, one record or more at a time.

use std::io::Read as _;

use mesh_proxy::tls::fuzzing::{HandshakeDriver, RecordConnection};
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConnection, Connection, ServerConnection};
use rustls_pki_types::ServerName;

use super::{Configs, SUITES};
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

/// Longest content that is sent: more than a record may hold.
const MOST: usize = (1 << 14) + 300;

/// More than what the library waits for of a record.
const ANY_RECORD: usize = 20_000;

pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let choices = input.byte();
    CONFIGS.with(|configs| {
        let configs = &configs[usize::from(choices >> 1) % configs.len()];
        match choices & 1 {
            0 => run_with(Judge::server(configs), Ours::server(configs), input),
            _ => run_with(Judge::client(configs), Ours::client(configs), input),
        }
    });
}

fn run_with(
    (mut judge, mut to_judge): (Judge, Peer),
    (mut ours, mut to_ours): (Ours, Peer),
    mut input: Input<'_>,
) {
    while !input.is_empty() {
        let act = Act::of(&mut input);
        let mut verdict = judge.receive(&to_judge.act(&act));
        let mut opened = ours.receive(&to_ours.act(&act));
        // One may know from a header what the other knows from a whole record.
        if verdict.is_refused && !opened.is_refused {
            opened = ours.receive(&[0; ANY_RECORD]);
        } else if opened.is_refused && !verdict.is_refused {
            verdict = judge.receive(&[0; ANY_RECORD]);
        }
        let (expected, got) = (&verdict.content, &opened.content);
        if verdict.is_refused {
            assert!(opened.is_refused, "the library refuses {act:?}, we do not");
            assert!(
                expected.starts_with(got) || got.starts_with(expected),
                "other content before {act:?} was refused"
            );
            return;
        }
        assert!(
            !opened.is_refused,
            "the library takes {act:?}, we refuse it: {}",
            opened.why
        );
        assert!(expected == got, "content was lost or changed by {act:?}");
        assert_eq!(
            verdict.is_over, opened.is_over,
            "one of them sees the end in {act:?}"
        );
        if verdict.is_over {
            return;
        }
    }
}

/// What the peer does next. The same is done to both, with the keys of each.
#[derive(Debug)]
enum Act<'a> {
    Record {
        content: Vec<u8>,
        content_type: u8,
    },
    /// A key update, and what follows is under the next key.
    Update {
        body: u8,
    },
    /// One bit of a record is changed.
    Flipped {
        content: &'a [u8],
        at: u16,
        bit: u8,
    },
    /// A record that never arrives.
    Lost {
        content: &'a [u8],
    },
    /// A record that comes twice.
    Repeated {
        content: &'a [u8],
    },
    /// Bytes that are no record of the peer's.
    Raw(&'a [u8]),
    /// Only so much of a record arrives, and nothing else.
    Cut {
        content: &'a [u8],
        length: u16,
    },
}

impl<'a> Act<'a> {
    fn of(input: &mut Input<'a>) -> Self {
        let short = |input: &mut Input<'a>| {
            let length = usize::from(input.byte());
            input.take(length)
        };
        match input.byte() % 16 {
            0 | 1 => Self::Record {
                content: short(input).to_vec(),
                content_type: DATA,
            },
            2 => Self::Record {
                content: vec![input.byte(); usize::from(input.word()).min(MOST)],
                content_type: DATA,
            },
            3 => Self::Record {
                content_type: input.byte(),
                content: short(input).to_vec(),
            },
            4 | 5 => Self::Record {
                content: short(input).to_vec(),
                content_type: HANDSHAKE,
            },
            6 => Self::Record {
                content: vec![input.byte(), input.byte()],
                content_type: ALERT,
            },
            7 => Self::Record {
                content: short(input).to_vec(),
                content_type: ALERT,
            },
            8 | 9 => Self::Update {
                body: input.byte() % 3,
            },
            10 => Self::Flipped {
                at: input.word(),
                bit: input.byte() % 8,
                content: short(input),
            },
            11 => match input.byte() % 4 {
                0 => Self::Lost {
                    content: short(input),
                },
                1 => Self::Repeated {
                    content: short(input),
                },
                2 => Self::Cut {
                    length: input.word(),
                    content: short(input),
                },
                _ => Self::Raw(short(input)),
            },
            12 => Self::Record {
                content: ticket(short(input)),
                content_type: HANDSHAKE,
            },
            // Padding is zeros behind the type.
            13 => {
                let mut content = short(input).to_vec();
                content.push(input.choose([DATA, HANDSHAKE, ALERT, 20]));
                content.resize(content.len() + usize::from(input.word()) % MOST, 0);
                content.truncate(MOST);
                Self::Record {
                    content,
                    content_type: 0,
                }
            }
            14 => Self::Record {
                content: vec![0; usize::from(input.word()).min(MOST)],
                content_type: 0,
            },
            _ => Self::Record {
                content: message(input.byte(), short(input)),
                content_type: HANDSHAKE,
            },
        }
    }
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let [.., a, b, c] = (body.len() as u32).to_be_bytes();
    [&[kind, a, b, c], body].concat()
}

/// A ticket with this in it.
fn ticket(text: &[u8]) -> Vec<u8> {
    let [.., high, low] = (text.len() as u32).to_be_bytes();
    let body = [&[0, 0, 14, 16, 1, 2, 3, 4, 1, 9, high, low], text, &[0, 0]].concat();
    message(NEW_SESSION_TICKET, &body)
}

/// The other end of a connection, which sends what it likes.
struct Peer(RecordConnection);

impl Peer {
    fn act(&mut self, act: &Act<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        match *act {
            Act::Record {
                ref content,
                content_type,
            } => self.0.seal(&mut bytes, content, content_type),
            Act::Update { body } => {
                self.0
                    .seal(&mut bytes, &message(KEY_UPDATE, &[body]), HANDSHAKE);
                self.0.advance_send_key();
            }
            Act::Flipped { content, at, bit } => {
                self.0.seal(&mut bytes, content, DATA);
                // Of the header only the length: the version is not looked at by either, and the
                // type is [`Act::Raw`]'s.
                let at = 5 + usize::from(at) % (bytes.len() - 5);
                bytes[at] ^= 1 << bit;
            }
            Act::Lost { content } => {
                self.0.seal(&mut Vec::new(), content, DATA);
                self.0.seal(&mut bytes, content, DATA);
            }
            Act::Repeated { content } => {
                self.0.seal(&mut bytes, content, DATA);
                bytes.extend_from_within(..);
            }
            Act::Raw(raw) => bytes.extend_from_slice(raw),
            Act::Cut { content, length } => {
                self.0.seal(&mut bytes, content, DATA);
                bytes.truncate(usize::from(length) % bytes.len());
            }
        }
        bytes
    }
}

/// What came of some bytes.
struct Outcome {
    content: Vec<u8>,
    is_refused: bool,
    is_over: bool,
    why: String,
}

/// The TLS library's end of a connection.
struct Judge(Connection);

impl Judge {
    fn server(configs: &Configs) -> (Self, Peer) {
        let judge = ServerConnection::new(configs.server.clone()).expect("a server");
        Self(judge.into()).shake(HandshakeDriver::client(client(configs)))
    }

    fn client(configs: &Configs) -> (Self, Peer) {
        let judge = ClientConnection::new(configs.client.clone(), name()).expect("a client");
        Self(judge.into()).shake(HandshakeDriver::server(server(configs)))
    }

    fn shake(mut self, mut peer: HandshakeDriver) -> (Self, Peer) {
        let mut to_peer = Vec::new();
        loop {
            let (is_done, bytes) = peer.advance(&to_peer).expect("a handshake");
            to_peer.clear();
            let outcome = self.receive(&bytes);
            assert!(!outcome.is_refused, "{}", outcome.why);
            while self.0.wants_write() {
                self.0.write_tls(&mut to_peer).expect("a vector");
            }
            if is_done && !self.0.is_handshaking() {
                break;
            }
        }
        // What a server sends behind its handshake is not looked at.
        (self, Peer(peer.finish().expect("keys")))
    }

    fn receive(&mut self, mut bytes: &[u8]) -> Outcome {
        let mut outcome = Outcome {
            content: Vec::new(),
            is_refused: false,
            is_over: false,
            why: String::new(),
        };
        while !bytes.is_empty() && !outcome.is_over {
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
                Ok(state) => outcome.is_over = state.peer_has_closed(),
                Err(why) => {
                    outcome.is_refused = true;
                    outcome.why = why;
                }
            }
            // Ends with an error when there is nothing more for now.
            let _for_now = self.0.reader().read_to_end(&mut outcome.content);
            if outcome.is_refused {
                return outcome;
            }
        }
        outcome
    }
}

/// Our end of a connection.
struct Ours(RecordConnection);

impl Ours {
    fn server(configs: &Configs) -> (Self, Peer) {
        Self::shake(
            HandshakeDriver::server(server(configs)),
            HandshakeDriver::client(client(configs)),
        )
    }

    fn client(configs: &Configs) -> (Self, Peer) {
        Self::shake(
            HandshakeDriver::client(client(configs)),
            HandshakeDriver::server(server(configs)),
        )
    }

    fn shake(mut ours: HandshakeDriver, mut peer: HandshakeDriver) -> (Self, Peer) {
        let mut to_ours = Vec::new();
        loop {
            let (is_done, to_peer) = ours.advance(&to_ours).expect("a handshake");
            let (is_peer_done, answer) = peer.advance(&to_peer).expect("a handshake");
            to_ours = answer;
            if is_done && is_peer_done && to_ours.is_empty() {
                break;
            }
        }
        let mut ours = Self(ours.finish().expect("keys"));
        let tickets = ours.receive(&[]);
        assert!(
            !tickets.is_refused && tickets.content.is_empty(),
            "{}",
            tickets.why
        );
        (ours, Peer(peer.finish().expect("keys")))
    }

    fn receive(&mut self, bytes: &[u8]) -> Outcome {
        let opened = self.0.open(bytes);
        Outcome {
            content: opened.content,
            is_refused: opened.closed.is_err(),
            is_over: opened.closed == Ok(true),
            why: opened.closed.err().unwrap_or_default(),
        }
    }
}

fn client(configs: &Configs) -> UnbufferedClientConnection {
    UnbufferedClientConnection::new(configs.client.clone(), name()).expect("a client")
}

fn server(configs: &Configs) -> UnbufferedServerConnection {
    UnbufferedServerConnection::new(configs.server.clone()).expect("a server")
}

fn name() -> ServerName<'static> {
    ServerName::try_from("web.test").expect("a name")
}
