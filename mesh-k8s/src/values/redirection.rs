//! Redirection of a pod's connections to its proxy: `meshAgent`, `proxyInit` and
//! `networkValidator`.

use k8s_openapi::api::core::v1::{EnvVar, SecurityContext, Toleration};
use mesh_core::annotation;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Image;
use super::common::{OpenObject, Resources, StringMap, string_or_off};

/// The user and group ID of init containers that do not run as root.
pub(crate) const UNPRIVILEGED_ID: i64 = 65534;

/// The node agent, which redirects the connections of the meshed pods of its node.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MeshAgent {
    /// Run the node agent. Without it, pods get the init container `linkerd-init` or rely on
    /// another CNI plugin (`cniEnabled`)
    pub enabled: bool,
    /// Image of the agent
    pub image: Image,
    /// Redirection tier: `auto` for the best one that works on each node, or a required one
    #[schemars(extend("enum" = ["auto", "full", "split", "nft", "iptables"]))]
    pub tier: String,
    /// Guard against connections that bypass the proxy: `off`, `count` or `drop`
    #[serde(deserialize_with = "string_or_off")]
    #[schemars(extend("type" = ["string", "boolean"], "enum" = ["off", false, "count", "drop"]))]
    pub guard: String,
    /// Directory of CNI plugins on the node
    pub cni_bin_dir: String,
    /// Directory of the CNI configuration on the node
    pub cni_conf_dir: String,
    /// cgroup2 directory that contains all pods, as a path in the agent's container; empty to
    /// detect it
    pub cgroup_root: String,
    /// Address and port of `/live`, `/ready` and `/metrics` on the node: loopback, or 0.0.0.0 for
    /// Prometheus
    #[schemars(extend("pattern" = r"^[0-9.]+:[0-9]+$"))]
    pub admin_addr: String,
    /// Log level of the agent
    pub log_level: String,
    /// Log format of the agent
    #[schemars(extend("enum" = ["plain", "json"]))]
    pub log_format: String,
    /// Resource requests and limits of the agent
    pub resources: Resources,
    /// Tolerations of the agent's pods; all taints by default, since a node without agent cannot
    /// start meshed pods
    #[schemars(with = "Vec<OpenObject>")]
    pub tolerations: Vec<Toleration>,
    /// Node selector of the agent
    pub node_selector: StringMap,
    /// Priority class of the agent's pods
    pub priority_class_name: String,
    /// Update strategy of the DaemonSet
    #[schemars(with = "OpenObject")]
    pub update_strategy: serde_json::Value,
    /// Taint that the agent removes from its node when it can enrol pods; empty for none
    pub startup_taint: String,
    /// Annotations of the agent's pods
    pub pod_annotations: StringMap,
    /// Labels of the agent's pods
    pub pod_labels: StringMap,
    /// Environment variables of the agent, in the notation of Kubernetes
    #[schemars(with = "Vec<OpenObject>")]
    pub additional_env: Vec<EnvVar>,
}

/// The init container that redirects pods with firewall rules where there is no agent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyInit {
    /// iptables variant of the init container
    #[schemars(extend("enum" = ["nft", "legacy", "plain"]))]
    pub iptables_mode: String,
    /// Comma-separated ports and ranges whose inbound connections bypass the proxy; overridden by
    /// an annotation
    pub ignore_inbound_ports: String,
    /// Comma-separated ports and ranges whose outbound connections bypass the proxy; overridden by
    /// an annotation
    pub ignore_outbound_ports: String,
    /// Ports of the API server, to which connections from the control plane's pods bypass the
    /// proxy, because they connect before they have a certificate
    #[serde(rename = "kubeAPIServerPorts")]
    pub kube_api_server_ports: String,
    /// Comma-separated CIDR blocks whose connections bypass the proxy
    pub skip_subnets: String,
    /// Timeout of connections in CLOSE_WAIT in the kernel's connection tracking, in seconds; 0
    /// keeps the setting of the node. Requires `runAsRoot`
    pub close_wait_timeout_secs: u64,
    /// Run the init container privileged
    pub privileged: bool,
    /// Run the init container as root
    pub run_as_root: bool,
    /// User ID of the init container if it does not run as root
    pub run_as_user: i64,
    /// Group ID of the init container if it does not run as root
    pub run_as_group: i64,
    /// Log level of the init container; empty for its default
    pub log_level: String,
    /// Log format of the init container; empty for its default
    pub log_format: String,
    /// Volume of the iptables lock
    pub xt_mount_path: MountPath,
}

/// The volume of the iptables lock.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MountPath {
    /// Name of the volume
    pub name: String,
    /// Mount path in the container
    pub mount_path: String,
}

/// The init container that delays a pod until another CNI plugin has redirected it (`cniEnabled`
/// without `meshAgent.enabled`).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkValidator {
    /// Log level of the validator
    pub log_level: String,
    /// Log format of the validator
    #[schemars(extend("enum" = ["plain", "json"]))]
    pub log_format: String,
    /// Unused address that the validator connects to; empty for 1.1.1.1:20001, or [fd00::1]:20001
    /// with IPv6
    pub connect_addr: String,
    /// Address on which the validator expects the redirected connection; empty for the proxy's
    /// outbound port on all addresses
    pub listen_addr: String,
    /// Timeout after which the validator fails
    pub timeout: String,
    /// Replaces the whole security context of the validator's container
    #[schemars(with = "Option<OpenObject>")]
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
            // Nodes are independent, so a tenth of them at a time is safe, and large clusters
            // update in reasonable time.
            update_strategy: serde_json::json!({
                "type": "RollingUpdate",
                "rollingUpdate": { "maxUnavailable": "10%" },
            }),
            startup_taint: "mesh-agent/not-ready".into(),
            pod_annotations: StringMap::new(),
            pod_labels: StringMap::new(),
            additional_env: Vec::new(),
        }
    }
}

/// The only operating system with images.
pub(super) fn linux() -> StringMap {
    StringMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())])
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
            run_as_user: UNPRIVILEGED_ID,
            run_as_group: UNPRIVILEGED_ID,
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
