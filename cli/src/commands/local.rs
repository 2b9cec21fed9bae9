//! `meshctl local`: a mesh on this machine, without Kubernetes.

mod find;
mod logs;
mod status;
mod up;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use mesh_local::{
    client::{self, ClientError, ExecError},
    container::stub,
    instance::Instance,
    node,
};

use crate::{commands::on_runtime, exit::Failure, global::Global, output};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a node and run the manifests of a folder
    Up(up::Args),
    /// Show a node's pods and Services
    Status(status::Args),
    /// Run a command in a container
    Exec(Exec),
    /// Print what a container wrote
    Logs(logs::Args),
    /// Read the manifests again: start, stop and replace pods as they say
    Apply(up::Apply),
    /// End a node and remove everything of it, also after a crash
    Down(Which),
    /// The node's daemon
    #[command(hide = true)]
    Run { name: String },
    /// What becomes a container's program
    #[command(hide = true)]
    ExecStub { task: PathBuf },
}

/// Which node; `--local NAME` says it too.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// The folder it runs; needed only when several nodes are up
    dir: Option<PathBuf>,
}

/// Examples:
///   meshctl local exec client -- curl http://web/
///   meshctl local exec shop/web-7d9c-x2x4z -c nginx -- sh
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Exec {
    /// NAME or NAMESPACE/NAME; the beginning of a name will do where only one pod has it
    pod: String,
    /// The pod's first container when none is named
    #[arg(short, long)]
    container: Option<String>,
    /// The program, looked up in the container's PATH, and its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

pub(crate) fn run(command: Command, global: &Global) -> anyhow::Result<()> {
    match command {
        Command::Up(args) => on_runtime(up::run(args, global)),
        Command::Apply(args) => on_runtime(up::apply(args, global)),
        Command::Status(args) => status::run(&args, global),
        Command::Exec(args) => exec(args, global),
        Command::Logs(args) => on_runtime(logs::run(args, global)),
        Command::Down(which) => on_runtime(down(which, global)),
        Command::Run { name } => {
            let name = name.parse().context("name of the node")?;
            Ok(node::main(Instance::new(name))?)
        }
        Command::ExecStub { task } => Err(stub::run(&task).into()),
    }
}

/// Gives the errors of the library the exit codes of this program.
pub(super) fn failed(error: ClientError) -> anyhow::Error {
    let kind = match &error {
        ClientError::Unreachable { .. } => Failure::Unreachable,
        ClientError::Find(_) | ClientError::Manifests(_) => Failure::Input,
        _ => return error.into(),
    };
    let text = format!("{:#}", anyhow::Error::from(error));
    kind(text).into()
}

fn exec(args: Exec, global: &Global) -> anyhow::Result<()> {
    let instance = find::node(global, None)?;
    let pod = find::pod(&instance, &args.pod)?;
    match client::exec(&instance, pod, args.container, args.command) {
        ExecError::Client(error) => Err(failed(error)),
        ExecError::Stub(error) => Err(error.into()),
    }
}

async fn down(which: Which, global: &Global) -> anyhow::Result<()> {
    let instance = find::node(global, which.dir.as_deref())?;
    if !instance.state().exists() {
        output::note(&format!("no node {} is up", instance.name()));
        return Ok(());
    }
    Box::pin(client::down(&instance)).await.map_err(failed)?;
    output::note(&format!("{} is down", instance.name()));
    Ok(())
}
