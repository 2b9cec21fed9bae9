//! [`diagram`]: what has happened on a network, as a sequence diagram in text: one column for each
//! connection, time downwards.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use mesh_simnet::{Event, EventKind};

/// The width of a connection's column.
const WIDTH: usize = 26;
/// The most connections and lines that are drawn.
const MAX_COLUMNS: usize = 6;
const MAX_LINES: usize = 300;

/// Draws events. The arrow of a connection's opener points to the right.
pub fn diagram(events: &[Event]) -> Vec<String> {
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
    let mut lines = heads;
    let mut title = format!("{:>12}", "");
    for column in &columns {
        let name = format!("#{column}");
        title.push_str(&format!("{name:^WIDTH$}  "));
    }
    lines.push(title.trim_end().to_owned());
    for event in events.iter().take(MAX_LINES) {
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
    }
    lines
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
        let drawn = diagram(&[
            event(0, client, server, EventKind::Connect),
            event(1, client, server, EventKind::Connect),
            event(0, server, client, EventKind::Bytes(5)),
        ]);
        let [first, second, title, ..] = drawn.as_slice() else {
            panic!("{drawn:?}");
        };
        assert!(first.starts_with("#0 192.0.2.1:32768") && second.starts_with("#1"));
        assert!(title.contains("#0") && title.contains("#1"));
        assert!(drawn[3].starts_with("    1.500 s  SYN ─"), "{}", drawn[3]);
        assert!(
            drawn[4].find('S') > drawn[3].find('S').map(|at| at + WIDTH),
            "{drawn:#?}"
        );
        assert!(
            drawn[5].contains(" ◀─") && drawn[5].ends_with("5 bytes"),
            "{}",
            drawn[5]
        );
    }
}
