//! WebSockets: the handshake, frames of both peers, and the closing handshake.

use super::{Draft, Who};
use crate::script::{Bytes, Protocol, Step, Wait, WebSocketStep};

const REQUEST: &str = "GET /chat HTTP/1.1\r\nhost: web.test\r\nupgrade: websocket\r\n\
     connection: Upgrade\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
     sec-websocket-version: 13\r\n\r\n";
const RESPONSE: &str = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\
     connection: Upgrade\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CONTINUATION: u8 = 0;
const CLOSE: u8 = 8;
const PING: u8 = 9;

pub(super) fn write(draft: &mut Draft) {
    draft.protocol = Protocol::Http1;
    draft.send(Who::Client, Bytes::literal(REQUEST));
    draft.server(Step::Wait(Wait::Head(None)));
    draft.send(Who::Server, Bytes::literal(RESPONSE));
    draft.client(Step::Wait(Wait::Head(None)));
    let mut received = [0, 0];
    for _ in 0..draft.below(6) {
        let who = draft.who();
        let sent = frames(draft, who);
        let total = &mut received[usize::from(who == Who::Client)];
        *total += sent;
        let wait = Wait::Tunnel(*total);
        draft.step(who.peer(), Step::Wait(wait));
    }
    end(draft, &mut received);
}

/// A message in one frame or several. Returns the bytes that they take.
fn frames(draft: &mut Draft, who: Who) -> u64 {
    let size = draft.size();
    let opcode = [TEXT, BINARY, PING][draft.below(3) as usize];
    let size = if opcode == PING { size.min(125) } else { size };
    if opcode == PING || !draft.chance(3) {
        return frame(draft, who, opcode, false, size);
    }
    frame(draft, who, opcode, true, size)
        + frame(draft, who, PING, false, 3)
        + frame(draft, who, CONTINUATION, false, size / 2)
}

fn frame(draft: &mut Draft, who: Who, opcode: u8, more: bool, size: u32) -> u64 {
    let bytes = draft.content(size);
    let step = WebSocketStep {
        opcode,
        more,
        bytes,
    };
    draft.step(who, Step::WebSocket(step));
    length(size, who)
}

/// RFC 6455, section 5.2.
fn length(size: u32, who: Who) -> u64 {
    let extended = match size {
        0..126 => 0,
        126..65_536 => 2,
        _ => 8,
    };
    let mask = if who == Who::Client { 4 } else { 0 };
    u64::from(2 + extended + mask + size)
}

/// The closing handshake, or an end without one.
fn end(draft: &mut Draft, received: &mut [u64; 2]) {
    let who = draft.who();
    if draft.chance(3) {
        return draft.end_connection();
    }
    for who in [who, who.peer()] {
        let bytes = Bytes::literal(*b"\x03\xe8");
        let step = WebSocketStep {
            opcode: CLOSE,
            more: false,
            bytes,
        };
        draft.step(who, Step::WebSocket(step));
        let total = &mut received[usize::from(who == Who::Client)];
        *total += length(2, who);
        let wait = Wait::Tunnel(*total);
        draft.step(who.peer(), Step::Wait(wait));
    }
    // The server closes the TCP connection first (section 7.1.1).
    draft.server(Step::Close);
    draft.client(Step::Wait(Wait::End));
}
