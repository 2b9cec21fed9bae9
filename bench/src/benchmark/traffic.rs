//! Workloads whose load alternates between running systems.

use std::collections::BTreeMap;

use xtask::progress::Progress;

use super::machine::NoiseMonitor;
use super::metric::SystemUnderTest;
use super::row::{Round, Row};
use super::system::System;
use super::workload::{Load, Service};
use super::{Run, load};
use crate::testbed::Cpus;
use crate::testbed::proxies::ProxySettings;

/// The systems under test that have been started. They keep running, since starting one takes
/// longer than a measurement.
pub(super) type Systems = BTreeMap<SystemUnderTest, System>;

/// Runs rounds until enough of them were quiet.
pub(super) fn row(
    run: Run<'_>,
    systems: &mut Systems,
    cpus: Cpus,
    service: Service,
    load: Load,
) -> anyhow::Result<Row> {
    let (testbed, suts) = (run.testbed, run.suts());
    for sut in &suts {
        if !systems.contains_key(sut) {
            let settings = ProxySettings::default();
            systems.insert(*sut, System::start_on(testbed, cpus, *sut, &settings)?);
        }
    }
    // Warms up: discovery, connections, caches.
    for sut in &suts {
        if let Some(system) = systems.get_mut(sut) {
            load::measure(testbed, system, service, load, 1)?;
        }
    }
    rounds(run, |number, progress| {
        let mut round = Round::default();
        for sut in order(&suts, number) {
            progress.line(&format!("round {}, {sut}", number + 1));
            progress.tick();
            let Some(system) = systems.get_mut(&sut) else {
                continue;
            };
            let (sample, failed) = load::measure(testbed, system, service, load, run.plan.seconds)?;
            round.samples.insert(sut, sample);
            round.failed.insert(sut, failed);
        }
        Ok(round)
    })
}

/// Runs rounds until enough of them were quiet, or the maximum number of attempts is reached.
pub(super) fn rounds(
    run: Run<'_>,
    mut measure: impl FnMut(usize, &mut Progress) -> anyhow::Result<Round>,
) -> anyhow::Result<Row> {
    several_rounds(run, |number, progress| Ok(vec![measure(number, progress)?]))
}

/// The same for a measurement that has several rounds.
pub(super) fn several_rounds(
    run: Run<'_>,
    mut measure: impl FnMut(usize, &mut Progress) -> anyhow::Result<Vec<Round>>,
) -> anyhow::Result<Row> {
    let mut row = Row {
        workload: run.workload,
        rounds: Vec::new(),
        with_noisy: run.plan.with_noisy,
        note: None,
    };
    let mut progress = Progress::new(run.workload.name);
    let (mut attempts, mut counted) = (0, 0);
    while counted < run.plan.rounds && attempts < run.plan.attempts() {
        run.testbed.check_interrupt()?;
        let watch = NoiseMonitor::start(&run.testbed.cgroup)?;
        let measured = measure(attempts, &mut progress)?;
        let noise = watch.finish()?;
        attempts += 1;
        counted += usize::from(run.plan.with_noisy || noise.is_quiet());
        for mut round in measured {
            round.noise = noise;
            round.derive();
            row.rounds.push(round);
        }
    }
    progress.finish();
    Ok(row)
}

/// Returns the order of measurement in a round: A B, then B A, so that a drift of the machine
/// affects all systems equally.
fn order(suts: &[SystemUnderTest], round: usize) -> Vec<SystemUnderTest> {
    let mut order = suts.to_vec();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurement_order_alternates_between_rounds() {
        let suts = [
            SystemUnderTest::Direct,
            SystemUnderTest::MeshProxy,
            SystemUnderTest::Envoy,
        ];
        let mut when: BTreeMap<SystemUnderTest, usize> = BTreeMap::new();
        for round in 0..2 {
            for (position, sut) in order(&suts, round).into_iter().enumerate() {
                *when.entry(sut).or_default() += round * suts.len() + position;
            }
        }
        // The sum of positions is the same for each system.
        assert_eq!(when.values().collect::<Vec<_>>(), [&5, &5, &5]);
    }
}
