//! Compares load at a fixed rate while the endpoints of other services change and while they do
//! not.

use super::memory::hold;
use super::metric::{Metric, SystemUnderTest};
use super::row::{Round, Row, Sample};
use super::system::System;
use super::traffic::rounds;
use super::workload::{IdleConnection, Load, Service};
use super::{Run, load};

const RATE: Load = Load::FixedRate { rate: 5000 };
/// Services whose endpoints change, and changes of each per second: a thousand changes in a hundred
/// bursts, as in a rollout.
const MOVING: u32 = 10;
const TURNS: u32 = 100;

pub(super) fn row(run: Run<'_>) -> anyhow::Result<Row> {
    let testbed = run.testbed;
    let mut system = System::start(testbed, SystemUnderTest::MeshProxy)?;
    let moving = format!("10.99.0.1:{}", Service::Http1.port());
    // A proxy watches only destinations that its pod uses.
    let connections = (MOVING, MOVING);
    let _used = hold(
        testbed,
        &system,
        &moving,
        connections,
        IdleConnection::Http1,
    )?;
    load::measure(testbed, &mut system, Service::Http1, RATE, 1)?;
    if let Some(control) = &system.control {
        // The control plane encodes ten messages at a time on the CPU of the load generator.
        // Without a lower priority the load generator would wait for it, and that delay would be
        // attributed to the proxy.
        control.client.deprioritise()?;
    }
    rounds(run, |number, _| {
        let mut round = Round::default();
        let mut measure = |turns: u32| -> anyhow::Result<Sample> {
            if let Some(control) = &mut system.control {
                control.client.write_line(&format!("changes {turns}"))?;
            }
            let (sample, failed) =
                load::measure(testbed, &mut system, Service::Http1, RATE, run.plan.seconds)?;
            *round.failed.entry(SystemUnderTest::MeshProxy).or_default() += failed;
            Ok(sample)
        };
        let (still, mut moved) = if number % 2 == 0 {
            let still = measure(0)?;
            (still, measure(TURNS)?)
        } else {
            let moved = measure(TURNS)?;
            (measure(0)?, moved)
        };
        measure(0).map(drop)?;
        if let (Some(with), Some(without)) = (moved.get(&Metric::P99), still.get(&Metric::P99)) {
            let ratio = with / without;
            moved.insert(Metric::P99Moved, ratio);
        }
        round.samples.insert(SystemUnderTest::MeshProxy, moved);
        Ok(round)
    })
}
