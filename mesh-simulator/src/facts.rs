//! [`Facts`]: what the peers of a run have observed, as values that can be compared one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

use crate::message::{End, Message};
use crate::observation::{Ending, Observation, Observed};
use crate::script::{Field, Protocol, Side, code_name};

/// Everything that was observed in a run.
pub type Facts = BTreeMap<Key, Vec<u8>>;

/// How a message ends whose observer has reset its stream.
pub(crate) const LEFT: &str = "left";

/// Which fact.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub peer: Side,
    pub subject: Subject,
    pub aspect: Aspect,
}

/// The subject of a fact. Numbers are from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The peer itself.
    Peer,
    Connection(usize),
    /// A response, by the client's connection and the number of its request on it.
    Response(usize, usize),
    /// A request, by its number among all that have arrived.
    Request(usize),
}

/// The property of its subject that a fact is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aspect {
    /// How many connections a server has accepted.
    Connections,
    /// The error of `connect`.
    Refused,
    /// A pseudo-header field, or the same part of a start line.
    Pseudo(String),
    /// The lines of all fields of a name, which is in lower case.
    Field(String),
    /// The names of the fields, in their order, without the ones that describe the connection.
    Order,
    /// An interim response, by its number.
    Interim(usize),
    /// All bytes of a connection without messages.
    Bytes,
    Body,
    Trailer(String),
    /// Why a strict reader refuses the message.
    Irregular,
    /// How the message ends.
    End,
    /// What follows an upgrade or CONNECT.
    Tunnel,
    GoAway,
    Malformed,
    /// How the connection ends: without messages, in a tunnel, or within a message.
    Ending,
    /// The same between two messages.
    IdleEnding,
    /// The step of the script that has not completed.
    StoppedAt,
}

/// A fact that two runs do not share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: Key,
    /// `None` if only the run through the mesh has the fact.
    pub direct: Option<Vec<u8>>,
    /// `None` if only the direct run has it.
    pub mesh: Option<Vec<u8>>,
}

/// All facts of a run.
pub fn of_run(run: &Observed, protocol: Protocol) -> Facts {
    let mut facts = Collector(Facts::new());
    for (index, client) in run.clients.iter().enumerate() {
        facts.connection(Side::Client, index + 1, client, protocol);
        for (n, message) in client.messages.iter().enumerate() {
            let subject = Subject::Response(index + 1, n + 1);
            facts.message(Side::Client, subject, message, client.ending);
        }
    }
    let connections = run.servers.len().to_string();
    facts.add(
        Side::Server,
        Subject::Peer,
        Aspect::Connections,
        connections,
    );
    for (index, server) in run.servers.iter().enumerate() {
        facts.connection(Side::Server, index + 1, server, protocol);
    }
    let mut requests: Vec<(&Message, Ending)> = Vec::new();
    for server in &run.servers {
        requests.extend(
            server
                .messages
                .iter()
                .map(|message| (message, server.ending)),
        );
    }
    requests.sort_by_key(|(message, _)| message.order);
    for (n, (message, ending)) in requests.into_iter().enumerate() {
        facts.message(Side::Server, Subject::Request(n + 1), message, ending);
    }
    facts.0
}

/// The fact of the same subject with another aspect.
pub(crate) fn sibling<'a>(facts: &'a Facts, key: &Key, aspect: Aspect) -> Option<&'a [u8]> {
    let key = Key {
        aspect,
        ..key.clone()
    };
    facts.get(&key).map(Vec::as_slice)
}

/// The names of fields that both messages have, in the order of each.
pub(crate) fn shared_names(left: &[u8], right: &[u8]) -> [Vec<Vec<u8>>; 2] {
    let names = |value: &[u8]| {
        let names = value.split(|byte| *byte == b'\n');
        names.map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let (left, right) = (names(left), names(right));
    let shared = |of: &[Vec<u8>], with: &[Vec<u8>]| {
        let of = of.iter().filter(|name| with.contains(name));
        of.cloned().collect::<Vec<_>>()
    };
    [shared(&left, &right), shared(&right, &left)]
}

struct Collector(Facts);

impl Collector {
    fn add(&mut self, peer: Side, subject: Subject, aspect: Aspect, value: impl Into<Vec<u8>>) {
        let key = Key {
            peer,
            subject,
            aspect,
        };
        self.0.insert(key, value.into());
    }

    fn connection(&mut self, peer: Side, n: usize, seen: &Observation, protocol: Protocol) {
        let mut add =
            |aspect, value: Vec<u8>| self.add(peer, Subject::Connection(n), aspect, value);
        if let Some(error) = &seen.refused {
            add(Aspect::Refused, error.clone().into());
            return;
        }
        if protocol == Protocol::Tcp {
            add(Aspect::Bytes, seen.bytes.clone());
        }
        if let Some(tunnel) = &seen.tunnel {
            add(Aspect::Tunnel, tunnel.clone());
        }
        if let Some(reason) = &seen.malformed {
            add(Aspect::Malformed, reason.clone().into());
        }
        if let Some((number, step)) = &seen.stopped_at {
            add(Aspect::StoppedAt, format!("{number}: {step}").into());
        }
        let goaways = seen.goaways.iter();
        let goaways: Vec<String> = goaways.map(|(_, code)| code_name(*code)).collect();
        if !goaways.is_empty() {
            add(Aspect::GoAway, goaways.join(", ").into());
        }
        let is_cut = seen
            .messages
            .last()
            .is_some_and(|it| it.end != End::Complete);
        if peer == Side::Server && seen.is_within_message && is_cut {
            // The end of the request says so, whichever connection it came on.
            return;
        }
        let is_idle = protocol != Protocol::Tcp && seen.tunnel.is_none() && !seen.is_within_message;
        let aspect = if is_idle {
            Aspect::IdleEnding
        } else {
            Aspect::Ending
        };
        add(aspect, seen.ending.name().into());
    }

    fn message(&mut self, peer: Side, subject: Subject, message: &Message, ending: Ending) {
        let mut add = |aspect, value: Vec<u8>| self.add(peer, subject, aspect, value);
        for (index, section) in message.interim.iter().enumerate() {
            let lines: Vec<Vec<u8>> = section.iter().map(line).collect();
            add(Aspect::Interim(index + 1), lines.join(&b'\n'));
        }
        let is_pseudo = |name: &[u8]| name.starts_with(b":");
        for (name, value) in message.fields.iter().filter(|(name, _)| is_pseudo(name)) {
            add(Aspect::Pseudo(text(&name[1..])), value.clone());
        }
        let fields = message.fields.iter().filter(|(name, _)| !is_pseudo(name));
        let fields: Vec<&Field> = fields.collect();
        let of_connection = of_connection(&fields);
        let order = fields.iter().map(|(name, _)| lower(name));
        let order: Vec<String> = order.filter(|name| !of_connection.contains(name)).collect();
        for (name, lines) in by_name(fields.into_iter()) {
            add(Aspect::Field(name), lines);
        }
        for (name, lines) in by_name(message.trailers.iter()) {
            add(Aspect::Trailer(name), lines);
        }
        if !message.fields.is_empty() {
            add(Aspect::Order, order.join("\n").into());
            add(Aspect::Body, message.body.clone());
        }
        if let Some(reason) = message.irregular {
            add(Aspect::Irregular, reason.into());
        }
        let end = match (message.end, message.reset) {
            (End::Open, _) => "open".to_owned(),
            (End::Complete, None) => "complete".to_owned(),
            (End::Complete, Some(code)) => format!("complete, then {}", code_name(code)),
            (End::Left, _) => LEFT.to_owned(),
            (End::Cut, _) => format!("cut by {}", ending.name()),
            (End::Reset, code) => format!("reset with {}", code_name(code.unwrap_or_default())),
        };
        add(Aspect::End, end.into());
    }
}

/// Fields that describe one connection (RFC 9110, section 7.6.1), beside the ones that `connection`
/// lists.
pub(crate) const OF_CONNECTION: [&str; 6] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// The names of the fields that describe the connection.
fn of_connection(fields: &[&Field]) -> BTreeSet<String> {
    let lists = fields
        .iter()
        .filter(|(name, _)| lower(name) == "connection");
    let options = lists.flat_map(|(_, value)| value.split(|byte| *byte == b','));
    let options = options.map(|option| lower(option.trim_ascii()));
    options.chain(OF_CONNECTION.map(str::to_owned)).collect()
}

/// The lines of each name.
fn by_name<'a>(fields: impl Iterator<Item = &'a Field>) -> BTreeMap<String, Vec<u8>> {
    let mut names: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for field in fields {
        let lines = names.entry(lower(&field.0)).or_default();
        if !lines.is_empty() {
            lines.push(b'\n');
        }
        lines.extend(line(field));
    }
    names
}

fn line((name, value): &Field) -> Vec<u8> {
    [name, &b": "[..], value].concat()
}

fn lower(name: &[u8]) -> String {
    text(&name.to_ascii_lowercase())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Display for Key {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let peer = match self.peer {
            Side::Client => "client",
            Side::Server => "server",
        };
        match self.subject {
            Subject::Peer => write!(f, "{peer}")?,
            Subject::Connection(n) => write!(f, "{peer}, connection {n}")?,
            Subject::Response(connection, n) => write!(f, "{peer}, response {n} on {connection}")?,
            Subject::Request(n) => write!(f, "{peer}, request {n}")?,
        }
        write!(f, ": {}", self.aspect)
    }
}

impl Display for Aspect {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Connections => "connections",
            Self::Refused => "refused",
            Self::Pseudo(name) => return write!(f, "{name}"),
            Self::Field(name) => return write!(f, "field {name}"),
            Self::Order => "order of fields",
            Self::Interim(n) => return write!(f, "interim response {n}"),
            Self::Bytes => "bytes",
            Self::Body => "body",
            Self::Trailer(name) => return write!(f, "trailer {name}"),
            Self::Irregular => "irregular",
            Self::End => "end",
            Self::Tunnel => "bytes of the tunnel",
            Self::GoAway => "GOAWAY",
            Self::Malformed => "malformed",
            Self::Ending => "end of the connection",
            Self::IdleEnding => "end of the idle connection",
            Self::StoppedAt => "stopped at step",
        };
        f.write_str(name)
    }
}
