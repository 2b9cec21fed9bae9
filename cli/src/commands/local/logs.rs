//! `meshctl local logs`: prints the log of a container and follows it.

use std::fs;
use std::io::{self, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use super::find;
use crate::exit::Failure;
use crate::global::Global;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  meshctl local logs web -c linkerd-proxy -f
  meshctl local logs --agent";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// NAME or NAMESPACE/NAME; a prefix of NAME is sufficient if it is unique
    #[arg(required_unless_present_any = ["node", "agent", "dns"])]
    pod: Option<String>,
    /// Container; required when the pod has several
    #[arg(short, long)]
    container: Option<String>,
    /// Follow the log
    #[arg(short, long)]
    follow: bool,
    /// Print the log of the node's daemon
    #[arg(long, conflicts_with_all = ["pod", "agent", "dns"])]
    node: bool,
    /// Print the log of the node's agent
    #[arg(long, conflicts_with_all = ["pod", "dns"])]
    agent: bool,
    /// Print the log of the node's DNS server
    #[arg(long, conflicts_with = "pod")]
    dns: bool,
}

/// The polling interval of a followed log.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<()> {
    let paths = find::node(global, None)?;
    let path = match &args.pod {
        Some(pod) => {
            let pod = find::pod(&paths, pod)?;
            let any = paths.container_log(&pod.namespace, &pod.name, "any");
            container_log(&any, args.container.as_deref())?
        }
        None if args.node => paths.daemon_log(),
        None if args.agent => paths.agent_log(),
        None => paths.dns_log(),
    };
    let open = || fs::File::open(&path).with_context(|| format!("open the log {}", path.display()));
    let mut file = open()?;
    loop {
        let mut text = Vec::new();
        file.read_to_end(&mut text)
            .with_context(|| format!("read the log {}", path.display()))?;
        output::text(&String::from_utf8_lossy(&text))?;
        if !args.follow {
            return Ok(());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        rewind_if_truncated(&mut file)?;
    }
}

/// Continues at the beginning of a log that the node has truncated because of its size.
fn rewind_if_truncated(file: &mut fs::File) -> io::Result<()> {
    if file.metadata()?.len() < file.stream_position()? {
        file.rewind()?;
    }
    Ok(())
}

/// Returns the log of the named container, or of the only container except the proxy.
fn container_log(any: &Path, container: Option<&str>) -> anyhow::Result<PathBuf> {
    let directory = any.parent().unwrap_or(any);
    if let Some(name) = container {
        return Ok(directory.join(format!("{name}.log")));
    }
    let entries =
        fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".log")?.to_owned()))
        .collect();
    names.sort();
    let proxy = mesh_k8s::pod::PROXY_CONTAINER;
    let others: Vec<&String> = names.iter().filter(|name| *name != proxy).collect();
    match others.as_slice() {
        [one] => Ok(directory.join(format!("{one}.log"))),
        _ => {
            Err(Failure::Input(format!("select a container with -c: {}", names.join(", "))).into())
        }
    }
}
