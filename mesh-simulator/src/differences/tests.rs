//! The form of the table, its document, and the changes that its rows allow.

use super::*;
use crate::script::Script;

fn key(peer: Side, subject: Subject, aspect: Aspect) -> Key {
    Key {
        peer,
        subject,
        aspect,
    }
}

/// The row that allows a change of one fact, from the one value to the other; an empty value is
/// absent.
fn row_of(key: Key, direct: &str, mesh: &str) -> Option<&'static str> {
    let facts = |value: &str| -> Facts {
        let present = Some(value).filter(|value| !value.is_empty());
        present
            .map(|value| (key.clone(), value.into()))
            .into_iter()
            .collect()
    };
    let at = (Position::Inbound, &Requests::default());
    row_in(at, &key, &facts(direct), &facts(mesh))
}

/// The row that allows a change of `key` between two runs, and how many requests the script sends.
fn row_between(key: Key, direct: &[(Key, &str)], mesh: &[(Key, &str)]) -> Option<&'static str> {
    let script = "protocol http1\nclient:\n  send \"GET / HTTP/1.1\\r\\n\\r\\nPOST / \
                  HTTP/1.1\\r\\n\\r\\n\"\nserver:\n";
    let script = Script::parse(script).expect("a script");
    let facts = |all: &[(Key, &str)]| -> Facts {
        let all = all.iter().cloned();
        all.map(|(key, value)| (key, value.into())).collect()
    };
    let at = (Position::Outbound, &Requests::of(&script));
    row_in(at, &key, &facts(direct), &facts(mesh))
}

/// The row that allows the change of `key` between two runs of a script with these requests.
fn row_in(
    (position, requests): (Position, &Requests),
    key: &Key,
    direct: &Facts,
    mesh: &Facts,
) -> Option<&'static str> {
    let context = Context {
        protocol: Protocol::Http1,
        position,
        features: &[],
        requests,
        direct,
        mesh,
    };
    let change = Change {
        key: key.clone(),
        direct: direct.get(key).cloned(),
        mesh: mesh.get(key).cloned(),
    };
    find(&context, &change).map(|row| row.name)
}

fn pseudo(name: &str) -> Aspect {
    Aspect::Pseudo(name.to_owned())
}

#[test]
fn responses_are_refused_only_if_a_strict_reader_refuses_them() {
    let of = |aspect| key(Side::Client, Subject::Response(1, 1), aspect);
    let status = || of(pseudo("status"));
    let end = || (of(Aspect::End), "complete");
    let mesh = [(status(), "502"), end()];
    let row = |irregular: Option<&'static str>| {
        let mut direct = vec![(status(), "200"), end()];
        direct.extend(irregular.map(|reason| (of(Aspect::Irregular), reason)));
        row_between(status(), &direct, &mesh)
    };
    assert_eq!(row(None), None);
    assert_eq!(row(Some("folded line")), Some("refused-responses"));
    // These are corrected.
    assert_eq!(row(Some("repeated content-length")), None);
    let other = [(status(), "500"), end()];
    let direct = [
        (status(), "200"),
        end(),
        (of(Aspect::Irregular), "folded line"),
    ];
    assert_eq!(row_between(status(), &direct, &other), None);
}

#[test]
fn only_lost_requests_without_effect_are_repeated() {
    let request = |n, aspect| key(Side::Server, Subject::Request(n), aspect);
    let ending = key(Side::Client, Subject::Connection(1), Aspect::IdleEnding);
    let response = key(Side::Client, Subject::Response(1, 1), Aspect::End);
    let row = |method: &str, requests: usize, ending_value: &str| {
        let one = |n| {
            [
                (request(n, pseudo("method")), method),
                (request(n, pseudo("path")), "/"),
                (request(n, Aspect::End), "complete"),
            ]
        };
        let direct: Vec<_> = one(1)
            .into_iter()
            .chain([
                (ending.clone(), ending_value),
                (response.clone(), "complete"),
            ])
            .collect();
        let mesh: Vec<_> = (1..=requests).flat_map(one).collect();
        row_between(request(requests, Aspect::End), &direct, &mesh)
    };
    assert_eq!(row("GET", 2, "FIN"), Some("repeated-requests"));
    assert_eq!(row("GET", 3, "FIN"), None, "twice");
    assert_eq!(row("GET", 2, "open"), None, "nothing was lost");
    assert_eq!(row("POST", 2, "FIN"), None, "it may have an effect");
}

#[test]
fn separated_lines_may_move_to_the_first() {
    let order = || key(Side::Server, Subject::Request(1), Aspect::Order);
    let row = |direct: &str, mesh: &str| row_of(order(), direct, mesh);
    assert_eq!(row("x\na\nx", "x\nx\na"), Some("order-of-fields"));
    assert_eq!(row("x\na", "a\nx"), None);
    assert_eq!(row("x\na\nx", "a\nx\nx"), None);
}

#[test]
fn document_is_what_the_table_says() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/reference/differences.md"
    );
    let text = std::fs::read_to_string(path).unwrap_or_default();
    assert!(text == render(), "run `cargo xtask simulate --document`");
}

#[test]
fn rows_have_a_form_that_a_table_can_have() {
    let mut names = Vec::new();
    for row in all() {
        let Difference {
            name,
            what,
            why,
            affected,
            script,
            removal,
            ..
        } = row;
        for cell in [name, what, why, affected, script, removal] {
            assert!(
                !cell.is_empty() && !cell.contains(['|', '\n']),
                "{name}: {cell}"
            );
        }
        names.push(*name);
    }
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "names are unique");
}

#[test]
fn rows_allow_their_difference_and_no_other() {
    let field = |name: &str| {
        let aspect = Aspect::Field(name.to_owned());
        key(Side::Client, Subject::Response(1, 1), aspect)
    };
    let row = row_of(field("connection"), "connection: close", "");
    assert_eq!(row, Some("hop-by-hop-fields"));
    let row = row_of(field("etag"), "ETag: \"X\"", "etag: \"X\"");
    assert_eq!(row, Some("names-in-lower-case"));
    assert_eq!(row_of(field("etag"), "ETag: \"X\"", "etag: \"x\""), None);
    assert_eq!(row_of(field("etag"), "etag: X", "Etag: X"), None);
    assert_eq!(
        row_of(field("l5d-proxy-error"), "", "l5d-proxy-error: x"),
        None
    );
    let row = row_of(field("l5d-client-id"), "l5d-client-id: x", "");
    assert_eq!(row, Some("fields-of-the-mesh"));
    let body = key(Side::Client, Subject::Response(1, 1), Aspect::Body);
    assert_eq!(row_of(body, "abc", "ab"), None);
    let ending = |aspect| key(Side::Server, Subject::Connection(1), aspect);
    let row = row_of(ending(Aspect::IdleEnding), "open", "FIN");
    assert_eq!(row, Some("pooled-connections"));
    assert_eq!(row_of(ending(Aspect::Ending), "open", "FIN"), None);
}
