//! `cargo xtask bench control --sweep`: how memory, CPU and the delay of updates grow with the
//! cluster, from 1,000 to 100,000 pods.

use std::path::Path;

use anyhow::Context as _;

use super::Plan;
use super::plot::{self, Line, Panel};
use super::programs::{Clients, Controller, Kind, KubeApi, Watches};
use super::report::{Report, Table, Unit};
use super::start::Start;
use crate::benchmark::machine::NoiseMonitor;
use crate::benchmark::statistics::slope;
use crate::kube_api::Population;
use crate::testbed::Testbed;

/// A controller in a cluster of one size.
struct Point {
    kind: Kind,
    pods: f64,
    start: Start,
    /// CPU of a change.
    cpu: f64,
    /// Seconds until it arrived, at the median and at the last watch.
    median: f64,
    last: f64,
    is_quiet: bool,
}

/// Something that grows.
struct Quantity {
    name: &'static str,
    unit: Unit,
    of: fn(&Point) -> f64,
}

/// Pods of each Service. A node has twenty pods, so that there is a node for each Service.
const PODS_PER_SERVICE: u32 = 20;
/// Services of each cluster.
const FULL: [u32; 7] = [50, 100, 250, 500, 1000, 2500, 5000];
const QUICK: [u32; 3] = [50, 150, 500];
/// Clients that each watch another Service.
const CLIENTS: Clients = Clients { count: 50, each: 1 };
/// Changes a second. Istio waits 100 ms for the next change; these are farther apart.
const RATE: u32 = 5;
/// Each Service changes once.
const SECONDS: u32 = CLIENTS.count as u32 / RATE;

const QUANTITIES: [Quantity; 5] = [
    Quantity {
        name: "resident memory",
        unit: Unit::Bytes,
        of: |point| point.start.resident,
    },
    Quantity {
        name: "CPU of the start",
        unit: Unit::Seconds,
        of: |point| point.start.cpu,
    },
    Quantity {
        name: "CPU of a change",
        unit: Unit::Seconds,
        of: |point| point.cpu,
    },
    Quantity {
        name: "delay of an update, median",
        unit: Unit::Seconds,
        of: |point| point.median,
    },
    Quantity {
        name: "delay of an update, last",
        unit: Unit::Seconds,
        of: |point| point.last,
    },
];
/// The quantities that are drawn.
const DRAWN: usize = 4;

/// Measures all sizes, and writes table, numbers and plot.
pub(super) fn run(
    testbed: &Testbed,
    plan: &Plan,
    report: &mut Report,
    directory: &Path,
) -> anyhow::Result<()> {
    let sizes: &[u32] = if plan.quick { &QUICK } else { &FULL };
    let mut kinds = vec![Kind::Destination, Kind::Policy];
    kinds.extend(plan.with_istio.then_some(Kind::Istio));
    let mut points = Vec::new();
    for services in sizes {
        let population = Population {
            services: *services,
            pods: PODS_PER_SERVICE,
        };
        for kind in &kinds {
            testbed.check_interrupt()?;
            let point = Point::measure(testbed, *kind, population);
            let point =
                point.with_context(|| format!("measure {} with {population:?}", kind.name()))?;
            println!("{}", point.line());
            points.push(point);
        }
    }
    for kind in &kinds {
        report.add_table(table(*kind, &points));
    }
    report.write(directory, "control-sweep", Some(&plot(&kinds, &points)))
}

fn table(kind: Kind, points: &[Point]) -> Table {
    let points: Vec<&Point> = points.iter().filter(|it| it.kind == kind).collect();
    let mut columns = vec!["pods".to_owned()];
    columns.extend(QUANTITIES.iter().map(|it| it.name.to_owned()));
    let mut rows: Vec<Vec<String>> = points.iter().map(|point| point.columns()).collect();
    let mut slopes = vec!["slope".to_owned()];
    slopes.extend(QUANTITIES.iter().map(|quantity| {
        let slope = slope(&series(&points, quantity));
        slope.map_or_else(String::new, |slope| format!("{slope:.2}"))
    }));
    rows.push(slopes);
    Table {
        title: kind.name().to_owned(),
        columns,
        rows,
        numbers: points.iter().map(|point| point.numbers()).collect(),
    }
}

fn plot(kinds: &[Kind], points: &[Point]) -> String {
    let panel = |quantity: &Quantity| {
        let lines = kinds.iter().map(|kind| {
            let points: Vec<&Point> = points.iter().filter(|it| it.kind == *kind).collect();
            let points = series(&points, quantity);
            Line {
                name: kind.name(),
                slope: slope(&points),
                points,
            }
        });
        Panel {
            title: quantity.name,
            unit: quantity.unit,
            across: "pods",
            lines: lines.collect(),
        }
    };
    let drawn = QUANTITIES[..DRAWN].iter().map(panel);
    plot::text(&drawn.collect::<Vec<_>>())
}

fn series(points: &[&Point], quantity: &Quantity) -> Vec<(f64, f64)> {
    let pair = |point: &&Point| (point.pods, (quantity.of)(point));
    points.iter().map(pair).collect()
}

impl Point {
    fn measure(testbed: &Testbed, kind: Kind, population: Population) -> anyhow::Result<Self> {
        let api = KubeApi::start(testbed, population)?;
        let monitor = NoiseMonitor::start(&testbed.cgroup)?;
        let controller = Controller::start(testbed, kind, &api)?;
        let start = Start::of(&controller)?;
        let mut watches = Watches::open(testbed, &api, kind, &controller, CLIENTS)?;
        let cpu = controller.cpu()?;
        let changes = watches.changes(RATE, SECONDS)?;
        let cpu = (controller.cpu()? - cpu) / f64::from(RATE * SECONDS);
        Ok(Self {
            kind,
            pods: f64::from(population.services * population.pods),
            start,
            cpu,
            median: changes.median,
            last: changes.last,
            is_quiet: monitor.finish()?.is_quiet(),
        })
    }

    fn columns(&self) -> Vec<String> {
        let noisy = if self.is_quiet { "" } else { " (noisy)" };
        let mut columns = vec![format!("{}{noisy}", self.pods)];
        let shown = QUANTITIES.iter().map(|it| it.unit.shown((it.of)(self)));
        columns.extend(shown);
        columns
    }

    fn line(&self) -> String {
        format!("{:<16} {}", self.kind.name(), self.columns().join("  "))
    }

    fn numbers(&self) -> Vec<f64> {
        let mut numbers = vec![self.pods];
        numbers.extend(QUANTITIES.iter().map(|quantity| (quantity.of)(self)));
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_of_a_service_with_one_client() {
        let smallest = FULL.iter().chain(&QUICK).min();
        let changes = (RATE * SECONDS) as usize;
        assert_eq!(changes, CLIENTS.count);
        assert!(smallest.is_some_and(|services| changes <= *services as usize));
    }

    #[test]
    fn largest_cluster_has_a_hundred_thousand_pods() {
        let largest = FULL
            .iter()
            .max()
            .map(|services| services * PODS_PER_SERVICE);
        assert_eq!(largest, Some(100_000));
    }
}
