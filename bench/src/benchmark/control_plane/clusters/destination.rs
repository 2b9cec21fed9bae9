//! The destination controller with a number of linked clusters.

use std::net::SocketAddr;
use std::slice;
use std::time::Instant;

use anyhow::Context as _;
use mesh_test_support::eventually::try_eventually;

use super::{
    Linked, MAX_CPU, MAX_ENDPOINTS, MAX_GROWTH, PODS_PER_SERVICE, Plan, SERVICES, Steady, columns,
    wait,
};
use crate::benchmark::control_plane::command::on_cpu;
use crate::benchmark::control_plane::programs::{Controller, Kind, kubeconfig, number};
use crate::benchmark::control_plane::report::{Figure, Row, Table, Unit};
use crate::benchmark::machine::Noise;
use crate::kube_api::linked::own::{Discovered, discovered};
use crate::kube_api::{PORT, service_namespace};
use crate::testbed::Testbed;
use crate::testbed::process::Process;

/// The controller in one number of clusters.
#[derive(Clone)]
pub(super) struct Point {
    pub(super) clusters: u32,
    /// Seconds from its start until the objects of all clusters are read, CPU until then, and the
    /// maximum of resident memory.
    read: f64,
    read_cpu: f64,
    peak: f64,
    pub(super) steady: Steady,
    away: Option<Away>,
}

/// The controller while half of the clusters are away, and after their return.
#[derive(Clone, Copy)]
struct Away {
    clusters: u32,
    /// Seconds until new clients of all Services have the endpoints.
    endpoints: f64,
    during: Steady,
    after: Steady,
}

/// The clients of Services whose endpoints are in linked clusters, a connection for each Service.
struct Clients(Vec<Process>);

impl Point {
    /// Measures it, and if `with_away` also without half of the clusters.
    pub(super) fn measure(
        testbed: &Testbed,
        plan: &Plan,
        clusters: u32,
        with_away: bool,
    ) -> anyhow::Result<Self> {
        let mut linked = Linked::start(testbed, clusters, SERVICES)?;
        let begun = Instant::now();
        let kubeconfig = kubeconfig(linked.destination)?;
        let controller = Controller::start_with(testbed, Kind::Destination, &kubeconfig)?;
        try_eventually("all linked clusters to be read", || {
            let read = controller.metric("cluster_store_size ")?;
            anyhow::Ok((read >= f64::from(clusters)).then_some(()))
        })?;
        let (read, read_cpu) = (begun.elapsed().as_secs_f64(), controller.cpu()?);
        let peak = controller.peak()?;
        let mut clients = Clients::open(testbed, controller.api, clusters)?;
        let controllers = slice::from_ref(&controller);
        let steady = one(Steady::of(testbed, plan, controllers)?)?;
        let away = if with_away {
            let clusters = clusters / 2;
            linked.away(clusters)?;
            let during = one(Steady::of(testbed, plan, controllers)?)?;
            let endpoints = clients.reconnect()?;
            linked.away(0)?;
            wait(testbed, plan.settling)?;
            let after = one(Steady::of(testbed, plan, controllers)?)?;
            clients.reconnect()?;
            Some(Away {
                clusters,
                endpoints,
                during,
                after,
            })
        } else {
            None
        };
        Ok(Self {
            clusters,
            read,
            read_cpu,
            peak,
            steady,
            away,
        })
    }

    #[cfg(test)]
    pub(super) fn at(clusters: u32, steady: Steady) -> Self {
        Self {
            clusters,
            read: 1.0,
            read_cpu: 1.0,
            peak: 1.0,
            steady,
            away: None,
        }
    }

    pub(super) fn columns(&self) -> Vec<String> {
        let mut columns = vec![
            self.clusters.to_string(),
            Unit::Seconds.shown(self.read),
            Unit::Seconds.shown(self.read_cpu),
            Unit::Bytes.shown(self.peak),
        ];
        columns.extend(self.steady.columns());
        columns
    }

    fn numbers(&self) -> Vec<f64> {
        let mut numbers = vec![
            f64::from(self.clusters),
            self.read,
            self.read_cpu,
            self.peak,
        ];
        numbers.extend(self.steady.numbers());
        numbers
    }

    /// Returns the row about clusters that are away, if they were.
    pub(super) fn away_row(&self, noise: Noise) -> Option<Row> {
        let away = self.away?;
        let growth = away.after.resident / self.steady.resident;
        Some(Row {
            title: format!(
                "{} of {} linked clusters are away",
                away.clusters, self.clusters
            ),
            figures: vec![
                Figure::new(
                    "until new clients have all endpoints",
                    Unit::Seconds,
                    away.endpoints,
                    None,
                )
                .at_most(MAX_ENDPOINTS),
                Figure::new(
                    "CPU before, of one core",
                    Unit::Share,
                    self.steady.cpu,
                    None,
                ),
                Figure::new("CPU meanwhile", Unit::Share, away.during.cpu, None)
                    .at_most(self.steady.cpu.max(MAX_CPU * f64::from(self.clusters))),
                Figure::new(
                    "resident memory meanwhile",
                    Unit::Bytes,
                    away.during.resident,
                    None,
                ),
                Figure::new(
                    "memory after their return, to before",
                    Unit::Ratio,
                    growth,
                    None,
                )
                .at_most(MAX_GROWTH),
            ],
            noise,
        })
    }
}

pub(super) fn table(points: &[Point]) -> Table {
    let first = [
        "linked clusters",
        "until all are read",
        "CPU until then",
        "peak memory",
    ];
    Table {
        title: "destination".to_owned(),
        columns: columns(&first),
        rows: points.iter().map(Point::columns).collect(),
        numbers: points.iter().map(Point::numbers).collect(),
    }
}

fn one(measured: Vec<Steady>) -> anyhow::Result<Steady> {
    measured.into_iter().next().context("nothing was measured")
}

impl Clients {
    /// Opens the watches, and waits until all have the endpoints of all members.
    fn open(testbed: &Testbed, api: SocketAddr, clusters: u32) -> anyhow::Result<Self> {
        let mut all = discovered(clusters);
        let mut processes = Vec::new();
        // A program waits for the same number of endpoints of each Service.
        while let Some(members) = all.first().map(|it| it.members) {
            let (same, others): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|it| it.members == members);
            processes.push(watch(testbed, api, members, &same)?);
            all = others;
        }
        let clients = Self(processes);
        clients.synced()?;
        Ok(clients)
    }

    /// Closes all connections and opens them again. Returns the seconds until all have the
    /// endpoints.
    fn reconnect(&mut self) -> anyhow::Result<f64> {
        for process in &mut self.0 {
            process.write_line("reconnect")?;
        }
        self.synced()
    }

    fn synced(&self) -> anyhow::Result<f64> {
        let times = self
            .0
            .iter()
            .map(|process| number(&process.next_event()?, "synced"));
        let times: Vec<f64> = times.collect::<anyhow::Result<_>>()?;
        Ok(times.into_iter().fold(0.0, f64::max))
    }
}

fn watch(
    testbed: &Testbed,
    api: SocketAddr,
    members: u32,
    services: &[Discovered],
) -> anyhow::Result<Process> {
    let mut command = on_cpu(testbed, testbed.cpus.load, &testbed.programs.bench)?;
    command
        .args(["load", "destinations"])
        .args(["--address", &api.to_string()])
        .args(["--streams", &services.len().to_string()])
        .args(["--endpoints", &(members * PODS_PER_SERVICE).to_string()]);
    for service in services {
        let namespace = service_namespace(0);
        let path = format!("{}.{namespace}.svc.cluster.local:{PORT}", service.name);
        command.args(["--path", &path]);
    }
    Process::start(&format!("clients-of-{members}"), &mut command)
}
