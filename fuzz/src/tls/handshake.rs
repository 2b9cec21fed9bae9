//! Handshakes against the TLS library's own, in either role: a peer sends its messages in records
//! of any size, with any padding and with anything between them, and the same to both. What the
//! library refuses must be refused, what it accepts must be accepted, and the data behind it comes
//! out byte for byte. However much the peer sends, the handshake holds no more than it may.
//!
//! Input: how the handshake goes, then what the peer sends, one or more records at a time.

use std::cell::Cell;
use std::io::Read as _;

use mesh_proxy::tls::fuzzing::{HandshakeDriver, MAX_BUFFERED, MAX_HANDSHAKE, RecordConnection};
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConnection, Connection, ServerConnection};
use rustls_pki_types::ServerName;

use super::handshake_config::Configs;
use super::puppet::{self, Puppet, in_clear};
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

/// What a peer sends by one act, and in one execution, at most.
const MOST_OF_AN_ACT: usize = 400 << 10;
const MOST: usize = 3 << 20;

/// What is received at a time: as from a socket, or everything, as if detection had read it before.
const PIECES: [usize; 2] = [16 << 10, usize::MAX];

/// The most that a record may be padded with.
const MOST_PADDING: usize = (1 << 14) + 300;

/// More than the library waits for of a record.
const ANY_RECORD: usize = 20_000;

/// What our end of the connection may hold at any time: the bytes that the handshake holds, twice
/// while their vector grows; and the library's copies of a message of that length, parsed, as part
/// of the transcript, and between them.
const MOST_MEMORY: usize = 8 * MAX_BUFFERED;

/// The same for each byte that is received at a time: it may be behind the handshake, and is handed
/// out to the target, in vectors that double.
const MEMORY_PER_BYTE: usize = 4;

/// We are the server.
pub(crate) fn server(input: &[u8]) {
    run(input, |configs| {
        let judge = ServerConnection::new(configs.server.clone()).expect("a server");
        let ours = UnbufferedServerConnection::new(configs.server.clone()).expect("a server");
        let peer =
            || ClientConnection::new(configs.puppet_client.clone(), name()).expect("a client");
        Ends {
            judge: Judge(judge.into()),
            ours: Ours::new(HandshakeDriver::server(ours)),
            peers: [Puppet::new(peer().into()), Puppet::new(peer().into())],
        }
    });
}

/// We are the client.
pub(crate) fn client(input: &[u8]) {
    run(input, |configs| {
        let judge = ClientConnection::new(configs.client.clone(), name()).expect("a client");
        let ours =
            UnbufferedClientConnection::new(configs.client.clone(), name()).expect("a client");
        let peer = || ServerConnection::new(configs.puppet_server.clone()).expect("a server");
        Ends {
            judge: Judge(judge.into()),
            ours: Ours::new(HandshakeDriver::client(ours)),
            peers: [Puppet::new(peer().into()), Puppet::new(peer().into())],
        }
    });
}

fn run(input: &[u8], ends: impl Fn(&Configs) -> Ends) {
    let mut input = Input(input);
    let choices = usize::from(input.byte());
    CONFIGS.with(|configs| {
        // What a thread makes once belongs to no connection.
        IS_WARM.with(|is_warm| {
            if !is_warm.replace(true) {
                run_with(ends(&configs[0]), Input(&[1, 1, 1, 1, 10, 0, 9]));
            }
        });
        puppet::reset();
        let mut ends = ends(&configs[choices % configs.len()]);
        ends.ours.piece = PIECES[choices >> 2 & 1];
        run_with(ends, input);
    });
}

/// Our end and the library's, with a peer each.
struct Ends {
    judge: Judge,
    ours: Ours,
    peers: [Puppet; 2],
}

fn run_with(ends: Ends, mut input: Input<'_>) {
    let Ends {
        mut judge,
        mut ours,
        peers: [mut to_judge, mut to_ours],
    } = ends;
    let mut sent = 0;
    // A client begins.
    to_judge.receive(&judge.receive(&[]).outgoing);
    to_ours.receive(&ours.receive(&[]).outgoing);
    let (mut held_for_judge, mut held_for_ours) = (Vec::new(), Vec::new());
    while !input.is_empty() && sent < MOST {
        let is_held = input.0[0] & 0x80 != 0;
        let act = Act::of(&mut input);
        act.make(&mut to_judge, &mut held_for_judge);
        act.make(&mut to_ours, &mut held_for_ours);
        if is_held && !input.is_empty() && held_for_ours.len() < MOST_OF_AN_ACT {
            continue;
        }
        sent += held_for_ours.len();
        let mut verdict = judge.receive(&held_for_judge);
        let mut opened = ours.receive(&held_for_ours);
        held_for_judge.clear();
        held_for_ours.clear();
        // One may know from a header what the other knows from a whole record, or from the next
        // read.
        if verdict.is_refused() && !opened.is_refused() {
            opened.add(ours.receive(&[0; ANY_RECORD]));
        } else if opened.is_refused() && !verdict.is_refused() && !verdict.is_over() {
            verdict.add(judge.receive(&[0; ANY_RECORD]));
        }
        let (expected, got) = (&verdict.content, &opened.content);
        if let State::Refused(why) = &verdict.state {
            assert!(
                opened.is_refused(),
                "the library refuses {act:?}, we do not: {why}"
            );
            assert!(
                expected.starts_with(got) || got.starts_with(expected),
                "other content before {act:?} was refused"
            );
            return;
        }
        if let State::Refused(why) = &opened.state {
            // The library lets empty handshake records pass where RFC 8446, section 5.1, forbids
            // them, which a refusal by us shows only when the end does not follow at once.
            let is_over = verdict.is_over();
            assert!(
                is_over || sent >= MAX_HANDSHAKE,
                "the library takes {act:?}, we refuse it: {why}"
            );
            return;
        }
        assert!(expected == got, "content was lost or changed by {act:?}");
        assert_eq!(verdict.state, opened.state, "after {act:?}");
        if let State::Over { .. } = verdict.state {
            return;
        }
        to_judge.receive(&verdict.outgoing);
        to_ours.receive(&opened.outgoing);
    }
}

/// What a peer sends next. The same is sent to both, under the keys of each.
#[derive(Debug)]
enum Act<'a> {
    /// So many bytes of the next record that it ought to send, as a record; all of it for 0.
    Part {
        length: u16,
        padding: usize,
    },
    /// All that it ought to send, as it is.
    All,
    /// The next record that it ought to send, in records of so many bytes.
    Fragments {
        size: u16,
        padding: usize,
    },
    /// A record of anything.
    Record {
        content_type: u8,
        content: &'a [u8],
        padding: usize,
    },
    /// The beginning of a handshake message that is announced to be this long, in records of so
    /// many bytes.
    Message {
        kind: u8,
        announced: u32,
        length: u16,
        size: u16,
        padding: usize,
    },
    Empty {
        content_type: u8,
        count: u8,
        padding: usize,
    },
    /// Data, under the newest key.
    Data {
        length: usize,
        size: u16,
    },
    /// One bit of the next record that it ought to send is changed.
    Flipped {
        at: u16,
        bit: u8,
    },
    InClear {
        content_type: u8,
        content: &'a [u8],
    },
    Raw(&'a [u8]),
}

impl<'a> Act<'a> {
    fn of(input: &mut Input<'a>) -> Self {
        let short = |input: &mut Input<'a>| {
            let length = usize::from(input.byte());
            input.take(length)
        };
        let padding = |input: &mut Input<'a>| usize::from(input.word()).min(MOST_PADDING);
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
                announced: u32::from(input.byte()) << 16 | u32::from(input.word()),
                length: input.word(),
                size: input.word(),
                padding: padding(input),
            },
            6 => Self::Empty {
                content_type: input.choose([HANDSHAKE, DATA, ALERT, CHANGE_CIPHER_SPEC]),
                count: input.byte(),
                padding: padding(input),
            },
            7 => Self::InClear {
                content_type: CHANGE_CIPHER_SPEC,
                content: &[1],
            },
            8 => Self::InClear {
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
                announced: 0xffff,
                length: input.word(),
                size: 1,
                padding: padding(input),
            },
        }
    }

    fn make(&self, peer: &mut Puppet, bytes: &mut Vec<u8>) {
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
                announced,
                length,
                size,
                padding,
            } => {
                let [_, a, b, c] = announced.to_be_bytes();
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
                    if bytes.len() > MOST_OF_AN_ACT {
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
                // What is in clear may be random, and another bit of it mean another thing to each.
                if record.key.is_some() {
                    let at = 5 + usize::from(at) % (sealed.len() - 5);
                    sealed[at] ^= 1 << bit;
                }
                bytes.extend(sealed);
            }
            Self::InClear {
                content_type,
                content,
            } => bytes.extend(in_clear(content_type, content)),
            Self::Raw(raw) => bytes.extend_from_slice(raw),
        }
    }
}

/// The key of what the peer ought to send next.
fn next_key(peer: &Puppet) -> Option<usize> {
    peer.pending.front().map_or(peer.key, |record| record.key)
}

fn fragments(
    peer: &mut Puppet,
    bytes: &mut Vec<u8>,
    key: Option<usize>,
    content_type: u8,
    content: &[u8],
    size: u16,
    padding: usize,
) {
    let size = usize::from(size).clamp(1, 1 << 14);
    for part in content.chunks(size) {
        if bytes.len() > MOST_OF_AN_ACT {
            return;
        }
        bytes.extend(peer.seal(key, content_type, part, padding));
    }
}

/// What came of some bytes.
struct Outcome {
    outgoing: Vec<u8>,
    content: Vec<u8>,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Handshaking,
    Established,
    /// The peer has ended its stream.
    Over {
        was_shaken: bool,
    },
    Refused(String),
}

impl Outcome {
    fn new() -> Self {
        Self {
            outgoing: Vec::new(),
            content: Vec::new(),
            state: State::Handshaking,
        }
    }

    fn is_refused(&self) -> bool {
        matches!(self.state, State::Refused(_))
    }

    fn is_over(&self) -> bool {
        matches!(self.state, State::Over { .. })
    }

    fn add(&mut self, later: Self) {
        self.outgoing.extend(later.outgoing);
        self.content.extend(later.content);
        self.state = later.state;
    }
}

/// The TLS library's end of a connection.
struct Judge(Connection);

impl Judge {
    fn receive(&mut self, mut bytes: &[u8]) -> Outcome {
        let mut outcome = Outcome::new();
        loop {
            let state = self
                .0
                .process_new_packets()
                .map_err(|error| error.to_string());
            // Ends with an error when there is nothing more for now.
            let _for_now = self.0.reader().read_to_end(&mut outcome.content);
            while self.0.wants_write() {
                self.0.write_tls(&mut outcome.outgoing).expect("a vector");
            }
            let was_shaken = !self.0.is_handshaking();
            outcome.state = match state {
                Ok(state) if state.peer_has_closed() => State::Over { was_shaken },
                Ok(_) if self.0.is_handshaking() => State::Handshaking,
                Ok(_) => State::Established,
                Err(why) => State::Refused(why),
            };
            let goes_on = matches!(outcome.state, State::Handshaking | State::Established);
            if !goes_on || bytes.is_empty() {
                return outcome;
            }
            if let Err(error) = self.0.read_tls(&mut bytes) {
                outcome.state = State::Refused(error.to_string());
                return outcome;
            }
        }
    }
}

/// Our end of a connection, and how much memory it has.
struct Ours {
    end: End,
    held: usize,
    /// What is received at a time.
    piece: usize,
}

enum End {
    Handshaking(Box<HandshakeDriver>),
    Established(Box<RecordConnection>),
    Refused(String),
}

impl Ours {
    fn new(shaking: HandshakeDriver) -> Self {
        Self {
            end: End::Handshaking(Box::new(shaking)),
            held: 0,
            piece: PIECES[0],
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> Outcome {
        let mut outcome = self.receive_piece(&[]);
        for piece in bytes.chunks(self.piece) {
            if matches!(outcome.state, State::Over { .. }) {
                break;
            }
            outcome.add(self.receive_piece(piece));
        }
        outcome
    }

    fn receive_piece(&mut self, bytes: &[u8]) -> Outcome {
        let before = memory::start();
        let outcome = self.end.receive(bytes);
        let most = self.held + memory::peak().saturating_sub(before);
        let may = MOST_MEMORY + MEMORY_PER_BYTE * bytes.len();
        assert!(
            most <= may,
            "{most} bytes were held, of which {may} are allowed"
        );
        let handed_out = outcome.content.capacity() + outcome.outgoing.capacity();
        self.held = (self.held + memory::start()).saturating_sub(before + handed_out);
        outcome
    }
}

impl End {
    fn receive(&mut self, bytes: &[u8]) -> Outcome {
        let mut outcome = Outcome::new();
        match self {
            Self::Handshaking(shaking) => match shaking.advance(bytes) {
                Ok((is_done, outgoing)) => {
                    outcome.outgoing = outgoing;
                    if is_done {
                        outcome.add(self.finish());
                    }
                }
                Err(error) => *self = Self::Refused(error.to_string()),
            },
            Self::Established(records) => {
                let opened = records.open(bytes);
                outcome.content = opened.content;
                outcome.state = State::Established;
                match opened.closed {
                    Ok(false) => {}
                    Ok(true) => outcome.state = State::Over { was_shaken: true },
                    Err(why) => *self = Self::Refused(why),
                }
            }
            Self::Refused(_) => {}
        }
        if let Self::Refused(why) = self {
            outcome.state = State::Refused(why.clone());
        }
        outcome
    }

    /// Takes the keys over, and opens what came behind the handshake.
    fn finish(&mut self) -> Outcome {
        let refused = Self::Refused("the handshake was finished before".to_owned());
        if let Self::Handshaking(shaking) = std::mem::replace(self, refused) {
            *self = match shaking.finish() {
                Ok(records) => Self::Established(Box::new(records)),
                Err(error) => Self::Refused(error.to_string()),
            };
        }
        self.receive(&[])
    }
}

fn name() -> ServerName<'static> {
    ServerName::try_from("web.test").expect("a name")
}
