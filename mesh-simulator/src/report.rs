//! The report of a failure: its differences, both observations side by side, and the traces as
//! sequence diagrams.

mod diagram;

use std::collections::BTreeSet;

pub use self::diagram::{Diagram, diagram};
use crate::compare::changes;
use crate::facts::{Facts, Key};

/// The longest value in a column, in characters.
const WIDTH: usize = 44;

/// All facts of two runs, with a mark where they differ.
pub fn side_by_side(direct: &Facts, other: &Facts) -> Vec<String> {
    let differing: BTreeSet<Key> = changes(direct, other)
        .into_iter()
        .map(|it| it.key)
        .collect();
    let keys: BTreeSet<&Key> = direct.keys().chain(other.keys()).collect();
    let label_width = keys.iter().map(|key| key.to_string().chars().count());
    let label_width = label_width.max().unwrap_or_default();
    let mut lines = vec![format!(
        "  {:label_width$}  {:WIDTH$}  other run",
        "", "direct"
    )];
    for key in keys {
        let mark = if differing.contains(key) { '≠' } else { ' ' };
        let [left, right] = [direct, other].map(|facts| value(facts.get(key)));
        let label = key.to_string();
        lines.push(format!(
            "{mark} {label:label_width$}  {left:WIDTH$}  {right}"
        ));
    }
    lines
}

/// A value in one line, shortened.
pub fn value(value: Option<&Vec<u8>>) -> String {
    let Some(bytes) = value else {
        return "–".to_owned();
    };
    let text: String = bytes
        .escape_ascii()
        .map(char::from)
        .take(WIDTH + 1)
        .collect();
    if text.len() <= WIDTH {
        return text;
    }
    let suffix = format!("… ({} bytes)", bytes.len());
    let kept = WIDTH.saturating_sub(suffix.chars().count());
    text[..kept].to_owned() + &suffix
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Aspect, Subject};
    use crate::script::Side;

    #[test]
    fn differing_facts_are_marked() {
        let key = |aspect| Key {
            peer: Side::Client,
            subject: Subject::Connection(1),
            aspect,
        };
        let direct = Facts::from([
            (key(Aspect::Bytes), b"abc".to_vec()),
            (key(Aspect::Ending), b"FIN".to_vec()),
        ]);
        let other = Facts::from([(key(Aspect::Bytes), b"abc".to_vec())]);
        let lines = side_by_side(&direct, &other);
        assert!(
            lines[1].starts_with("  client, connection 1: bytes"),
            "{}",
            lines[1]
        );
        assert!(lines[2].starts_with("≠ client"), "{}", lines[2]);
        assert!(lines[2].ends_with('–'), "{}", lines[2]);
    }

    #[test]
    fn long_values_are_shortened() {
        let long = value(Some(&vec![b'x'; 1000]));
        assert_eq!(long.chars().count(), WIDTH);
        assert!(long.ends_with("… (1000 bytes)"), "{long}");
        assert_eq!(value(Some(&b"a\r\n".to_vec())), "a\\r\\n");
    }
}
