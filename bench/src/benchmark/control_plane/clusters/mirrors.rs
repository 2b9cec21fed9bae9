//! Service mirrors of targets with a number of Services.

use std::net::SocketAddr;

use anyhow::Context as _;
use mesh_test_support::eventually::try_eventually;
use mesh_test_support::http;
use mesh_test_support::network::free_address;
use serde_json::Value;

use super::{Linked, MAX_MIRROR, Plan, Steady, columns};
use crate::benchmark::control_plane::command::ours;
use crate::benchmark::control_plane::programs::{Controller, kubeconfig};
use crate::benchmark::control_plane::report::{Figure, Row, Table, Unit};
use crate::benchmark::machine::Noise;
use crate::kube_api::linked::own::{MULTICLUSTER, cluster_name};
use crate::testbed::Testbed;

/// A service mirror of a target.
pub(super) struct Point {
    /// The Services of the target, all of them mirrored.
    pub(super) services: u32,
    /// The Services of this cluster, with the mirrors of other processes.
    mirrors: u32,
    peak: f64,
    pub(super) steady: Steady,
}

/// Starts a process for each of several Links, and measures them when all mirrors are written.
pub(super) fn measure(
    testbed: &Testbed,
    plan: &Plan,
    links: u32,
    services: u32,
) -> anyhow::Result<Vec<Point>> {
    let linked = Linked::start(testbed, links, services)?;
    let kubeconfig = kubeconfig(linked.mirrors)?;
    let start = |link: u32| {
        let admin = free_address();
        let link = cluster_name(link);
        let mut command = ours(testbed, "service-mirror", &kubeconfig)?;
        command
            .arg(format!("--metrics-addr={admin}"))
            .arg(format!("--namespace={MULTICLUSTER}"))
            .arg(&link);
        let name = format!("service-mirror-{link}");
        Controller::run(testbed, &name, command, admin, admin)
    };
    let controllers: Vec<Controller> = (0..links).map(start).collect::<anyhow::Result<_>>()?;
    let mirrors = links * services;
    try_eventually("all Services to be mirrored", || {
        let written =
            has(linked.mirrors, "services", mirrors)? && has(linked.mirrors, "endpoints", mirrors)?;
        anyhow::Ok(written.then_some(()))
    })?;
    let steady = Steady::of(testbed, plan, &controllers)?;
    let points = controllers.iter().zip(steady).map(|(controller, steady)| {
        Ok(Point {
            services,
            mirrors,
            peak: controller.peak()?,
            steady,
        })
    });
    points.collect()
}

/// Returns whether the API server has this number of objects.
fn has(api: SocketAddr, plural: &str, count: u32) -> anyhow::Result<bool> {
    let last = count.saturating_sub(1);
    let page = http::request(
        api,
        &format!("GET /api/v1/{plural}?continue={last}&limit=1"),
    )?;
    let (_, body) = http::status_and_body(&page).context("no response")?;
    let list: Value = serde_json::from_str(body)?;
    Ok(list["items"]
        .as_array()
        .is_some_and(|items| !items.is_empty()))
}

/// Returns the row with the largest of all processes.
pub(super) fn row(points: &[Point], noise: Noise) -> anyhow::Result<Row> {
    let largest = |value: fn(&Point) -> f64| points.iter().map(value).fold(0.0, f64::max);
    let sizes = points.iter().map(|point| point.services);
    let most = sizes.max().context("no service mirror was measured")?;
    let few = points
        .iter()
        .map(|point| point.services)
        .min()
        .unwrap_or(most);
    let of_few = points.iter().filter(|point| point.services == few);
    let of_few = of_few
        .map(|point| point.steady.resident)
        .fold(0.0, f64::max);
    Ok(Row {
        title: format!("a service mirror of {few} to {most} Services"),
        figures: vec![
            Figure::new(
                "resident memory, the smallest target",
                Unit::Bytes,
                of_few,
                None,
            )
            .at_most(MAX_MIRROR),
            Figure::new(
                "resident memory",
                Unit::Bytes,
                largest(|it| it.steady.resident),
                None,
            )
            .at_most(MAX_MIRROR),
            Figure::new(
                "anonymous memory",
                Unit::Bytes,
                largest(|it| it.steady.anonymous),
                None,
            ),
            Figure::new(
                "CPU, of one core",
                Unit::Share,
                largest(|it| it.steady.cpu),
                None,
            ),
        ],
        noise,
    })
}

pub(super) fn table(points: &[Point]) -> Table {
    let first = [
        "Services of the target",
        "mirrors in this cluster",
        "peak memory",
    ];
    Table {
        title: "service mirrors".to_owned(),
        columns: columns(&first),
        rows: points.iter().map(Point::columns).collect(),
        numbers: points.iter().map(Point::numbers).collect(),
    }
}

impl Point {
    pub(super) fn columns(&self) -> Vec<String> {
        let mut columns = vec![
            self.services.to_string(),
            self.mirrors.to_string(),
            Unit::Bytes.shown(self.peak),
        ];
        columns.extend(self.steady.columns());
        columns
    }

    fn numbers(&self) -> Vec<f64> {
        let mut numbers = vec![f64::from(self.services), f64::from(self.mirrors), self.peak];
        numbers.extend(self.steady.numbers());
        numbers
    }
}
