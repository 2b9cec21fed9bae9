//! The table of one workload: a line for each peer, then a line for each goal.

use std::fmt::Write as _;

use super::{in_unit, wish};
use crate::benchmark::{
    metric::{Metric, Peer, shown},
    row::{Judged, Met, Row},
    statistics::{median, range},
    workload::Limit,
};

/// The peers that were measured, the floor first.
pub(super) fn peers(row: &Row) -> Vec<Peer> {
    let mut peers: Vec<Peer> = row
        .rounds
        .iter()
        .flat_map(|round| round.samples.keys().copied())
        .collect();
    peers.sort_unstable();
    peers.dedup();
    peers
}

/// The metrics of the workload that any peer has.
pub(super) fn metrics(row: &Row) -> Vec<Metric> {
    let has = |metric: &Metric| {
        peers(row)
            .iter()
            .any(|peer| !row.values(*peer, *metric).is_empty())
    };
    row.workload.shown.iter().copied().filter(has).collect()
}

/// The median of a cell, and the range of its rounds.
pub(super) fn cell(row: &Row, peer: Peer, metric: Metric) -> Option<(String, String)> {
    let values = row.values(peer, metric);
    let in_unit = |value| in_unit(metric, row.workload.unit, value);
    let (low, high) = range(&values)?;
    let spread = match values.len() {
        1 => String::new(),
        _ => format!("{}–{}", in_unit(low), in_unit(high)),
    };
    Some((in_unit(median(&values)?), spread))
}

/// How many rounds count and what was wrong with the others and with these.
pub(super) fn rounds(row: &Row) -> String {
    let mut text = format!("{} rounds", row.counted().count());
    if row.discarded() > 0 {
        let _written = write!(
            text,
            ", {} thrown out: the machine was not quiet",
            row.discarded()
        );
    }
    let noisy = row
        .counted()
        .filter(|round| !round.noise.is_quiet())
        .count();
    if noisy > 0 {
        let _written = write!(text, ", {noisy} of them while the machine did other things");
    }
    if let Some(note) = &row.note {
        let _written = write!(text, "; {note}");
    }
    for (peer, count) in row.failed() {
        let _written = write!(text, ", {count} operations of {peer} failed");
    }
    text
}

pub(super) fn ratio(judged: &Judged, row: &Row) -> String {
    let in_unit = |value: f64| match judged.goal.limit {
        Limit::Value(_) => in_unit(judged.goal.metric, row.workload.unit, value),
        _ => shown(value),
    };
    let estimate = judged.estimate;
    format!(
        "{} ({}–{})",
        in_unit(estimate.median),
        in_unit(estimate.low),
        in_unit(estimate.high)
    )
}

pub(super) fn verdict(met: Met) -> &'static str {
    match met {
        Met::Yes => "met",
        Met::Unsure => "not decided",
        Met::No => "missed",
    }
}

pub(super) fn text(row: &Row) -> String {
    let metrics = metrics(row);
    let heading = |metric: &Metric| {
        let unit = metric.unit(row.workload.unit).0;
        format!("{} {unit}", metric.name()).trim().to_owned()
    };
    let mut table = vec![
        std::iter::once(String::new())
            .chain(metrics.iter().map(heading))
            .collect::<Vec<_>>(),
    ];
    for peer in peers(row) {
        let cell = |metric: &Metric| match cell(row, peer, *metric) {
            Some((median, spread)) if spread.is_empty() => median,
            Some((median, spread)) => format!("{median} ({spread})"),
            None => "-".to_owned(),
        };
        let cells = metrics.iter().map(cell);
        table.push(std::iter::once(peer.to_string()).chain(cells).collect());
    }
    let mut text = aligned(&table);
    for judged in row.judged() {
        let _written = writeln!(
            text,
            "  {:<11} {:<42} {}",
            verdict(judged.met),
            wish(judged.goal, row.workload.unit),
            ratio(&judged, row)
        );
    }
    text + &rounds(row) + "\n"
}

/// Each column as wide as its widest cell.
fn aligned(table: &[Vec<String>]) -> String {
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = table.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in table {
        let cells = line.iter().zip(&widths);
        let cells: String = cells
            .map(|(cell, width)| format!("{cell:<width$}  "))
            .collect();
        text.push_str(cells.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::{
        machine::Noise,
        row::{Round, Sample},
        workload,
    };

    fn row() -> Row {
        let sample = |cpu: f64| {
            Sample::from([
                (Metric::CpuOut, cpu),
                (Metric::CpuIn, cpu),
                (Metric::Rate, 0.1 / cpu),
            ])
        };
        let round = |ours, envoy| Round {
            samples: [
                (Peer::Envoy, sample(envoy)),
                (Peer::Ours, sample(ours)),
                (Peer::Direct, Sample::from([(Metric::Rate, 70_000.0)])),
            ]
            .into(),
            noise: Noise::default(),
            failed: [(Peer::Envoy, 7)].into(),
        };
        Row {
            workload: workload::find("http1-64").expect("it exists"),
            rounds: vec![
                round(10e-6, 30e-6),
                round(11e-6, 33e-6),
                round(12e-6, 30e-6),
            ],
            with_noisy: false,
            note: None,
        }
    }

    #[test]
    fn floor_first_then_ours_then_peers() {
        assert_eq!(peers(&row()), [Peer::Direct, Peer::Ours, Peer::Envoy]);
        assert_eq!(
            metrics(&row()),
            [Metric::CpuOut, Metric::CpuIn, Metric::Rate]
        );
    }

    #[test]
    fn a_table_has_medians_ranges_and_verdicts() {
        let text = text(&row());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("CPU out µs/req"), "{text}");
        assert!(lines[1].starts_with("direct  -"), "{text}");
        assert!(lines[2].contains("11.0 (10.0–12.0)"), "{text}");
        assert!(
            text.contains("met         CPU out ≤ 0.55 × Envoy"),
            "{text}"
        );
        let end = "3 rounds, 21 operations of Envoy failed\n";
        assert!(text.ends_with(end), "{text}");
    }
}
