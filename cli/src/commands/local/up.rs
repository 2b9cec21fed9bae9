//! `meshctl local up` and `apply`: apply manifests and wait until all pods are ready.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use ipnet::Ipv4Net;
use mesh_core::node::Tier;
use mesh_local::client::{self, ClientError, UpOptions};
use mesh_local::node::control::NodeStatus;
use mesh_local::node_paths::{Name, NodePaths};
use tokio::time::Instant;

use super::{find, status};
use crate::exit::Failure;
use crate::global::Global;
use crate::node::failed;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  meshctl local up examples/demo
  meshctl local up examples/demo --name plain --no-mesh";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Directory of manifests
    dir: PathBuf,
    /// Name of the node; default: the name of the directory
    #[arg(long)]
    name: Option<Name>,
    /// Force the redirection tier: full, split, nft or iptables
    #[arg(long)]
    tier: Option<Tier>,
    /// Run the pods without agent, control plane and proxies
    #[arg(long)]
    no_mesh: bool,
    /// Do not assign IPv6 addresses to pods
    #[arg(long)]
    ipv4_only: bool,
    /// Address range of pods; default: a free /24 of 10.240.0.0/17
    #[arg(long, value_name = "BLOCK")]
    pod_cidr: Option<Ipv4Net>,
    /// Address range of Services; default: a free /24 of 10.240.128.0/17
    #[arg(long, value_name = "BLOCK")]
    service_cidr: Option<Ipv4Net>,
    /// Directory of mesh-agent, mesh-cni, mesh-proxy, mesh-controller and mesh-viz; default: the
    /// directory of meshctl
    #[arg(long, value_name = "DIR", env = "MESHCTL_BIN_DIR")]
    bin_dir: Option<PathBuf>,
    /// Directories of the CNI plugins ptp, host-local, portmap and loopback
    #[arg(
        long,
        value_name = "DIR",
        value_delimiter = ':',
        env = "CNI_PATH",
        default_value = "/usr/lib/cni:/opt/cni/bin"
    )]
    cni_path: Vec<PathBuf>,
    #[command(flatten)]
    wait: Wait,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Apply {
    /// Directory of the node; required only when several nodes are up
    dir: Option<PathBuf>,
    #[command(flatten)]
    wait: Wait,
}

#[derive(Debug, clap::Args)]
struct Wait {
    /// Time to wait until all pods are ready
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = mesh_core::units::parse_duration)]
    timeout: Duration,
    /// Do not wait for pods
    #[arg(long, conflicts_with = "timeout")]
    no_wait: bool,
}

const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<()> {
    let paths = match args.name {
        Some(name) => NodePaths::new(name),
        None => find::node(global, Some(&args.dir))?,
    };
    let bin_dir = match args.bin_dir {
        Some(dir) => {
            std::path::absolute(&dir).with_context(|| format!("find {}", dir.display()))?
        }
        None => program_directory()?,
    };
    let options = UpOptions {
        manifests: args.dir,
        bin_dir,
        cni_path: args.cni_path,
        tier: args.tier,
        mesh: !args.no_mesh,
        ipv6: !args.ipv4_only,
        pod_cidr: args.pod_cidr,
        service_cidr: args.service_cidr,
    };
    output::note(&format!("starting the node {}", paths.name()));
    let mut daemon = Box::pin(client::start(&paths, options))
        .await
        .map_err(failed)?;
    let outcome = wait(&args.wait, || daemon.poll()).await;
    if let Err(error) = &outcome
        && let Some(ClientError::Failed(_)) = error.downcast_ref()
    {
        // The error message has all information about a failed start.
        Box::pin(client::down(&paths)).await.map_err(failed)?;
    }
    finish(&outcome?)
}

pub(crate) async fn apply(args: Apply, global: &Global) -> anyhow::Result<()> {
    let paths = find::node(global, args.dir.as_deref())?;
    client::apply(&paths).map_err(failed)?;
    let outcome = wait(&args.wait, || client::status(&paths).map(Some)).await;
    finish(&outcome?)
}

/// Polls the node until all pods are ready, and prints a line for each change of a pod.
async fn wait(
    wait: &Wait,
    mut poll: impl FnMut() -> Result<Option<NodeStatus>, ClientError>,
) -> anyhow::Result<NodeStatus> {
    let deadline = Instant::now() + wait.timeout;
    let mut shown = BTreeMap::new();
    loop {
        let status = poll().map_err(failed)?;
        if let Some(status) = status {
            print_changes(&status, &mut shown);
            if status.ready || wait.no_wait {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                status::print(&status)?;
                status::print_problems(&status);
                return Err(Failure::TimedOut(unready(&status)).into());
            }
        } else if Instant::now() >= deadline {
            let text = "no response from the node; its log: meshctl local logs --node";
            return Err(Failure::TimedOut(text.into()).into());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn print_changes(status: &NodeStatus, shown: &mut BTreeMap<(String, String), String>) {
    for pod in &status.pods {
        let line = format!("{} {}", status::ready(pod), pod.status);
        let key = (pod.namespace.clone(), pod.name.clone());
        if shown.get(&key) != Some(&line) {
            let reason = if pod.message.is_empty() {
                String::new()
            } else {
                format!(": {}", pod.message)
            };
            output::note(&format!("  {}/{}  {line}{reason}", pod.namespace, pod.name));
            shown.insert(key, line);
        }
    }
}

/// Prints the status. The command fails if there are invalid manifests, although the others run.
fn finish(status: &NodeStatus) -> anyhow::Result<()> {
    output::note("");
    status::print(status)?;
    status::print_problems(status);
    match status.problems.len() {
        0 => Ok(()),
        1 => Err(Failure::Input("one manifest is invalid; the others run".into()).into()),
        n => Err(Failure::Input(format!("{n} manifests are invalid; the others run")).into()),
    }
}

fn unready(status: &NodeStatus) -> String {
    let unready = status.pods.iter().filter(|pod| !pod.ready);
    let names: Vec<String> = unready
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect();
    format!(
        "not ready: {}; see meshctl local logs POD, or clean up with meshctl local down",
        names.join(", ")
    )
}

fn program_directory() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("find this program")?;
    let directory = program
        .parent()
        .context("find the directory of this program")?;
    Ok(directory.to_owned())
}
