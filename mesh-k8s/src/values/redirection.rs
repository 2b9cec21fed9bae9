//! Who redirects a pod's connections to its proxy: `meshAgent`, `proxyInit` and `networkValidator`.

use k8s_openapi::api::core::v1::{EnvVar, SecurityContext, Toleration};
use mesh_core::annotation;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Image,
    common::{Open, Resources, Strings, off_or_word},
};

/// The user and group of init containers that do not run as root.
pub(crate) const NOBODY: i64 = 65534;

/// The node agent: redirects the connections of the meshed pods of its node.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MeshAgent {
    /// Run the node agent. Without it pods get the init container `linkerd-init`, or rely on
    /// another CNI plugin (`cniEnabled`)
    pub enabled: bool,
    /// The agent's image
    pub image: Image,
    /// How pods are redirected: `auto` for the best that works on each node, or one that must work
    #[schemars(extend("enum" = ["auto", "full", "split", "nft", "iptables"]))]
    pub tier: String,
    /// Connections that bypass the proxy: `off`, `count` them, or `drop` them
    #[serde(deserialize_with = "off_or_word")]
    #[schemars(extend("type" = ["string", "boolean"], "enum" = ["off", false, "count", "drop"]))]
    pub guard: String,
    /// Directory of the node for CNI plugins
    pub cni_bin_dir: String,
    /// Directory of the node for CNI configuration
    pub cni_conf_dir: String,
    /// cgroup2 directory that is the parent of all pods, as the agent's container sees it; empty to
    /// look for it
    pub cgroup_root: String,
    /// Where the agent serves `/live`, `/ready` and `/metrics` on its node: loopback, or 0.0.0.0 so
    /// that Prometheus can read it
    #[schemars(extend("pattern" = r"^[0-9.]+:[0-9]+$"))]
    pub admin_addr: String,
    /// What the agent logs
    pub log_level: String,
    /// Format of the agent's log
    #[schemars(extend("enum" = ["plain", "json"]))]
    pub log_format: String,
    /// Requests and limits of the agent
    pub resources: Resources,
    /// Taints that the agent's pods tolerate; all by default, for a node without it can start no
    /// meshed pod
    #[schemars(with = "Vec<Open>")]
    pub tolerations: Vec<Toleration>,
    /// Nodes that the agent runs on
    pub node_selector: Strings,
    /// Priority of the agent's pods
    pub priority_class_name: String,
    /// How the DaemonSet is updated
    #[schemars(with = "Open")]
    pub update_strategy: serde_json::Value,
    /// Taint that the agent takes from its node when it can enrol pods; empty for none
    pub startup_taint: String,
    /// Annotations of the agent's pods
    pub pod_annotations: Strings,
    /// Labels of the agent's pods
    pub pod_labels: Strings,
    /// Environment variables for the agent, as Kubernetes writes them
    #[schemars(with = "Vec<Open>")]
    pub additional_env: Vec<EnvVar>,
}

/// The init container that redirects by firewall rules where no agent does it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyInit {
    /// Which firewall the init container programs
    #[schemars(extend("enum" = ["nft", "legacy", "plain"]))]
    pub iptables_mode: String,
    /// Comma list of ports and ranges that are left alone on the way into a pod; an annotation
    /// replaces it
    pub ignore_inbound_ports: String,
    /// The same on the way out
    pub ignore_outbound_ports: String,
    /// Ports of the API server, left alone on the way out of the control plane's pods, which need
    /// it before they have a certificate
    #[serde(rename = "kubeAPIServerPorts")]
    pub kube_api_server_ports: String,
    /// Comma list of blocks of addresses whose connections are left alone
    pub skip_subnets: String,
    /// Seconds that closing connections are remembered by the kernel; 0 leaves the node's setting.
    /// Needs `runAsRoot`
    pub close_wait_timeout_secs: u64,
    /// Run the init container privileged
    pub privileged: bool,
    /// Run the init container as root
    pub run_as_root: bool,
    /// User of the init container when it is not root
    pub run_as_user: i64,
    /// Group of the init container when it is not root
    pub run_as_group: i64,
    /// What the init container logs; empty for its own default
    pub log_level: String,
    /// Format of the init container's log; empty for its own default
    pub log_format: String,
    /// Where the init container keeps the lock of iptables
    pub xt_mount_path: MountPath,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MountPath {
    /// Name of the volume
    pub name: String,
    /// Directory in the container
    pub mount_path: String,
}

/// The init container that holds a pod back until another CNI plugin has redirected it
/// (`cniEnabled` without `meshAgent.enabled`).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkValidator {
    /// What the validator logs
    pub log_level: String,
    /// Format of the validator's log
    #[schemars(extend("enum" = ["plain", "json"]))]
    pub log_format: String,
    /// Address that nothing answers at, to connect to; empty for 1.1.1.1:20001, or [fd00::1]:20001
    /// with IPv6
    pub connect_addr: String,
    /// Address that the redirected connection is expected at; empty for the proxy's outbound port
    /// on all addresses
    pub listen_addr: String,
    /// How long the validator waits before it fails
    pub timeout: String,
    /// Replaces the whole security context of the validator's container
    #[schemars(with = "Option<Open>")]
    pub security_context: Option<SecurityContext>,
}

impl Default for MeshAgent {
    fn default() -> Self {
        Self {
            enabled: true,
            image: Image {
                name: "mesh/agent".into(),
                ..Image::default()
            },
            tier: "auto".into(),
            guard: "off".into(),
            cni_bin_dir: "/opt/cni/bin".into(),
            cni_conf_dir: "/etc/cni/net.d".into(),
            cgroup_root: String::new(),
            admin_addr: "127.0.0.1:9993".into(),
            log_level: "info".into(),
            log_format: "plain".into(),
            resources: Resources::default(),
            tolerations: vec![Toleration {
                operator: Some("Exists".into()),
                ..Toleration::default()
            }],
            node_selector: linux(),
            priority_class_name: "system-node-critical".into(),
            // Nodes are independent, so a tenth at a time is safe and large clusters do not take a
            // day.
            update_strategy: serde_json::json!({
                "type": "RollingUpdate",
                "rollingUpdate": { "maxUnavailable": "10%" },
            }),
            startup_taint: "mesh-agent/not-ready".into(),
            pod_annotations: Strings::new(),
            pod_labels: Strings::new(),
            additional_env: Vec::new(),
        }
    }
}

/// The only system that there are images for.
pub(super) fn linux() -> Strings {
    Strings::from([("kubernetes.io/os".to_owned(), "linux".to_owned())])
}

impl Default for ProxyInit {
    fn default() -> Self {
        Self {
            iptables_mode: "nft".into(),
            ignore_inbound_ports: annotation::DEFAULT_SKIP_PORTS.into(),
            ignore_outbound_ports: annotation::DEFAULT_SKIP_PORTS.into(),
            kube_api_server_ports: "443,6443".into(),
            skip_subnets: String::new(),
            close_wait_timeout_secs: 0,
            privileged: false,
            run_as_root: false,
            run_as_user: NOBODY,
            run_as_group: NOBODY,
            log_level: String::new(),
            log_format: String::new(),
            xt_mount_path: MountPath::default(),
        }
    }
}

impl Default for MountPath {
    fn default() -> Self {
        Self {
            name: "linkerd-proxy-init-xtables-lock".into(),
            mount_path: "/run".into(),
        }
    }
}

impl Default for NetworkValidator {
    fn default() -> Self {
        Self {
            log_level: "debug".into(),
            log_format: "plain".into(),
            connect_addr: String::new(),
            listen_addr: String::new(),
            timeout: "10s".into(),
            security_context: None,
        }
    }
}
