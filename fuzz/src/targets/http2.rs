//! What an HTTP/2 client may send, frame by frame, to the proxy's server, against a model of its
//! limits: it answers or ends, with frames that are right; it never has more requests in hand than
//! it said, nor more bodies than were sent; what it holds is bounded; and a client that does
//! nothing odd is served.
//!
//! Input: acts, see [`frames`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use http_body_util::BodyExt as _;
use mesh_proxy::http::{Body, HttpHandler, Protocol, Request, Reset, Response};
use tokio::join;

use self::frames::Script;
use self::received::Received;
use crate::memory;
use crate::world::{self, MAX_STREAMS, converse, pipe};

mod frames;
mod received;

/// What one connection may make the process hold, the client's own buffers included.
const MOST_MEMORY: usize = 4 << 20;

pub(crate) fn run(input: &[u8]) {
    let script = Script::of(input);
    let service = Rc::new(Service::default());
    let before = memory::start();
    let got = world::run(async {
        let (io, client) = pipe();
        let server = world::server();
        let serving = server.serve(io, Protocol::Http2, service.clone());
        join!(
            serving,
            converse(client, &script.bytes, script.how, |_| true)
        )
        .1
    });
    let held = memory::peak().saturating_sub(before);
    assert!(
        held <= MOST_MEMORY,
        "{held} bytes were held for {} bytes",
        script.bytes.len()
    );
    assert!(
        service.most.get() <= MAX_STREAMS,
        "{} requests at a time",
        service.most.get()
    );
    assert!(
        service.requests.get() <= script.headers,
        "requests were made up"
    );
    assert!(
        *service.bodies.borrow() <= script.data,
        "bodies were made up"
    );
    let received = Received::of(&got, &script);
    if script.is_orderly {
        received.assert_all_answered(&script);
    }
}

/// Answers requests once it has read their bodies.
#[derive(Default)]
struct Service {
    now: Cell<usize>,
    most: Cell<usize>,
    requests: Cell<usize>,
    bodies: RefCell<usize>,
}

impl HttpHandler for Service {
    async fn handle(&self, request: &mut Request) -> Result<Response, Reset> {
        self.requests.set(self.requests.get() + 1);
        let _in_hand = InHand::new(self);
        // Half of them do not care for it.
        if request.uri().path() == "/" {
            while let Some(Ok(frame)) = request.body_mut().frame().await {
                *self.bodies.borrow_mut() += frame.data_ref().map_or(0, |data| data.len());
            }
        }
        Ok(Response::new(Body::full("ok")))
    }
}

/// Counts a request as long as it is answered.
struct InHand<'a>(&'a Service);

impl<'a> InHand<'a> {
    fn new(service: &'a Service) -> Self {
        service.now.set(service.now.get() + 1);
        service.most.set(service.most.get().max(service.now.get()));
        Self(service)
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.0.now.set(self.0.now.get() - 1);
    }
}
