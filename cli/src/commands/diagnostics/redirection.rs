//! `meshctl diagnostics redirection`.

use mesh_core::node::PodStatus;
use serde::Serialize;

use crate::global::Global;
use crate::mesh::Mesh;
use crate::output::table::Table;
use crate::output::{self, Format};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Serialize)]
struct Redirection {
    pods: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    node: String,
    #[serde(flatten)]
    status: PodStatus,
}

pub(super) async fn run(mesh: &Mesh, args: &Args, global: &Global) -> anyhow::Result<()> {
    let mut pods = Vec::new();
    let mut failed = None;
    for agent in mesh.agents().await? {
        match agent.pods {
            Ok(of_node) => pods.extend(of_node.into_iter().map(|status| Row {
                node: agent.node.clone(),
                status,
            })),
            Err(error) => {
                output::note(&format!("node {}: {error:#}", agent.node));
                failed = Some(error);
            }
        }
    }
    // If some agents fail, the pods of the other nodes are still shown.
    if let Some(error) = failed.filter(|_| pods.is_empty()) {
        return Err(error);
    }
    if let Some(namespace) = &global.namespace {
        pods.retain(|row: &Row| row.status.pod.namespace == *namespace);
    }
    pods.sort_by(|a, b| {
        let key = |row: &Row| {
            (
                row.status.pod.namespace.clone(),
                row.status.pod.name.clone(),
            )
        };
        key(a).cmp(&key(b))
    });
    match args.output {
        Format::Json => output::json("Redirection", &Redirection { pods }),
        Format::Table => output::text(&render(pods)),
    }
}

fn render(pods: Vec<Row>) -> String {
    let mut table = Table::default().left("NAMESPACE POD NODE TIER CONNECTIONS");
    for row in pods {
        let pod = row.status;
        let counted = pod.connections.iter().filter(|(_, count)| **count > 0);
        let counted: Vec<String> = counted
            .map(|(outcome, count)| format!("{outcome}={count}"))
            .collect();
        table.row(vec![
            pod.pod.namespace,
            pod.pod.name,
            row.node,
            pod.tier.to_string(),
            counted.join(" "),
        ]);
    }
    table.render()
}
