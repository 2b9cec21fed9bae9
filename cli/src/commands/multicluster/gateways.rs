//! `meshctl multicluster gateways`: whether the gateways of linked clusters are alive, as their
//! mirror controllers measure it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use kube::Api;
use kube::api::ListParams;
use mesh_core::annotation::{MIRRORED_CLUSTER, MIRRORED_SERVICE};
use mesh_k8s::kinds::{ResourceExt, Service};
use serde::Serialize;

use super::{EXTENSION, cluster};
use crate::cluster::mirrors::{GatewayStatus, Gateways};
use crate::cluster::{Cluster, error};
use crate::exit::Failure;
use crate::global::Global;
use crate::output::table::Table;
use crate::output::{self, Format};

const HELP: &str = "\
Examples:
  meshctl multicluster gateways
  meshctl multicluster gateways --cluster-name east -o json";

/// Show whether the gateways of linked clusters are alive
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Show only the gateway of this cluster
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
    /// Longest time for the connection to a mirror controller, and for its response (10s, 2m)
    #[arg(short, long, value_name = "DURATION", default_value = "30s", value_parser = mesh_core::units::parse_duration)]
    wait: Duration,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// A gateway, with the keys of Linkerd's JSON.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    cluster_name: String,
    alive: bool,
    number_of_services: usize,
    latency: u64,
}

pub(super) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let cluster = cluster(global).await?;
    let namespace = match &global.namespace {
        Some(namespace) => namespace.clone(),
        None => cluster.extension_namespace(EXTENSION).await?,
    };
    let wanted = args.cluster_name.as_deref();
    let gateways = cluster.gateways(&namespace, wanted, args.wait).await?;
    if let (Some(name), true) = (wanted, gateways.is_empty()) {
        bail!(Failure::Input(format!(
            "namespace {namespace} has no mirror controller of cluster {name}: `meshctl multicluster gateways` shows the linked clusters"
        )));
    }
    if gateways.is_empty() {
        output::note(&format!("namespace {namespace} has no mirror controllers"));
    }
    let mirrors = mirrors(&cluster).await?;
    let (rows, unknown) = rows(gateways, &mirrors);
    for problem in &unknown {
        output::note(problem);
    }
    match args.output {
        Format::Json => output::linkerd_json(&rows)?,
        Format::Table => output::text(&render(&rows))?,
    }
    if unknown.is_empty() {
        Ok(())
    } else {
        Err(Failure::NegativeResult.into())
    }
}

/// Returns the number of mirrors by cluster.
async fn mirrors(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, usize>> {
    let services: Api<Service> = Api::all(cluster.client.clone());
    let labels = format!("{MIRRORED_SERVICE}=true,{MIRRORED_CLUSTER}");
    let labelled = ListParams::default().labels(&labels);
    let found = services.list_metadata(&labelled).await;
    let what = "list the mirrors of other clusters' Services";
    let found = found.map_err(|error| error::failed(what, error))?;
    let mut mirrors = BTreeMap::new();
    for service in &found.items {
        let name = service.labels().get(MIRRORED_CLUSTER).cloned();
        *mirrors.entry(name.unwrap_or_default()).or_default() += 1;
    }
    Ok(mirrors)
}

/// Returns the rows, and why there is none for other clusters.
fn rows(gateways: Gateways, mirrors: &BTreeMap<String, usize>) -> (Vec<Row>, Vec<String>) {
    let (mut rows, mut unknown) = (Vec::new(), Vec::new());
    for (cluster, status) in gateways {
        match status {
            Ok(Some(GatewayStatus { alive, latency_ms })) => rows.push(Row {
                number_of_services: mirrors.get(&cluster).copied().unwrap_or_default(),
                cluster_name: cluster,
                alive,
                latency: latency_ms.unwrap_or_default(),
            }),
            Ok(None) => {}
            Err(error) => unknown.push(format!("the gateway of cluster {cluster}: {error:#}")),
        }
    }
    (rows, unknown)
}

fn render(rows: &[Row]) -> String {
    let mut table = Table::default()
        .left("CLUSTER ALIVE")
        .right("NUM_SVC LATENCY");
    for row in rows {
        let alive = if row.alive { "True" } else { "False" };
        let latency = if row.alive {
            format!("{}ms", row.latency)
        } else {
            String::new()
        };
        table.row(vec![
            row.cluster_name.clone(),
            alive.to_owned(),
            row.number_of_services.to_string(),
            latency,
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gateway_has_a_row_or_a_reason() {
        let status = |alive, latency_ms| Ok(Some(GatewayStatus { alive, latency_ms }));
        let gateways = Gateways::from([
            ("east".to_owned(), status(true, Some(12))),
            ("flat".to_owned(), Ok(None)),
            ("north".to_owned(), Err(anyhow::anyhow!("refused"))),
            ("west".to_owned(), status(false, Some(40))),
        ]);
        let (rows, unknown) = rows(gateways, &BTreeMap::from([("east".to_owned(), 3)]));
        assert_eq!(unknown, ["the gateway of cluster north: refused"]);
        let expect = "\
CLUSTER  ALIVE  NUM_SVC  LATENCY
east     True         3     12ms
west     False        0        -
";
        assert_eq!(render(&rows), expect);
        let json = serde_json::to_value(&rows[0]).unwrap();
        let keys = serde_json::json!({
            "clusterName": "east", "alive": true, "numberOfServices": 3, "latency": 12,
        });
        assert_eq!(json, keys);
    }
}
