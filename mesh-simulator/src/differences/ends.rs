//! Ends of connections and streams, and the connections that requests share.

use super::{Context, accepted, client_connection, ended_by_server, sibling, starts_with};
use crate::facts::{Aspect, Change, Facts, Key, Subject};
use crate::script::{Protocol, Side};

pub(super) fn is_pooling(context: &Context<'_>, change: &Change) -> bool {
    if context.protocol == Protocol::Tcp {
        return false;
    }
    let counts = [context.direct, context.mesh].map(accepted);
    if counts[0] < counts[1] && is_answered_anew(context, change) {
        return true;
    }
    change.key.peer == Side::Server
        && match change.key.aspect {
            Aspect::Connections | Aspect::IdleEnding | Aspect::GoAway => true,
            // A connection with other requests than a direct one has other steps.
            Aspect::StoppedAt => {
                counts[0] != counts[1]
                    || waits_for_end_alone(change)
                    || waits_for_request(context, change)
            }
            _ => false,
        }
}

/// What follows a request that the proxy sends on a connection of its own, because it offers an
/// upgrade or is of HTTP/1.0. A script responds on each connection from its beginning, as to an
/// earlier request.
fn is_answered_anew(context: &Context<'_>, change: &Change) -> bool {
    let has_own_connection = context.direct.iter().any(|(key, value)| {
        matches!(key.subject, Subject::Request(_))
            && match &key.aspect {
                Aspect::Field(name) => name == "upgrade",
                Aspect::Pseudo(name) => name == "version" && value == b"HTTP/1.0",
                _ => false,
            }
    });
    if !has_own_connection {
        return false;
    }
    let response = |facts: &Facts, key: &Key| {
        let fact = |aspect| sibling(facts, key, aspect).map(<[u8]>::to_vec);
        (
            fact(Aspect::Pseudo("status".to_owned())),
            fact(Aspect::Body),
        )
    };
    let is_response = |key: &&Key| {
        key.peer == Side::Client
            && matches!(key.subject, Subject::Response(..))
            && key.aspect == Aspect::End
    };
    let is_anew = |key: &&Key| {
        let (new, old) = (response(context.mesh, key), response(context.direct, key));
        let mut earlier = context.direct.keys().filter(is_response);
        new != old && earlier.any(|it| response(context.direct, it) == new)
    };
    let mut anew = context.mesh.keys().filter(is_response).filter(is_anew);
    match change.key.subject {
        Subject::Response(connection, n) => anew.any(|it| {
            matches!(it.subject, Subject::Response(on, first) if on == connection && first <= n)
        }),
        Subject::Connection(n) => {
            anew.any(|it| matches!(it.subject, Subject::Response(on, _) if on == n))
        }
        // The client waits for more of that response.
        Subject::Request(_) => change.mesh.is_none() && anew.next().is_some(),
        Subject::Peer => false,
    }
}

/// The code of a client's reset after the end of its request.
pub(super) fn is_code_of_cancelling(_: &Context<'_>, change: &Change) -> bool {
    let direct = change.direct.as_deref().unwrap_or_default();
    matches!(change.key.subject, Subject::Request(_))
        && change.key.aspect == Aspect::End
        && direct.starts_with(b"complete, then ")
        && change.mesh.as_deref() == Some(b"complete, then CANCEL")
}

/// What follows a chunked response to a request of HTTP/1.0, which arrives without chunks.
pub(super) fn is_after_chunks(context: &Context<'_>, change: &Change) -> bool {
    let Some(Subject::Connection(connection)) = client_connection(&change.key).map(|it| it.subject)
    else {
        return false;
    };
    let response = |n| Key {
        peer: Side::Client,
        subject: Subject::Response(connection, n),
        aspect: Aspect::Pseudo("version".to_owned()),
    };
    let has = |facts: &Facts, n, name: &str| {
        sibling(facts, &response(n), Aspect::Field(name.to_owned())).is_some()
    };
    let mut responses = (1..).take_while(|n| context.direct.contains_key(&response(*n)));
    let first = responses.find(|n| {
        let version = context.mesh.get(&response(*n)).map(Vec::as_slice);
        version == Some(b"HTTP/1.0")
            && has(context.direct, *n, "transfer-encoding")
            && !has(context.mesh, *n, "transfer-encoding")
            && !has(context.mesh, *n, "content-length")
    });
    let Some(first) = first else {
        return false;
    };
    match change.key.subject {
        Subject::Response(_, n) => n > first && change.mesh.is_none(),
        _ => matches!(
            change.key.aspect,
            Aspect::Ending | Aspect::IdleEnding | Aspect::StoppedAt
        ),
    }
}

/// Whether a server waits for a request that has come on another connection.
fn waits_for_request(context: &Context<'_>, change: &Change) -> bool {
    let requests = |facts: &Facts| {
        let mut subjects: Vec<_> = facts.keys().map(|key| key.subject).collect();
        subjects.retain(|subject| matches!(subject, Subject::Request(_)));
        subjects.dedup();
        subjects.len()
    };
    let sides = [&change.direct, &change.mesh].into_iter().flatten();
    let mut steps = sides.map(|step| String::from_utf8_lossy(step));
    requests(context.direct) == requests(context.mesh)
        && steps.all(|step| step.contains(": wait message"))
}

/// Whether a peer waits for the end of a connection that the proxy keeps.
fn waits_for_end_alone(change: &Change) -> bool {
    let step = change.mesh.as_deref().unwrap_or_default();
    let waits = step.ends_with(b": wait end") || step.ends_with(b": wait goaway");
    change.direct.is_none() && waits
}

pub(super) fn is_after_response(context: &Context<'_>, change: &Change) -> bool {
    let is_request = matches!(change.key.subject, Subject::Request(_));
    let is_cut = |facts: &Facts| {
        let mut ends = facts.iter().filter(|(key, _)| {
            matches!(key.subject, Subject::Request(_)) && key.aspect == Aspect::End
        });
        ends.any(|(_, end)| end.starts_with(b"cut by "))
    };
    let is_end = is_request && change.key.aspect == Aspect::End;
    let is_body = is_request
        && change.key.aspect == Aspect::Body
        && starts_with(change.direct.as_deref(), change.mesh.as_deref());
    let is_connection = change.key.peer == Side::Server
        && matches!(change.key.aspect, Aspect::Ending | Aspect::StoppedAt);
    let is_responded = context.direct.iter().any(|(key, end)| {
        matches!(key.subject, Subject::Response(..))
            && key.aspect == Aspect::End
            && end == b"complete"
    });
    context.protocol == Protocol::Http1
        && is_responded
        && is_cut(context.mesh)
        && !is_cut(context.direct)
        && (is_end || is_body || is_connection)
}

pub(super) fn is_end_of_hop(context: &Context<'_>, change: &Change) -> bool {
    if context.protocol == Protocol::Tcp {
        return false;
    }
    if let Subject::Request(_) = change.key.subject {
        return is_later_request(context, change);
    }
    let Some(connection) = client_connection(&change.key) else {
        return false;
    };
    let is_in_tunnel = sibling(context.direct, &change.key, Aspect::Tunnel).is_some();
    let has_ended = ended_by_server(context.direct, &connection);
    match (change.key.subject, &change.key.aspect) {
        (_, Aspect::IdleEnding | Aspect::GoAway) => true,
        // A response that ends with the connection, whose end the proxy marks otherwise.
        (_, Aspect::Ending) if change.mesh.is_none() => !is_in_tunnel,
        // The streams on it have been reset.
        (_, Aspect::Ending) => {
            context.protocol == Protocol::Http2
                && has_ended
                && change.mesh.as_deref() == Some(b"open")
        }
        (_, Aspect::StoppedAt) => {
            waits_for_end_alone(change) || (has_ended && change.mesh.is_none())
        }
        // The response to a request that had no connection any more.
        (Subject::Response(_, n), _) => {
            let status = Aspect::Pseudo("status".to_owned());
            has_ended && n > 1 && sibling(context.direct, &change.key, status).is_none()
        }
        _ => false,
    }
}

/// A request of a client whose connection the server has ended after a response.
fn is_later_request(context: &Context<'_>, change: &Change) -> bool {
    let is_new = sibling(context.direct, &change.key, Aspect::End).is_none();
    let part = |facts, key: &Key, name: &str| {
        let part = sibling(facts, key, Aspect::Pseudo(name.to_owned()));
        part.map(<[u8]>::to_vec)
    };
    let line = |key: &Key| {
        Some((
            part(context.mesh, key, "method")?,
            part(context.mesh, key, "path")?,
        ))
    };
    let Some((method, path)) = line(&change.key) else {
        return false;
    };
    let alike = context.mesh.keys().filter(|key| {
        let is_request = matches!(key.subject, Subject::Request(_)) && key.aspect == Aspect::End;
        is_request && line(key) == Some((method.clone(), path.clone()))
    });
    let has_ended = context.direct.keys().any(|key| {
        matches!(key.subject, Subject::Response(_, 1))
            && client_connection(key).is_some_and(|it| ended_by_server(context.direct, &it))
    });
    is_new && has_ended && alike.count() <= context.requests.count(&method, &path)
}

pub(super) fn is_end_of_stream(context: &Context<'_>, change: &Change) -> bool {
    if context.protocol != Protocol::Http2 {
        return false;
    }
    if is_lost_call(context, change)
        || waits_for_reset_message(context, change)
        || is_end_after_reset(context, change)
    {
        return true;
    }
    let (Some(direct), Some(mesh)) = (&change.direct, &change.mesh) else {
        return is_excluded(context, change);
    };
    let is_cut = direct.starts_with(b"cut by ") || direct == b"complete";
    let is_reset = mesh.starts_with(b"reset with ") || mesh.starts_with(b"complete, then ");
    change.key.aspect == Aspect::End
        && ((is_cut && is_reset && (direct == b"complete") == mesh.starts_with(b"complete"))
            || is_excluded(context, change))
}

/// The end of a connection whose streams were reset before.
fn is_end_after_reset(context: &Context<'_>, change: &Change) -> bool {
    let mut ends = context
        .mesh
        .iter()
        .filter(|(key, _)| matches!(key.subject, Subject::Request(_)) && key.aspect == Aspect::End);
    change.key.peer == Side::Server
        && change.key.aspect == Aspect::Ending
        && change.mesh.is_none()
        && ends.any(|(_, end)| end.starts_with(b"reset with "))
}

/// A stream that a GOAWAY has excluded, which has no response.
fn is_excluded(context: &Context<'_>, change: &Change) -> bool {
    let goaway = client_connection(&change.key)
        .and_then(|connection| sibling(context.direct, &connection, Aspect::GoAway));
    let is_open = change.direct.as_deref().is_none_or(|end| end == b"open");
    let is_refused = change.mesh.as_deref() == Some(b"reset with REFUSED_STREAM");
    match (change.key.subject, &change.key.aspect) {
        (Subject::Response(..), Aspect::End) => goaway.is_some() && is_open && is_refused,
        // It is within a message, or between two.
        (Subject::Connection(_), Aspect::Ending) => goaway.is_some() && change.direct.is_none(),
        _ => false,
    }
}

/// A wait for the end of a message that the end of the connection has cut: it ends with the reset
/// of the stream.
fn waits_for_reset_message(context: &Context<'_>, change: &Change) -> bool {
    let is_wait = change.direct.as_deref().is_some_and(|step| {
        let step = String::from_utf8_lossy(step);
        step.contains(": wait message")
    });
    let is_cut = |key: &Key| {
        let end = context.direct.get(key);
        end.is_some_and(|end| end.starts_with(b"cut by "))
    };
    let mut ends = context.mesh.iter().filter(|(key, end)| {
        key.peer == change.key.peer && key.aspect == Aspect::End && end.starts_with(b"reset with ")
    });
    change.key.aspect == Aspect::StoppedAt
        && change.mesh.is_none()
        && is_wait
        && ends.any(|(key, _)| is_cut(key))
}

/// The response to a gRPC call whose server has ended the connection.
fn is_lost_call(context: &Context<'_>, change: &Change) -> bool {
    let fact = |facts, aspect| sibling(facts, &change.key, aspect).map(<[u8]>::to_vec);
    let status = Aspect::Trailer("grpc-status".to_owned());
    let end = fact(context.direct, Aspect::End).unwrap_or_default();
    let is_lost = end.starts_with(b"cut by ")
        && fact(context.direct, status.clone()).is_none()
        && fact(context.mesh, status).as_deref() == Some(b"grpc-status: 14")
        && fact(context.mesh, Aspect::End).as_deref() == Some(b"complete");
    let (direct, mesh) = (change.direct.as_deref(), change.mesh.as_deref());
    is_lost
        && match &change.key.aspect {
            Aspect::End => true,
            Aspect::Trailer(name) => matches!(name.as_str(), "grpc-status" | "grpc-message"),
            // A reset discards bytes in flight.
            Aspect::Body => {
                end == b"cut by RST" && (starts_with(direct, mesh) || starts_with(mesh, direct))
            }
            _ => false,
        }
}
