//! The results of a workload: its rounds, and whether each goal is met. No I/O.

use std::collections::BTreeMap;

use super::machine::Noise;
use super::metric::{Metric, SystemUnderTest};
use super::statistics::Estimate;
use super::workload::{Goal, Limit, Workload};

/// The metrics of one system in one round.
pub(crate) type Sample = BTreeMap<Metric, f64>;

/// One measurement of every system, one after the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Round {
    pub(crate) samples: BTreeMap<SystemUnderTest, Sample>,
    pub(crate) noise: Noise,
    /// Failed operations of each system.
    pub(crate) failed: BTreeMap<SystemUnderTest, u64>,
}

/// A workload and its rounds in chronological order.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) workload: &'static Workload,
    pub(crate) rounds: Vec<Round>,
    /// Whether rounds on a noisy machine count.
    pub(crate) with_noisy: bool,
    /// A remark for the reader of the report.
    pub(crate) note: Option<String>,
}

/// The result of a goal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GoalResult {
    pub(crate) goal: Goal,
    /// The ratio to the other system in the same round, or the value itself for [`Limit::Value`].
    pub(crate) estimate: Estimate,
    pub(crate) status: GoalStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GoalStatus {
    Met,
    /// The median is within the limit, but the interval crosses it.
    Undecided,
    Missed,
}

impl Round {
    /// Adds the metrics that are derived from several systems.
    pub(crate) fn derive(&mut self) {
        for (from, to) in [
            (Metric::P50, Metric::AddedP50),
            (Metric::CpuBoth, Metric::AddedCpu),
        ] {
            let floor = self.value(SystemUnderTest::Direct, from);
            let Some(floor) = floor else { continue };
            let samples = self.samples.iter_mut();
            for (_, sample) in samples.filter(|(sut, _)| **sut != SystemUnderTest::Direct) {
                if let Some(value) = sample.get(&from) {
                    sample.insert(to, value - floor);
                }
            }
        }
    }

    fn value(&self, sut: SystemUnderTest, metric: Metric) -> Option<f64> {
        self.samples.get(&sut)?.get(&metric).copied()
    }
}

impl Row {
    /// Returns the rounds that count.
    pub(crate) fn counted(&self) -> impl Iterator<Item = &Round> {
        self.rounds
            .iter()
            .filter(|round| self.with_noisy || round.noise.is_quiet())
    }

    /// Returns the number of discarded rounds.
    pub(crate) fn discarded(&self) -> usize {
        self.rounds.len() - self.counted().count()
    }

    /// Returns the systems with failed operations in counted rounds, and the number of failures.
    pub(crate) fn failed(&self) -> BTreeMap<SystemUnderTest, u64> {
        let mut failed = BTreeMap::new();
        for (sut, count) in self.counted().flat_map(|round| &round.failed) {
            *failed.entry(*sut).or_default() += count;
        }
        failed.retain(|_, count| *count > 0);
        failed
    }

    /// Returns a metric of a system in every counted round.
    pub(crate) fn values(&self, sut: SystemUnderTest, metric: Metric) -> Vec<f64> {
        self.counted()
            .filter_map(|round| round.value(sut, metric))
            .collect()
    }

    /// Returns the ratio of mesh-proxy to another system in every counted round.
    pub(crate) fn ratios(&self, metric: Metric, sut: SystemUnderTest) -> Vec<f64> {
        let ratio = |round: &Round| {
            Some(round.value(SystemUnderTest::MeshProxy, metric)? / round.value(sut, metric)?)
        };
        self.counted().filter_map(ratio).collect()
    }

    /// Returns the results of the goals whose systems were measured.
    pub(crate) fn goal_results(&self) -> Vec<GoalResult> {
        let goals = self.workload.goals.iter();
        goals.filter_map(|goal| self.evaluate(*goal)).collect()
    }

    fn evaluate(&self, goal: Goal) -> Option<GoalResult> {
        let values = match goal.limit {
            Limit::AtMost(_, sut) | Limit::AtLeast(_, sut) => self.ratios(goal.metric, sut),
            Limit::Value(_) => self.values(SystemUnderTest::MeshProxy, goal.metric),
        };
        let estimate = Estimate::from_values(&values)?;
        Some(GoalResult {
            goal,
            estimate,
            status: goal_status(goal.limit, estimate),
        })
    }
}

fn goal_status(limit: Limit, estimate: Estimate) -> GoalStatus {
    let keeps = |value: f64| match limit {
        Limit::AtMost(most, _) | Limit::Value(most) => value <= most,
        Limit::AtLeast(least, _) => value >= least,
    };
    let whole = keeps(estimate.low) && keeps(estimate.high);
    match (keeps(estimate.median), whole) {
        (true, true) => GoalStatus::Met,
        (true, false) => GoalStatus::Undecided,
        (false, _) => GoalStatus::Missed,
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
                (SystemUnderTest::Direct, Sample::from([(Metric::P50, 1.0)])),
                (SystemUnderTest::MeshProxy, sample(ours)),
                (SystemUnderTest::Envoy, sample(envoy)),
            ]
            .into(),
            noise: Noise { steal, others: 0.0 },
            failed: [(SystemUnderTest::MeshProxy, 0), (SystemUnderTest::Envoy, 1)].into(),
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
    fn noisy_rounds_are_discarded() {
        let quiet = row(false);
        assert_eq!(quiet.discarded(), 1);
        assert_eq!(quiet.failed(), [(SystemUnderTest::Envoy, 2)].into());
        let ratios = |row: &Row| row.ratios(Metric::CpuOut, SystemUnderTest::Envoy);
        assert_eq!(ratios(&quiet), [0.25, 0.5]);
        let all = row(true);
        assert_eq!(all.discarded(), 0);
        assert_eq!(ratios(&all), [0.25, 0.5, 1.0]);
    }

    #[test]
    fn added_latency_is_relative_to_direct_in_same_round() {
        let added = |sut| row(false).values(sut, Metric::AddedP50);
        assert_eq!(added(SystemUnderTest::MeshProxy), [1.0, 3.0]);
        assert!(added(SystemUnderTest::Direct).is_empty());
    }

    #[test]
    fn goals_against_unmeasured_systems_are_skipped() {
        let results = row(false).goal_results();
        assert!(!results.is_empty());
        for result in results {
            let limit = result.goal.limit;
            let is_envoy = matches!(limit, Limit::AtMost(_, SystemUnderTest::Envoy));
            assert!(is_envoy, "{result:?}");
        }
    }

    #[test]
    fn goal_is_met_only_if_whole_interval_is_within_limit() {
        let estimate = |low, median, high| Estimate { median, low, high };
        let most = Limit::AtMost(0.5, SystemUnderTest::Envoy);
        let least = Limit::AtLeast(1.5, SystemUnderTest::Envoy);
        for (limit, estimate, expected) in [
            (most, estimate(0.3, 0.4, 0.5), GoalStatus::Met),
            (most, estimate(0.3, 0.4, 0.6), GoalStatus::Undecided),
            (most, estimate(0.4, 0.6, 0.7), GoalStatus::Missed),
            (least, estimate(1.5, 1.6, 1.9), GoalStatus::Met),
            (least, estimate(1.4, 1.6, 1.9), GoalStatus::Undecided),
            (least, estimate(1.2, 1.4, 1.9), GoalStatus::Missed),
            (Limit::Value(3.0), estimate(1.0, 2.0, 3.0), GoalStatus::Met),
        ] {
            let status = goal_status(limit, estimate);
            assert_eq!(status, expected, "{limit:?} {estimate:?}");
        }
    }
}
