//! What can be typed.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};

use crate::{commands, output::style::Color};

/// See and steer the mesh.
#[derive(Debug, Parser)]
#[command(name = "meshctl", version, disable_help_subcommand = true, infer_subcommands = false, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  meshctl check --pre               can the mesh be installed on this cluster?
  meshctl status                    one screen of truth
  meshctl check --proxy -n shop     is everything in order, the pods of shop too?
  meshctl stat -A --watch           success rate and latency per workload
  meshctl local up examples/demo    a mesh on this machine, without a cluster

Exit codes: 0 done, 1 the answer is no or the operation failed, 2 unexpected, 64 wrong
usage, 65 unusable input, 69 nothing answers, 75 timed out, 130 interrupted.";

/// The control plane's namespace when nothing else is said.
const CONTROL_NAMESPACE: &str = "linkerd";

/// Flags with the same meaning in every command.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The local node to talk to, by name [env: MESHCTL_LOCAL]
    #[arg(long, global = true, value_name = "NAME", conflicts_with_all = ["context", "kubeconfig"])]
    pub(crate) local: Option<String>,
    /// The context of the kubeconfig to use
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// The kubeconfig to use [env: KUBECONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Act as this user
    #[arg(long = "as", global = true, value_name = "USER")]
    pub(crate) act_as: Option<String>,
    /// Act as a member of this group; may be repeated
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    pub(crate) act_as_groups: Vec<String>,
    /// The namespace to look at
    #[arg(
        short,
        long,
        global = true,
        value_name = "NAME",
        conflicts_with = "all_namespaces"
    )]
    pub(crate) namespace: Option<String>,
    /// Look at every namespace
    #[arg(short = 'A', long, global = true)]
    pub(crate) all_namespaces: bool,
    /// The namespace of the control plane
    #[arg(short = 'L', long, global = true, value_name = "NAME", env = "LINKERD_NAMESPACE", default_value = CONTROL_NAMESPACE)]
    pub(crate) linkerd_namespace: String,
    /// Accepted for Linkerd's scripts: the node agent lives beside the control plane
    #[arg(long, global = true, value_name = "NAME", hide = true)]
    pub(crate) cni_namespace: Option<String>,
    /// When to use colour
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,
}

impl Global {
    /// The local node that was named. A flag that names a cluster goes before the environment variable that names a node.
    pub(crate) fn local_name(&self) -> Option<String> {
        if self.names_cluster() {
            return None;
        }
        let from_env = || {
            std::env::var("MESHCTL_LOCAL")
                .ok()
                .filter(|name| !name.is_empty())
        };
        self.local.clone().or_else(from_env)
    }

    pub(crate) fn names_cluster(&self) -> bool {
        self.context.is_some() || self.kubeconfig.is_some()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a mesh of the manifests in a folder on this machine
    #[command(subcommand)]
    Local(commands::local::Command),
    /// Print the manifests of a mesh, for kubectl apply
    Install(Box<commands::install::Args>),
    /// Print the manifests that bring the mesh to this version
    Upgrade(Box<commands::upgrade::Args>),
    /// Print what older versions left behind, for kubectl delete
    Prune(Box<commands::prune::Args>),
    /// Print everything that belongs to the mesh, for kubectl delete
    Uninstall(commands::uninstall::Args),
    /// Check cluster or machine, node agents, control plane, certificates and proxies
    Check(commands::check::Args),
    /// One screen: control plane, agents, proxies, certificates, and what is wrong
    Status(commands::status::Args),
    /// Add the mesh's annotation, or the whole proxy, to manifests
    Inject(Box<commands::inject::Args>),
    /// Take out of manifests what was injected
    Uninject(commands::uninject::Args),
    /// Requests per second, success rate and latency per workload, read from the proxies
    Stat(commands::stat::Args),
    /// Show the certificates that proxies present
    Identity(commands::identity::Args),
    /// List the policies that apply to a workload
    Authz(commands::authz::Args),
    /// Ask the control plane and the proxies what they believe
    #[command(visible_alias = "dg")]
    Diagnostics(commands::diagnostics::Args),
    /// Print the versions of this program, the control plane, the agents and the proxies
    Version(commands::version::Args),
    /// Print a completion script for a shell
    Completion(commands::completion::Args),
}
