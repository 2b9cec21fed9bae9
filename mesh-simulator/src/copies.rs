//! What a mirror may receive: a copy of each request at most, whole or broken off.

use std::collections::BTreeMap;

use crate::facts::Facts;
use crate::message::{End, Message, value};
use crate::requests::Requests;
use crate::retries::{self, Seen};

/// The rules that copies have broken.
pub(crate) fn broken(requests: &Requests, direct: &[Facts], copies: &[Message]) -> Vec<String> {
    let whole = retries::seen_in(direct);
    let mut counts: BTreeMap<(&[u8], &[u8]), usize> = BTreeMap::new();
    let mut broken = Vec::new();
    for copy in copies.iter().filter(|copy| !copy.fields.is_empty()) {
        let part = |name| value(&copy.fields, name).unwrap_or_default();
        let copy = Seen {
            method: part(":method"),
            path: part(":path"),
            body: &copy.body,
            is_complete: copy.end == End::Complete,
        };
        let (name, bytes) = (copy.name(), copy.body.len());
        if copy.has_another_body(&whole) {
            broken.push(format!("a copy of {name} with another body, {bytes} bytes"));
        }
        // Zero if a strict reader does not read it as a request.
        let sent = requests.count(copy.method, copy.path);
        let count = counts.entry((copy.method, copy.path)).or_default();
        *count += 1;
        if sent > 0 && *count > sent {
            broken.push(format!("{count} copies of {sent} requests {name}"));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts;
    use crate::observation::{Observation, Observed};
    use crate::script::{Protocol, Script, field};

    fn request(body: &str, end: End) -> Message {
        let mut message = Message {
            body: body.into(),
            end,
            ..Message::default()
        };
        message.add_section(vec![field(":method", "PUT"), field(":path", "/a")]);
        message
    }

    #[test]
    fn copies_are_single_and_whole() {
        let text = "protocol http1\nclient:\n  send \"PUT /a HTTP/1.1\\r\\ncontent-length: 2\\r\\n\
                    \\r\\nhi\"\nserver:\n";
        let requests = Requests::of(&Script::parse(text).expect("a script"));
        let server = Observation {
            messages: vec![request("hi", End::Complete)],
            ..Observation::default()
        };
        let direct = Observed {
            clients: Vec::new(),
            servers: vec![server],
        };
        let direct = [facts::of_run(&direct, Protocol::Http1)];
        for (copies, expected) in [
            (vec![request("hi", End::Complete)], 0),
            (vec![request("h", End::Cut)], 0),
            (vec![request("", End::Complete)], 1),
            (vec![request("hi", End::Complete); 2], 1),
        ] {
            let found = broken(&requests, &direct, &copies);
            assert_eq!(found.len(), expected, "{found:?}");
        }
    }
}
