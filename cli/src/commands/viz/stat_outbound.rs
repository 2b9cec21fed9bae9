//! `meshctl viz stat-outbound`: the requests that workloads send, by Service, route and backend.

mod rows;

use serde::Serialize;

use self::rows::{BackendKey, RouteKey, Rows, Samples, rows};
use super::cells::no_traffic;
use super::source::Extension;
use super::traffic::{Counts, Series, TrafficArgs};
use crate::clients::metrics_api::TimeWindow;
use crate::global::Global;
use crate::output::table::Table;
use crate::output::{self, Format, figures};

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    #[command(flatten)]
    traffic: TrafficArgs,
}

const HELP: &str = "\
A route is followed by its backends. Each attempt of a retried request counts for a backend.
TIMEOUTS is the share of requests that timed out, RETRIES that of retries among all attempts.

Example:
  meshctl viz stat-outbound deploy/frontend -n shop";

/// A route or a backend with Linkerd's keys.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    #[serde(flatten)]
    key: &'a RouteKey,
    #[serde(flatten)]
    backend: Option<&'a BackendKey>,
    success_rate: Option<f64>,
    rps: f64,
    latency_ms_p50: Option<f64>,
    latency_ms_p95: Option<f64>,
    latency_ms_p99: Option<f64>,
    timeout_rate: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_rate: Option<f64>,
}

const ROUTE_LABELS: &str = "parent_name, parent_port, route_name, route_kind";
const BACKEND_LABELS: &str =
    "parent_name, parent_port, route_name, route_kind, backend_name, backend_port";

pub(super) async fn run(args: &Args, extension: &Extension, global: &Global) -> anyhow::Result<()> {
    let series = args.traffic.series(extension, global).await?;
    let (http, grpc) = tokio::try_join!(samples(&series, "http"), samples(&series, "grpc"))?;
    let rows = rows(&[http, grpc], |sample| series.object(sample));
    match args.traffic.output {
        Format::Json => output::linkerd_json(&entries(&rows, series.window())),
        Format::Table if rows.is_empty() => no_traffic(),
        Format::Table => {
            let with_namespace = series.is_of_all_namespaces();
            output::text(&render(&rows, series.window(), with_namespace))
        }
    }
}

/// Queries the families of a protocol.
async fn samples(series: &Series, protocol: &'static str) -> anyhow::Result<Samples> {
    let family = |name: &str| format!("outbound_{protocol}_route_{name}");
    let status = format!("{protocol}_status, error");
    let (by_route, by_backend) = (
        format!("{ROUTE_LABELS}, {status}"),
        format!("{BACKEND_LABELS}, {status}"),
    );
    let names = [
        family("request_statuses_total"),
        family("retry_requests_total"),
        family("request_duration_seconds_bucket"),
        family("backend_response_statuses_total"),
        family("backend_response_duration_seconds_bucket"),
    ];
    let [
        requests,
        retries,
        latency,
        backend_responses,
        backend_latency,
    ] = &names;
    let (requests, retries, latencies, backend_responses, backend_latencies) = tokio::try_join!(
        series.increase(requests, &[], &by_route),
        series.increase(retries, &[], ROUTE_LABELS),
        series.quantiles(latency, &[], ROUTE_LABELS),
        series.increase(backend_responses, &[], &by_backend),
        series.quantiles(backend_latency, &[], BACKEND_LABELS),
    )?;
    Ok(Samples {
        protocol,
        requests,
        retries,
        latencies,
        backend_responses,
        backend_latencies,
    })
}

fn render(rows: &Rows, window: &TimeWindow, with_namespace: bool) -> String {
    let mut table = Table::default();
    if with_namespace {
        table = table.left("NAMESPACE");
    }
    table = table
        .left("NAME SERVICE ROUTE TYPE BACKEND")
        .right("SUCCESS RPS LATENCY_P50 LATENCY_P95 LATENCY_P99 TIMEOUTS RETRIES");
    for (key, route) in rows {
        let namespace = with_namespace.then(|| key.namespace.clone());
        let mut cells: Vec<String> = namespace.iter().cloned().collect();
        cells.extend([
            key.name.clone(),
            format!("{}:{}", key.service, key.port),
            key.route.clone(),
            key.route_type.clone(),
        ]);
        // A blank is not an unknown value.
        cells.push(" ".to_owned());
        cells.extend(count_cells(&route.counts, window));
        cells.push(figures::percent(route.retry_rate()));
        table.row(cells);
        for (at, (backend, counts)) in route.backends.iter().enumerate() {
            let is_last = at + 1 == route.backends.len();
            let branch = if is_last { "└─►" } else { "├─►" };
            let mut cells: Vec<String> = namespace.iter().map(|_| " ".to_owned()).collect();
            cells.extend([" ", " ", branch, " "].map(str::to_owned));
            cells.push(format!("{}:{}", backend.name, backend.port));
            cells.extend(count_cells(counts, window));
            cells.push(" ".to_owned());
            table.row(cells);
        }
    }
    table.render()
}

/// Returns success rate, requests per second, latencies and the share of timeouts.
fn count_cells(counts: &Counts, window: &TimeWindow) -> Vec<String> {
    let mut cells = counts.cells(window);
    cells.push(figures::percent(counts.share(counts.timeouts)));
    cells
}

/// Returns each route, followed by its backends.
fn entries<'a>(rows: &'a Rows, window: &TimeWindow) -> Vec<Entry<'a>> {
    let mut entries = Vec::new();
    for (key, route) in rows {
        let entry = |counts: &Counts| {
            let [latency_ms_p50, latency_ms_p95, latency_ms_p99] = counts.latency_ms;
            Entry {
                key,
                backend: None,
                success_rate: counts.share(counts.successes),
                rps: window.rate(counts.total()),
                latency_ms_p50,
                latency_ms_p95,
                latency_ms_p99,
                timeout_rate: counts.share(counts.timeouts),
                retry_rate: None,
            }
        };
        entries.push(Entry {
            retry_rate: route.retry_rate(),
            ..entry(&route.counts)
        });
        entries.extend(route.backends.iter().map(|(backend, counts)| Entry {
            backend: Some(backend),
            ..entry(counts)
        }));
    }
    entries
}

#[cfg(test)]
mod tests;
