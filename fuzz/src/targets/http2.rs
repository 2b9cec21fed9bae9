//! Arbitrary HTTP/2 frames from a client to the proxy's server: it responds or closes; its frames
//! are valid; concurrent requests stay within SETTINGS_MAX_CONCURRENT_STREAMS; bodies contain only
//! bytes that were sent; memory is bounded; and an orderly client receives all responses.
//!
//! Input: actions of the client, see [`frames`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use http_body_util::BodyExt as _;
use mesh_proxy::fuzzing::{Body, HttpHandler, Protocol, Request, Reset, Response};
use tokio::join;

use self::frames::Script;
use self::server_output::ServerOutput;
use crate::memory;
use crate::test_env::{self, MAX_STREAMS, converse, pipe};

mod frames;
mod server_output;

/// The most memory that one connection may use, including the client's buffers.
const MAX_MEMORY: usize = 4 << 20;

pub(crate) fn run(input: &[u8]) {
    let script = Script::decode(input);
    let handler = Rc::new(CountingHandler::default());
    let before = memory::start();
    let got = test_env::run(async {
        let (io, client) = pipe();
        let serving = test_env::serve_http(io, Protocol::Http2, handler.clone());
        let conversing = converse(client, &script.bytes, script.split, |_| true);
        join!(serving, conversing).1
    });
    let peak = memory::peak().saturating_sub(before);
    let length = script.bytes.len();
    assert!(
        peak <= MAX_MEMORY,
        "{peak} bytes of memory for {length} bytes of input"
    );
    let concurrent = handler.max_concurrent.get();
    assert!(
        concurrent <= MAX_STREAMS,
        "{concurrent} concurrent requests"
    );
    let requests = handler.requests.get();
    assert!(requests <= script.headers, "more requests than were sent");
    let length = *handler.bodies.borrow();
    assert!(length <= script.data, "more body bytes than were sent");
    let output = ServerOutput::parse(&got, &script);
    if script.is_orderly {
        output.assert_all_complete(&script);
    }
}

/// Responds to requests after reading their bodies, and counts them.
#[derive(Default)]
struct CountingHandler {
    concurrent: Cell<usize>,
    max_concurrent: Cell<usize>,
    requests: Cell<usize>,
    bodies: RefCell<usize>,
}

impl HttpHandler for CountingHandler {
    async fn handle(&self, request: &mut Request) -> Result<Response, Reset> {
        self.requests.set(self.requests.get() + 1);
        let _guard = ConcurrentRequest::new(self);
        // Requests with another path are answered without reading the body.
        if request.uri().path() == "/" {
            while let Some(Ok(frame)) = request.body_mut().frame().await {
                *self.bodies.borrow_mut() += frame.data_ref().map_or(0, |data| data.len());
            }
        }
        Ok(Response::new(Body::full("ok")))
    }
}

/// Counts a request while it is being handled.
struct ConcurrentRequest<'a>(&'a CountingHandler);

impl<'a> ConcurrentRequest<'a> {
    fn new(handler: &'a CountingHandler) -> Self {
        let concurrent = handler.concurrent.get() + 1;
        handler.concurrent.set(concurrent);
        let max = handler.max_concurrent.get().max(concurrent);
        handler.max_concurrent.set(max);
        Self(handler)
    }
}

impl Drop for ConcurrentRequest<'_> {
    fn drop(&mut self) {
        self.0.concurrent.set(self.0.concurrent.get() - 1);
    }
}
