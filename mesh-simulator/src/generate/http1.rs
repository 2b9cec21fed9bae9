//! Exchanges of HTTP/1.0 and 1.1, some of them with messages that break the rules.

use super::{Draft, Who, endings};
use crate::script::{Bytes, Protocol, Step, Wait};

const METHODS: [&str; 8] = [
    "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH",
];
const TARGETS: [&str; 8] = [
    "/",
    "/a/b?c=d",
    "/%2e%2e/x",
    "/a//b",
    "/~user/;p=1",
    "/?",
    "/a?b?c",
    "/a%00b",
];
const FIELDS: [&str; 12] = [
    "accept: */*",
    "User-Agent: script/1.0",
    "cookie: a=b; c=d",
    "cookie: e=f",
    "x-empty:",
    "x-tabs:\ta\tb\t",
    "via: 1.1 x",
    "x-latin: \u{e9}",
    "authorization: Basic YTpi",
    "cache-control: no-cache, no-store",
    "x-long: 0123456789012345678901234567890123456789012345678901234567890123456789",
    "te: trailers",
];
const STATUSES: [&str; 12] = [
    "200 OK",
    "200 OK",
    "201 Created",
    "204 No Content",
    "206 Partial Content",
    "301 Moved Permanently",
    "304 Not Modified",
    "404 Not Found",
    "418 I'm a teapot",
    "500 Internal Server Error",
    "503 Service Unavailable",
    "299 ",
];
const RESPONSE_FIELDS: [&str; 8] = [
    "Date: Sun, 29 Nov 2026 07:00:00 GMT",
    "Server: script",
    "Set-Cookie: a=b",
    "Set-Cookie: c=d; Path=/",
    "ETag: \"x\"",
    "vary: accept, accept-encoding",
    "x-empty:",
    "content-type: text/plain",
];

/// Lines of a request that a strict reader refuses.
const BROKEN_FIELDS: [&str; 10] = [
    "name : value",
    " folded",
    "no colon",
    "content-length: 5\r\ncontent-length: 6",
    "content-length: -1",
    "content-length: 1\r\ntransfer-encoding: chunked",
    "transfer-encoding: gzip",
    "transfer-encoding: chunked, chunked",
    "x: a\x01b",
    "bare: feed\nx: y",
];

/// How a message's body is framed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Body {
    None,
    Sized(u32),
    Chunked(u32),
    /// A response's, up to the end of the connection.
    UntilEnd(u32),
}

pub(super) fn write(draft: &mut Draft) {
    draft.protocol = Protocol::Http1;
    let exchanges = 1 + draft.below(4);
    let is_pipelined = exchanges > 1 && draft.chance(6);
    let mut waits = 0;
    for n in 0..exchanges {
        let is_last = n + 1 == exchanges;
        let is_head = request(draft, n, is_pipelined);
        draft.server(Step::Wait(Wait::Message(None)));
        if draft.chance(12) {
            draft.pause(Who::Server);
        }
        let ends = response(draft, is_head, is_last);
        waits += 1;
        if !is_pipelined {
            draft.client(Step::Wait(Wait::Message(None)));
            waits = 0;
        }
        if ends {
            return;
        }
    }
    for _ in 0..waits {
        draft.client(Step::Wait(Wait::Message(None)));
    }
    if draft.chance(2) {
        endings::write(draft);
    } else if draft.chance(8) {
        broken_request(draft);
    } else {
        draft.end_connection();
    }
}

/// Returns whether its response has no content.
fn request(draft: &mut Draft, n: u32, is_pipelined: bool) -> bool {
    draft.begin_request();
    let method = draft.pick(&METHODS);
    // A server may answer a method without content early; those with content wait for it.
    let takes_body = !is_pipelined && matches!(method, "POST" | "PUT" | "PATCH");
    let body = if takes_body {
        any_body(draft, false)
    } else {
        Body::None
    };
    let target = draft.pick(&TARGETS);
    let separator = if target.contains('?') { '&' } else { '?' };
    let mut head = format!("{method} {target}{separator}n={n} HTTP/1.1\r\nhost: web.test\r\n");
    for _ in 0..draft.below(4) {
        head.push_str(draft.pick(&FIELDS));
        head.push_str("\r\n");
    }
    let bytes = message(draft, head, body);
    draft.send(Who::Client, bytes);
    method == "HEAD"
}

/// Returns whether the connection ends with it.
fn response(draft: &mut Draft, is_head: bool, is_last: bool) -> bool {
    if draft.chance(8) {
        let interim = draft.pick(&[
            "HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n",
            "HTTP/1.1 102 Processing\r\n\r\n",
        ]);
        draft.send(Who::Server, Bytes::literal(interim));
    }
    let status = draft.pick(&STATUSES);
    let has_content = !is_head && !status.starts_with("204") && !status.starts_with("304");
    let body = if has_content {
        any_body(draft, is_last)
    } else {
        Body::None
    };
    let mut head = format!("HTTP/1.1 {status}\r\n");
    for _ in 0..draft.below(4) {
        head.push_str(draft.pick(&RESPONSE_FIELDS));
        head.push_str("\r\n");
    }
    if has_content && body == Body::None {
        head.push_str("content-length: 0\r\n");
    }
    let ends = matches!(body, Body::UntilEnd(_));
    let bytes = message(draft, head, body);
    draft.send(Who::Server, bytes);
    if ends {
        let is_reset = draft.chance(3);
        draft.server(if is_reset { Step::Reset } else { Step::Close });
    }
    ends
}

fn any_body(draft: &mut Draft, may_end: bool) -> Body {
    let size = draft.size();
    match draft.below(6) {
        0 => Body::None,
        1 | 2 => Body::Sized(size),
        3 if may_end => Body::UntilEnd(size),
        _ => Body::Chunked(size),
    }
}

/// Adds framing, the empty line and the body to a header section.
fn message(draft: &mut Draft, mut head: String, body: Body) -> Bytes {
    let (size, is_chunked) = match body {
        Body::None => (0, false),
        Body::Sized(size) => {
            head.push_str(&format!("content-length: {size}\r\n"));
            (size, false)
        }
        Body::UntilEnd(size) => (size, false),
        Body::Chunked(size) => {
            head.push_str("transfer-encoding: chunked\r\n");
            (size, true)
        }
    };
    head.push_str("\r\n");
    let mut bytes = Bytes::literal(head);
    if !is_chunked {
        if size > 0 {
            bytes.0.extend(draft.content(size).0);
        }
        return bytes;
    }
    chunks(draft, size, &mut bytes);
    bytes
}

fn chunks(draft: &mut Draft, size: u32, bytes: &mut Bytes) {
    let mut missing = size;
    while missing > 0 {
        // At most some dozen chunks.
        let largest = missing.max(1);
        let chunk = (draft.below(largest) + 1).max(size / 16).min(missing);
        let extension = if draft.chance(12) {
            ";name=\"value\""
        } else {
            ""
        };
        bytes
            .0
            .extend(Bytes::literal(format!("{chunk:x}{extension}\r\n")).0);
        bytes.0.extend(draft.content(chunk).0);
        bytes.0.extend(Bytes::literal("\r\n").0);
        missing -= chunk;
    }
    let trailers = if draft.chance(4) {
        "x-checksum: 5\r\n"
    } else {
        ""
    };
    bytes
        .0
        .extend(Bytes::literal(format!("0\r\n{trailers}\r\n")).0);
}

/// A request that a strict server refuses: this one closes the connection.
fn broken_request(draft: &mut Draft) {
    draft.begin_request();
    let field = draft.pick(&BROKEN_FIELDS);
    let request = format!("GET /broken HTTP/1.1\r\nhost: web.test\r\n{field}\r\n\r\n");
    draft.send(Who::Client, Bytes::literal(request));
    draft.client(Step::Wait(Wait::End));
    for text in ["/broken", "\r\n\r\n"] {
        draft.server(Step::Wait(Wait::Text(Bytes::literal(text))));
    }
    let refusal = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    draft.server(Step::Send {
        bytes: Bytes::literal(refusal),
        piece: None,
    });
    draft.server(Step::Close);
}
