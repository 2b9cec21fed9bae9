//! Compares a pair of proxies with a feature to the same pair without it.
//!
//! Both proxies are started anew before each measurement. Two processes of the same program differ
//! by a percent or two in the CPU time of a request, since their memory lies elsewhere. A pair that
//! kept running would carry that difference through all rounds, and the interval would not show it.

use super::metric::SystemUnderTest;
use super::row::{Round, Row, Sample};
use super::system::System;
use super::traffic::rounds;
use super::workload::{Load, Service};
use super::{Plan, Run, load};
use crate::testbed::proxies::ProxySettings;

/// So many times the rounds of other workloads: the limits are a few percent.
const MORE_ROUNDS: usize = 2;
/// Seconds of load before a measurement: connections and discovery.
const WARM_UP: u32 = 1;

/// Whether the proxies have the feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    With,
    Without,
}

impl Variant {
    /// The order of measurement in a round: A B, then B A.
    pub(super) fn order(round: usize) -> [Self; 2] {
        match round % 2 {
            0 => [Self::With, Self::Without],
            _ => [Self::Without, Self::With],
        }
    }

    pub(super) fn sut(self) -> SystemUnderTest {
        match self {
            Self::With => SystemUnderTest::MeshProxy,
            Self::Without => SystemUnderTest::Plain,
        }
    }
}

/// Runs rounds of a pair of proxies. `measure` restarts the proxies with the settings of a variant,
/// and returns the sample and the number of failed operations.
pub(super) fn compare(
    run: Run<'_>,
    mut measure: impl FnMut(&mut System, Variant) -> anyhow::Result<(Sample, u64)>,
) -> anyhow::Result<Row> {
    let plan = Plan {
        suts: run.plan.suts.clone(),
        rounds: run.plan.rounds * MORE_ROUNDS,
        ..*run.plan
    };
    let run = Run { plan: &plan, ..run };
    let mut system = System::start(run.testbed, SystemUnderTest::MeshProxy)?;
    rounds(run, |number, progress| {
        let mut round = Round::default();
        for variant in Variant::order(number) {
            progress.line(&format!("round {}, {}", number + 1, variant.sut()));
            progress.tick();
            let (sample, failed) = measure(&mut system, variant)?;
            round.samples.insert(variant.sut(), sample);
            round.failed.insert(variant.sut(), failed);
        }
        Ok(round)
    })
}

/// Restarts the proxies with these settings and warms them up.
pub(super) fn restart(
    run: Run<'_>,
    system: &mut System,
    settings: &ProxySettings<'_>,
    load: Load,
) -> anyhow::Result<()> {
    system.restart(run.testbed, settings)?;
    load::measure(run.testbed, system, Service::Http1, load, WARM_UP).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variant_is_measured_first_in_every_second_round() {
        assert_eq!(Variant::order(0)[0], Variant::With);
        assert_eq!(Variant::order(1)[0], Variant::Without);
        assert_ne!(Variant::order(0)[0], Variant::order(0)[1]);
        assert_ne!(Variant::With.sut(), Variant::Without.sut());
    }
}
