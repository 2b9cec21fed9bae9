//! `meshctl viz routes`: the requests of workloads by route of the ServiceProfiles.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cells::{LATENCIES, REQUESTS, latency_cells, rate_cells, request_cells};
use super::resources::{self, Labels, Window};
use super::source::{Extension, Source};
use super::table_format::TableFormat;
use crate::clients::metrics_api::{Peer, RouteRow, RouteTable, StatQuery};
use crate::global::Global;
use crate::output::table::Table;
use crate::output::{self, printable};
use crate::resource::Resource;

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// KIND, KIND/NAME or KIND NAME: cj, ds, deploy, job, ns, po, rs, rc, sts, svc
    #[arg(required = true, num_args = 1..=2, value_name = "RESOURCE")]
    resource: Vec<String>,
    #[command(flatten)]
    window: Window,
    /// Show the requests that the resource sends to this resource
    #[arg(long, value_name = "RESOURCE")]
    to: Option<String>,
    /// Namespace of the resource of --to [default: the namespace of -n]
    #[arg(long, value_name = "NAME", requires = "to")]
    to_namespace: Option<String>,
    #[command(flatten)]
    labels: Labels,
    #[arg(short, long, value_enum, default_value_t = TableFormat::Table)]
    output: TableFormat,
}

const HELP: &str = "\
Shows the requests that a workload receives, or with --to those that it sends. With --to and
-o wide, EFFECTIVE is what the client sees, and ACTUAL counts each retry.

Examples:
  meshctl viz routes svc/web -n shop
  meshctl viz routes deploy/frontend --to svc/web -n shop -o wide";

/// A route with Linkerd's keys.
#[derive(Serialize)]
struct Entry<'a> {
    route: &'a str,
    authority: &'a str,
    #[serde(flatten)]
    rates: Rates,
    latency_ms_p50: Option<u64>,
    latency_ms_p95: Option<u64>,
    latency_ms_p99: Option<u64>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Rates {
    Received {
        success: Option<f64>,
        rps: Option<f64>,
    },
    Sent {
        effective_success: Option<f64>,
        effective_rps: Option<f64>,
        actual_success: Option<f64>,
        actual_rps: Option<f64>,
    },
}

pub(super) async fn run(args: &Args, extension: &Extension, global: &Global) -> anyhow::Result<()> {
    let resource = Resource::parse_one(&args.resource)?;
    let Source { api, scope } = extension.source(global).await?;
    let to = resources::peer(args.to.as_deref(), args.to_namespace.as_deref(), &scope)?;
    let query = StatQuery {
        target: resources::target(&resource, &scope, global)?,
        selector: args.labels.selector.clone(),
        window: args.window.time_window.clone(),
        peer: to.map(Peer::To),
    };
    let tables = api.routes(&query).await?;
    let are_sent = args.to.is_some();
    match args.output {
        TableFormat::Json => output::linkerd_json(&document(&tables, are_sent)),
        TableFormat::Table => output::text(&render(&tables, false)),
        TableFormat::Wide => output::text(&render(&tables, are_sent)),
    }
}

/// Renders a table for each object, with a heading if there are several.
fn render(tables: &[RouteTable], with_retries: bool) -> String {
    let table = |table: &RouteTable| {
        let rendered = render_table(&table.rows, with_retries);
        if tables.len() > 1 {
            format!("==> {} <==\n{rendered}", table.resource)
        } else {
            rendered
        }
    };
    tables.iter().map(table).collect::<Vec<_>>().join("\n")
}

fn render_table(rows: &[RouteRow], with_retries: bool) -> String {
    let mut table = Table::default().left("ROUTE SERVICE");
    table = if with_retries {
        table
            .right("EFFECTIVE_SUCCESS EFFECTIVE_RPS ACTUAL_SUCCESS ACTUAL_RPS")
            .right(LATENCIES)
    } else {
        table.right(REQUESTS)
    };
    for row in rows {
        let mut cells = vec![printable(&row.route), printable(&row.service)];
        if with_retries {
            let effective = row.effective.map(|it| (it.success_rate, it.rps));
            cells.extend(rate_cells(effective));
            cells.extend(rate_cells(row.actual));
            cells.extend(latency_cells(row.effective));
        } else {
            cells.extend(request_cells(row.effective));
        }
        table.row(cells);
    }
    table.render()
}

/// Returns the routes by object.
fn document(tables: &[RouteTable], are_sent: bool) -> BTreeMap<&str, Vec<Entry<'_>>> {
    let mut document = BTreeMap::new();
    for table in tables {
        let entries = table.rows.iter().map(|row| Entry::new(row, are_sent));
        document.insert(table.resource.as_str(), entries.collect());
    }
    document
}

impl<'a> Entry<'a> {
    fn new(row: &'a RouteRow, is_sent: bool) -> Self {
        let success = row.effective.map(|it| it.success_rate);
        let rps = row.effective.map(|it| it.rps);
        let (actual_success, actual_rps) = row.actual.unzip();
        let rates = if is_sent {
            Rates::Sent {
                effective_success: success,
                effective_rps: rps,
                actual_success,
                actual_rps,
            }
        } else {
            Rates::Received { success, rps }
        };
        Self {
            route: &row.route,
            authority: &row.service,
            rates,
            latency_ms_p50: row.effective.map(|it| it.latency_ms_p50),
            latency_ms_p95: row.effective.map(|it| it.latency_ms_p95),
            latency_ms_p99: row.effective.map(|it| it.latency_ms_p99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::metrics_api::Requests;

    fn tables(names: &[&str]) -> Vec<RouteTable> {
        let row = RouteRow {
            route: "GET /a".to_owned(),
            service: "web".to_owned(),
            effective: Some(Requests {
                success_rate: 1.0,
                rps: 2.0,
                latency_ms_p50: 1,
                latency_ms_p95: 2,
                latency_ms_p99: 3,
            }),
            actual: Some((0.5, 4.0)),
        };
        let idle = RouteRow {
            route: "[DEFAULT]".to_owned(),
            effective: None,
            actual: None,
            ..row.clone()
        };
        let table = |name: &&str| RouteTable {
            resource: format!("deployment/{name}"),
            rows: vec![row.clone(), idle.clone()],
        };
        names.iter().map(table).collect()
    }

    #[test]
    fn retries_are_shown_on_request() {
        assert_eq!(
            render(&tables(&["a"]), false),
            "\
ROUTE      SERVICE  SUCCESS  RPS  LATENCY_P50  LATENCY_P95  LATENCY_P99
GET /a     web      100.00%  2.0          1ms          2ms          3ms
[DEFAULT]  web            -    -            -            -            -
"
        );
        let wide = render(&tables(&["a", "b"]), true);
        assert!(wide.starts_with("==> deployment/a <==\nROUTE "), "{wide}");
        assert!(wide.contains("\n\n==> deployment/b <==\n"), "{wide}");
        let row: Vec<&str> = wide.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(row[3..7], ["100.00%", "2.0", "50.00%", "4.0"]);
    }

    #[test]
    fn json_has_keys_of_linkerd() {
        let tables = tables(&["a"]);
        let received = serde_json::to_value(document(&tables, false)).unwrap();
        assert_eq!(received["deployment/a"][0]["rps"], 2.0);
        assert_eq!(received["deployment/a"][0]["latency_ms_p99"], 3);
        assert!(received["deployment/a"][1]["success"].is_null());
        let sent = serde_json::to_value(document(&tables, true)).unwrap();
        assert_eq!(sent["deployment/a"][0]["actual_rps"], 4.0);
        assert_eq!(sent["deployment/a"][0]["effective_success"], 1.0);
    }
}
