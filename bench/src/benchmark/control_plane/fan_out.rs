//! Rows of changes that many clients watch: changes of one Service that all watch, the reconnection
//! of all, and changes of many Services when each client watches some.

use anyhow::Context as _;

use super::programs::{Clients, Controller, Kind, KubeApi, Watches};
use super::report::{Figure, Row, Unit};
use super::{Plan, System};
use crate::benchmark::machine::NoiseMonitor;
use crate::benchmark::statistics::median;
use crate::kube_api::Population;
use crate::testbed::Testbed;

/// A control plane with its clients.
struct Watched {
    controller: Controller,
    watches: Watches,
    /// Its resident memory before there were clients.
    before: f64,
    _api: KubeApi,
}

/// Measurements of one control plane.
#[derive(Default)]
struct Samples {
    first: Vec<f64>,
    median: Vec<f64>,
    last: Vec<f64>,
    cpu: Vec<f64>,
    peak: Vec<f64>,
    /// Peak memory as a ratio to the memory before.
    growth: Vec<f64>,
}

/// Seconds from a change to the last watch, whatever the number of endpoints.
const MAX_LAST: f64 = 0.25;
/// Lag and CPU, as ratios to Istio's.
const MAX_OF_ISTIO: f64 = 0.2;
/// Seconds until all watches have their endpoints again.
const MAX_STORM: f64 = 5.0;
/// Peak memory while they are sent, as a ratio to the memory before.
const MAX_STORM_MEMORY: f64 = 2.0;

/// Istio's control plane does not serve 1,000 watches of 10,000 endpoints with one CPU: each first
/// response has 1 MB and takes it 50 ms, and before it has sent them all it closes connections,
/// probably by its keep-alive of 40 s.
const MAX_ISTIO_ENDPOINTS: u32 = 1000;

/// Measures changes of one Service that all watch, and their reconnection. The control planes are
/// alive at the same time and change in turn, in each round in the opposite order.
pub(super) fn rows(testbed: &Testbed, plan: &Plan, endpoints: u32) -> anyhow::Result<[Row; 2]> {
    let population = Population {
        services: 1,
        pods: endpoints,
    };
    let clients = Clients {
        count: plan.watches,
        each: 1,
    };
    let mut all = Vec::new();
    let is_served = |system: &System| *system == System::Ours || endpoints <= MAX_ISTIO_ENDPOINTS;
    for system in plan.systems().filter(is_served) {
        let mut watched = Watched::open(testbed, system, population, clients)?;
        // The first change makes the state that later ones find: the endpoint comes and goes.
        watched.watches.change()?;
        watched.watches.change()?;
        all.push((watched, Samples::default()));
    }
    let watchers = format!("{} watches of {endpoints} endpoints", plan.watches);
    let changes = changes(testbed, plan, &mut all, &watchers)?;
    let storm = storm(testbed, plan, &mut all, &watchers)?;
    Ok([changes, storm])
}

/// Measures changes of many Services at a rate. Each client watches some of the Services.
pub(super) fn breadth(testbed: &Testbed, plan: &Plan) -> anyhow::Result<Row> {
    let clients = Clients {
        count: plan.watches,
        each: plan.breadth.each,
    };
    let mut all = Vec::new();
    for system in plan.systems() {
        all.push(Watched::open(
            testbed,
            system,
            plan.breadth.population,
            clients,
        )?);
    }
    let (rate, seconds) = (plan.breadth.rate, plan.breadth.seconds);
    let monitor = NoiseMonitor::start(&testbed.cgroup)?;
    let mut results = Vec::new();
    for watched in &mut all {
        testbed.check_interrupt()?;
        let cpu = watched.controller.cpu()?;
        let lag = watched.watches.changes(rate, seconds)?;
        let cpu = watched.controller.cpu()? - cpu;
        results.push((lag, cpu, watched.controller.resident()?));
    }
    let noise = monitor.finish()?;
    let figure = |name, unit, value: fn(&(super::programs::Changes, f64, f64)) -> f64| {
        let ours = results.first().map(value).unwrap_or_default();
        Figure::new(name, unit, ours, results.get(1).map(value))
    };
    Ok(Row {
        title: format!(
            "{} clients of {} Services each, {rate} changes a second for {seconds} s",
            plan.watches, plan.breadth.each
        ),
        figures: vec![
            figure("median watch", Unit::Seconds, |it| it.0.median),
            figure("99 % of the watches", Unit::Seconds, |it| it.0.p99),
            figure("last watch", Unit::Seconds, |it| it.0.last).at_most_istio(MAX_OF_ISTIO),
            figure("CPU", Unit::Seconds, |it| it.1).at_most_istio(MAX_OF_ISTIO),
            figure("resident memory", Unit::Bytes, |it| it.2)
                .at_most_istio(super::MAX_MEMORY_OF_ISTIO),
        ],
        noise,
    })
}

fn changes(
    testbed: &Testbed,
    plan: &Plan,
    all: &mut [(Watched, Samples)],
    watchers: &str,
) -> anyhow::Result<Row> {
    let monitor = NoiseMonitor::start(&testbed.cgroup)?;
    for round in 0..plan.rounds {
        in_turn(all, round, |(watched, samples)| {
            let cpu = watched.controller.cpu()?;
            for _ in 0..plan.changes {
                testbed.check_interrupt()?;
                let change = watched.watches.change()?;
                samples.first.push(change.first);
                samples.median.push(change.median);
                samples.last.push(change.last);
            }
            let cpu = watched.controller.cpu()? - cpu;
            samples.cpu.push(cpu / f64::from(plan.changes));
            Ok(())
        })?;
    }
    let noise = monitor.finish()?;
    let mut resident = Vec::new();
    let mut each = Vec::new();
    for (watched, _) in all.iter() {
        let now = watched.controller.resident()?;
        resident.push(now);
        each.push((now - watched.before) / plan.watches as f64);
    }
    let of_both = |name, values: &[f64]| {
        let ours = values.first().copied().unwrap_or_default();
        Figure::new(name, Unit::Bytes, ours, values.get(1).copied())
    };
    Ok(Row {
        title: format!("a change for {watchers}"),
        figures: vec![
            figure(all, "first watch", Unit::Seconds, |it| &it.first)?,
            figure(all, "median watch", Unit::Seconds, |it| &it.median)?,
            figure(all, "last watch", Unit::Seconds, |it| &it.last)?
                .at_most(MAX_LAST)
                .at_most_istio(MAX_OF_ISTIO),
            figure(all, "CPU of a change", Unit::Seconds, |it| &it.cpu)?
                .at_most_istio(MAX_OF_ISTIO),
            of_both("resident memory", &resident).at_most_istio(super::MAX_MEMORY_OF_ISTIO),
            of_both("memory of a watch", &each),
        ],
        noise,
    })
}

/// Measures all watches closing their connections and opening them again.
fn storm(
    testbed: &Testbed,
    plan: &Plan,
    all: &mut [(Watched, Samples)],
    watchers: &str,
) -> anyhow::Result<Row> {
    let monitor = NoiseMonitor::start(&testbed.cgroup)?;
    for (_, samples) in all.iter_mut() {
        *samples = Samples::default();
    }
    for round in 0..plan.storms {
        in_turn(all, round, |(watched, samples)| {
            testbed.check_interrupt()?;
            let before = watched.controller.resident()?;
            watched.controller.reset_peak()?;
            let cpu = watched.controller.cpu()?;
            samples.last.push(watched.watches.reconnect()?);
            samples.cpu.push(watched.controller.cpu()? - cpu);
            let peak = watched.controller.peak()?;
            samples.peak.push(peak);
            samples.growth.push(peak / before);
            Ok(())
        })?;
    }
    Ok(Row {
        title: format!("reconnection of {watchers}"),
        figures: vec![
            figure(all, "until all have them", Unit::Seconds, |it| &it.last)?.at_most(MAX_STORM),
            figure(all, "CPU", Unit::Seconds, |it| &it.cpu)?.at_most_istio(MAX_OF_ISTIO),
            figure(all, "peak memory", Unit::Bytes, |it| &it.peak)?,
            figure(all, "peak memory to memory before", Unit::Ratio, |it| {
                &it.growth
            })?
            .at_most(MAX_STORM_MEMORY),
        ],
        noise: monitor.finish()?,
    })
}

/// Does something with each, in every other round beginning with the last.
fn in_turn<T>(
    all: &mut [T],
    round: u32,
    mut each: impl FnMut(&mut T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if round.is_multiple_of(2) {
        all.iter_mut().try_for_each(&mut each)
    } else {
        all.iter_mut().rev().try_for_each(&mut each)
    }
}

/// Returns the figure of our median and Istio's.
fn figure(
    all: &[(Watched, Samples)],
    name: &'static str,
    unit: Unit,
    values: fn(&Samples) -> &Vec<f64>,
) -> anyhow::Result<Figure> {
    let median_of = |(_, samples): &(Watched, Samples)| median(values(samples));
    let ours = all.first().and_then(median_of);
    let ours = ours.context("nothing was measured")?;
    Ok(Figure::new(
        name,
        unit,
        ours,
        all.get(1).and_then(median_of),
    ))
}

impl Watched {
    fn open(
        testbed: &Testbed,
        system: System,
        population: Population,
        clients: Clients,
    ) -> anyhow::Result<Self> {
        let kind = match system {
            System::Ours => Kind::Destination,
            System::Istio => Kind::Istio,
        };
        let api = KubeApi::start(testbed, population)?;
        let controller = Controller::start(testbed, kind, &api)?;
        let before = controller.resident()?;
        let watches = Watches::open(testbed, &api, kind, &controller, clients)?;
        Ok(Self {
            controller,
            watches,
            before,
            _api: api,
        })
    }
}
