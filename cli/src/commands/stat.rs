//! `meshctl stat`: shows success rate, request rate and latency of workloads from the metrics of
//! their proxies.

mod workload;

use std::collections::BTreeMap;
use std::time::Duration;

use mesh_core::exposition;
use serde::Serialize;

use self::workload::{Counters, WorkloadStats};
use crate::clients;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::mesh::controllers::ADMIN_PORTS;
use crate::output::table::Table;
use crate::output::{self, Format, figures};
use crate::resource::{MeshPod, Scope};

const EXAMPLES: &str = "\
Examples:
  meshctl stat -n shop --watch
  meshctl stat -A --total -o json";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Length of the window to count in
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = mesh_core::units::parse_duration)]
    window: Duration,
    /// Count since the proxies started instead of over a window, without request rates
    #[arg(long, conflicts_with_all = ["window", "watch"])]
    total: bool,
    /// Repeat until interrupted
    #[arg(short, long)]
    watch: bool,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Output {
    workloads: Vec<Row>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    namespace: String,
    workload: String,
    /// The number of proxies that responded.
    meshed: usize,
    pods: usize,
    #[serde(flatten)]
    stats: WorkloadStats,
}

/// Meshed pods, all pods and counters by namespace and workload.
type Scrape = BTreeMap<(String, String), (usize, usize, Counters)>;

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let mesh = Mesh::find(global).await?;
    let scope = mesh.scope(global);
    if args.total {
        let now = scrape(&mesh, &scope).await?;
        return show(args, rows(&Scrape::new(), &now, None));
    }
    let mut before = scrape(&mesh, &scope).await?;
    loop {
        let start = tokio::time::Instant::now();
        tokio::time::sleep(args.window).await;
        let now = scrape(&mesh, &scope).await?;
        if now.is_empty() {
            output::note("no pods found; select other namespaces with -n NAMESPACE or -A");
        }
        show(args, rows(&before, &now, Some(start.elapsed())))?;
        if !args.watch {
            return Ok(());
        }
        before = now;
    }
}

async fn scrape(mesh: &Mesh, scope: &Scope) -> anyhow::Result<Scrape> {
    let pods = mesh.pods(scope).await?;
    let pods: Vec<&MeshPod> = pods.iter().filter(|pod| !pod.is_terminal).collect();
    let responses = clients::concurrently(pods.iter().map(|pod| fetch_metrics(mesh, pod))).await;
    let mut scrape = Scrape::new();
    for (pod, response) in pods.iter().zip(responses) {
        let workload = format!("{}/{}", pod.owner.kind, pod.owner.name);
        let (meshed, pods, counters) = scrape.entry((pod.namespace.clone(), workload)).or_default();
        *pods += 1;
        match response {
            None => {}
            Some(Ok(text)) => {
                *meshed += 1;
                counters.add(&exposition::parse(&text), &admin_ports(pod));
            }
            Some(Err(error)) => output::note(&format!("{pod}: {error:#}")),
        }
    }
    Ok(scrape)
}

/// Returns the admin ports of the controllers in a pod.
fn admin_ports(pod: &MeshPod) -> Vec<u16> {
    let own = ADMIN_PORTS
        .iter()
        .filter(|(component, _, _)| pod.component.as_deref() == Some(component));
    own.map(|(_, _, port)| *port).collect()
}

/// Fetches the metrics of a pod's proxy; returns `None` if it has no proxy.
async fn fetch_metrics(mesh: &Mesh, pod: &MeshPod) -> Option<anyhow::Result<String>> {
    let port = pod.admin_port?;
    Some(mesh.get(pod, port, "/metrics").await)
}

/// Computes the rows from the difference of two scrapes. The counters of a new workload start at
/// zero.
fn rows(before: &Scrape, now: &Scrape, window: Option<Duration>) -> Vec<Row> {
    let none = Counters::default();
    let row = |((namespace, workload), (meshed, pods, counters)): (
        &(String, String),
        &(usize, usize, Counters),
    )| {
        let earlier = before
            .get(&(namespace.clone(), workload.clone()))
            .map_or(&none, |(_, _, counters)| counters);
        Row {
            namespace: namespace.clone(),
            workload: workload.clone(),
            meshed: *meshed,
            pods: *pods,
            stats: counters.since(earlier, window),
        }
    };
    now.iter().map(row).collect()
}

fn show(args: &Args, rows: Vec<Row>) -> anyhow::Result<()> {
    match args.output {
        Format::Json => output::json("Stat", &Output { workloads: rows }),
        Format::Table if args.watch && output::is_terminal() => output::redraw(&render(&rows)),
        Format::Table => output::text(&render(&rows)),
    }
}

fn render(rows: &[Row]) -> String {
    let mut table = Table::default()
        .left("NAMESPACE NAME")
        .right("MESHED SUCCESS RPS LATENCY_P50 LATENCY_P95 LATENCY_P99 SECURED TCP_CONN");
    for row in rows {
        let stats = &row.stats;
        table.row(vec![
            row.namespace.clone(),
            row.workload.clone(),
            format!("{}/{}", row.meshed, row.pods),
            figures::percent(stats.success_rate),
            figures::rate(stats.rps),
            figures::millis(stats.latency_ms_p50),
            figures::millis(stats.latency_ms_p95),
            figures::millis(stats.latency_ms_p99),
            figures::percent(stats.secured),
            stats.tcp_connections.to_string(),
        ]);
    }
    table.render()
}
