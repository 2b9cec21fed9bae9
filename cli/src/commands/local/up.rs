//! `meshctl local up` and `apply`: make what runs what the manifests say, and wait until it is
//! ready.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::Context as _;
use ipnet::Ipv4Net;
use mesh_core::node::Tier;
use mesh_local::{
    client::{self, ClientError, Options},
    instance::{Instance, Name},
    node::control::NodeStatus,
};
use tokio::time::Instant;

use super::{failed, find, status};
use crate::{exit::Failure, global::Global, output};

/// Examples:
///   meshctl local up examples/demo
///   meshctl local up examples/demo --name plain --no-mesh
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// The folder of manifests
    dir: PathBuf,
    /// The node's name; the folder's when none is given
    #[arg(long)]
    name: Option<Name>,
    /// Force how connections reach the proxies: full, split, nft or iptables
    #[arg(long)]
    tier: Option<Tier>,
    /// Run the pods alone: no agent, no control plane, no proxies
    #[arg(long)]
    no_mesh: bool,
    /// Give pods no IPv6 addresses
    #[arg(long)]
    ipv4_only: bool,
    /// The pods' addresses, instead of a free /24 of 10.240.0.0/17
    #[arg(long, value_name = "BLOCK")]
    pod_cidr: Option<Ipv4Net>,
    /// The Services' addresses, instead of a free /24 of 10.240.128.0/17
    #[arg(long, value_name = "BLOCK")]
    service_cidr: Option<Ipv4Net>,
    /// Where mesh-agent, mesh-cni, mesh-proxy and mesh-controller are, instead of beside meshctl
    #[arg(long, value_name = "DIR", env = "MESHCTL_BIN_DIR")]
    bin_dir: Option<PathBuf>,
    /// Where the CNI plugins ptp, host-local, portmap and loopback are
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
    /// The folder the node runs; needed only when several nodes are up
    dir: Option<PathBuf>,
    #[command(flatten)]
    wait: Wait,
}

#[derive(Debug, clap::Args)]
struct Wait {
    /// How long to wait until every pod is ready
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = mesh_core::units::parse_duration)]
    timeout: Duration,
    /// Do not wait
    #[arg(long, conflicts_with = "timeout")]
    no_wait: bool,
}

const POLL: Duration = Duration::from_millis(100);

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<()> {
    let instance = match args.name {
        Some(name) => Instance::new(name),
        None => find::node(global, Some(&args.dir))?,
    };
    let bin_dir = match args.bin_dir {
        Some(dir) => {
            std::path::absolute(&dir).with_context(|| format!("find {}", dir.display()))?
        }
        None => beside_this_program()?,
    };
    let options = Options {
        manifests: args.dir,
        bin_dir,
        cni_path: args.cni_path,
        tier: args.tier,
        mesh: !args.no_mesh,
        ipv6: !args.ipv4_only,
        pod_cidr: args.pod_cidr,
        service_cidr: args.service_cidr,
    };
    output::note(&format!("starting the node {}", instance.name()));
    let mut daemon = Box::pin(client::start(&instance, options))
        .await
        .map_err(failed)?;
    let outcome = wait(&args.wait, || daemon.poll()).await;
    if let Err(error) = &outcome
        && let Some(ClientError::Failed(_)) = error.downcast_ref()
    {
        // A node that could not start leaves nothing to look at but its message.
        Box::pin(client::down(&instance)).await.map_err(failed)?;
    }
    finish(&outcome?)
}

pub(crate) async fn apply(args: Apply, global: &Global) -> anyhow::Result<()> {
    let instance = find::node(global, args.dir.as_deref())?;
    client::apply(&instance).map_err(failed)?;
    let outcome = wait(&args.wait, || client::status(&instance).map(Some)).await;
    finish(&outcome?)
}

/// Follows the node until everything is ready, with a line for each pod that changes.
async fn wait(
    wait: &Wait,
    mut poll: impl FnMut() -> Result<Option<NodeStatus>, ClientError>,
) -> anyhow::Result<NodeStatus> {
    let deadline = Instant::now() + wait.timeout;
    let mut shown = BTreeMap::new();
    loop {
        let status = poll().map_err(failed)?;
        if let Some(status) = status {
            tell(&status, &mut shown);
            if status.ready || wait.no_wait {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                status::print(&status)?;
                status::complain(&status);
                return Err(Failure::TimedOut(unready(&status)).into());
            }
        } else if Instant::now() >= deadline {
            let text = "the node did not answer; its log: meshctl local logs --node";
            return Err(Failure::TimedOut(text.into()).into());
        }
        tokio::time::sleep(POLL).await;
    }
}

fn tell(status: &NodeStatus, shown: &mut BTreeMap<(String, String), String>) {
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

/// Prints what runs. Manifests that cannot be used make the command fail, though the rest runs.
fn finish(status: &NodeStatus) -> anyhow::Result<()> {
    output::note("");
    status::print(status)?;
    status::complain(status);
    match status.problems.len() {
        0 => Ok(()),
        1 => Err(Failure::Input("one manifest cannot be used; the rest runs".into()).into()),
        n => Err(Failure::Input(format!("{n} manifests cannot be used; the rest runs")).into()),
    }
}

fn unready(status: &NodeStatus) -> String {
    let unready = status.pods.iter().filter(|pod| !pod.ready);
    let names: Vec<String> = unready
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect();
    format!(
        "not ready: {}; look with: meshctl local logs POD, or undo with: meshctl local down",
        names.join(", ")
    )
}

fn beside_this_program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    let folder = own.parent().context("find the folder of this program")?;
    Ok(folder.to_owned())
}
