//! TLS of the application (RFC 8446), which is bytes for the mesh but for the ClientHello. The
//! cryptography does not matter, so that the peers send records without any.

use super::tcp::turn_of;
use super::{Draft, Who};
use crate::script::{Bytes, Protocol, Step, Wait};

/// The content types of section 5.1.
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

/// The types of handshake messages, section 4.
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;

/// Extensions, section 4.2, and a reserved one of RFC 8701.
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const PADDING: u16 = 21;
const SUPPORTED_VERSIONS: u16 = 43;
const KEY_SHARE: u16 = 51;
const GREASE: u16 = 0x4a4a;

/// The longest content of a record, section 5.1.
const MAX_RECORD: usize = 1 << 14;

const NAMES: [&str; 6] = [
    "web.test",
    "WEB.test",
    "web.test.",
    "192.0.2.2",
    "xn--nxasmq6b.test",
    "a_b.test",
];

pub(super) fn write(draft: &mut Draft) {
    draft.protocol = Protocol::Tcp;
    let hello = client_hello(draft);
    let mut sent = [0; 2];
    match draft.below(8) {
        0 => return broken_off(draft, &hello),
        1 => return broken(draft, hello),
        _ => {}
    }
    sent[0] = hello.len() as u64;
    send_hello(draft, hello);
    let flight = server_flight(draft);
    turn_of(draft, Who::Server, Bytes::literal(flight), &mut sent);
    let mut finished = record(CHANGE_CIPHER_SPEC, &[1]);
    finished.extend(record(APPLICATION_DATA, &[b'f'; 53]));
    turn_of(draft, Who::Client, Bytes::literal(finished), &mut sent);
    for _ in 0..draft.below(4) {
        let speaker = draft.who();
        let size = draft.size().clamp(1, MAX_RECORD as u32);
        let content = draft.content(size).to_vec();
        turn_of(
            draft,
            speaker,
            Bytes::literal(record(APPLICATION_DATA, &content)),
            &mut sent,
        );
    }
    if draft.chance(2) {
        let who = draft.who();
        let close_notify = record(APPLICATION_DATA, &[b'n'; 19]);
        turn_of(draft, who, Bytes::literal(close_notify), &mut sent);
    }
    draft.end_connection();
}

/// Sends a ClientHello at once: the proxies wait for it for ten seconds only.
fn send_hello(draft: &mut Draft, hello: Vec<u8>) {
    let length = hello.len() as u64;
    draft.client(Step::Send {
        bytes: Bytes::literal(hello),
        piece: None,
    });
    draft.server(Step::Wait(Wait::Bytes(length)));
}

/// The client ends its side, or says nothing more, within its ClientHello. The server closes.
fn broken_off(draft: &mut Draft, hello: &[u8]) {
    let length = 1 + draft.below(hello.len() as u32 - 1);
    send_hello(draft, hello[..length as usize].to_vec());
    if draft.chance(2) {
        draft.client(Step::Finish);
        draft.server(Step::Wait(Wait::End));
    }
    draft.server(Step::Close);
    draft.client(Step::Wait(Wait::End));
}

/// A ClientHello that a server refuses, with one byte changed or another message in its place.
fn broken(draft: &mut Draft, mut hello: Vec<u8>) {
    match draft.below(4) {
        0 => hello = record(HANDSHAKE, &handshake(SERVER_HELLO, &[3, 3])),
        1 => hello = record(ALERT, &[2, 40]),
        // The byte is within the header of the record or of the message, or behind.
        2 => {
            let at = draft.below(12.min(hello.len() as u32)) as usize;
            hello[at] ^= 1 << draft.below(8);
        }
        _ => {
            let at = draft.below(hello.len() as u32) as usize;
            hello[at] ^= 1 << draft.below(8);
        }
    }
    send_hello(draft, hello);
    let alert = Bytes::literal(record(ALERT, &[2, 50]));
    turn_of(draft, Who::Server, alert, &mut [0; 2]);
    draft.server(Step::Close);
    draft.client(Step::Wait(Wait::End));
}

/// A ClientHello in one record, or in several.
fn client_hello(draft: &mut Draft) -> Vec<u8> {
    let mut extensions = Vec::new();
    if !draft.chance(6) {
        let name = match draft.below(8) {
            0 => format!("{}.test", "a".repeat(250)),
            1 => String::new(),
            _ => draft.pick(&NAMES).to_owned(),
        };
        let entry = [&[0][..], &with_length_2(name.as_bytes())].concat();
        extensions.push((SERVER_NAME, with_length_2(&entry)));
    }
    if draft.chance(2) {
        extensions.push((ALPN, with_length_2(b"\x02h2\x08http/1.1")));
    }
    extensions.push((SUPPORTED_VERSIONS, vec![2, 3, 4]));
    // A key share of X25519, or a hybrid one.
    let share = if draft.chance(2) { 38 } else { 1222 };
    extensions.push((KEY_SHARE, vec![b'k'; share]));
    if draft.chance(3) {
        extensions.push((GREASE, Vec::new()));
    }
    if draft.chance(4) {
        let size = draft.size().min(8_000);
        extensions.push((PADDING, vec![0; size as usize]));
    }
    if draft.chance(3) {
        extensions.reverse();
    }
    let extensions = extensions
        .iter()
        .flat_map(|(kind, content)| [&kind.to_be_bytes()[..], &with_length_2(content)].concat());
    let extensions: Vec<u8> = extensions.collect();
    let mut body = vec![3, 3];
    body.extend([b'r'; 32]);
    let session = if draft.chance(2) { 32 } else { 0 };
    body.push(session);
    body.extend(vec![b's'; usize::from(session)]);
    body.extend(with_length_2(&[0x13, 0x01, 0x13, 0x02, 0xc0, 0x2f]));
    body.extend([1, 0]);
    body.extend(with_length_2(&extensions));
    let message = handshake(CLIENT_HELLO, &body);
    let largest = match draft.below(4) {
        0 => 1 + draft.below(200) as usize,
        _ => MAX_RECORD,
    };
    // Some hundred records at most.
    let largest = largest.max(message.len() / 300);
    let records = message.chunks(largest);
    records.flat_map(|part| record(HANDSHAKE, part)).collect()
}

/// What a server sends first, its ServerHello and encrypted messages.
fn server_flight(draft: &mut Draft) -> Vec<u8> {
    let mut flight = record(HANDSHAKE, &handshake(SERVER_HELLO, &[b'h'; 118]));
    flight.extend(record(CHANGE_CIPHER_SPEC, &[1]));
    let certificate = 500 + draft.below(4000) as usize;
    flight.extend(record(APPLICATION_DATA, &vec![b'c'; certificate]));
    flight
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[kind, 3, 1][..], &with_length_2(content)].concat()
}

/// Content behind its length in two octets.
fn with_length_2(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u16).to_be_bytes()[..], content].concat()
}

fn handshake(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    [&[kind][..], &length[1..], body].concat()
}
