//! `cargo xtask bench control --clusters`: how memory and CPU of the destination controller grow
//! with the number of linked clusters, up to 200, and memory and CPU of a service mirror with the
//! Services of its target.

mod destination;
mod linked;
mod mirrors;

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use self::destination::Point;
use self::linked::Linked;
use super::plot::{self, Line, Panel};
use super::programs::Controller;
use super::report::{Figure, Report, Row, Unit};
use crate::benchmark::machine::{Noise, NoiseMonitor};
use crate::benchmark::statistics::slope;
use crate::kube_api::Population;
use crate::testbed::Testbed;

/// The sizes of a run.
struct Plan {
    /// Numbers of linked clusters. The first is 0, whose values are subtracted.
    clusters: &'static [u32],
    /// Links and Services of each target, for service mirrors.
    mirrors: &'static [(u32, u32)],
    /// Before a measurement, until memory of the start is returned.
    settling: Duration,
    /// How long CPU is measured.
    window: Duration,
}

/// Memory and CPU of a process while its clusters change.
#[derive(Clone, Copy)]
struct Steady {
    resident: f64,
    anonymous: f64,
    proportional: f64,
    /// CPU as a part of one core.
    cpu: f64,
}

const FULL: Plan = Plan {
    clusters: &[0, 1, 10, 50, 100, 200],
    mirrors: &[(5, 100), (1, 1000), (1, 3000)],
    settling: Duration::from_secs(20),
    window: Duration::from_secs(60),
};
const QUICK: Plan = Plan {
    clusters: &[0, 1, 10],
    mirrors: &[(1, 100)],
    settling: Duration::from_secs(5),
    window: Duration::from_secs(10),
};

/// The Services of each linked cluster, with three pods each.
const SERVICES: u32 = 100;
const PODS_PER_SERVICE: u32 = 3;
/// Seconds that a pod lives: with rollouts, evictions and scaling, each is replaced within an hour.
const POD_LIFETIME: f64 = 3000.0;

/// The goals for a remote cluster with this number of Services.
const MAX_MEMORY: f64 = 10e6;
const MAX_CPU: f64 = 0.002;
/// The goal for a service mirror.
const MAX_MIRROR: f64 = 20e6;
/// A slope that is linear within the accuracy of the measurement.
const MAX_SLOPE: f64 = 1.1;
/// Values of fewer clusters differ from those without a link by less than two runs do.
const MIN_CLUSTERS: u32 = 10;
/// The goals while clusters are away, and after their return.
const MAX_ENDPOINTS: f64 = 5.0;
const MAX_GROWTH: f64 = 1.1;

/// Measures all sizes, and writes table, numbers and plot.
pub(super) fn run(
    testbed: &Testbed,
    quick: bool,
    report: &mut Report,
    directory: &Path,
) -> anyhow::Result<()> {
    let plan = if quick { QUICK } else { FULL };
    let mut points = Vec::new();
    let monitor = NoiseMonitor::start(&testbed.cgroup)?;
    for clusters in plan.clusters {
        testbed.check_interrupt()?;
        let is_largest = Some(clusters) == plan.clusters.last();
        let point = Point::measure(testbed, &plan, *clusters, is_largest);
        let point = point.with_context(|| format!("measure {clusters} linked clusters"))?;
        println!("{}", point.columns().join("  "));
        points.push(point);
    }
    let noise = monitor.finish()?;
    report.add(of_clusters(&points, noise)?);
    if let Some(row) = points.iter().find_map(|point| point.away_row(noise)) {
        report.add(row);
    }
    let monitor = NoiseMonitor::start(&testbed.cgroup)?;
    let mut mirrored = Vec::new();
    for (links, services) in plan.mirrors {
        testbed.check_interrupt()?;
        let measured = mirrors::measure(testbed, &plan, *links, *services);
        let measured =
            measured.with_context(|| format!("measure service mirrors of {services} Services"))?;
        for point in measured {
            println!("{}", point.columns().join("  "));
            mirrored.push(point);
        }
    }
    report.add(mirrors::row(&mirrored, monitor.finish()?)?);
    report.add_table(destination::table(&points));
    report.add_table(mirrors::table(&mirrored));
    report.write(
        directory,
        "control-clusters",
        Some(&plot(&points, &mirrored)),
    )
}

/// Returns the row of what a remote cluster costs: the most of all numbers of clusters.
fn of_clusters(points: &[Point], noise: Noise) -> anyhow::Result<Row> {
    let without = points.iter().find(|point| point.clusters == 0);
    let without = without.context("no run without a linked cluster")?.steady;
    let each = |value: fn(&Steady) -> f64| {
        let counted = points.iter().filter(|it| it.clusters >= MIN_CLUSTERS);
        let costs =
            counted.map(|it| (value(&it.steady) - value(&without)) / f64::from(it.clusters));
        costs.fold(f64::NEG_INFINITY, f64::max)
    };
    let growth = |value: fn(&Steady) -> f64| {
        let counted = points.iter().filter(|it| it.clusters >= MIN_CLUSTERS);
        let added = counted.map(|it| (f64::from(it.clusters), value(&it.steady) - value(&without)));
        // A single size has no slope.
        slope(&added.collect::<Vec<_>>()).unwrap_or(f64::NAN)
    };
    let resident = |it: &Steady| it.resident;
    let cpu = |it: &Steady| it.cpu;
    let mut figures = vec![
        Figure::new("resident memory", Unit::Bytes, each(resident), None).at_most(MAX_MEMORY),
        Figure::new(
            "anonymous memory",
            Unit::Bytes,
            each(|it| it.anonymous),
            None,
        ),
        Figure::new("CPU, of one core", Unit::Share, each(cpu), None).at_most(MAX_CPU),
    ];
    let slopes = [
        ("slope of memory", growth(resident)),
        ("slope of CPU", growth(cpu)),
    ];
    let slopes = slopes.into_iter().filter(|(_, slope)| slope.is_finite());
    figures.extend(
        slopes.map(|(name, slope)| Figure::new(name, Unit::Ratio, slope, None).at_most(MAX_SLOPE)),
    );
    Ok(Row {
        title: format!(
            "a remote cluster of {SERVICES} Services and {} pods, in destination",
            SERVICES * PODS_PER_SERVICE
        ),
        figures,
        noise,
    })
}

fn plot(points: &[Point], mirrored: &[mirrors::Point]) -> String {
    let line = |name, points: Vec<(f64, f64)>| Line {
        name,
        slope: slope(&points),
        points,
    };
    let of_clusters = |value: fn(&Steady) -> f64| {
        // A logarithmic scale has no 0.
        let linked = points.iter().filter(|point| point.clusters > 0);
        let pair = |it: &Point| (f64::from(it.clusters), value(&it.steady));
        line("destination", linked.map(pair).collect())
    };
    let of_mirrors = |value: fn(&Steady) -> f64| {
        let pair = |it: &mirrors::Point| (f64::from(it.services), value(&it.steady));
        line("service mirror", mirrored.iter().map(pair).collect())
    };
    let panel = |title, unit, across, line| Panel {
        title,
        unit,
        across,
        lines: vec![line],
    };
    let (clusters, services) = ("linked clusters", "Services of the target");
    plot::text(&[
        panel(
            "resident memory",
            Unit::Bytes,
            clusters,
            of_clusters(|it| it.resident),
        ),
        panel(
            "CPU, of one core",
            Unit::Share,
            clusters,
            of_clusters(|it| it.cpu),
        ),
        panel(
            "resident memory",
            Unit::Bytes,
            services,
            of_mirrors(|it| it.resident),
        ),
        panel(
            "CPU, of one core",
            Unit::Share,
            services,
            of_mirrors(|it| it.cpu),
        ),
    ])
}

impl Steady {
    /// Measures processes over the window of a plan.
    fn of(testbed: &Testbed, plan: &Plan, controllers: &[Controller]) -> anyhow::Result<Vec<Self>> {
        wait(testbed, plan.settling)?;
        let cpu = |controller: &Controller| controller.cpu();
        let before: Vec<f64> = controllers.iter().map(cpu).collect::<Result<_, _>>()?;
        wait(testbed, plan.window)?;
        let measured = controllers.iter().zip(before).map(|(controller, before)| {
            let cpu = controller.cpu()? - before;
            let memory = controller.memory()?;
            Ok(Self {
                resident: memory.resident as f64,
                anonymous: memory.anonymous as f64,
                proportional: controller.proportional()?,
                cpu: cpu / plan.window.as_secs_f64(),
            })
        });
        measured.collect()
    }

    fn columns(&self) -> [String; 4] {
        [
            Unit::Bytes.shown(self.resident),
            Unit::Bytes.shown(self.anonymous),
            Unit::Bytes.shown(self.proportional),
            Unit::Share.shown(self.cpu),
        ]
    }

    fn numbers(&self) -> [f64; 4] {
        [self.resident, self.anonymous, self.proportional, self.cpu]
    }
}

/// The columns of [`Steady`].
const COLUMNS: [&str; 4] = ["resident", "anonymous", "proportional", "CPU, of one core"];

/// Returns the titles of a table's columns: its own, and the ones of [`Steady`].
fn columns(own: &[&str]) -> Vec<String> {
    let all = own.iter().chain(&COLUMNS);
    all.map(|it| (*it).to_owned()).collect()
}

/// Waits, unless the user interrupts.
fn wait(testbed: &Testbed, time: Duration) -> anyhow::Result<()> {
    let end = std::time::Instant::now() + time;
    while let Some(left) = end.checked_duration_since(std::time::Instant::now()) {
        testbed.check_interrupt()?;
        std::thread::park_timeout(left.min(Duration::from_millis(500)));
    }
    Ok(())
}

fn population(services: u32) -> Population {
    Population {
        services,
        pods: PODS_PER_SERVICE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(clusters: u32, resident: f64, cpu: f64) -> Point {
        Point::at(
            clusters,
            Steady {
                resident,
                anonymous: resident,
                proportional: resident,
                cpu,
            },
        )
    }

    #[test]
    fn cluster_costs_what_destination_has_more_than_without_any() {
        let points = [
            point(0, 20e6, 0.001),
            point(1, 90e6, 0.9),
            point(10, 50e6, 0.011),
            point(100, 300e6, 0.101),
        ];
        let row = of_clusters(&points, Noise::default()).expect("a row");
        let lines: Vec<String> = row.figures.iter().map(Figure::line).collect();
        // 30 MB of 10 clusters, and no value of a single one.
        assert!(
            lines[0].contains("2.9 MiB") && lines[0].ends_with("met"),
            "{lines:?}"
        );
        assert!(
            lines[2].contains("0.100 %") && lines[2].ends_with("met"),
            "{lines:?}"
        );
        assert!(
            lines[4].contains("1.00") && lines[4].ends_with("met"),
            "{lines:?}"
        );
        let worse = [
            points[0].clone(),
            points[2].clone(),
            point(100, 3000e6, 1.0),
        ];
        let row = of_clusters(&worse, Noise::default()).expect("a row");
        let lines: Vec<String> = row.figures.iter().map(Figure::line).collect();
        for missed in [0, 2, 3, 4] {
            assert!(lines[missed].ends_with("**missed**"), "{lines:?}");
        }
    }

    #[test]
    fn sizes_begin_without_a_linked_cluster() {
        for plan in [FULL, QUICK] {
            assert_eq!(plan.clusters.first(), Some(&0));
        }
        assert_eq!(FULL.clusters.last(), Some(&200));
    }
}
