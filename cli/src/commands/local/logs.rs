//! `meshctl local logs`: what a container wrote, from the beginning, and on.

use std::{
    fs,
    io::{self, Read as _, Seek as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;

use super::find;
use crate::{exit::Failure, global::Global, output};

/// Examples:
///   meshctl local logs web -c linkerd-proxy -f
///   meshctl local logs --agent
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// NAME or NAMESPACE/NAME; the beginning of a name will do where only one pod has it
    #[arg(required_unless_present_any = ["node", "agent", "dns"])]
    pod: Option<String>,
    /// The container; needed when the pod has several
    #[arg(short, long)]
    container: Option<String>,
    /// Go on with what is written from now on
    #[arg(short, long)]
    follow: bool,
    /// The node's own log
    #[arg(long, conflicts_with_all = ["pod", "agent", "dns"])]
    node: bool,
    /// The log of the node's agent
    #[arg(long, conflicts_with_all = ["pod", "dns"])]
    agent: bool,
    /// The log of the node's DNS server
    #[arg(long, conflicts_with = "pod")]
    dns: bool,
}

/// Between two looks at a file that is followed.
const POLL: Duration = Duration::from_millis(200);

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<()> {
    let instance = find::node(global, None)?;
    let path = match &args.pod {
        Some(pod) => {
            let pod = find::pod(&instance, pod)?;
            let any = instance.container_log(&pod.namespace, &pod.name, "any");
            container_log(&any, args.container.as_deref())?
        }
        None if args.node => instance.daemon_log(),
        None if args.agent => instance.agent_log(),
        None => instance.dns_log(),
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
        tokio::time::sleep(POLL).await;
        rewind_if_cut(&mut file)?;
    }
}

/// The node empties a log that has grown too long; what follows is at its beginning.
fn rewind_if_cut(file: &mut fs::File) -> io::Result<()> {
    if file.metadata()?.len() < file.stream_position()? {
        file.rewind()?;
    }
    Ok(())
}

/// The log of the named container, or of the only one beside the proxy.
fn container_log(any: &Path, container: Option<&str>) -> anyhow::Result<PathBuf> {
    let folder = any.parent().unwrap_or(any);
    if let Some(name) = container {
        return Ok(folder.join(format!("{name}.log")));
    }
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".log")?.to_owned()))
        .collect();
    names.sort();
    let proxy = mesh_k8s::pod::PROXY_CONTAINER;
    let others: Vec<&String> = names.iter().filter(|name| *name != proxy).collect();
    match others.as_slice() {
        [one] => Ok(folder.join(format!("{one}.log"))),
        _ => {
            Err(Failure::Input(format!("choose a container with -c: {}", names.join(", "))).into())
        }
    }
}
