//! Calls of gRPC in their four forms.

use super::{Draft, Who, nth};
use crate::script::{FieldBlock, GrpcStep, Http2Step, Protocol, Step, Wait, field};

pub(super) fn write(draft: &mut Draft) {
    draft.protocol = Protocol::Http2;
    let calls = 1 + draft.below(3);
    for n in 0..calls {
        let path = draft.pick(&["/test.Echo/Unary", "/test.Echo/Stream", "/a.b.C/D"]);
        draft.client(Step::Grpc(GrpcStep::Call {
            stream: nth(n),
            path: path.to_owned(),
        }));
        match draft.below(5) {
            0 => exchange(draft, n, 1, 1),
            1 => {
                let requests = 1 + draft.below(6);
                exchange(draft, n, requests, 1);
            }
            2 => {
                let responses = draft.below(6);
                exchange(draft, n, 1, responses);
            }
            3 => conversation(draft, n),
            _ => failure(draft, n),
        }
    }
}

/// All requests, then all responses.
fn exchange(draft: &mut Draft, n: u32, requests: u32, responses: u32) {
    for request in 1..=requests {
        message(draft, Who::Client, n, request == requests);
    }
    draft.server(Step::Wait(Wait::Message(Some(nth(n)))));
    draft.server(Step::Grpc(GrpcStep::Reply { stream: nth(n) }));
    for _ in 0..responses {
        message(draft, Who::Server, n, false);
    }
    status(draft, n, 0);
    draft.client(Step::Wait(Wait::Message(Some(nth(n)))));
}

/// A response for each request, before the next one.
fn conversation(draft: &mut Draft, n: u32) {
    draft.server(Step::Wait(Wait::Head(Some(nth(n)))));
    draft.server(Step::Grpc(GrpcStep::Reply { stream: nth(n) }));
    let turns = 1 + draft.below(5);
    let mut received = [0; 2];
    for turn in 1..=turns {
        for (side, who) in [Who::Client, Who::Server].into_iter().enumerate() {
            let is_end = who == Who::Client && turn == turns;
            received[side] += message(draft, who, n, is_end);
            let wait = Wait::Data(nth(n), received[side]);
            draft.step(who.peer(), Step::Wait(wait));
        }
    }
    status(draft, n, 0);
    draft.client(Step::Wait(Wait::Message(Some(nth(n)))));
}

/// An error after the header section, or in it (Trailers-Only of the protocol).
fn failure(draft: &mut Draft, n: u32) {
    message(draft, Who::Client, n, true);
    draft.server(Step::Wait(Wait::Message(Some(nth(n)))));
    let code = 1 + draft.below(16);
    if draft.chance(2) {
        draft.server(Step::Grpc(GrpcStep::Reply { stream: nth(n) }));
        status(draft, n, code);
    } else {
        let fields = [
            (":status", "200"),
            ("content-type", "application/grpc"),
            ("grpc-status", &*code.to_string()),
        ];
        let fields = fields.map(|(name, value)| field(name, value)).to_vec();
        draft.server(Step::Http2(Http2Step::Headers(FieldBlock {
            stream: nth(n),
            end: true,
            more: false,
            fields,
        })));
    }
    draft.client(Step::Wait(Wait::Message(Some(nth(n)))));
}

fn status(draft: &mut Draft, n: u32, code: u32) {
    let message = draft.chance(3).then(|| "why not %E2%82%AC".to_owned());
    draft.server(Step::Grpc(GrpcStep::Status {
        stream: nth(n),
        code,
        message,
    }));
}

/// Returns the bytes that it takes with its prefix.
fn message(draft: &mut Draft, who: Who, n: u32, end: bool) -> u64 {
    let size = draft.size().min(70_000);
    let bytes = draft.content(size);
    draft.step(
        who,
        Step::Grpc(GrpcStep::Message {
            stream: nth(n),
            end,
            compressed: false,
            bytes,
        }),
    );
    u64::from(size) + 5
}
