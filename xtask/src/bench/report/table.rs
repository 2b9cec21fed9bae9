//! The table of one workload: a line for each peer, then a line for each goal.

use std::fmt::Write as _;

use super::{in_unit, wish};
use crate::bench::{
    metric::{Metric, Peer, shown},
    row::{Judged, Met, Row},
    statistics::{median, range},
};

/// Wide enough for a median with its range and most names.
const WIDTH: usize = 24;

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
    if row.failed() > 0 {
        let _written = write!(text, ", {} operations failed", row.failed());
    }
    text
}

pub(super) fn ratio(judged: &Judged, row: &Row) -> String {
    let in_unit = |value: f64| match judged.goal.limit {
        crate::bench::workload::Limit::Value(_) => {
            in_unit(judged.goal.metric, row.workload.unit, value)
        }
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
    let mut text = format!("{:<10}", "");
    for metric in metrics(row) {
        let unit = metric.unit(row.workload.unit).0;
        text += &format!("{:<WIDTH$}", format!("{} {unit}", metric.name()));
    }
    let mut lines = vec![text];
    for peer in peers(row) {
        let mut line = format!("{peer:<10}");
        for metric in metrics(row) {
            let cell = match cell(row, peer, metric) {
                Some((median, spread)) if spread.is_empty() => median,
                Some((median, spread)) => format!("{median} ({spread})"),
                None => "-".to_owned(),
            };
            line += &format!("{cell:<WIDTH$}");
        }
        lines.push(line);
    }
    for judged in row.judged() {
        lines.push(format!(
            "  {:<11} {:<36} {}",
            verdict(judged.met),
            wish(judged.goal, row.workload.unit),
            ratio(&judged, row)
        ));
    }
    lines.push(rounds(row));
    let lines = lines.iter().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
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
            failed: 0,
        };
        Row {
            workload: workload::find("http1-64").expect("it exists"),
            rounds: vec![
                round(10e-6, 30e-6),
                round(11e-6, 33e-6),
                round(12e-6, 30e-6),
            ],
            with_noisy: false,
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
        assert!(lines[1].starts_with("direct    -"), "{text}");
        assert!(lines[2].contains("11.0 (10.0–12.0)"), "{text}");
        assert!(
            text.contains("met         CPU out ≤ 0.55 × Envoy"),
            "{text}"
        );
        assert!(text.ends_with("3 rounds\n"), "{text}");
    }
}
