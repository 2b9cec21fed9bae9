//! `meshctl version`: of this program, of the control plane, of the agents and of the proxies, with
//! counts.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    global::Global,
    mesh::{Mesh, MeshPod, Scope},
    output::{self, Format},
};

/// Examples:
///   meshctl version --client
///   meshctl version --proxy -A
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Only this program's, and ask nobody
    #[arg(long)]
    client: bool,
    /// Nothing but the version numbers
    #[arg(long)]
    short: bool,
    /// The proxies' too, of -n NAMESPACE or of all
    #[arg(long)]
    proxy: bool,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    client_version: String,
    /// Absent when it was not asked for, `unavailable` when nobody answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    server_version: Option<String>,
    /// How many of each version.
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
        let asked = match Mesh::find(global).await {
            Ok(mesh) => ask(&mut versions, &mesh, args, global).await,
            Err(error) => Err(error),
        };
        if let Err(error) = asked {
            versions.server_version = Some(UNAVAILABLE.to_owned());
            output::note(&format!("{error:#}"));
        }
    }
    match args.output {
        Format::Json => output::json("Version", &versions),
        Format::Table => output::text(&render(&versions, args.short)),
    }
}

async fn ask(
    versions: &mut Versions,
    mesh: &Mesh,
    args: &Args,
    global: &Global,
) -> anyhow::Result<()> {
    versions.server_version = Some(match mesh {
        // A node runs the programs that lie beside this one.
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
        versions.proxies = of_proxies(&mesh.pods(&scope).await?);
    }
    Ok(())
}

pub(super) fn of_proxies(pods: &[MeshPod]) -> BTreeMap<String, usize> {
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
            text += &format!("{what}: {}\n", counted(counts));
        }
    }
    if server.is_some_and(|server| server != versions.client_version && server != UNAVAILABLE) {
        text += "This program is not of the control plane's version.\n";
    }
    text
}

/// `0.1.0 (3), 0.2.0 (1)`.
pub(super) fn counted(counts: &BTreeMap<String, usize>) -> String {
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
    fn says_which_versions_run() {
        let versions = Versions {
            client_version: "0.2.0".to_owned(),
            server_version: Some("0.1.0".to_owned()),
            agents: [("0.1.0".to_owned(), 2)].into(),
            proxies: [("0.0.9".to_owned(), 1), ("0.1.0".to_owned(), 7)].into(),
        };
        let expect = "Client version: 0.2.0\nServer version: 0.1.0\nAgents: 0.1.0 (2)\nProxies: 0.0.9 (1), 0.1.0 (7)\nThis program is not of the control plane's version.\n";
        assert_eq!(render(&versions, false), expect);
        assert_eq!(render(&versions, true), "0.2.0\n0.1.0\n");
    }
}
