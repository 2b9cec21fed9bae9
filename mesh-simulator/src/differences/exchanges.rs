//! Exchanges that a proxy fails, refuses, corrects or repeats.

use super::{Context, client_connection, ended_by_server, sibling, starts_with};
use crate::facts::{Aspect, Change, Facts, Key, Subject};
use crate::http1::{
    BARE_LINE_FEED, BLANK_BEFORE_COLON, FRAMING_WITHOUT_CONTENT, IDENTITY, LENGTH_AND_CHUNKED,
    REPEATED_LENGTH,
};
use crate::observation::Ending;
use crate::script::Side;
use crate::world::Position;

/// The status of the response that a fact belongs to.
fn status<'a>(facts: &'a Facts, change: &Change) -> Option<&'a [u8]> {
    sibling(facts, &change.key, Aspect::Pseudo("status".to_owned()))
}

/// Whether the client's connection has a response of one of these statuses.
fn has_status(facts: &Facts, connection: &Key, statuses: &[&[u8]]) -> bool {
    facts.iter().any(|(key, value)| {
        let is_of_connection =
            client_connection(key).is_some_and(|it| it.subject == connection.subject);
        is_of_connection
            && key.aspect == Aspect::Pseudo("status".to_owned())
            && statuses.contains(&value.as_slice())
    })
}

/// Whether a change is about how the client's connection ends.
fn is_end_of_connection(change: &Change) -> bool {
    matches!(change.key.subject, Subject::Connection(_))
        && matches!(
            change.key.aspect,
            Aspect::Refused | Aspect::Ending | Aspect::IdleEnding | Aspect::StoppedAt
        )
}

/// The proxy's response, and what follows from it for the connection.
pub(super) fn is_failed_exchange(context: &Context<'_>, change: &Change) -> bool {
    let Some(connection) = client_connection(&change.key) else {
        return false;
    };
    if !ended_by_server(context.direct, &connection) {
        return false;
    }
    let statuses: [&[u8]; 2] = [b"502", b"504"];
    if matches!(change.key.subject, Subject::Response(..)) {
        let is_gateways = status(context.mesh, change).is_some_and(|it| statuses.contains(&it));
        // A reset discards bytes in flight, perhaps all of a response.
        let is_lost = sibling(context.direct, &change.key, Aspect::End) == Some(b"cut by RST");
        return is_gateways && (status(context.direct, change).is_none() || is_lost);
    }
    is_end_of_connection(change)
        && has_status(context.mesh, &connection, &statuses)
        && !has_status(context.direct, &connection, &statuses)
}

/// Whether a strict reader has refused what a peer has received.
fn is_malformed(facts: &Facts, peer: Side) -> bool {
    let mut keys = facts.keys();
    keys.any(|key| key.peer == peer && key.aspect == Aspect::Malformed)
}

pub(super) fn is_refused_request(context: &Context<'_>, change: &Change) -> bool {
    if !is_malformed(context.direct, Side::Server) || is_malformed(context.mesh, Side::Server) {
        return false;
    }
    let statuses: [&[u8]; 4] = [b"400", b"431", b"501", b"505"];
    match change.key.subject {
        Subject::Response(..) => {
            status(context.mesh, change).is_some_and(|status| statuses.contains(&status))
        }
        // The server has seen a connection, and no request of it.
        Subject::Connection(_) if change.key.peer == Side::Server => true,
        Subject::Connection(_) => is_end_of_connection(change),
        // The beginning that the direct server has read.
        Subject::Request(_) => {
            let end = sibling(context.direct, &change.key, Aspect::End);
            end.is_some_and(|end| end != b"complete") && change.mesh.is_none()
        }
        Subject::Peer => false,
    }
}

/// Forms of responses that every proxy corrects.
const CORRECTED: [&str; 2] = [FRAMING_WITHOUT_CONTENT, REPEATED_LENGTH];
/// Forms that only the proxy of the application corrects. Others refuse them.
const CORRECTED_BESIDE_APPLICATION: [&str; 4] = [
    BARE_LINE_FEED,
    BLANK_BEFORE_COLON,
    IDENTITY,
    LENGTH_AND_CHUNKED,
];

/// Why a strict reader refuses the direct response that a fact belongs to.
fn irregular<'a>(context: &'a Context<'_>, key: &Key) -> Option<&'a [u8]> {
    sibling(context.direct, key, Aspect::Irregular)
}

fn is_in(list: &[&str], reason: &[u8]) -> bool {
    list.iter().any(|it| it.as_bytes() == reason)
}

fn is_correctable(context: &Context<'_>, reason: &[u8]) -> bool {
    is_in(&CORRECTED, reason)
        || (context.position.has_server_proxy() && is_in(&CORRECTED_BESIDE_APPLICATION, reason))
}

/// The framing of a response, whose meaning stays.
pub(super) fn is_corrected(context: &Context<'_>, change: &Change) -> bool {
    let Some(reason) = irregular(context, &change.key) else {
        return false;
    };
    let is_framing = change.key.aspect == Aspect::Irregular
        || change.key.aspect == Aspect::Field("content-length".to_owned());
    is_framing
        && sibling(context.mesh, &change.key, Aspect::Irregular).is_none()
        && status(context.mesh, change) == status(context.direct, change)
        && is_correctable(context, reason)
}

/// A response that the direct client reads leniently or not at all: the client gets a 502 in its
/// place, or less of its content.
pub(super) fn is_refused_response(context: &Context<'_>, change: &Change) -> bool {
    let Some(connection) = client_connection(&change.key) else {
        return false;
    };
    let Some(refused) = first_refused(context, &connection) else {
        return false;
    };
    let end = |facts| status_of(facts, &refused);
    let is_gateways = end(context.mesh) == Some(b"502");
    let (direct, mesh) = (&change.direct, &change.mesh);
    match (&change.key.subject, &change.key.aspect) {
        (subject, _) if *subject == refused.subject && is_gateways => true,
        (subject, Aspect::Body) if *subject == refused.subject => {
            starts_with(direct.as_deref(), mesh.as_deref())
        }
        (subject, Aspect::End) if *subject == refused.subject => mesh
            .as_deref()
            .is_some_and(|end| end.starts_with(b"cut by ")),
        (Subject::Connection(_), Aspect::Malformed | Aspect::Tunnel) => mesh.is_none(),
        (Subject::Connection(_), _) => is_end_of_connection(change),
        _ => false,
    }
}

fn status_of<'a>(facts: &'a Facts, response: &Key) -> Option<&'a [u8]> {
    sibling(facts, response, Aspect::Pseudo("status".to_owned()))
}

/// The first response on a client's connection that the proxy may refuse.
fn first_refused(context: &Context<'_>, connection: &Key) -> Option<Key> {
    let of_connection = |key: &&Key| {
        let is_response = matches!(key.subject, Subject::Response(..));
        let it = client_connection(key);
        is_response && it.is_some_and(|it| it.subject == connection.subject)
    };
    let is_refused = |key: &Key| {
        let reason = irregular(context, key);
        // Codings of a response without content are corrected or refused.
        let is_framing = |reason: &[u8]| reason == FRAMING_WITHOUT_CONTENT.as_bytes();
        reason.is_some_and(|reason| !is_correctable(context, reason) || is_framing(reason))
    };
    let ends = context.direct.keys().filter(of_connection);
    let mut ends = ends.filter(|key| key.aspect == Aspect::End).cloned();
    let is_malformed = sibling(context.direct, connection, Aspect::Malformed).is_some();
    if let Some(irregular) = ends.clone().find(is_refused) {
        return Some(irregular);
    }
    let is_complete = |key: &Key| {
        context
            .direct
            .get(key)
            .is_some_and(|end| end == b"complete")
    };
    let incomplete = ends.find(|key| !is_complete(key));
    let after_last = || {
        let Subject::Connection(n) = connection.subject else {
            return None;
        };
        let count = context.direct.keys().filter(of_connection);
        let count = count.filter(|key| key.aspect == Aspect::End).count();
        Some(Key {
            subject: Subject::Response(n, count + 1),
            ..connection.clone()
        })
    };
    is_malformed.then(|| incomplete.or_else(after_last))?
}

/// Another request like one that has been sent, without a body.
pub(super) fn is_repeated(context: &Context<'_>, change: &Change) -> bool {
    let Subject::Request(_) = change.key.subject else {
        return false;
    };
    // The direct server has fewer requests.
    if sibling(context.direct, &change.key, Aspect::End).is_some() {
        return false;
    }
    let Some((method, path)) = request_line(context.mesh, &change.key) else {
        return false;
    };
    let requests = context.mesh.keys().filter(|key| {
        matches!(key.subject, Subject::Request(_))
            && key.aspect == Aspect::End
            && request_line(context.mesh, key) == Some((method, path))
    });
    let sent = context.requests.count(method, path);
    let repeats = requests.count().saturating_sub(sent);
    let is_idempotent = matches!(
        method,
        b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE" | b"PUT" | b"DELETE"
    );
    let has_body = context.requests.have_body(method, path);
    // The inbound proxy repeats on each connection that the application closes together.
    let most_lost = if context.position.has_server_proxy() {
        3
    } else {
        1
    };
    let is_lost = is_idempotent && has_reused_connection(context.direct) && repeats <= most_lost;
    // Each proxy sends it twice.
    let most_refused = if context.position == Position::Both {
        3
    } else {
        1
    };
    let is_refused = is_refused_by_server(context.direct) && repeats <= most_refused;
    repeats > 0 && sent > 0 && !has_body && (is_lost || is_refused)
}

fn request_line<'a>(facts: &'a Facts, key: &Key) -> Option<(&'a [u8], &'a [u8])> {
    let part = |name: &str| sibling(facts, key, Aspect::Pseudo(name.to_owned()));
    Some((part("method")?, part("path")?))
}

/// Whether the server has ended a connection on which it had responded. A client that has left
/// before does not see that, but the server has read another request on it.
fn has_reused_connection(direct: &Facts) -> bool {
    let sees_end = direct.keys().any(|key| {
        key.subject == Subject::Response(1, 1)
            && key.aspect == Aspect::End
            && client_connection(key).is_some_and(|it| ended_by_server(direct, &it))
    });
    let closes = direct.iter().any(|(key, ending)| {
        key.peer == Side::Server
            && matches!(key.aspect, Aspect::Ending | Aspect::IdleEnding)
            && [Ending::Own, Ending::Fin]
                .iter()
                .any(|it| ending == it.name().as_bytes())
    });
    let has_second = direct.keys().any(|key| key.subject == Subject::Request(2));
    sees_end || (closes && has_second)
}

/// Whether the server says that it has not processed a request.
fn is_refused_by_server(direct: &Facts) -> bool {
    direct.iter().any(|(key, value)| {
        key.peer == Side::Client
            && (key.aspect == Aspect::GoAway || value == b"reset with REFUSED_STREAM")
    })
}
