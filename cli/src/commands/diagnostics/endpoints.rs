//! `meshctl diagnostics endpoints`.

use mesh_core::endpoint::{Endpoint, EndpointUpdate, ProtocolHint};
use serde::Serialize;

use super::query_source::QuerySource;
use crate::mesh::{Mesh, controllers};
use crate::output::table::Table;
use crate::output::{self, Format};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// NAME.NAMESPACE.svc.cluster.local:PORT
    #[arg(required = true)]
    authorities: Vec<String>,
    #[command(flatten)]
    source: QuerySource,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Serialize)]
struct Endpoints {
    endpoints: Vec<Row>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    authority: String,
    ip: String,
    port: u16,
    pod: String,
    namespace: String,
    protocol: &'static str,
    identity: String,
    /// The level of locality that the endpoints share with the client, or `all`, of a Service with
    /// fail-over.
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<String>,
}

pub(super) async fn run(mesh: &Mesh, args: &Args) -> anyhow::Result<()> {
    let query = args.source.query(mesh, "");
    let mut rows = Vec::new();
    for authority in &args.authorities {
        let (update, level) = controllers::endpoints_of_level(&query, authority).await?;
        if let Some(level) = &level {
            output::note(&format!("{authority}: {}", of_level(level)));
        }
        match update {
            EndpointUpdate::Add {
                endpoints,
                set_labels,
            } => {
                let namespace = set_labels.get("namespace").cloned().unwrap_or_default();
                rows.extend(endpoints.iter().map(|endpoint| Row {
                    level: level.clone(),
                    ..row(authority, &namespace, endpoint)
                }));
            }
            EndpointUpdate::Empty { .. } | EndpointUpdate::Remove(_) => {
                output::note(&format!("{authority} has no endpoints"));
            }
        }
    }
    rows.sort_by(|a, b| (&a.authority, &a.ip).cmp(&(&b.authority, &b.ip)));
    match args.output {
        Format::Json => output::json("Endpoints", &Endpoints { endpoints: rows }),
        Format::Table => output::text(&render(rows)),
    }
}

/// Describes the level that a client of a Service with fail-over uses.
fn of_level(level: &str) -> String {
    match level {
        "all" => "all endpoints, as no level of localities has enough ready ones".to_owned(),
        level => format!("the endpoints of the client's {level}"),
    }
}

fn render(rows: Vec<Row>) -> String {
    let mut table = Table::default()
        .left("NAMESPACE IP")
        .right("PORT")
        .left("POD PROTOCOL IDENTITY SERVICE");
    for row in rows {
        table.row(vec![
            row.namespace,
            row.ip,
            row.port.to_string(),
            row.pod,
            row.protocol.to_owned(),
            row.identity,
            row.authority,
        ]);
    }
    table.render()
}

fn row(authority: &str, namespace: &str, endpoint: &Endpoint) -> Row {
    Row {
        authority: authority.to_owned(),
        ip: endpoint.addr.ip().to_string(),
        port: endpoint.addr.port(),
        pod: endpoint.labels.get("pod").unwrap_or_default().to_owned(),
        namespace: namespace.to_owned(),
        protocol: match endpoint.hint {
            ProtocolHint::Unknown => "",
            ProtocolHint::Http2 => "h2",
            ProtocolHint::Opaque => "opaque",
        },
        identity: endpoint
            .tls
            .as_ref()
            .map(|tls| tls.id.to_string())
            .unwrap_or_default(),
        level: None,
    }
}
