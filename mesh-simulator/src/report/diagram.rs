//! [`diagram`]: what has happened on a network, as a sequence diagram in text: one column for each
//! connection, time downwards. Between the arrows stand the steps that the peers begin.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use mesh_simnet::{Event, EventKind};

use crate::observation::BegunStep;
use crate::script::Side;

/// The width of a connection's column.
const WIDTH: usize = 26;
/// The most connections that are drawn.
const MAX_COLUMNS: usize = 6;
/// The most lines of a report.
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
    /// The first lines, for a report.
    pub fn beginning(mut self) -> Vec<String> {
        let left_out = self.lines.len().saturating_sub(MAX_LINES);
        if left_out > 0 {
            self.lines.truncate(MAX_LINES);
            self.lines
                .push(format!("… {left_out} more, which --replay shows"));
        }
        [self.head, self.lines].concat()
    }
}

/// Draws events and steps. The arrow of a connection's opener points to the right. Pieces that
/// follow each other on a connection are one arrow.
pub fn diagram(events: &[Event], steps: &[BegunStep]) -> Diagram {
    let connects = events
        .iter()
        .filter(|event| event.kind == EventKind::Connect);
    let openers: BTreeMap<u64, SocketAddr> = connects
        .clone()
        .map(|event| (event.connection, event.from))
        .collect();
    let columns: Vec<u64> = openers.keys().copied().take(MAX_COLUMNS).collect();
    let mut head: Vec<String> = connects
        .map(|event| format!("#{} {} → {}", event.connection, event.from, event.to))
        .collect();
    let mut title = format!("{:>12}", "");
    for column in &columns {
        let name = format!("#{column}");
        title.push_str(&format!("{name:^WIDTH$}  "));
    }
    head.push(title.trim_end().to_owned());
    let mut lines = Vec::new();
    let mut steps = steps.iter().peekable();
    let mut rest = events;
    while let Some(event) = rest.first() {
        // What a step sends arrives later, also where that takes no time.
        while let Some(step) = steps.next_if(|step| step.at <= event.at) {
            lines.push(begun(step));
        }
        let next_step = steps.peek().map(|step| step.at);
        let before_step = |it: &Event| next_step.is_none_or(|at| it.at < at);
        let pieces = rest.iter().skip(1);
        let pieces = pieces.take_while(|it| is_next_piece(event, it) && before_step(it));
        let (pieces, others) = rest.split_at(1 + pieces.count());
        rest = others;
        let is_opener = openers.get(&event.connection) == Some(&event.from);
        let label = label(pieces);
        let seconds = event.at.as_secs_f64();
        lines.push(
            match columns.iter().position(|it| *it == event.connection) {
                Some(column) => {
                    let indent = (WIDTH + 2) * column;
                    format!(
                        "{seconds:>9.3} s {:indent$}{}",
                        "",
                        arrow(&label, is_opener)
                    )
                }
                None => {
                    let arrow = if is_opener { '▶' } else { '◀' };
                    format!("{seconds:>9.3} s  #{} {arrow} {label}", event.connection)
                }
            },
        );
    }
    lines.extend(steps.map(begun));
    Diagram { head, lines }
}

/// Whether bytes of the same connection and direction follow each other.
fn is_next_piece(first: &Event, next: &Event) -> bool {
    let is_piece = |event: &Event| matches!(event.kind, EventKind::Bytes(_));
    is_piece(first)
        && is_piece(next)
        && (first.connection, first.from) == (next.connection, next.from)
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

/// The text of an event, or of several pieces.
fn label(pieces: &[Event]) -> String {
    let sizes = pieces.iter().map(|event| match event.kind {
        EventKind::Bytes(size) => size,
        _ => 0,
    });
    let size: usize = sizes.sum();
    match pieces {
        [] => String::new(),
        [event] => match event.kind {
            EventKind::Connect => "SYN".to_owned(),
            EventKind::Established => "SYN, ACK".to_owned(),
            EventKind::Refused => "refused".to_owned(),
            EventKind::Bytes(1) => "1 byte".to_owned(),
            EventKind::Bytes(size) => format!("{size} bytes"),
            EventKind::Fin => "FIN".to_owned(),
            EventKind::Reset => "RST".to_owned(),
            EventKind::TimedOut => "timed out".to_owned(),
        },
        several => format!("{size} bytes in {}", several.len()),
    }
}

fn arrow(label: &str, to_the_right: bool) -> String {
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
            event(0, server, client, EventKind::Bytes(4)),
            event(0, client, server, EventKind::Bytes(4)),
        ];
        let steps = [step(1500, "send\n  | x"), step(2000, "wait end")];
        let Diagram { head, lines } = diagram(&events, &steps);
        let [first, second, title] = head.as_slice() else {
            panic!("{head:?}");
        };
        assert!(first.starts_with("#0 192.0.2.1:32768") && second.starts_with("#1"));
        assert!(title.contains("#0") && title.contains("#1"));
        let [step, opened, other, bytes, _, last] = lines.as_slice() else {
            panic!("{lines:#?}");
        };
        assert_eq!(step, "    1.500 s · client 1: step 2, send");
        assert!(opened.starts_with("    1.500 s  SYN ─"), "{opened}");
        assert!(
            other.find('S') > opened.find('S').map(|at| at + WIDTH),
            "{lines:#?}"
        );
        assert!(
            bytes.contains(" ◀─") && bytes.ends_with("9 bytes in 2"),
            "{bytes}"
        );
        assert_eq!(last, "    2.000 s · client 1: step 2, wait end");
        let lines = vec![String::new(); MAX_LINES + 2];
        let beginning = Diagram {
            head: Vec::new(),
            lines,
        }
        .beginning();
        let last = beginning.last().map(String::as_str);
        assert_eq!(last, Some("… 2 more, which --replay shows"));
    }
}
