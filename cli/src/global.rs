//! Flags that have the same meaning in every command.

use std::path::PathBuf;

use clap::Args;

use crate::output::style::Color;

/// The default namespace of the control plane.
pub(crate) const CONTROL_NAMESPACE: &str = "linkerd";

/// The flags of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Name of the local node to connect to [env: MESHCTL_LOCAL]
    #[arg(long, global = true, value_name = "NAME", conflicts_with_all = ["context", "kubeconfig"])]
    pub(crate) local: Option<String>,
    /// Kubeconfig context to use
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Kubeconfig file to use [env: KUBECONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Impersonate this user
    #[arg(long = "as", global = true, value_name = "USER")]
    pub(crate) act_as: Option<String>,
    /// Impersonate a member of this group; may be repeated
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    pub(crate) act_as_groups: Vec<String>,
    /// Namespace to operate on
    #[arg(
        short,
        long,
        global = true,
        value_name = "NAME",
        conflicts_with = "all_namespaces"
    )]
    pub(crate) namespace: Option<String>,
    /// Operate on all namespaces
    #[arg(short = 'A', long, global = true)]
    pub(crate) all_namespaces: bool,
    /// Namespace of the control plane
    #[arg(short = 'L', long, global = true, value_name = "NAME", env = "LINKERD_NAMESPACE", default_value = CONTROL_NAMESPACE)]
    pub(crate) linkerd_namespace: String,
    /// Accepted for scripts that were written for Linkerd; ignored, because the node agent runs in
    /// the namespace of the control plane
    #[arg(long, global = true, value_name = "NAME", hide = true)]
    pub(crate) cni_namespace: Option<String>,
    /// When to use colour
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,
}

impl Global {
    /// Returns the name of the local node. A flag that selects a cluster takes precedence over the
    /// environment variable that selects a node.
    pub(crate) fn local_name(&self) -> Option<String> {
        if self.has_cluster_flag() {
            return None;
        }
        let from_env = || {
            std::env::var("MESHCTL_LOCAL")
                .ok()
                .filter(|name| !name.is_empty())
        };
        self.local.clone().or_else(from_env)
    }

    /// Returns the flags for another cluster of the same kubeconfig.
    pub(crate) fn with_context(&self, name: &str) -> Self {
        Self {
            context: Some(name.to_owned()),
            ..self.clone()
        }
    }

    pub(crate) fn has_cluster_flag(&self) -> bool {
        self.context.is_some() || self.kubeconfig.is_some()
    }
}
