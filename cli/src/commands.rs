//! The commands: one file each, with its arguments and its `run` function.

pub(crate) mod analyze;
pub(crate) mod authz;
pub(crate) mod check;
pub(crate) mod completion;
pub(crate) mod cross_sign;
pub(crate) mod diagnostics;
pub(crate) mod identity;
pub(crate) mod inject;
pub(crate) mod install;
pub(crate) mod local;
pub(crate) mod machine;
pub(crate) mod multicluster;
pub(crate) mod profile;
pub(crate) mod prune;
pub(crate) mod stat;
pub(crate) mod status;
pub(crate) mod uninject;
pub(crate) mod uninstall;
pub(crate) mod upgrade;
pub(crate) mod version;
pub(crate) mod viz;
pub(crate) mod why;

use clap::Subcommand;

use crate::global::Global;
use crate::runtime::on_runtime;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the manifests of a directory as a mesh on this machine
    #[command(subcommand)]
    Local(local::Command),
    /// Print the manifests of the mesh, for kubectl apply
    Install(Box<install::Args>),
    /// Print the manifests that upgrade the mesh to this version
    Upgrade(Box<upgrade::Args>),
    /// Print the objects that older versions left behind, for kubectl delete
    Prune(Box<prune::Args>),
    /// Print all objects of the mesh, for kubectl delete
    Uninstall(uninstall::Args),
    /// Check the cluster or machine, node agents, control plane, certificates and proxies
    Check(check::Args),
    /// Summarise control plane, agents, proxies, certificates and problems on one screen
    Status(status::Args),
    /// Add the injection annotation, or the complete proxy, to manifests
    Inject(Box<inject::Args>),
    /// Remove injected proxies and annotations from manifests
    Uninject(uninject::Args),
    /// Show requests per second, success rate and latency per workload, from proxy metrics
    Stat(stat::Args),
    /// Show the certificates that proxies present
    Identity(identity::Args),
    /// Sign a new trust anchor with the old one, for a rotation without restarts
    CrossSign(cross_sign::Args),
    /// List the policies that apply to a workload
    Authz(authz::Args),
    /// Find objects without effect and contradictions, in manifests or in a mesh
    Analyze(analyze::Args),
    /// Explain one connection or request: follow it through everything that decides about it
    Why(why::Args),
    /// Print a ServiceProfile: an example, or the routes of an OpenAPI or protobuf file
    Profile(profile::Args),
    /// Query the control plane and the proxies for their current state
    #[command(visible_alias = "dg")]
    Diagnostics(diagnostics::Args),
    /// Watch the traffic of a cluster that has the viz extension, or of a local node
    Viz(Box<viz::Args>),
    /// Link clusters, so that each can use Services of the others
    #[command(visible_alias = "mc")]
    Multicluster(Box<multicluster::Args>),
    /// Redirect systemd units of this host to their proxies, without Kubernetes
    Machine(machine::Args),
    /// Print the versions of this program, the control plane, the agents and the proxies
    Version(version::Args),
    /// Print a completion script for a shell
    Completion(completion::Args),
}

/// Runs a command. `cli_definition` is clap's definition of all commands, for `completion`.
pub(crate) fn run(
    command: Command,
    global: &Global,
    cli_definition: fn() -> clap::Command,
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
        Command::Profile(args) => on_runtime(profile::run(&args, global)),
        Command::Identity(args) => on_runtime(identity::run(&args, global)),
        Command::CrossSign(args) => cross_sign::run(&args),
        Command::Authz(args) => on_runtime(authz::run(&args, global)),
        Command::Stat(args) => on_runtime(stat::run(&args, global)),
        Command::Version(args) => on_runtime(version::run(&args, global)),
        Command::Analyze(args) => on_runtime(analyze::run(&args, global)),
        Command::Why(args) => on_runtime(why::run(&args, global)),
        Command::Viz(args) => on_runtime(viz::run(&args, global)),
        Command::Multicluster(args) => on_runtime(multicluster::run(&args, global)),
        Command::Machine(args) => on_runtime(machine::run(args, global)),
        Command::Completion(args) => completion::run(&args, cli_definition()),
    }
}
