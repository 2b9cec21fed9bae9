//! [`diagram`]: what has happened on a network, as a sequence diagram in text: one column for each
//! connection, time downwards. Between the arrows stand the steps that the peers begin.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use mesh_simnet::{Event, EventKind};

use crate::observation::BegunStep;
use crate::script::Side;

/// The width of a connection's column.
const WIDTH: usize = 26;
/// The most connections and lines that are drawn.
const MAX_COLUMNS: usize = 6;
const MAX_LINES: usize = 300;

/// The longest step, in characters.
const MAX_STEP: usize = 80;

/// A sequence diagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagram {
    /// The connections.
    pub head: Vec<String>,
    /// What has happened, in its order.
    pub lines: Vec<String>,
}

impl Diagram {
    /// All lines.
    pub fn into_lines(self) -> Vec<String> {
        [self.head, self.lines].concat()
    }
}

/// Draws events and steps. The arrow of a connection's opener points to the right.
pub fn diagram(events: &[Event], steps: &[BegunStep]) -> Diagram {
    let mut openers: BTreeMap<u64, SocketAddr> = BTreeMap::new();
    let mut heads = Vec::new();
    for event in events
        .iter()
        .filter(|event| event.kind == EventKind::Connect)
    {
        if openers.len() < MAX_COLUMNS {
            openers.insert(event.connection, event.from);
            heads.push(format!(
                "#{} {} → {}",
                event.connection, event.from, event.to
            ));
        }
    }
    let columns: Vec<u64> = openers.keys().copied().collect();
    let mut head = heads;
    let mut title = format!("{:>12}", "");
    for column in &columns {
        let name = format!("#{column}");
        title.push_str(&format!("{name:^WIDTH$}  "));
    }
    head.push(title.trim_end().to_owned());
    let mut lines = Vec::new();
    let mut steps = steps.iter().peekable();
    for event in events.iter().take(MAX_LINES) {
        // What a step sends arrives later, also where that takes no time.
        while let Some(step) = steps.next_if(|step| step.at <= event.at) {
            lines.push(begun(step));
        }
        let Some(column) = columns.iter().position(|it| *it == event.connection) else {
            continue;
        };
        let is_opener = openers.get(&event.connection) == Some(&event.from);
        let indent = (WIDTH + 2) * column;
        let seconds = event.at.as_secs_f64();
        lines.push(format!(
            "{seconds:>9.3} s {:indent$}{}",
            "",
            arrow(event.kind, is_opener)
        ));
    }
    if events.len() > MAX_LINES {
        lines.push(format!("… {} more", events.len() - MAX_LINES));
    } else {
        lines.extend(steps.map(begun));
    }
    Diagram { head, lines }
}

fn begun(step: &BegunStep) -> String {
    let seconds = step.at.as_secs_f64();
    let peer = match step.peer {
        Side::Client => "client",
        Side::Server => "server",
    };
    let text: String = step.text.lines().next().unwrap_or_default().into();
    let text: String = text.chars().take(MAX_STEP).collect();
    format!(
        "{seconds:>9.3} s · {peer} {}: step {}, {text}",
        step.connection, step.step
    )
}

fn arrow(kind: EventKind, to_the_right: bool) -> String {
    let label = match kind {
        EventKind::Connect => "SYN".to_owned(),
        EventKind::Established => "SYN, ACK".to_owned(),
        EventKind::Refused => "refused".to_owned(),
        EventKind::Bytes(1) => "1 byte".to_owned(),
        EventKind::Bytes(size) => format!("{size} bytes"),
        EventKind::Fin => "FIN".to_owned(),
        EventKind::Reset => "RST".to_owned(),
        EventKind::TimedOut => "timed out".to_owned(),
    };
    let shaft = "─".repeat(WIDTH.saturating_sub(label.chars().count() + 3));
    if to_the_right {
        format!(" {label} {shaft}▶")
    } else {
        format!(" ◀{shaft} {label}")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn connections_have_columns_and_directions() {
        let client: SocketAddr = "192.0.2.1:32768".parse().expect("an address");
        let server: SocketAddr = "192.0.2.2:80".parse().expect("an address");
        let event = |connection, from, to, kind| Event {
            at: Duration::from_millis(1500),
            connection,
            from,
            to,
            kind,
        };
        let step = |at, text: &str| BegunStep {
            at: Duration::from_millis(at),
            peer: Side::Client,
            connection: 1,
            step: 2,
            text: text.to_owned(),
        };
        let events = [
            event(0, client, server, EventKind::Connect),
            event(1, client, server, EventKind::Connect),
            event(0, server, client, EventKind::Bytes(5)),
        ];
        let steps = [step(1500, "send\n  | x"), step(2000, "wait end")];
        let Diagram { head, lines } = diagram(&events, &steps);
        let [first, second, title] = head.as_slice() else {
            panic!("{head:?}");
        };
        assert!(first.starts_with("#0 192.0.2.1:32768") && second.starts_with("#1"));
        assert!(title.contains("#0") && title.contains("#1"));
        let [step, opened, other, bytes, last] = lines.as_slice() else {
            panic!("{lines:#?}");
        };
        assert_eq!(step, "    1.500 s · client 1: step 2, send");
        assert!(opened.starts_with("    1.500 s  SYN ─"), "{opened}");
        assert!(
            other.find('S') > opened.find('S').map(|at| at + WIDTH),
            "{lines:#?}"
        );
        assert!(
            bytes.contains(" ◀─") && bytes.ends_with("5 bytes"),
            "{bytes}"
        );
        assert_eq!(last, "    2.000 s · client 1: step 2, wait end");
    }
}
