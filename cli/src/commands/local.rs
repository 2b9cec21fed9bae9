//! `meshctl local`: a mesh on this machine, without Kubernetes.

mod dashboard;
mod find;
mod logs;
mod status;
mod up;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use mesh_local::client::{self, ExecError};
use mesh_local::container::shim;
use mesh_local::node;
use mesh_local::node_paths::NodePaths;

use crate::global::Global;
use crate::node::failed;
use crate::output;
use crate::runtime::on_runtime;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a node that runs the manifests of a directory
    Up(up::Args),
    /// Show a node's pods and Services
    Status(status::Args),
    /// Open the dashboard of a node
    Dashboard(dashboard::Args),
    /// Run a command in a container
    Exec(Exec),
    /// Print the logs of a container
    Logs(logs::Args),
    /// Apply changed manifests: start, stop and replace pods
    Apply(up::Apply),
    /// Stop a node and remove everything it created, also after a crash
    Down(NodeSelector),
    /// Run the node's daemon
    #[command(hide = true)]
    Run { name: String },
    /// Set up a container and execute its program
    #[command(hide = true)]
    ExecStub { task: PathBuf },
}

/// Selects a node by its directory; `--local NAME` selects one by name.
#[derive(Debug, clap::Args)]
pub(crate) struct NodeSelector {
    /// Directory of the node; required only when several nodes are up
    dir: Option<PathBuf>,
}

const EXEC_EXAMPLES: &str = "\
Examples:
  meshctl local exec client -- curl http://web/
  meshctl local exec shop/web-7d9c-x2x4z -c nginx -- sh";

#[derive(Debug, clap::Args)]
#[command(after_help = EXEC_EXAMPLES)]
pub(crate) struct Exec {
    /// NAME or NAMESPACE/NAME; a prefix of NAME is sufficient if it is unique
    pod: String,
    /// Container; default: the first container of the pod
    #[arg(short, long)]
    container: Option<String>,
    /// Program, which is looked up in the container's PATH, and its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

pub(crate) fn run(command: Command, global: &Global) -> anyhow::Result<()> {
    match command {
        Command::Up(args) => on_runtime(up::run(args, global)),
        Command::Apply(args) => on_runtime(up::apply(args, global)),
        Command::Status(args) => status::run(&args, global),
        Command::Dashboard(args) => on_runtime(Box::pin(dashboard::run(args, global))),
        Command::Exec(args) => exec(args, global),
        Command::Logs(args) => on_runtime(logs::run(args, global)),
        Command::Down(selector) => on_runtime(down(selector, global)),
        Command::Run { name } => {
            let name = name.parse().context("parse the name of the node")?;
            Ok(node::main(NodePaths::new(name))?)
        }
        Command::ExecStub { task } => Err(shim::run(&task).into()),
    }
}

fn exec(args: Exec, global: &Global) -> anyhow::Result<()> {
    let paths = find::node(global, None)?;
    let pod = find::pod(&paths, &args.pod)?;
    match client::exec(&paths, pod, args.container, args.command) {
        ExecError::Client(error) => Err(failed(error)),
        ExecError::Shim(error) => Err(error.into()),
    }
}

async fn down(selector: NodeSelector, global: &Global) -> anyhow::Result<()> {
    let paths = find::node(global, selector.dir.as_deref())?;
    if !paths.state().exists() {
        output::note(&format!("node {} is not up", paths.name()));
        return Ok(());
    }
    Box::pin(client::down(&paths)).await.map_err(failed)?;
    output::note(&format!("node {} is down", paths.name()));
    Ok(())
}
