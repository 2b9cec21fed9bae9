//! Flags with the same meaning in every command.

use std::path::PathBuf;

use clap::Args;

use crate::output::style::Color;

/// The control plane's namespace when nothing else is said.
pub(crate) const CONTROL_NAMESPACE: &str = "linkerd";

/// What every command is told.
#[derive(Debug, Args)]
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
    /// The local node that was named. A flag that names a cluster goes before the environment
    /// variable that names a node.
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
