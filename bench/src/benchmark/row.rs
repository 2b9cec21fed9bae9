//! What a workload gave: its rounds, and what they say about each goal. Pure.

use std::collections::BTreeMap;

use super::{
    machine::Noise,
    metric::{Metric, Peer},
    statistics::Estimate,
    workload::{Goal, Limit, Workload},
};

/// The numbers of one peer in one round.
pub(crate) type Sample = BTreeMap<Metric, f64>;

/// Every peer once, one after the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Round {
    pub(crate) samples: BTreeMap<Peer, Sample>,
    pub(crate) noise: Noise,
    /// Operations of each peer that failed.
    pub(crate) failed: BTreeMap<Peer, u64>,
}

/// A workload and all its rounds, in the order in which they ran.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) workload: &'static Workload,
    pub(crate) rounds: Vec<Round>,
    /// Whether rounds of a noisy machine count too.
    pub(crate) with_noisy: bool,
    /// What a reader has to know besides.
    pub(crate) note: Option<String>,
}

/// What the rounds say about a goal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Judged {
    pub(crate) goal: Goal,
    /// Of our value to the peer's in the same round, or of our value where the goal is one.
    pub(crate) estimate: Estimate,
    pub(crate) met: Met,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Met {
    Yes,
    /// The median is on the right side, and the interval reaches to the other.
    Unsure,
    No,
}

impl Round {
    /// Fills in what follows from the numbers of several peers.
    pub(crate) fn derive(&mut self) {
        for (from, to) in [
            (Metric::P50, Metric::AddedP50),
            (Metric::CpuBoth, Metric::AddedCpu),
        ] {
            let floor = self.value(Peer::Direct, from);
            let Some(floor) = floor else { continue };
            for (_, sample) in self
                .samples
                .iter_mut()
                .filter(|(peer, _)| **peer != Peer::Direct)
            {
                if let Some(value) = sample.get(&from) {
                    sample.insert(to, value - floor);
                }
            }
        }
    }

    fn value(&self, peer: Peer, metric: Metric) -> Option<f64> {
        self.samples.get(&peer)?.get(&metric).copied()
    }
}

impl Row {
    /// The rounds that count.
    pub(crate) fn counted(&self) -> impl Iterator<Item = &Round> {
        self.rounds
            .iter()
            .filter(|round| self.with_noisy || round.noise.is_quiet())
    }

    /// How many rounds were thrown out.
    pub(crate) fn discarded(&self) -> usize {
        self.rounds.len() - self.counted().count()
    }

    /// The peers of which operations failed in rounds that count, and how many.
    pub(crate) fn failed(&self) -> BTreeMap<Peer, u64> {
        let mut failed = BTreeMap::new();
        for (peer, count) in self.counted().flat_map(|round| &round.failed) {
            *failed.entry(*peer).or_default() += count;
        }
        failed.retain(|_, count| *count > 0);
        failed
    }

    /// A metric of a peer in every round that counts.
    pub(crate) fn values(&self, peer: Peer, metric: Metric) -> Vec<f64> {
        self.counted()
            .filter_map(|round| round.value(peer, metric))
            .collect()
    }

    /// Our value over a peer's, round by round.
    pub(crate) fn ratios(&self, metric: Metric, peer: Peer) -> Vec<f64> {
        self.counted()
            .filter_map(|round| Some(round.value(Peer::Ours, metric)? / round.value(peer, metric)?))
            .collect()
    }

    /// Every goal of the workload whose peers were measured.
    pub(crate) fn judged(&self) -> Vec<Judged> {
        let goals = self.workload.goals.iter();
        goals.filter_map(|goal| self.judge(*goal)).collect()
    }

    fn judge(&self, goal: Goal) -> Option<Judged> {
        let values = match goal.limit {
            Limit::AtMost(_, peer) | Limit::AtLeast(_, peer) => self.ratios(goal.metric, peer),
            Limit::Value(_) => self.values(Peer::Ours, goal.metric),
        };
        let estimate = Estimate::of(&values)?;
        Some(Judged {
            goal,
            estimate,
            met: met(goal.limit, estimate),
        })
    }
}

fn met(limit: Limit, estimate: Estimate) -> Met {
    let keeps = |value: f64| match limit {
        Limit::AtMost(most, _) | Limit::Value(most) => value <= most,
        Limit::AtLeast(least, _) => value >= least,
    };
    match (
        keeps(estimate.median),
        keeps(estimate.low) && keeps(estimate.high),
    ) {
        (true, true) => Met::Yes,
        (true, false) => Met::Unsure,
        (false, _) => Met::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::workload;

    fn round(ours: f64, envoy: f64, steal: f64) -> Round {
        let sample = |value| Sample::from([(Metric::CpuOut, value), (Metric::P50, value)]);
        let mut round = Round {
            samples: [
                (Peer::Direct, Sample::from([(Metric::P50, 1.0)])),
                (Peer::Ours, sample(ours)),
                (Peer::Envoy, sample(envoy)),
            ]
            .into(),
            noise: Noise { steal, others: 0.0 },
            failed: [(Peer::Ours, 0), (Peer::Envoy, 1)].into(),
        };
        round.derive();
        round
    }

    fn row(with_noisy: bool) -> Row {
        Row {
            workload: workload::find("http1-64").expect("it exists"),
            rounds: vec![
                round(2.0, 8.0, 0.0),
                round(4.0, 8.0, 0.0),
                round(9.0, 9.0, 0.5),
            ],
            with_noisy,
            note: None,
        }
    }

    #[test]
    fn noisy_rounds_are_counted_and_left_out() {
        let quiet = row(false);
        assert_eq!(quiet.discarded(), 1);
        assert_eq!(quiet.failed(), [(Peer::Envoy, 2)].into());
        assert_eq!(quiet.ratios(Metric::CpuOut, Peer::Envoy), [0.25, 0.5]);
        let all = row(true);
        assert_eq!(all.discarded(), 0);
        assert_eq!(all.ratios(Metric::CpuOut, Peer::Envoy), [0.25, 0.5, 1.0]);
    }

    #[test]
    fn what_is_added_is_measured_against_the_floor_of_the_same_round() {
        assert_eq!(row(false).values(Peer::Ours, Metric::AddedP50), [1.0, 3.0]);
        assert!(row(false).values(Peer::Direct, Metric::AddedP50).is_empty());
    }

    #[test]
    fn only_goals_against_measured_peers_are_judged() {
        let judged = row(false).judged();
        assert!(!judged.is_empty());
        for judged in judged {
            assert!(
                matches!(judged.goal.limit, Limit::AtMost(_, Peer::Envoy)),
                "{judged:?}"
            );
        }
    }

    #[test]
    fn a_goal_is_met_when_the_whole_interval_keeps_it() {
        let estimate = |low, median, high| Estimate { median, low, high };
        let most = Limit::AtMost(0.5, Peer::Envoy);
        let least = Limit::AtLeast(1.5, Peer::Envoy);
        for (limit, estimate, expected) in [
            (most, estimate(0.3, 0.4, 0.5), Met::Yes),
            (most, estimate(0.3, 0.4, 0.6), Met::Unsure),
            (most, estimate(0.4, 0.6, 0.7), Met::No),
            (least, estimate(1.5, 1.6, 1.9), Met::Yes),
            (least, estimate(1.4, 1.6, 1.9), Met::Unsure),
            (least, estimate(1.2, 1.4, 1.9), Met::No),
            (Limit::Value(3.0), estimate(1.0, 2.0, 3.0), Met::Yes),
        ] {
            assert_eq!(met(limit, estimate), expected, "{limit:?} {estimate:?}");
        }
    }
}
