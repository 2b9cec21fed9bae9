//! One file per command; each has its arguments and `run`.

pub(crate) mod authz;
pub(crate) mod check;
pub(crate) mod completion;
pub(crate) mod diagnostics;
pub(crate) mod identity;
pub(crate) mod inject;
pub(crate) mod install;
pub(crate) mod local;
pub(crate) mod prune;
pub(crate) mod stat;
pub(crate) mod status;
pub(crate) mod uninject;
pub(crate) mod uninstall;
pub(crate) mod upgrade;
pub(crate) mod version;

use clap::Subcommand;

use crate::global::Global;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a mesh of the manifests in a folder on this machine
    #[command(subcommand)]
    Local(local::Command),
    /// Print the manifests of a mesh, for kubectl apply
    Install(Box<install::Args>),
    /// Print the manifests that bring the mesh to this version
    Upgrade(Box<upgrade::Args>),
    /// Print what older versions left behind, for kubectl delete
    Prune(Box<prune::Args>),
    /// Print everything that belongs to the mesh, for kubectl delete
    Uninstall(uninstall::Args),
    /// Check cluster or machine, node agents, control plane, certificates and proxies
    Check(check::Args),
    /// One screen: control plane, agents, proxies, certificates, and what is wrong
    Status(status::Args),
    /// Add the mesh's annotation, or the whole proxy, to manifests
    Inject(Box<inject::Args>),
    /// Take out of manifests what was injected
    Uninject(uninject::Args),
    /// Requests per second, success rate and latency per workload, read from the proxies
    Stat(stat::Args),
    /// Show the certificates that proxies present
    Identity(identity::Args),
    /// List the policies that apply to a workload
    Authz(authz::Args),
    /// Ask the control plane and the proxies what they believe
    #[command(visible_alias = "dg")]
    Diagnostics(diagnostics::Args),
    /// Print the versions of this program, the control plane, the agents and the proxies
    Version(version::Args),
    /// Print a completion script for a shell
    Completion(completion::Args),
}

/// `grammar` is everything that can be typed, for the command that prints it.
pub(crate) fn run(
    command: Command,
    global: &Global,
    grammar: fn() -> clap::Command,
) -> anyhow::Result<()> {
    match command {
        Command::Local(command) => local::run(command, global),
        Command::Install(args) => on_runtime(install::run(&args, global)),
        Command::Upgrade(args) => on_runtime(upgrade::run(&args, global)),
        Command::Prune(args) => on_runtime(prune::run(&args, global)),
        Command::Uninstall(args) => on_runtime(uninstall::run(&args, global)),
        Command::Check(args) => on_runtime(check::run(&args, global)),
        Command::Status(args) => on_runtime(status::run(&args, global)),
        Command::Inject(args) => on_runtime(inject::run(&args, global)),
        Command::Uninject(args) => on_runtime(uninject::run(&args)),
        Command::Diagnostics(args) => on_runtime(diagnostics::run(&args, global)),
        Command::Identity(args) => on_runtime(identity::run(&args, global)),
        Command::Authz(args) => on_runtime(authz::run(&args, global)),
        Command::Stat(args) => on_runtime(stat::run(&args, global)),
        Command::Version(args) => on_runtime(version::run(&args, global)),
        Command::Completion(args) => completion::run(&args, grammar()),
    }
}

/// The runtime of the commands that talk to somebody. Whoever is tired of waiting ends it.
pub(crate) fn on_runtime<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}
