//! Last exchanges of a connection of HTTP/1 that do not end well, or not as most do.

use super::{Draft, Who};
use crate::script::{Bytes, Step, Wait};

/// Responses that a strict reader refuses.
const BROKEN_RESPONSES: [&str; 14] = [
    "HTTP/1.1 200 OK\r\ncontent-length : 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
    "HTTP/1.1 200 OK\ncontent-length: 2\n\nok",
    "HTTP/1.1 200 OK\r\nx: a\r\n b\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nok",
    "HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\n",
    "HTTP/1.1 304 Not Modified\r\ntransfer-encoding: gzip\r\n\r\n",
    "HTTP/1.1 200 OK\r\nx: a\x01\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n-1\r\n",
    "HTTP/1.1 xyz\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
];

/// Declarations of 300,000 bytes.
const LONG: [&str; 2] = [
    "content-length: 300000\r\n\r\n",
    "transfer-encoding: chunked\r\n\r\n493e0\r\n",
];

const GET: &str = "GET /last HTTP/1.1\r\nhost: web.test\r\n\r\n";

pub(super) fn write(draft: &mut Draft) {
    draft.begin_request();
    match draft.below(9) {
        0 => broken_off_response(draft),
        1 => broken_response(draft),
        2 => no_response(draft),
        3 => expectation(draft),
        4 => client_that_leaves(draft),
        5 => broken_off_request(draft),
        6 => refused_upgrade(draft),
        7 => old_version(draft),
        _ => half_closed_client(draft),
    }
}

fn send(draft: &mut Draft, who: Who, text: &str) {
    draft.send(who, Bytes::literal(text));
}

fn end(draft: &mut Draft, who: Who) {
    let is_reset = draft.chance(2);
    draft.step(who, if is_reset { Step::Reset } else { Step::Close });
}

/// Sends the beginning of a body, and ends the connection of `who` when it has arrived: chance
/// decides which bytes a reset discards.
fn break_off(draft: &mut Draft, who: Who, head: &str) {
    let size = draft.size();
    let mut message = Bytes::literal(format!("{head}{}", draft.pick(&LONG)));
    message.0.extend(Bytes::repeated("!", size).0);
    draft.send(who, message);
    draft.step(who.peer(), Step::Wait(Wait::Head(None)));
    if size > 0 {
        let content = Wait::Content(Bytes::repeated("!", size));
        draft.step(who.peer(), Step::Wait(content));
    }
    draft.meet(who.peer());
    end(draft, who);
    draft.step(who.peer(), Step::Wait(Wait::End));
}

fn broken_off_response(draft: &mut Draft) {
    send(draft, Who::Client, GET);
    draft.server(Step::Wait(Wait::Message(None)));
    break_off(draft, Who::Server, "HTTP/1.1 200 OK\r\n");
}

fn broken_off_request(draft: &mut Draft) {
    break_off(
        draft,
        Who::Client,
        "PUT /last HTTP/1.1\r\nhost: web.test\r\n",
    );
    draft.server(Step::Close);
}

fn broken_response(draft: &mut Draft) {
    send(draft, Who::Client, GET);
    draft.server(Step::Wait(Wait::Message(None)));
    let response = draft.pick(&BROKEN_RESPONSES);
    send(draft, Who::Server, response);
    draft.server(Step::Close);
    draft.client(Step::Wait(Wait::End));
}

/// The server ends the connection in place of a response, or after an interim one.
fn no_response(draft: &mut Draft) {
    let method = draft.pick(&["GET", "POST", "DELETE"]);
    let request = format!("{method} /last HTTP/1.1\r\nhost: web.test\r\n\r\n");
    send(draft, Who::Client, &request);
    draft.server(Step::Wait(Wait::Message(None)));
    if draft.chance(3) {
        send(draft, Who::Server, "HTTP/1.1 103 Early Hints\r\n\r\n");
        draft.client(Step::Wait(Wait::Head(None)));
        draft.meet(Who::Client);
    }
    end(draft, Who::Server);
    draft.client(Step::Wait(Wait::End));
}

/// The client waits for a 100 before its body.
fn expectation(draft: &mut Draft) {
    send(
        draft,
        Who::Client,
        "POST /last HTTP/1.1\r\nhost: web.test\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n",
    );
    draft.server(Step::Wait(Wait::Head(None)));
    match draft.below(3) {
        0 => {
            let refusal = "HTTP/1.1 417 Expectation Failed\r\ncontent-length: 0\r\n\
                           connection: close\r\n\r\n";
            send(draft, Who::Server, refusal);
            draft.client(Step::Wait(Wait::Message(None)));
            draft.client(Step::Close);
            return;
        }
        1 => {
            let interim = "HTTP/1.1 100 Continue\r\nx: 1\r\n\r\n";
            send(draft, Who::Server, interim);
            draft.client(Step::Wait(Wait::Head(None)));
        }
        // The client waits for a limited time only.
        _ => draft.client(Step::Pause(1000)),
    }
    send(draft, Who::Client, "hello");
    draft.server(Step::Wait(Wait::Message(None)));
    let response = "HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n";
    send(draft, Who::Server, response);
    draft.client(Step::Wait(Wait::Message(None)));
}

/// The client ends the connection while it waits.
fn client_that_leaves(draft: &mut Draft) {
    send(draft, Who::Client, GET);
    draft.server(Step::Wait(Wait::Message(None)));
    draft.meet(Who::Server);
    end(draft, Who::Client);
    draft.server(Step::Wait(Wait::End));
    draft.server(Step::Close);
}

/// The connection is used again.
fn refused_upgrade(draft: &mut Draft) {
    let protocol = draft.pick(&["websocket", "x/1", "TLS/1.2", "h2c"]);
    let request = format!(
        "GET /last HTTP/1.1\r\nhost: web.test\r\nconnection: upgrade\r\nupgrade: {protocol}\r\n\r\n"
    );
    send(draft, Who::Client, &request);
    draft.server(Step::Wait(Wait::Message(None)));
    let response = draft.pick(&[
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 426 Upgrade Required\r\nconnection: upgrade\r\nupgrade: y\r\n\
         content-length: 0\r\n\r\n",
        "HTTP/1.1 403 Forbidden\r\ntransfer-encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
    ]);
    send(draft, Who::Server, response);
    draft.client(Step::Wait(Wait::Message(None)));
    draft.begin_request();
    send(
        draft,
        Who::Client,
        "GET /after HTTP/1.1\r\nhost: web.test\r\n\r\n",
    );
    draft.server(Step::Wait(Wait::Message(None)));
    send(draft, Who::Server, "HTTP/1.1 204 No Content\r\n\r\n");
    draft.client(Step::Wait(Wait::Message(None)));
}

fn old_version(draft: &mut Draft) {
    let keeps = draft.pick(&["", "connection: keep-alive\r\n"]);
    let request = format!("GET /last HTTP/1.0\r\nhost: web.test\r\n{keeps}\r\n");
    send(draft, Who::Client, &request);
    draft.server(Step::Wait(Wait::Message(None)));
    let response = draft.pick(&[
        "HTTP/1.0 200 OK\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ]);
    send(draft, Who::Server, response);
    draft.server(Step::Close);
    draft.client(Step::Wait(Wait::End));
}

/// It sends nothing after its request, and reads the response.
fn half_closed_client(draft: &mut Draft) {
    send(draft, Who::Client, GET);
    draft.client(Step::Finish);
    draft.server(Step::Wait(Wait::Message(None)));
    draft.server(Step::Wait(Wait::End));
    let response = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    send(draft, Who::Server, response);
    draft.client(Step::Wait(Wait::Message(None)));
    draft.server(Step::Close);
}
