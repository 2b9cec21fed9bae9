//! The relation between two runs of a script: they must have the same facts, except for what the
//! network decides when a connection is reset, and for the rows of `differences`.

use std::collections::BTreeSet;

use mesh_proxy::simulation::Feature;

use crate::differences::{self, Context, Difference};
use crate::facts::{Aspect, Change, Facts, Key, LEFT, Subject, shared_names, sibling};
use crate::observation::Ending;
use crate::requests::Requests;
use crate::script::Protocol;
use crate::world::Position;

/// What two runs have in common.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    pub protocol: Protocol,
    pub position: Position,
    /// What the mesh does beside forwarding.
    pub features: &'a [Feature],
    /// What the script's clients send.
    pub requests: &'a Requests,
}

/// The facts that differ beyond the relation.
pub fn changes(direct: &Facts, mesh: &Facts) -> Vec<Change> {
    let keys: BTreeSet<&Key> = direct.keys().chain(mesh.keys()).collect();
    let keys = keys.into_iter();
    keys.map(|key| Change {
        key: key.clone(),
        direct: direct.get(key).cloned(),
        mesh: mesh.get(key).cloned(),
    })
    .filter(|change| !agrees(change, direct, mesh))
    .collect()
}

/// The changes that no row of the table allows, compared with the direct run that is most alike.
/// Chance decides between direct runs: what one of them shows is transparent.
pub fn unexplained(case: Case<'_>, direct: &[Facts], mesh: &Facts) -> Vec<Change> {
    let all = direct.iter().map(|direct| {
        let unexplained = judged(case, direct, mesh).filter(|(_, row)| row.is_none());
        unexplained.map(|(change, _)| change).collect::<Vec<_>>()
    });
    all.min_by_key(Vec::len).unwrap_or_default()
}

/// The changes compared with the run that is most alike.
pub fn least_changes(runs: &[Facts], other: &Facts) -> Vec<Change> {
    let all = runs.iter().map(|run| changes(run, other));
    all.min_by_key(Vec::len).unwrap_or_default()
}

/// The names of the rows that allow changes between two runs.
pub fn rows(case: Case<'_>, direct: &Facts, mesh: &Facts) -> BTreeSet<&'static str> {
    let rows = judged(case, direct, mesh).filter_map(|(_, row)| row);
    rows.map(|row| row.name).collect()
}

/// The changes between two runs, each with the row that allows it.
fn judged<'a>(
    case: Case<'a>,
    direct: &'a Facts,
    mesh: &'a Facts,
) -> impl Iterator<Item = (Change, Option<&'static Difference>)> + use<'a> {
    let context = Context {
        protocol: case.protocol,
        position: case.position,
        features: case.features,
        requests: case.requests,
        direct,
        mesh,
    };
    changes(direct, mesh).into_iter().map(move |change| {
        let row = differences::find(&context, &change);
        (change, row)
    })
}

fn agrees(change: &Change, direct: &Facts, mesh: &Facts) -> bool {
    if [direct, mesh]
        .into_iter()
        .all(|facts| has_left_stream(&change.key, facts))
    {
        let parts = [&change.direct, &change.mesh];
        let [left, right] = parts.map(|part| part.as_deref().unwrap_or_default());
        return left.starts_with(right) || right.starts_with(left);
    }
    if is_lost_to_reset(change, direct, mesh) {
        return true;
    }
    let (Some(left), Some(right)) = (&change.direct, &change.mesh) else {
        return false;
    };
    if left == right {
        return true;
    }
    match change.key.aspect {
        Aspect::Bytes | Aspect::Tunnel | Aspect::Body => {
            let is_cut = |facts: &Facts| {
                is_cut_short(&change.key, facts) || has_left_connection(&change.key, facts)
            };
            let is_prefix = left.starts_with(right) || right.starts_with(left);
            is_prefix && is_cut(direct) && is_cut(mesh)
        }
        Aspect::End => {
            has_left_connection(&change.key, direct) && has_left_connection(&change.key, mesh)
        }
        Aspect::Order => same_order(left, right),
        _ => false,
    }
}

/// Whether the observer of a message has reset its stream. It has read what had arrived by then.
fn has_left_stream(key: &Key, facts: &Facts) -> bool {
    sibling(facts, key, Aspect::End) == Some(LEFT.as_bytes())
}

/// Whether a peer has closed a connection by itself, or a client the one of a response. It has read
/// what had arrived by then: a script waits for what it needs.
fn has_left_connection(key: &Key, facts: &Facts) -> bool {
    let (Subject::Response(connection, _) | Subject::Connection(connection)) = key.subject else {
        return false;
    };
    has_ending(facts, key, connection, Ending::Own)
}

/// Whether a connection of the key's peer ends so, idle or not.
fn has_ending(facts: &Facts, key: &Key, connection: usize, ending: Ending) -> bool {
    let connection = Key {
        subject: Subject::Connection(connection),
        ..key.clone()
    };
    let mut aspects = [Aspect::Ending, Aspect::IdleEnding].into_iter();
    aspects.any(|aspect| sibling(facts, &connection, aspect) == Some(ending.name().as_bytes()))
}

/// Whether an RST has ended the connection of a response in both runs, and one of them did not
/// receive this part of it: the RST discards bytes in flight, also of complete responses before the
/// one that it ends.
fn is_lost_to_reset(change: &Change, direct: &Facts, mesh: &Facts) -> bool {
    let connection = match change.key.subject {
        Subject::Response(connection, _) => connection,
        // A client may have waited for such a response.
        Subject::Connection(connection) if change.key.aspect == Aspect::StoppedAt => connection,
        Subject::Peer | Subject::Connection(_) | Subject::Request(_) => return false,
    };
    let is_reset = |facts| has_ending(facts, &change.key, connection, Ending::Reset);
    if !is_reset(direct) || !is_reset(mesh) {
        return false;
    }
    let [left, right] = [&change.direct, &change.mesh].map(Option::as_deref);
    let is_lost = |facts, [value, other]: [Option<&[u8]>; 2]| {
        let end = sibling(facts, &change.key, Aspect::End);
        let is_cut = end.is_none_or(|end| end == b"cut by RST");
        let is_beginning = change.key.aspect == Aspect::Body
            && value
                .zip(other)
                .is_some_and(|(value, other)| other.starts_with(value));
        is_cut && (value.is_none() || is_beginning || change.key.aspect == Aspect::End)
    };
    change.key.aspect == Aspect::StoppedAt
        || is_lost(direct, [left, right])
        || is_lost(mesh, [right, left])
}

/// Whether an RST has ended the message or connection of the bytes. It discards bytes in flight
/// (RFC 9293, section 3.10.7.4), and the network decides which.
fn is_cut_short(key: &Key, facts: &Facts) -> bool {
    let aspects = match key.subject {
        Subject::Response(..) | Subject::Request(_) => [Aspect::End, Aspect::End],
        _ => [Aspect::Ending, Aspect::IdleEnding],
    };
    aspects.into_iter().any(|aspect| {
        sibling(facts, key, aspect).is_some_and(|value| {
            value == b"RST" || value == b"cut by RST" || value.starts_with(b"reset with ")
        })
    })
}

/// Names that both have follow each other alike. A name that only one has is a change of its own.
fn same_order(left: &[u8], right: &[u8]) -> bool {
    let [left, right] = shared_names(left, right);
    left == right
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Side;

    fn key(aspect: Aspect) -> Key {
        Key {
            peer: Side::Server,
            subject: Subject::Connection(1),
            aspect,
        }
    }

    fn facts(all: &[(Aspect, &str)]) -> Facts {
        let all = all.iter().cloned();
        all.map(|(aspect, value)| (key(aspect), value.into()))
            .collect()
    }

    #[test]
    fn equal_facts_have_no_changes() {
        let all = facts(&[(Aspect::Bytes, "abc"), (Aspect::Ending, "FIN")]);
        assert_eq!(changes(&all, &all), []);
    }

    #[test]
    fn missing_and_different_facts_are_changes() {
        let left = facts(&[(Aspect::Bytes, "abc"), (Aspect::Ending, "FIN")]);
        let right = facts(&[(Aspect::Bytes, "abd")]);
        assert_eq!(changes(&left, &right).len(), 2);
        assert_eq!(changes(&right, &left).len(), 2);
    }

    #[test]
    fn bytes_may_be_missing_only_where_both_were_reset() {
        let with = |bytes, ending| facts(&[(Aspect::Bytes, bytes), (Aspect::Ending, ending)]);
        assert_eq!(changes(&with("abc", "RST"), &with("a", "RST")), []);
        assert_eq!(changes(&with("", "RST"), &with("abc", "RST")), []);
        assert_eq!(changes(&with("abc", "RST"), &with("ac", "RST")).len(), 1);
        assert_eq!(changes(&with("abc", "FIN"), &with("a", "FIN")).len(), 1);
        assert_eq!(changes(&with("abc", "RST"), &with("a", "FIN")).len(), 2);
    }

    #[test]
    fn responses_before_a_reset_may_be_lost() {
        let run = |ending: &str, responses: &[(&str, &str)]| {
            let client = |subject, aspect| Key {
                peer: Side::Client,
                subject,
                aspect,
            };
            let ending = (
                client(Subject::Connection(1), Aspect::Ending),
                ending.into(),
            );
            let responses = responses.iter().enumerate().flat_map(|(n, (body, end))| {
                let subject = Subject::Response(1, n + 1);
                [(Aspect::Body, *body), (Aspect::End, *end)]
                    .map(|(aspect, value)| (client(subject, aspect), value.into()))
            });
            responses.chain([ending]).collect::<Facts>()
        };
        let all = [("ab", "complete"), ("c", "cut by RST")];
        let mut waiting = run("RST", &[("a", "cut by RST")]);
        let stopped = Key {
            peer: Side::Client,
            ..key(Aspect::StoppedAt)
        };
        waiting.insert(stopped, b"4: wait message".to_vec());
        for (other, expected) in [
            (run("RST", &[("a", "cut by RST")]), 0),
            (waiting, 0),
            (run("RST", &[]), 0),
            (run("RST", &[("b", "cut by RST")]), 1),
            (run("RST", &[("a", "complete"), ("c", "cut by RST")]), 1),
            (run("FIN", &[("ab", "complete")]), 3),
        ] {
            assert_eq!(
                changes(&run("RST", &all), &other).len(),
                expected,
                "{other:?}"
            );
        }
    }

    #[test]
    fn order_is_compared_among_shared_names() {
        let with = |order| facts(&[(Aspect::Order, order)]);
        assert_eq!(changes(&with("a\nb\nc"), &with("a\nl5d\nc")), []);
        assert_eq!(changes(&with("a\nb"), &with("b\na")).len(), 1);
    }

    #[test]
    fn the_direct_run_that_is_most_alike_counts() {
        let left = [
            facts(&[(Aspect::Bytes, "a")]),
            facts(&[(Aspect::Bytes, "b")]),
        ];
        let mesh = facts(&[(Aspect::Bytes, "b")]);
        let case = Case {
            protocol: Protocol::Tcp,
            position: Position::Both,
            features: &[],
            requests: &Requests::default(),
        };
        assert_eq!(unexplained(case, &left, &mesh), []);
        assert_eq!(unexplained(case, &left[..1], &mesh).len(), 1);
    }
}
