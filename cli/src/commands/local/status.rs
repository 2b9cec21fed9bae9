//! `meshctl local status`: shows the pods and Services of a node.

use std::path::PathBuf;

use mesh_local::client;
use mesh_local::node::control::NodeStatus;
use mesh_local::pod::status::Summary;

use super::find;
use crate::global::Global;
use crate::node::failed;
use crate::output::table::Table;
use crate::output::{self, Format};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the node; required only when several nodes are up
    dir: Option<PathBuf>,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

pub(crate) fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let paths = find::node(global, args.dir.as_deref())?;
    let status = client::status(&paths).map_err(failed)?;
    match args.output {
        Format::Json => output::json("LocalNode", &status),
        Format::Table => {
            print(&status)?;
            print_problems(&status);
            Ok(())
        }
    }
}

/// Prints the tables of pods and Services.
pub(super) fn print(status: &NodeStatus) -> anyhow::Result<()> {
    let redirect = match status.tier {
        Some(tier) => format!("redirect tier {tier}"),
        None => "no mesh".to_owned(),
    };
    let directory = status.manifests.display();
    output::line(&format!("node {}: {directory}, {redirect}\n", status.name))?;
    let mut pods = Table::default()
        .left("NAMESPACE NAME READY STATUS")
        .right("RESTARTS")
        .left("MESHED IP");
    for pod in &status.pods {
        let ips = pod.ips.iter().map(ToString::to_string);
        pods.row(vec![
            pod.namespace.clone(),
            pod.name.clone(),
            ready(pod),
            pod.status.clone(),
            pod.restarts.to_string(),
            if pod.meshed { "yes" } else { "no" }.to_owned(),
            ips.collect::<Vec<_>>().join(","),
        ]);
    }
    output::text(&pods.render())?;
    if status.services.is_empty() {
        return Ok(());
    }
    let mut services = Table::default().left("NAMESPACE SERVICE CLUSTER-IP PORTS");
    for service in &status.services {
        services.row(vec![
            service.namespace.clone(),
            service.name.clone(),
            service.addresses.join(","),
            service.ports.join(","),
        ]);
    }
    output::text(&format!("\n{}", services.render()))
}

/// Prints problems to standard error.
pub(super) fn print_problems(status: &NodeStatus) {
    for pod in &status.pods {
        if !pod.message.is_empty() {
            output::note(&format!(
                "Pod {}/{}: {}",
                pod.namespace, pod.name, pod.message
            ));
        }
    }
    for warning in &status.warnings {
        output::note(warning);
    }
    for problem in &status.problems {
        output::note(&problem.to_string());
    }
}

pub(super) fn ready(pod: &Summary) -> String {
    format!("{}/{}", pod.ready_containers, pod.containers)
}
