//! `meshctl viz authz`: the requests of workloads by the policies that applied to them.

use serde::Serialize;

use super::cells::{REQUESTS, no_traffic, request_cells};
use super::resources::{self, Window};
use super::source::{Extension, Source};
use crate::clients::metrics_api::{AuthzRow, PolicyObject};
use crate::global::Global;
use crate::output::table::Table;
use crate::output::{self, Format, figures};
use crate::resource::Resource;

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// KIND, KIND/NAME or KIND NAME: cj, ds, deploy, job, ns, po, rs, rc, sts
    #[arg(required = true, num_args = 1..=2, value_name = "RESOURCE")]
    resource: Vec<String>,
    #[command(flatten)]
    window: Window,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

const HELP: &str = "\
UNAUTHORIZED is the number of denied requests per second. `meshctl authz` lists the policies
that apply, also without requests.

Examples:
  meshctl viz authz deploy/web -n shop
  meshctl viz authz ns/shop -t 10m";

#[derive(Serialize)]
struct Entry {
    route: Option<String>,
    server: Option<String>,
    authorization: Option<String>,
    unauthorized: f64,
    success: Option<f64>,
    rps: Option<f64>,
    latency_ms_p50: Option<u64>,
    latency_ms_p95: Option<u64>,
    latency_ms_p99: Option<u64>,
}

pub(super) async fn run(args: &Args, extension: &Extension, global: &Global) -> anyhow::Result<()> {
    let resource = Resource::parse_one(&args.resource)?;
    let Source { api, scope } = extension.source(global).await?;
    let target = resources::target(&resource, &scope, global)?;
    let rows = api.authz(&target, &args.window.time_window).await?;
    match args.output {
        Format::Json => output::linkerd_json(&rows.iter().map(Entry::new).collect::<Vec<_>>()),
        Format::Table if rows.is_empty() => no_traffic(),
        Format::Table => output::text(&render(&rows)),
    }
}

fn render(rows: &[AuthzRow]) -> String {
    let mut table = Table::default()
        .left("ROUTE SERVER AUTHORIZATION")
        .right("UNAUTHORIZED")
        .right(REQUESTS);
    for row in rows {
        let names = [route(row), server(row), authorization(row)];
        let mut cells: Vec<String> = names.map(Option::unwrap_or_default).into();
        cells.push(figures::rate(Some(row.unauthorized)));
        cells.extend(request_cells(row.requests));
        table.row(cells);
    }
    table.render()
}

fn route(row: &AuthzRow) -> Option<String> {
    row.route.as_ref().map(|route| route.name.clone())
}

/// Returns the name of the Server, or the default policy of a port without one.
fn server(row: &AuthzRow) -> Option<String> {
    let name = |server: &PolicyObject| match &*server.kind {
        "default" => format!("default:{}", server.name),
        _ => server.name.clone(),
    };
    row.server.as_ref().map(name)
}

fn authorization(row: &AuthzRow) -> Option<String> {
    let name = |authz: &PolicyObject| format!("{}/{}", authz.kind, authz.name);
    row.authorization.as_ref().map(name)
}

impl Entry {
    fn new(row: &AuthzRow) -> Self {
        let requests = row.requests;
        Self {
            route: route(row),
            server: server(row),
            authorization: authorization(row),
            unauthorized: row.unauthorized,
            success: requests.map(|it| it.success_rate),
            rps: requests.map(|it| it.rps),
            latency_ms_p50: requests.map(|it| it.latency_ms_p50),
            latency_ms_p95: requests.map(|it| it.latency_ms_p95),
            latency_ms_p99: requests.map(|it| it.latency_ms_p99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: &str, name: &str) -> Option<PolicyObject> {
        Some(PolicyObject {
            kind: kind.to_owned(),
            name: name.to_owned(),
        })
    }

    #[test]
    fn denied_requests_have_no_authorization() {
        let rows = [
            AuthzRow {
                server: object("server", "web-http"),
                route: object("httproute", "get"),
                authorization: None,
                unauthorized: 2.5,
                requests: None,
            },
            AuthzRow {
                server: object("server", "cart-grpc"),
                route: object("grpcroute", "add"),
                authorization: object("serverauthorization", "old"),
                unauthorized: 0.0,
                requests: None,
            },
            AuthzRow {
                server: object("default", "all-unauthenticated"),
                route: object("default", "default"),
                authorization: object("default", "all-unauthenticated"),
                unauthorized: 0.0,
                requests: None,
            },
        ];
        let text = render(&rows);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|it| it.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1][..5], ["get", "web-http", "-", "2.5", "-"]);
        assert_eq!(
            lines[2][..3],
            ["add", "cart-grpc", "serverauthorization/old"]
        );
        let expect = [
            "default",
            "default:all-unauthenticated",
            "default/all-unauthenticated",
        ];
        assert_eq!(lines[3][..3], expect);
        let json = serde_json::to_value(Entry::new(&rows[0])).unwrap();
        assert_eq!(
            (&json["unauthorized"], &json["server"]),
            (&2.5.into(), &"web-http".into())
        );
        assert!(json["authorization"].is_null());
    }
}
