//! What can be typed.

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
  meshctl local up examples/demo    start a mesh of the manifests in a folder
  meshctl check                     is everything in order?
  meshctl stat --watch              success rate and latency per workload
  meshctl identity client           the certificate a pod presents";

/// Flags with the same meaning in every command.
#[derive(Debug, ClapArgs)]
pub(crate) struct Global {
    /// The local node to talk to; needed only when several run on this machine
    #[arg(long, global = true, value_name = "NAME", env = "MESHCTL_LOCAL")]
    pub(crate) local: Option<String>,
    /// When to use colour
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a mesh of the manifests in a folder on this machine
    #[command(subcommand)]
    Local(commands::local::Command),
    /// Check this machine, the node agent, the control plane and the certificates
    Check(commands::check::Args),
    /// Ask the control plane and the proxies what they believe
    Diagnostics(commands::diagnostics::Args),
    /// Show the certificate that a pod's proxy presents
    Identity(commands::identity::Args),
    /// Requests per second, success rate and latency per workload, read from the proxies
    Stat(commands::stat::Args),
    /// Print the version
    Version(commands::version::Args),
    /// Print a completion script for a shell
    Completion(commands::completion::Args),
}
