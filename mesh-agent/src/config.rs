//! The agent's command line. Every flag can also be set by an environment variable; no other module
//! reads either.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Parser, Subcommand, value_parser};
use mesh_core::machine::DEFAULT_UNITS_DIR;
use mesh_core::node::{DEFAULT_PIN_DIR, DEFAULT_SOCKET, DEFAULT_STATE_DIR, PodRef};
use mesh_runtime::build_info::BuildInfo;
use mesh_runtime::log::Format;

use crate::redirect::{GuardMode, Tier};

/// `clap` requires a `'static` string.
static VERSION: LazyLock<String> = LazyLock::new(|| BuildInfo::CURRENT.to_string());

/// Redirects the TCP connections of meshed pods to their proxies.
///
/// Runs once on every node, as root, in the node's network namespace. The CNI plugin mesh-cni
/// enrols pods over the agent's socket. When the agent exits, pods stay redirected;
/// `mesh-agent uninstall` removes the redirection.
#[derive(Debug, Parser)]
#[command(name = "mesh-agent", version = VERSION.as_str(), max_term_width = 100)]
pub struct Args {
    #[command(flatten)]
    pub config: Config,
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Redirect systemd services and slices of a host without Kubernetes, instead of pods
    ///
    /// Units are enrolled over the agent's socket. When the agent exits, units stay redirected,
    /// also over their restarts.
    Machine(MachineArgs),

    /// Remove the redirection from every pod and unit, then programs, pins, state, and the CNI
    /// plugin with its entry
    Uninstall {
        /// Keep the plugin's file: CRI-O tears pods down with the plugins that they were started
        /// with, and fails when one is missing
        #[arg(long)]
        keep_plugin: bool,
    },

    /// Connect to an address from an enrolled pod of this node, as an application of the pod would,
    /// and copy standard input to the connection and the connection to standard output
    ///
    /// The first line of output is {"connected":{"local":"IP:PORT"}}.
    Dial(Dial),

    /// Print the decisions of the kernel programs about the connections of an enrolled pod of this
    /// node, one JSON object a line, for at most five minutes
    ///
    /// The first line of output is {"tracing":"NAMESPACE/NAME"}; decisions after it are printed.
    Trace(Trace),
}

#[derive(Clone, Debug, clap::Args)]
pub struct MachineArgs {
    /// cgroup2 directory that is the parent of the proxies of units; mesh.slice below the mount if
    /// not set
    #[arg(long, value_name = "DIR", env = "MESH_AGENT_PROXY_ROOT")]
    pub proxy_root: Option<PathBuf>,

    /// The user that the proxies of units run as, who may read their tokens
    #[arg(long, value_name = "NAME", default_value = "mesh-proxy")]
    #[arg(env = "MESH_AGENT_PROXY_USER")]
    pub proxy_user: String,

    /// The program that asks systemd about units
    #[arg(long, value_name = "PATH", default_value = "systemctl")]
    #[arg(env = "MESH_AGENT_SYSTEMCTL")]
    pub systemctl: PathBuf,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Dial {
    /// The pod to connect from
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub pod: PodRef,

    /// The address to connect to; IPv6 addresses in brackets
    #[arg(value_name = "ADDRESS:PORT")]
    pub target: SocketAddr,

    /// How long the connection may take to be established, 1 to 300
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    #[arg(value_parser = value_parser!(u64).range(1..=300))]
    pub timeout: u64,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Trace {
    /// The pod to trace
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub pod: PodRef,

    /// End the trace when standard input ends, as `kubectl exec -i` ends it with its caller
    #[arg(long, short = 'i')]
    pub stdin: bool,
}

#[derive(Debug, clap::Args)]
pub struct Config {
    /// cgroup2 directory that is the parent of all pods, kubelet's if not set; with machine, of all
    /// units, system.slice if not set
    #[arg(long, value_name = "DIR", global = true)]
    #[arg(env = "MESH_AGENT_CGROUP_ROOT")]
    pub cgroup_root: Option<PathBuf>,

    /// Where programs, maps and links are pinned; a bpffs is mounted if none is
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_DIR, env = "MESH_AGENT_PIN_DIR", global = true)]
    pub pin_dir: PathBuf,

    /// Unix socket for the CNI plugin and meshctl
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, env = "MESH_AGENT_SOCKET", global = true)]
    pub socket: PathBuf,

    /// Where the enrolled pods are recorded; must be cleared at boot, as /run is
    #[arg(long, value_name = "DIR", default_value = DEFAULT_STATE_DIR, env = "MESH_AGENT_STATE_DIR", global = true)]
    pub state_dir: PathBuf,

    /// Where the enrolled systemd units are recorded; kept over boots
    #[arg(long, value_name = "DIR", default_value = DEFAULT_UNITS_DIR, env = "MESH_AGENT_UNITS_DIR", global = true)]
    pub units_dir: PathBuf,

    /// Address of /live, /ready and /metrics
    #[arg(
        long,
        value_name = "ADDR",
        default_value = "127.0.0.1:9993",
        global = true
    )]
    #[arg(env = "MESH_AGENT_ADMIN_ADDR")]
    pub admin_addr: SocketAddr,

    /// How pods are redirected: auto takes the best tier that works on this node, any other value
    /// must work
    #[arg(long, value_name = "auto|full|split|nft|iptables", default_value = "auto", env = "MESH_AGENT_TIER", value_parser = parse_tier)]
    pub tier: TierSetting,

    /// What to do with connection requests that leave an enrolled pod around its proxy
    #[arg(long, value_name = "off|count|drop", default_value = "off")]
    #[arg(env = "MESH_AGENT_GUARD")]
    pub guard: GuardMode,

    /// Kernel programs to load instead of the embedded ones
    #[arg(
        long,
        value_name = "PATH",
        env = "MESH_AGENT_BPF_OBJECT",
        global = true
    )]
    pub bpf_object: Option<PathBuf>,

    /// The node's CNI configuration directory; if set, the agent installs mesh-cni and keeps it in
    /// the chain
    #[arg(long, value_name = "DIR", global = true)]
    #[arg(env = "MESH_AGENT_CNI_CONF_DIR")]
    pub cni_conf_dir: Option<PathBuf>,

    /// The directory of the node's CNI plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    #[arg(env = "MESH_AGENT_CNI_BIN_DIR", global = true)]
    pub cni_bin_dir: PathBuf,

    /// This node's name at the API server; if set, meshed pods that the plugin missed are enrolled
    /// in place
    #[arg(long, value_name = "NAME", env = "MESH_AGENT_NODE_NAME")]
    pub node_name: Option<String>,

    /// Kubeconfig to reach the API server with, instead of the service account of the agent's pod
    #[arg(long, value_name = "PATH", env = "MESH_AGENT_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,

    /// The namespace of the agent's DaemonSet
    #[arg(long, value_name = "NAME", env = "MESH_AGENT_NAMESPACE")]
    pub namespace: Option<String>,

    /// The agent's DaemonSet; an agent that stops because it is deleted removes the mesh from the
    /// node, unless another namespace has agents
    #[arg(long, value_name = "NAME", requires = "namespace")]
    #[arg(env = "MESH_AGENT_DAEMONSET")]
    pub daemonset: Option<String>,

    /// The taint to remove from the node once pods can be enrolled
    #[arg(long, value_name = "KEY", default_value = "mesh-agent/not-ready")]
    #[arg(env = "MESH_AGENT_STARTUP_TAINT")]
    pub startup_taint: String,

    /// Log filter
    #[arg(long, value_name = "FILTER", default_value = "info", global = true)]
    #[arg(env = "MESH_AGENT_LOG")]
    pub log_level: String,

    /// Log format
    #[arg(long, value_name = "plain|json", default_value = "plain")]
    #[arg(env = "MESH_AGENT_LOG_FORMAT", global = true)]
    pub log_format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierSetting {
    Auto,
    Forced(Tier),
}

impl TierSetting {
    pub fn forced(self) -> Option<Tier> {
        match self {
            Self::Auto => None,
            Self::Forced(tier) => Some(tier),
        }
    }
}

fn parse_tier(text: &str) -> Result<TierSetting, String> {
    match text {
        "auto" => Ok(TierSetting::Auto),
        other => other
            .parse()
            .map(TierSetting::Forced)
            .map_err(|_unknown| "choose auto, full, split, nft or iptables".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn dial_takes_pod_address_and_timeout_in_their_ranges() {
        let accepts = |arguments: &[&str]| {
            let arguments = ["mesh-agent", "dial"].iter().chain(arguments);
            Args::try_parse_from(arguments).is_ok()
        };
        assert!(accepts(&["--pod", "shop/web-0", "10.0.0.1:80"]));
        assert!(accepts(&[
            "--pod",
            "shop/web-0",
            "[fd00::1]:80",
            "--timeout",
            "300"
        ]));
        for refused in [
            &["10.0.0.1:80"][..],
            &["--pod", "web-0", "10.0.0.1:80"],
            &["--pod", "shop/web-0", "web:80"],
            &["--pod", "shop/web-0", "10.0.0.1"],
            &["--pod", "shop/web-0", "10.0.0.1:80", "--timeout", "0"],
            &["--pod", "shop/web-0", "10.0.0.1:80", "--timeout", "301"],
        ] {
            assert!(!accepts(refused), "{refused:?}");
        }
    }

    #[test]
    fn tier_flag_accepts_auto_and_tier_names() {
        let parse = |tier: &str| {
            let args = Args::try_parse_from(["mesh-agent", "--tier", tier]);
            args.map(|args| args.config.tier)
        };
        assert_eq!(parse("auto").unwrap(), TierSetting::Auto);
        assert_eq!(parse("nft").unwrap(), TierSetting::Forced(Tier::Nft));
        let error = parse("ebpf").unwrap_err().to_string();
        let choices = "choose auto, full, split, nft or iptables";
        assert!(error.contains(choices), "{error}");
    }
}
