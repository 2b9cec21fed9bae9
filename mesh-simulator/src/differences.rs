//! The differences between direct and through the mesh that are allowed, each with its reason.
//! `compare` asks for the row of a change; docs/reference/differences.md is printed from the rows.

mod document;
mod ends;
mod exchanges;
mod fields;
mod http;
mod tcp;

use mesh_proxy::simulation::Feature;

pub use self::document::render;
use crate::facts::{Aspect, Change, Facts, Key, Subject, sibling};
use crate::requests::Requests;
use crate::script::{Protocol, Side};
use crate::world::Position;

/// An allowed difference. Texts are Markdown without line breaks.
pub struct Difference {
    /// Lower case, with hyphens.
    pub name: &'static str,
    pub what: &'static str,
    /// The section of an RFC, or the reason of security.
    pub why: &'static str,
    pub affected: &'static str,
    /// A script of the corpus that shows it, without its extension.
    pub script: &'static str,
    /// The work that would remove the difference.
    pub removal: &'static str,
    applies: fn(&Context<'_>, &Change) -> bool,
}

/// Two runs of a script.
pub struct Context<'a> {
    pub protocol: Protocol,
    pub position: Position,
    pub features: &'a [Feature],
    /// What the script's clients send.
    pub requests: &'a Requests,
    pub direct: &'a Facts,
    pub mesh: &'a Facts,
}

/// All rows, in the order of the document.
pub fn all() -> impl Iterator<Item = &'static Difference> {
    tcp::ROWS.iter().chain(&http::ROWS)
}

/// The row that allows a change.
pub fn find(context: &Context<'_>, change: &Change) -> Option<&'static Difference> {
    all().find(|row| (row.applies)(context, change))
}

/// The connection of the response or connection that a client's fact belongs to.
fn client_connection(key: &Key) -> Option<Key> {
    let (Subject::Response(n, _) | Subject::Connection(n)) = key.subject else {
        return None;
    };
    (key.peer == Side::Client).then(|| Key {
        subject: Subject::Connection(n),
        ..key.clone()
    })
}

/// Whether the server has refused or ended a client's connection.
fn ended_by_server(facts: &Facts, connection: &Key) -> bool {
    let aspects = [Aspect::Refused, Aspect::Ending, Aspect::IdleEnding];
    aspects.into_iter().any(|aspect| {
        let is_refused = aspect == Aspect::Refused;
        let value = sibling(facts, connection, aspect);
        value.is_some_and(|value| is_refused || matches!(value, b"FIN" | b"RST"))
    })
}

fn starts_with(whole: Option<&[u8]>, part: Option<&[u8]>) -> bool {
    matches!((whole, part), (Some(whole), Some(part)) if whole.starts_with(part))
}

/// The number of connections that the server has accepted.
fn accepted(facts: &Facts) -> usize {
    let key = Key {
        peer: Side::Server,
        subject: Subject::Peer,
        aspect: Aspect::Connections,
    };
    let value = facts
        .get(&key)
        .and_then(|value| std::str::from_utf8(value).ok());
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
