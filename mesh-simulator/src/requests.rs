//! [`Requests`]: the requests that the clients of a script send.

use crate::http1::{Reader, Role};
use crate::message::value;
use crate::script::{GrpcStep, Http2Step, Protocol, Script, Step, Stream};

/// All requests of a script, as its steps write them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests(Vec<Request>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The number of the client's connection, from 0, and of the request's response on it.
    pub(crate) connection: usize,
    pub(crate) response: usize,
    pub(crate) method: Vec<u8>,
    pub(crate) path: Vec<u8>,
    has_body: bool,
}

impl Requests {
    pub fn of(script: &Script) -> Self {
        let clients = script.clients.iter().enumerate();
        let requests = clients.flat_map(|(connection, steps)| match script.protocol {
            Protocol::Tcp => Vec::new(),
            Protocol::Http1 => of_http1(connection, steps),
            Protocol::Http2 => {
                let requests = steps.iter();
                requests
                    .filter_map(|step| of_http2(connection, step))
                    .collect()
            }
        });
        Self(requests.collect())
    }

    /// The number of all requests.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The requests that are sent once.
    pub(crate) fn single(&self) -> impl Iterator<Item = &Request> {
        let requests = self.0.iter();
        requests.filter(|it| self.count(&it.method, &it.path) == 1)
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

fn of_http1(connection: usize, steps: &[Step]) -> Vec<Request> {
    let mut reader = Reader::new(Role::Requests);
    for step in steps {
        if let Step::Send { bytes, .. } = step {
            reader.feed(&bytes.to_vec());
        }
    }
    let messages = reader.messages().iter().enumerate();
    let requests = messages.map(|(response, message)| {
        let part = |name| value(&message.fields, name).unwrap_or_default().to_vec();
        Request {
            connection,
            response,
            method: part(":method"),
            path: part(":path"),
            has_body: !message.body.is_empty(),
        }
    });
    requests.collect()
}

/// The request that a step begins.
fn of_http2(connection: usize, step: &Step) -> Option<Request> {
    match step {
        Step::Http2(Http2Step::Headers(block)) => Some(Request {
            connection,
            response: nth(block.stream),
            method: value(&block.fields, ":method")?.to_vec(),
            path: value(&block.fields, ":path").unwrap_or_default().to_vec(),
            has_body: !block.end,
        }),
        Step::Grpc(GrpcStep::Call { stream, path }) => Some(Request {
            connection,
            response: nth(*stream),
            method: b"POST".to_vec(),
            path: path.clone().into_bytes(),
            has_body: true,
        }),
        _ => None,
    }
}

/// The number of a client's stream among the ones that it may open, from 0.
fn nth(stream: Stream) -> usize {
    match stream {
        Stream::Nth(n) => n as usize - 1,
        Stream::Id(id) => id as usize / 2,
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
