//! `meshctl viz stat-inbound`: the requests that workloads receive, by Server and route.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cells::no_traffic;
use super::source::Extension;
use super::traffic::{Counts, TrafficArgs, route_type, shown_name};
use crate::clients::metrics_api::TimeWindow;
use crate::clients::prometheus_api::Sample;
use crate::global::Global;
use crate::output::table::Table;
use crate::output::{self, Format};

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    #[command(flatten)]
    traffic: TrafficArgs,
}

const HELP: &str = "\
SERVER is the Server or, for a port without one, [default], and the port.

Example:
  meshctl viz stat-inbound deploy/web -n shop";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
struct Key {
    #[serde(skip)]
    namespace: String,
    name: String,
    server: String,
    port: String,
    route: String,
    route_type: String,
}

/// A row with Linkerd's keys.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    #[serde(flatten)]
    key: &'a Key,
    /// Linkerd's spelling.
    #[serde(rename = "successesRate")]
    success_rate: Option<f64>,
    rps: f64,
    latency_ms_p50: Option<f64>,
    latency_ms_p95: Option<f64>,
    latency_ms_p99: Option<f64>,
}

type Rows = BTreeMap<Key, Counts>;

const LABELS: &str = "srv_name, srv_kind, route_name, route_kind, target_port";

pub(super) async fn run(args: &Args, extension: &Extension, global: &Global) -> anyhow::Result<()> {
    let series = args.traffic.series(extension, global).await?;
    let inbound = [("direction", "inbound")];
    let by = format!("{LABELS}, classification");
    let (requests, latencies) = tokio::try_join!(
        series.increase("response_total", &inbound, &by),
        series.quantiles("response_latency_ms_bucket", &inbound, LABELS),
    )?;
    let rows = rows(&requests, &latencies, |sample| series.object(sample));
    match args.traffic.output {
        Format::Json => output::linkerd_json(&entries(&rows, series.window())),
        Format::Table if rows.is_empty() => no_traffic(),
        Format::Table => {
            let with_namespace = series.is_of_all_namespaces();
            output::text(&render(&rows, series.window(), with_namespace))
        }
    }
}

/// Returns the rows with requests. `object` returns the namespace and name of a sample's object.
fn rows(
    requests: &[Sample],
    latencies: &[Vec<Sample>; 3],
    object: impl Fn(&Sample) -> (String, String),
) -> Rows {
    let key = |sample: &Sample| {
        let (namespace, name) = object(sample);
        let is_default = sample.label("srv_kind") == "default";
        Key {
            namespace,
            name,
            server: shown_name(sample.label("srv_name"), is_default),
            port: sample.label("target_port").to_owned(),
            route: shown_name(
                sample.label("route_name"),
                sample.label("route_name") == "default",
            ),
            route_type: route_type(sample),
        }
    };
    let mut rows = Rows::new();
    for sample in requests {
        let is_success = sample.label("classification") == "success";
        rows.entry(key(sample))
            .or_default()
            .add(sample.value, is_success);
    }
    rows.retain(|_, counts| counts.total() > 0.0);
    for (at, samples) in latencies.iter().enumerate() {
        for sample in samples {
            if let Some(counts) = rows.get_mut(&key(sample)) {
                counts.latency_ms[at] = Some(sample.value);
            }
        }
    }
    rows
}

fn render(rows: &Rows, window: &TimeWindow, with_namespace: bool) -> String {
    let mut table = Table::default();
    if with_namespace {
        table = table.left("NAMESPACE");
    }
    table = table
        .left("NAME SERVER ROUTE TYPE")
        .right("SUCCESS RPS LATENCY_P50 LATENCY_P95 LATENCY_P99");
    for (key, counts) in rows {
        let mut cells = Vec::new();
        if with_namespace {
            cells.push(key.namespace.clone());
        }
        cells.extend([
            key.name.clone(),
            format!("{}:{}", key.server, key.port),
            key.route.clone(),
            key.route_type.clone(),
        ]);
        cells.extend(counts.cells(window));
        table.row(cells);
    }
    table.render()
}

fn entries<'a>(rows: &'a Rows, window: &TimeWindow) -> Vec<Entry<'a>> {
    let entries = rows.iter().map(|(key, counts)| {
        let [latency_ms_p50, latency_ms_p95, latency_ms_p99] = counts.latency_ms;
        Entry {
            key,
            success_rate: counts.share(counts.successes),
            rps: window.rate(counts.total()),
            latency_ms_p50,
            latency_ms_p95,
            latency_ms_p99,
        }
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::super::traffic::tests::sample;
    use super::*;

    #[test]
    fn requests_are_shown_by_server_and_route() {
        let web = [
            ("deployment", "web"),
            ("srv_name", "web-http"),
            ("srv_kind", "server"),
        ];
        let get = [
            ("route_name", "get"),
            ("route_kind", "HTTPRoute"),
            ("target_port", "8080"),
        ];
        let get = [&web[..], &get].concat();
        let default = [
            ("deployment", "web"),
            ("srv_name", "all-unauthenticated"),
            ("srv_kind", "default"),
            ("route_name", "default"),
            ("route_kind", "default"),
            ("target_port", "4191"),
        ];
        let of = |labels: &[(&str, &str)], classification: &str, value| {
            let labels = [labels, &[("classification", classification)]].concat();
            sample(&labels, value)
        };
        let requests = [
            of(&get, "success", 90.0),
            of(&get, "failure", 30.0),
            of(&default, "success", 60.0),
            of(&web, "success", 0.0),
        ];
        let latencies = [
            vec![sample(&get, 1.4)],
            vec![sample(&get, 20.0)],
            vec![sample(&web, 5.0)],
        ];
        let object = |sample: &Sample| ("shop".to_owned(), sample.label("deployment").to_owned());
        let rows = rows(&requests, &latencies, object);
        let window = TimeWindow::parse("1m").unwrap();
        assert_eq!(
            render(&rows, &window, false),
            "\
NAME  SERVER          ROUTE      TYPE       SUCCESS  RPS  LATENCY_P50  LATENCY_P95  LATENCY_P99
web   [default]:4191  [default]  -          100.00%  1.0            -            -            -
web   web-http:8080   get        HTTPRoute   75.00%  2.0          1ms         20ms            -
"
        );
        assert!(render(&rows, &window, true).starts_with("NAMESPACE"));
        let json = serde_json::to_value(entries(&rows, &window)).unwrap();
        assert_eq!(
            json[1],
            serde_json::json!({
                "name": "web",
                "server": "web-http",
                "port": "8080",
                "route": "get",
                "routeType": "HTTPRoute",
                "successesRate": 0.75,
                "rps": 2.0,
                "latencyMsP50": 1.4,
                "latencyMsP95": 20.0,
                "latencyMsP99": null,
            })
        );
    }
}
