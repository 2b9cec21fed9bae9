//! Compares load at a fixed rate while the endpoints of other services change and while they do
//! not.

use anyhow::{Context as _, bail};

use super::memory::hold;
use super::metric::{Metric, SystemUnderTest};
use super::row::{Row, Sample};
use super::system::System;
use super::workload::{IdleConnection, Load, Service};
use super::{Run, alternation, load};

/// Requests each second.
const RATE: u32 = 5000;
/// Services whose endpoints change, and changes of each per second: a thousand changes in a hundred
/// bursts, as in a rollout.
const MOVING: u32 = 10;
const CHANGES: u32 = 100;
/// Fewer changes in a second would measure too little.
const LEAST: f64 = 0.8 * (MOVING * CHANGES) as f64;

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
    let load = Load::FixedRate { rate: RATE };
    load::measure(testbed, &mut system, Service::Http1, load, 1)?;
    // The control plane encodes ten messages at a time on the CPU of the load generator. Without a
    // lower priority the load generator would wait for it, and that delay would be attributed to
    // the proxy.
    system.control()?.client.deprioritise()?;
    alternation::row(run, |turn, seconds| {
        let changes = format!("changes {CHANGES} {}", turn.name());
        system.control()?.client.write_line(&changes)?;
        let before = sent(&mut system)?;
        let outcomes = load::by_second(testbed, &mut system, RATE, seconds)?;
        let sent = (sent(&mut system)? - before) / f64::from(seconds);
        if sent < LEAST {
            bail!("the client's proxy was told of {sent:.0} changes a second");
        }
        Ok((outcomes, Sample::from([(Metric::Changes, sent)])))
    })
}

/// Returns the number of messages about changes that the control plane of the client's proxy has
/// sent.
fn sent(system: &mut System) -> anyhow::Result<f64> {
    let control = &mut system.control()?.client;
    control.write_line("sent")?;
    let event = control.next_event()?;
    let sent = event["sent"].as_f64();
    sent.with_context(|| format!("the control plane printed {event}"))
}
