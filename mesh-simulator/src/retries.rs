//! What a server may see of requests that the client's proxy retries. Its responses depend on how
//! often it was asked, so that such a run cannot be compared with a direct one.

use std::collections::BTreeMap;

use mesh_proxy::simulation::{MAX_REPLAY, MAX_RETRIES};

use crate::facts::{Aspect, Facts, Key, Subject};
use crate::message::{Message, value};
use crate::observation::Observed;
use crate::requests::Requests;
use crate::script::{Http2Step, Script, Side, Step};
use crate::world::Position;

/// How often each proxy sends an attempt if the server says that it has not processed it.
const MAX_SENDS: usize = 2;

/// How often the proxies together send an attempt whose connections the server closes without a
/// response: the server's proxy up to four times (ADR 0211).
const MAX_LOST_SENDS: usize = 4;

/// A request as a server has seen it.
pub(crate) struct Seen<'a> {
    pub(crate) method: &'a [u8],
    pub(crate) path: &'a [u8],
    pub(crate) body: &'a [u8],
    pub(crate) is_complete: bool,
}

impl Seen<'_> {
    /// Method and path.
    pub(crate) fn name(&self) -> String {
        let name = [self.method, self.path].join(&b' ');
        String::from_utf8_lossy(&name).into_owned()
    }

    /// Whether it is complete, and every complete one of its name has another body.
    pub(crate) fn has_another_body(&self, than: &[Seen<'_>]) -> bool {
        let is_alike =
            |it: &&Seen<'_>| (it.method, it.path) == (self.method, self.path) && it.is_complete;
        let mut alike = than.iter().filter(is_alike).peekable();
        self.is_complete && alike.peek().is_some() && alike.all(|it| it.body != self.body)
    }
}

/// The most attempts that a server sees of a request. It may say that it has not processed one (RFC
/// 9113, sections 6.8 and 8.7), or close the connections.
pub(crate) fn most(script: &Script, position: Position) -> usize {
    let does = |is_it: fn(&Step) -> bool| {
        let mut steps = script.parts().skip(script.clients.len()).flatten();
        steps.any(is_it)
    };
    let may_refuse = does(|step| {
        matches!(
            step,
            Step::Http2(Http2Step::GoAway { .. } | Http2Step::ResetStream { .. })
        )
    });
    let may_lose = does(|step| matches!(step, Step::Close | Step::Reset | Step::Finish));
    let refused_sends = match position {
        _ if !may_refuse => 1,
        Position::Both => MAX_SENDS * MAX_SENDS,
        Position::Direct | Position::Outbound | Position::Inbound => MAX_SENDS,
    };
    let lost_sends = if may_lose { MAX_LOST_SENDS } else { 1 };
    (1 + usize::from(MAX_RETRIES)) * refused_sends.max(lost_sends)
}

/// Whether a server has seen a request more often than the clients have sent it.
pub(crate) fn are_there(requests: &Requests, mesh: &Facts) -> bool {
    let seen = seen(mesh);
    seen.iter().any(|request| {
        let sent = requests.count(request.method, request.path);
        let alike = |it: &&Seen<'_>| (it.method, it.path) == (request.method, request.path);
        sent > 0 && seen.iter().filter(alike).count() > sent
    })
}

/// Whether a client got an error of its proxy in place of a server's: the attempt that followed was
/// lost on a connection that the server closed, and no server has seen it.
pub(crate) fn were_lost(direct: &[Facts], mesh: &Facts) -> bool {
    let status = Aspect::Pseudo("status".to_owned());
    mesh.iter().any(|(key, value)| {
        let is_proxys = key.peer == Side::Client && key.aspect == status && value == b"502";
        let mut servers = direct.iter().filter_map(|run| run.get(key));
        is_proxys && servers.any(|it| it.starts_with(b"5") && it != b"502")
    })
}

/// The rules that attempts have broken: there are at most `most` of a request, each has the whole
/// body or breaks off, and none follows one with more than 64 KiB of the body.
pub(crate) fn broken(
    requests: &Requests,
    most: usize,
    direct: &[Facts],
    mesh: &Facts,
) -> Vec<String> {
    let mut broken = Vec::new();
    let whole = seen_in(direct);
    let mut attempts: BTreeMap<(&[u8], &[u8]), Vec<usize>> = BTreeMap::new();
    for attempt in seen(mesh) {
        let Seen { method, path, .. } = attempt;
        if attempt.has_another_body(&whole) {
            let (name, bytes) = (attempt.name(), attempt.body.len());
            broken.push(format!(
                "an attempt of {name} with another body, {bytes} bytes"
            ));
        }
        // Zero if a strict reader does not read it as a request.
        let sent = requests.count(method, path);
        let earlier = attempts.entry((method, path)).or_default();
        if sent == 1 && earlier.iter().any(|body| *body > MAX_REPLAY) {
            let name = attempt.name();
            broken.push(format!("{name} was sent again after a large body"));
        }
        earlier.push(attempt.body.len());
        let count = earlier.len();
        if sent > 0 && count > most * sent {
            let name = attempt.name();
            broken.push(format!("{count} attempts of {sent} requests {name}"));
        }
    }
    broken
}

/// Attempts that the server has received after the client a byte of the response.
pub(crate) fn after_response(requests: &Requests, observed: &Observed) -> Vec<String> {
    let mut late = Vec::new();
    for request in requests.single() {
        let client = observed.clients.get(request.connection);
        let response = client.and_then(|client| client.messages.get(request.response));
        let Some(response) = response.filter(|response| is_servers(response)) else {
            continue;
        };
        let attempts = observed.servers.iter().flat_map(|server| &server.messages);
        let is_attempt = |message: &&Message| {
            let part = |name| value(&message.fields, name);
            part(":method") == Some(&*request.method) && part(":path") == Some(&*request.path)
        };
        if attempts
            .filter(is_attempt)
            .any(|it| it.order > response.order)
        {
            let name = [&*request.method, &*request.path].join(&b' ');
            let name = String::from_utf8_lossy(&name);
            late.push(format!("{name} was sent again after its response"));
        }
    }
    late
}

/// Whether a response has begun, and a server has made it. A proxy that gives up may respond while
/// an attempt is on its way.
fn is_servers(response: &Message) -> bool {
    let is_error = value(&response.fields, ":status").is_some_and(|it| it.starts_with(b"5"));
    let may_be_proxys = response.fields.is_empty() || is_error && response.body.is_empty();
    !response.interim.is_empty() || !may_be_proxys
}

/// The requests that the servers of several runs have seen.
pub(crate) fn seen_in(runs: &[Facts]) -> Vec<Seen<'_>> {
    runs.iter().flat_map(seen).collect()
}

fn seen(facts: &Facts) -> Vec<Seen<'_>> {
    let of = |subject, aspect| {
        let peer = Side::Server;
        let fact = facts.get(&Key {
            peer,
            subject,
            aspect,
        });
        fact.map(Vec::as_slice).unwrap_or_default()
    };
    let part = |name: &str| Aspect::Pseudo(name.to_owned());
    let subjects = (1..).map(Subject::Request);
    let is_there = |subject: &Subject| !of(*subject, part("method")).is_empty();
    let subjects = subjects.take_while(is_there);
    let requests = subjects.map(|subject| Seen {
        method: of(subject, part("method")),
        path: of(subject, part("path")),
        body: of(subject, Aspect::Body),
        is_complete: of(subject, Aspect::End) == b"complete",
    });
    requests.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::Observation;
    use crate::script::field;

    fn facts(requests: &[(&str, &str)]) -> Facts {
        let facts = requests.iter().enumerate().flat_map(|(n, (body, end))| {
            let subject = Subject::Request(n + 1);
            let part = |name: &str| Aspect::Pseudo(name.to_owned());
            let of = move |aspect, value: &str| {
                let peer = Side::Server;
                let key = Key {
                    peer,
                    subject,
                    aspect,
                };
                (key, value.as_bytes().to_vec())
            };
            [
                of(part("method"), "PUT"),
                of(part("path"), "/a"),
                of(Aspect::Body, body),
                of(Aspect::End, end),
            ]
        });
        facts.collect()
    }

    #[test]
    fn attempts_are_few_and_whole() {
        let text = "protocol http1\nclient:\n  send \"PUT /a HTTP/1.1\\r\\ncontent-length: 2\\r\\n\
                    \\r\\nhi\"\nserver:\n";
        let requests = Requests::of(&Script::parse(text).expect("a script"));
        let direct = [facts(&[("hi", "complete")])];
        let whole = ("hi", "complete");
        for (attempts, expected) in [
            (vec![whole; 3], 0),
            (vec![whole, ("h", "cut")], 0),
            (vec![whole; 4], 1),
            (vec![whole, ("", "complete")], 1),
        ] {
            let mesh = facts(&attempts);
            assert!(are_there(&requests, &mesh));
            assert_eq!(
                broken(&requests, 3, &direct, &mesh).len(),
                expected,
                "{attempts:?}"
            );
        }
        assert!(!are_there(&requests, &direct[0]));
    }

    #[test]
    fn lost_attempt_is_seen_by_its_status() {
        let response = |status: &str| -> Facts {
            let key = Key {
                peer: Side::Client,
                subject: Subject::Response(1, 1),
                aspect: Aspect::Pseudo("status".to_owned()),
            };
            [(key, status.as_bytes().to_vec())].into()
        };
        for (direct, mesh, expected) in [
            ("500", "502", true),
            ("502", "502", false),
            ("200", "502", false),
            ("500", "503", false),
        ] {
            let lost = were_lost(&[response(direct)], &response(mesh));
            assert_eq!(lost, expected, "{direct}, {mesh}");
        }
    }

    #[test]
    fn attempt_after_the_response_is_found() {
        let text = "protocol http1\nclient:\n  send \"GET /a HTTP/1.1\\r\\n\\r\\n\"\nserver:\n";
        let requests = Requests::of(&Script::parse(text).expect("a script"));
        let message = |order, fields: &[(&str, &str)]| {
            let fields = fields.iter();
            let fields = fields.map(|(name, value)| field(name, value)).collect();
            let mut message = Message {
                order,
                ..Message::default()
            };
            message.add_section(fields);
            message
        };
        let attempt = |order| message(order, &[(":method", "GET"), (":path", "/a")]);
        let run = |client: Vec<Message>, server: Vec<Message>| Observed {
            clients: vec![observation(client)],
            servers: vec![observation(server)],
        };
        let response = || vec![message(2, &[(":status", "103")])];
        let before = run(response(), vec![attempt(0), attempt(1)]);
        assert_eq!(after_response(&requests, &before), Vec::<String>::new());
        let without = run(Vec::new(), vec![attempt(0), attempt(1)]);
        assert_eq!(after_response(&requests, &without), Vec::<String>::new());
        let after = run(response(), vec![attempt(0), attempt(3)]);
        let found = after_response(&requests, &after);
        assert_eq!(found, ["GET /a was sent again after its response"]);
    }

    fn observation(messages: Vec<Message>) -> Observation {
        Observation {
            messages,
            ..Observation::default()
        }
    }
}
