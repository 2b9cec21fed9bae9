//! [`Requests`]: the requests that the clients of a script send.

use crate::http1::{Reader, Role};
use crate::message::value;
use crate::script::{GrpcStep, Http2Step, Protocol, Script, Step};

/// All requests of a script, as its steps write them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests(Vec<Request>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    method: Vec<u8>,
    path: Vec<u8>,
    has_body: bool,
}

impl Requests {
    pub fn of(script: &Script) -> Self {
        let clients = script.clients.iter();
        Self(match script.protocol {
            Protocol::Tcp => Vec::new(),
            Protocol::Http1 => clients.flat_map(|steps| of_http1(steps)).collect(),
            Protocol::Http2 => clients.flatten().filter_map(of_http2).collect(),
        })
    }

    /// How often a request is sent.
    pub(crate) fn count(&self, method: &[u8], path: &[u8]) -> usize {
        self.alike(method, path).count()
    }

    /// Whether one of these requests has a body.
    pub(crate) fn have_body(&self, method: &[u8], path: &[u8]) -> bool {
        self.alike(method, path).any(|request| request.has_body)
    }

    fn alike(&self, method: &[u8], path: &[u8]) -> impl Iterator<Item = &Request> {
        let requests = self.0.iter();
        requests.filter(move |it| it.method == method && it.path == path)
    }
}

fn of_http1(steps: &[Step]) -> Vec<Request> {
    let mut reader = Reader::new(Role::Requests);
    for step in steps {
        if let Step::Send { bytes, .. } = step {
            reader.feed(&bytes.to_vec());
        }
    }
    let messages = reader.messages().iter();
    let requests = messages.map(|message| {
        let part = |name| value(&message.fields, name).unwrap_or_default().to_vec();
        Request {
            method: part(":method"),
            path: part(":path"),
            has_body: !message.body.is_empty(),
        }
    });
    requests.collect()
}

/// The request that a step begins.
fn of_http2(step: &Step) -> Option<Request> {
    match step {
        Step::Http2(Http2Step::Headers(block)) => Some(Request {
            method: value(&block.fields, ":method")?.to_vec(),
            path: value(&block.fields, ":path").unwrap_or_default().to_vec(),
            has_body: !block.end,
        }),
        Step::Grpc(GrpcStep::Call { path, .. }) => Some(Request {
            method: b"POST".to_vec(),
            path: path.clone().into_bytes(),
            has_body: true,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_both_versions_are_counted() {
        let http1 = "protocol http1\nclient:\n  send \"GET /a HTTP/1.1\\r\\n\\r\\n\"\n  send \
                     \"PUT /b HTTP/1.1\\r\\ncontent-length: 1\\r\\n\\r\\nxGET /a HTTP/1.1\\r\\n\\r\\n\"\n\
                     server:\n";
        let requests = Requests::of(&Script::parse(http1).expect("a script"));
        assert_eq!(requests.count(b"GET", b"/a"), 2);
        assert!(!requests.have_body(b"GET", b"/a") && requests.have_body(b"PUT", b"/b"));
        let http2 = "protocol http2\nclient:\n  headers #1 end\n    | :method: GET\n    | :path: /\n  \
                     call #2 /a\nserver:\n";
        let requests = Requests::of(&Script::parse(http2).expect("a script"));
        assert_eq!(requests.count(b"GET", b"/"), 1);
        assert!(!requests.have_body(b"GET", b"/") && requests.have_body(b"POST", b"/a"));
    }
}
