//! Streams of HTTP/2.

use super::{Draft, Who, nth};
use crate::script::{Bytes, Field, FieldBlock, Http2Step, Protocol, Step, Wait, field};

/// PROTOCOL_ERROR, INTERNAL_ERROR, CANCEL, CONNECT_ERROR, ENHANCE_YOUR_CALM and one of no meaning.
const CODES: [u32; 6] = [1, 2, 8, 10, 11, 99];

pub(super) fn write(draft: &mut Draft) {
    draft.protocol = Protocol::Http2;
    settings(draft);
    let streams = 1 + draft.below(5);
    let is_concurrent = draft.chance(2);
    for n in 0..streams {
        request(draft, n);
        if !is_concurrent {
            respond(draft, n);
        }
    }
    if is_concurrent {
        for n in 0..streams {
            respond(draft, n);
        }
    }
    match draft.below(10) {
        0 => goaway(draft, Who::Server, streams),
        1 => goaway(draft, Who::Client, 0),
        2 => {
            let who = draft.who();
            let ping = Http2Step::Ping {
                ack: false,
                opaque: 7,
            };
            draft.step(who, Step::Http2(ping));
            draft.step(who, Step::Wait(Wait::PingAck));
        }
        3 => draft.client(Step::Close),
        4 | 5 => broken_off(draft, streams),
        _ => {}
    }
}

/// The last stream: one of the peers ends the connection within it.
fn broken_off(draft: &mut Draft, n: u32) {
    let fields = vec![
        field(":method", "POST"),
        field(":scheme", "http"),
        field(":path", "/last"),
        field(":authority", "web.test"),
    ];
    headers(draft, Who::Client, n, false, fields);
    let size = draft.below(2000) + 1;
    let bytes = draft.content(size);
    draft.client(data_step(n, false, bytes));
    draft.server(Step::Wait(Wait::Data(nth(n), size.into())));
    if draft.chance(2) {
        let bytes = draft.content(size);
        headers(draft, Who::Server, n, false, vec![field(":status", "200")]);
        draft.server(data_step(n, false, bytes));
        draft.client(Step::Wait(Wait::Data(nth(n), size.into())));
    } else {
        draft.meet(Who::Server);
    }
    let who = draft.who();
    draft.meet(who.peer());
    let is_reset = draft.chance(2);
    draft.step(who, if is_reset { Step::Reset } else { Step::Close });
    draft.step(who.peer(), Step::Wait(Wait::Message(Some(nth(n)))));
}

/// Frames that change nothing: of an unknown type, PRIORITY, and DATA without octets.
fn odd_frame(draft: &mut Draft, who: Who, n: u32) {
    let (kind, bytes): (u8, &[u8]) = match draft.below(3) {
        0 => (0xfe, b"unknown"),
        1 if who == Who::Client => (2, &[0, 0, 0, 0, 7]),
        _ => (0, b""),
    };
    draft.step(
        who,
        Step::Http2(Http2Step::Raw {
            kind,
            flags: 0,
            stream: nth(n),
            bytes: Bytes::literal(bytes),
        }),
    );
}

/// The most windows that a message takes, each after a turn on the network.
const MAX_WINDOWS: u32 = 500;

/// Window games: the peers may allow less or more than the initial windows.
fn settings(draft: &mut Draft) {
    for who in [Who::Client, Who::Server] {
        if draft.chance(4) {
            let window = [1, 100, 20_000, 1 << 20][draft.below(4) as usize];
            draft.step(who, Step::Http2(Http2Step::Settings(vec![(4, window)])));
            draft.max_content = draft.max_content.min(window.saturating_mul(MAX_WINDOWS));
        }
    }
}

fn request(draft: &mut Draft, n: u32) {
    let size = draft.size().min(100_000);
    let has_body = draft.chance(3);
    let method = if has_body {
        "POST"
    } else {
        draft.pick(&["GET", "HEAD", "DELETE"])
    };
    let mut fields = vec![
        field(":method", method),
        field(":scheme", "http"),
        field(":path", format!("/{n}?x=y")),
        field(":authority", "web.test"),
    ];
    for _ in 0..draft.below(4) {
        let (name, value) = draft.pick(&REQUEST_FIELDS);
        fields.push(field(name, value));
    }
    headers(draft, Who::Client, n, !has_body, fields);
    if has_body {
        data(draft, Who::Client, n, size);
    }
    draft.server(Step::Wait(Wait::Message(Some(nth(n)))));
}

fn respond(draft: &mut Draft, n: u32) {
    // The response to HEAD has no content.
    let is_head = draft.client.iter().any(|step| {
        matches!(step, Step::Http2(Http2Step::Headers(block))
            if block.stream == nth(n) && block.fields.contains(&field(":method", "HEAD")))
    });
    if draft.chance(8) {
        let interim = vec![field(":status", "103"), field("link", "</a>; rel=preload")];
        headers(draft, Who::Server, n, false, interim);
    }
    if draft.chance(10) {
        return reset(draft, n, !is_head);
    }
    let status = draft.pick(&["200", "200", "201", "404", "500", "204"]);
    let has_body = !is_head && status != "204" && draft.chance(2);
    let has_trailers = has_body && draft.chance(3);
    let mut fields = vec![field(":status", status)];
    for _ in 0..draft.below(3) {
        let (name, value) = draft.pick(&RESPONSE_FIELDS);
        fields.push(field(name, value));
    }
    headers(draft, Who::Server, n, !has_body, fields);
    if has_body {
        let size = draft.size().min(100_000).min(draft.max_content);
        if has_trailers {
            let bytes = draft.content(size);
            draft.server(data_step(n, false, bytes));
            headers(draft, Who::Server, n, true, vec![field("x-checksum", "5")]);
        } else {
            data(draft, Who::Server, n, size);
        }
    }
    draft.client(Step::Wait(Wait::Message(Some(nth(n)))));
}

/// One of the peers gives the stream up, in place of the response or, if that has content, within.
fn reset(draft: &mut Draft, n: u32, has_content: bool) {
    if has_content && draft.chance(2) {
        headers(draft, Who::Server, n, false, vec![field(":status", "200")]);
        let bytes = draft.content(10);
        draft.server(data_step(n, false, bytes));
        draft.client(Step::Wait(Wait::Data(nth(n), 10)));
        draft.meet(Who::Client);
    }
    let code = CODES[draft.below(CODES.len() as u32) as usize];
    let reset = Http2Step::ResetStream {
        stream: nth(n),
        code,
    };
    if draft.chance(2) {
        draft.server(Step::Http2(reset));
        draft.client(Step::Wait(Wait::Message(Some(nth(n)))));
        return;
    }
    draft.meet(Who::Server);
    draft.client(Step::Http2(reset));
}

fn goaway(draft: &mut Draft, who: Who, last: u32) {
    let last = crate::script::Stream::Id((2 * last).saturating_sub(1));
    draft.step(who, Step::Http2(Http2Step::GoAway { last, code: 0 }));
    draft.step(who.peer(), Step::Wait(Wait::GoAway));
}

/// Content with END_STREAM, in one step or several.
fn data(draft: &mut Draft, who: Who, n: u32, size: u32) {
    let size = size.min(draft.max_content);
    let parts = 1 + draft.below(3);
    for part in 1..=parts {
        let bytes = draft.content(size / parts);
        let is_last = part == parts;
        if !is_last && draft.chance(6) {
            draft.pause(who);
        }
        if draft.chance(12) {
            odd_frame(draft, who, n);
        }
        draft.step(who, data_step(n, is_last, bytes));
    }
}

fn data_step(n: u32, end: bool, bytes: Bytes) -> Step {
    Step::Http2(Http2Step::Data {
        stream: nth(n),
        end,
        padding: None,
        bytes,
    })
}

fn headers(draft: &mut Draft, who: Who, n: u32, end: bool, fields: Vec<Field>) {
    let block = FieldBlock {
        stream: nth(n),
        end,
        more: false,
        fields,
    };
    draft.step(who, Step::Http2(Http2Step::Headers(block)));
}

const REQUEST_FIELDS: [&(&str, &str); 6] = [
    &("accept", "*/*"),
    &("cookie", "a=b"),
    &("cookie", "c=d"),
    &("x-empty", ""),
    &("user-agent", "script/1.0"),
    &("te", "trailers"),
];
const RESPONSE_FIELDS: [&(&str, &str); 5] = [
    &("server", "script"),
    &("set-cookie", "a=b"),
    &("set-cookie", "c=d"),
    &("etag", "\"x\""),
    &("content-type", "text/plain"),
];
