//! Compares a pair of proxies with a feature to a pair without it.
//!
//! Both pairs run at the same time, each in pods of its own, and the load alternates between them
//! every second, so that slow changes of the machine affect both alike. Each round starts all
//! proxies anew and swaps the pods: two processes of the same program differ by a percent or two in
//! the CPU time of a request, since their memory lies elsewhere, and pairs that kept running would
//! carry that difference through all rounds.

use super::metric::SystemUnderTest;
use super::row::{Round, Row, Sample};
use super::system::System;
use super::traffic::rounds;
use super::workload::{Load, Service};
use super::{Run, load};
use crate::testbed::ProxyPair;
use crate::testbed::proxies::ProxySettings;

/// A multiple of the rounds of other workloads: the limits are a few percent.
const ROUNDS_FACTOR: usize = 2;
/// Seconds of load on one pair before the other has its turn.
const TURN: u32 = 1;
/// Turns of each pair for a second of load in other workloads.
const TURNS_PER_SECOND: u32 = 2;
/// Seconds of load before a measurement: connections and discovery.
const WARM_UP: u32 = 1;

/// The feature that the proxies of one pair have in addition.
pub(super) trait Feature {
    fn load(&self, variant: Variant) -> Load;

    /// Starts the proxies of a system anew, with or without the feature, and warms them up.
    fn start(&mut self, system: &mut System, variant: Variant) -> anyhow::Result<()>;

    /// Fails if the feature was not in force during the load, and adds its own metrics.
    fn finish(
        &mut self,
        system: &mut System,
        variant: Variant,
        measured: &load::Outcome,
        sample: &mut Sample,
    ) -> anyhow::Result<()>;
}

/// Whether the proxies have the feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    With,
    Without,
}

impl Variant {
    /// The order of measurement: A B, then B A.
    pub(super) fn order(number: usize) -> [Self; 2] {
        match number % 2 {
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

/// A variant in a round.
struct Side<'s> {
    variant: Variant,
    system: &'s mut System,
    /// CPU seconds of its proxies before the load.
    before: Option<ProxyPair<f64>>,
    measured: load::Outcome,
}

impl<'s> Side<'s> {
    fn new(variant: Variant, system: &'s mut System) -> Self {
        Self {
            variant,
            system,
            before: None,
            measured: load::Outcome::default(),
        }
    }
}

/// Runs rounds of both pairs.
pub(super) fn compare(run: Run<'_>, mut feature: impl Feature) -> anyhow::Result<Row> {
    let mut plan = run.plan.clone();
    plan.rounds *= ROUNDS_FACTOR;
    let run = Run { plan: &plan, ..run };
    let first = System::start(run.testbed, SystemUnderTest::MeshProxy)?;
    let second = first.start_second(run.testbed)?;
    let mut systems = [first, second];
    rounds(run, |number, progress| {
        systems.reverse();
        let [one, other] = &mut systems;
        let mut with = Side::new(Variant::With, one);
        let mut without = Side::new(Variant::Without, other);
        for side in [&mut with, &mut without] {
            feature.start(side.system, side.variant)?;
        }
        // The other pair does not wait for load: exports and the like happen at any time.
        for side in [&mut with, &mut without] {
            side.before = side.system.run_times()?;
        }
        for turn in 0..run.plan.seconds * TURNS_PER_SECOND {
            progress.line(&format!("round {}, turn {}", number + 1, turn + 1));
            progress.tick();
            for variant in Variant::order(turn as usize) {
                let side = match variant {
                    Variant::With => &mut with,
                    Variant::Without => &mut without,
                };
                let load = feature.load(variant);
                let outcome = load::apply(run.testbed, side.system, Service::Http1, load, TURN)?;
                side.measured.add(&outcome);
            }
        }
        let mut round = Round::default();
        for side in [with, without] {
            let mut sample = load::sample(&side.measured);
            let operations = side.measured.operations;
            load::add_cpu(&mut sample, side.system, side.before, operations)?;
            feature.finish(side.system, side.variant, &side.measured, &mut sample)?;
            round.samples.insert(side.variant.sut(), sample);
            round
                .failed
                .insert(side.variant.sut(), side.measured.failed);
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
    load::apply(run.testbed, system, Service::Http1, load, WARM_UP).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variant_is_measured_first_in_every_second_turn() {
        assert_eq!(Variant::order(0)[0], Variant::With);
        assert_eq!(Variant::order(1)[0], Variant::Without);
        assert_ne!(Variant::order(0)[0], Variant::order(0)[1]);
        assert_ne!(Variant::With.sut(), Variant::Without.sut());
        // So that both are first equally often.
        assert_eq!(TURNS_PER_SECOND % 2, 0);
    }
}
