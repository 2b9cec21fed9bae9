//! Alternates one-second windows with and without the feature, and compares neighbours.
//!
//! A round is one window of each kind, side by side: the machine's state changes p99 by more than
//! the feature does, but rarely within two seconds.

use super::Run;
use super::load::{self, Outcome};
use super::row::{Round, Row, Sample};
use super::traffic::several_rounds;
use super::with_and_without::Variant;
use crate::turn::Turn;

/// A multiple of the duration of other workloads: the ratio of two windows varies by a third.
const DURATION_FACTOR: u32 = 24;

/// Runs loads with [`load::by_second`] until enough of them were quiet. `measure` runs one load:
/// the given number of seconds with the feature, in the given turn, and as long without it. It
/// returns the outcome of each second, and metrics of the seconds with the feature.
pub(super) fn row(
    run: Run<'_>,
    mut measure: impl FnMut(Turn, u32) -> anyhow::Result<(Vec<Outcome>, Sample)>,
) -> anyhow::Result<Row> {
    let seconds = run.plan.seconds * DURATION_FACTOR;
    several_rounds(run, |number, progress| {
        progress.line(&format!("load {}", number + 1));
        progress.tick();
        let order = Variant::order(number);
        // The load begins with an even second.
        let turn = match order[0] {
            Variant::With => Turn::Even,
            Variant::Without => Turn::Odd,
        };
        let (outcomes, with) = measure(turn, seconds)?;
        let pairs = outcomes.chunks_exact(2);
        Ok(pairs.map(|pair| round(order, pair, &with)).collect())
    })
}

/// Returns the round of two adjacent seconds.
fn round(order: [Variant; 2], seconds: &[Outcome], with: &Sample) -> Round {
    let mut round = Round::default();
    for (variant, outcome) in order.into_iter().zip(seconds) {
        let mut sample = load::sample(outcome);
        if variant == Variant::With {
            sample.extend(with);
        }
        round.samples.insert(variant.sut(), sample);
        round.failed.insert(variant.sut(), outcome.failed);
    }
    round
}

#[cfg(test)]
mod tests {
    use super::super::metric::Metric;
    use super::*;

    #[test]
    fn round_compares_two_adjacent_seconds() {
        let second = |p99| Outcome {
            p99,
            ..Outcome::default()
        };
        let order = [Variant::Without, Variant::With];
        let seconds = [second(Some(2.0)), second(Some(3.0))];
        let measured = round(order, &seconds, &Sample::from([(Metric::Tapped, 34.0)]));
        for (variant, p99, tapped) in [
            (Variant::With, 3.0, Some(34.0)),
            (Variant::Without, 2.0, None),
        ] {
            let sample = &measured.samples[&variant.sut()];
            assert_eq!(sample[&Metric::P99], p99);
            assert_eq!(sample.get(&Metric::Tapped).copied(), tapped);
        }
    }
}
