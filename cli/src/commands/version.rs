//! `meshctl version`: the versions of this program, the control plane, the agents and the proxies.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::global::Global;
use crate::mesh::Mesh;
use crate::output::{self, Format};
use crate::resource::{MeshPod, Scope};

const EXAMPLES: &str = "\
Examples:
  meshctl version --client
  meshctl version --proxy -A";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print only the version of this program, without contacting a mesh
    #[arg(long)]
    client: bool,
    /// Print only the version numbers
    #[arg(long)]
    short: bool,
    /// Include the proxies of -n NAMESPACE, or of all namespaces
    #[arg(long)]
    proxy: bool,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    client_version: String,
    /// `None` if it was not requested, `unavailable` if the control plane is unreachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    server_version: Option<String>,
    /// The number of agents of each version.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    agents: BTreeMap<String, usize>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    proxies: BTreeMap<String, usize>,
}

const UNAVAILABLE: &str = "unavailable";

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let mut versions = Versions {
        client_version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Default::default()
    };
    if !args.client {
        let result = match Mesh::find(global).await {
            Ok(mesh) => query(&mut versions, &mesh, args, global).await,
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            versions.server_version = Some(UNAVAILABLE.to_owned());
            output::note(&format!("{error:#}"));
        }
    }
    match args.output {
        Format::Json => output::json("Version", &versions),
        Format::Table => output::text(&render(&versions, args.short)),
    }
}

async fn query(
    versions: &mut Versions,
    mesh: &Mesh,
    args: &Args,
    global: &Global,
) -> anyhow::Result<()> {
    versions.server_version = Some(match mesh {
        // A local node runs the programs of this program's directory.
        Mesh::Local(_) => versions.client_version.clone(),
        Mesh::Cluster(cluster) => cluster.values().await?.linkerd_version,
    });
    for agent in mesh.agents().await? {
        let version = match agent.status {
            Ok(status) => status.agent_version,
            Err(_) => UNAVAILABLE.to_owned(),
        };
        *versions.agents.entry(version).or_default() += 1;
    }
    if args.proxy {
        let scope = match &global.namespace {
            Some(namespace) => Scope::Namespace(namespace.clone()),
            None => Scope::All,
        };
        versions.proxies = proxy_versions(&mesh.pods(&scope).await?);
    }
    Ok(())
}

pub(super) fn proxy_versions(pods: &[MeshPod]) -> BTreeMap<String, usize> {
    let mut proxies = BTreeMap::new();
    for pod in pods
        .iter()
        .filter(|pod| pod.is_meshed() && !pod.is_terminal)
    {
        let version = pod.proxy_version.as_deref().unwrap_or("unknown");
        *proxies.entry(version.to_owned()).or_default() += 1;
    }
    proxies
}

fn render(versions: &Versions, short: bool) -> String {
    let server = versions.server_version.as_deref();
    if short {
        let numbers = [Some(versions.client_version.as_str()), server];
        return numbers
            .iter()
            .flatten()
            .map(|number| format!("{number}\n"))
            .collect();
    }
    let mut text = format!("Client version: {}\n", versions.client_version);
    if let Some(server) = server {
        text += &format!("Server version: {server}\n");
    }
    for (what, counts) in [("Agents", &versions.agents), ("Proxies", &versions.proxies)] {
        if !counts.is_empty() {
            text += &format!("{what}: {}\n", format_counts(counts));
        }
    }
    if server.is_some_and(|server| server != versions.client_version && server != UNAVAILABLE) {
        text += "This program and the control plane have different versions.\n";
    }
    text
}

/// Formats counts by version: `0.1.0 (3), 0.2.0 (1)`.
pub(super) fn format_counts(counts: &BTreeMap<String, usize>) -> String {
    let all: Vec<String> = counts
        .iter()
        .map(|(version, count)| format!("{version} ({count})"))
        .collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_has_all_versions_with_counts() {
        let versions = Versions {
            client_version: "0.2.0".to_owned(),
            server_version: Some("0.1.0".to_owned()),
            agents: [("0.1.0".to_owned(), 2)].into(),
            proxies: [("0.0.9".to_owned(), 1), ("0.1.0".to_owned(), 7)].into(),
        };
        let expect = "Client version: 0.2.0\nServer version: 0.1.0\nAgents: 0.1.0 (2)\nProxies: 0.0.9 (1), 0.1.0 (7)\nThis program and the control plane have different versions.\n";
        assert_eq!(render(&versions, false), expect);
        assert_eq!(render(&versions, true), "0.2.0\n0.1.0\n");
    }
}
