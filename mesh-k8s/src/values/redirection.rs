//! Redirection of a pod's connections to its proxy: `meshAgent`, `proxyInit` and
//! `networkValidator`.

use k8s_openapi::api::core::v1::{EnvVar, SecurityContext, Toleration};
use mesh_core::annotation;

use super::Image;
use super::common::{OpenObject, Resources, StringMap, string_or_off};

/// The user and group ID of init containers that do not run as root.
pub(crate) const UNPRIVILEGED_ID: i64 = 65534;

values! {
    /// The node agent, which redirects the connections of the meshed pods of its node.
    pub struct MeshAgent {
        /// Run the node agent. Without it, pods get the init container `linkerd-init` or rely on
        /// another CNI plugin (`cniEnabled`)
        pub enabled: bool = true,
        /// Namespace of the agents' privileged pods, which the chart creates; empty for the
        /// namespace of the control plane
        #[schemars(extend("pattern" = "^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$"))]
        pub namespace: String = "linkerd-agent".into(),
        /// Image of the agent
        pub image: Image = Image::named("mesh/agent"),
        /// Redirection tier: `auto` for the best one that works on each node, or a required one
        #[schemars(extend("enum" = ["auto", "full", "split", "nft", "iptables"]))]
        pub tier: String = "auto".into(),
        /// Guard against connections that bypass the proxy: `off`, `count` or `drop`
        #[serde(deserialize_with = "string_or_off")]
        #[schemars(extend("type" = ["string", "boolean"], "enum" = ["off", false, "count", "drop"]))]
        pub guard: String = "off".into(),
        /// Directory of CNI plugins on the node
        pub cni_bin_dir: String = "/opt/cni/bin".into(),
        /// Directory of the CNI configuration on the node
        pub cni_conf_dir: String = "/etc/cni/net.d".into(),
        /// cgroup2 directory that contains all pods, as a path in the agent's container; empty to
        /// detect it
        pub cgroup_root: String,
        /// Address and port of `/live`, `/ready` and `/metrics` on the node: loopback, or 0.0.0.0
        /// for Prometheus
        #[schemars(extend("pattern" = r"^[0-9.]+:[0-9]+$"))]
        pub admin_addr: String = "127.0.0.1:9993".into(),
        /// Log level of the agent
        pub log_level: String = "info".into(),
        /// Log format of the agent
        #[schemars(extend("enum" = ["plain", "json"]))]
        pub log_format: String = "plain".into(),
        /// Resource requests and limits of the agent
        pub resources: Resources,
        /// Tolerations of the agent's pods; all taints by default, since a node without agent
        /// cannot start meshed pods
        #[schemars(with = "Vec<OpenObject>")]
        pub tolerations: Vec<Toleration> = vec![Toleration { operator: Some("Exists".into()), ..Toleration::default() }],
        /// Node selector of the agent
        pub node_selector: StringMap = linux(),
        /// Priority class of the agent's pods
        pub priority_class_name: String = "system-node-critical".into(),
        /// Update strategy of the DaemonSet
        #[schemars(with = "OpenObject")]
        // Nodes are independent, so a tenth of them at a time is safe, and large clusters update in
        // reasonable time.
        pub update_strategy: serde_json::Value = serde_json::json!({
                    "type": "RollingUpdate",
                    "rollingUpdate": { "maxUnavailable": "10%" },
                }),
        /// Taint that the agent removes from its node when it can enrol pods; empty for none
        pub startup_taint: String = "mesh-agent/not-ready".into(),
        /// Annotations of the agent's pods
        pub pod_annotations: StringMap,
        /// Labels of the agent's pods
        pub pod_labels: StringMap,
        /// Environment variables of the agent, in the notation of Kubernetes
        #[schemars(with = "Vec<OpenObject>")]
        pub additional_env: Vec<EnvVar>,
    }

    /// The init container that redirects pods with firewall rules where there is no agent.
    pub struct ProxyInit {
        /// iptables variant of the init container
        #[schemars(extend("enum" = ["nft", "legacy", "plain"]))]
        pub iptables_mode: String = "nft".into(),
        /// Comma-separated ports and ranges whose inbound connections bypass the proxy; overridden
        /// by an annotation
        pub ignore_inbound_ports: String = annotation::DEFAULT_SKIP_PORTS.into(),
        /// Comma-separated ports and ranges whose outbound connections bypass the proxy; overridden
        /// by an annotation
        pub ignore_outbound_ports: String = annotation::DEFAULT_SKIP_PORTS.into(),
        /// Ports of the API server; connections to them from the control plane's pods bypass the
        /// proxy, because the pods connect before they have a certificate
        #[serde(rename = "kubeAPIServerPorts")]
        pub kube_api_server_ports: String = "443,6443".into(),
        /// Comma-separated CIDR blocks whose connections bypass the proxy
        pub skip_subnets: String,
        /// Timeout of connections in CLOSE_WAIT in the kernel's connection tracking, in seconds; 0
        /// keeps the setting of the node. Requires `runAsRoot`
        pub close_wait_timeout_secs: u64 = 0,
        /// Run the init container privileged
        pub privileged: bool = false,
        /// Run the init container as root
        pub run_as_root: bool = false,
        /// User ID of the init container if it does not run as root
        pub run_as_user: i64 = UNPRIVILEGED_ID,
        /// Group ID of the init container if it does not run as root
        pub run_as_group: i64 = UNPRIVILEGED_ID,
        /// Log level of the init container; empty for its default
        pub log_level: String,
        /// Log format of the init container; empty for its default
        pub log_format: String,
        /// Volume of the iptables lock
        pub xt_mount_path: MountPath,
    }

    /// The volume of the iptables lock.
    pub struct MountPath {
        /// Name of the volume
        pub name: String = "linkerd-proxy-init-xtables-lock".into(),
        /// Mount path in the container
        pub mount_path: String = "/run".into(),
    }

    /// The init container that delays a pod until another CNI plugin has redirected it
    /// (`cniEnabled` without `meshAgent.enabled`).
    pub struct NetworkValidator {
        /// Log level of the validator
        pub log_level: String = "debug".into(),
        /// Log format of the validator
        #[schemars(extend("enum" = ["plain", "json"]))]
        pub log_format: String = "plain".into(),
        /// Unused address that the validator connects to; empty for 1.1.1.1:20001, or
        /// [fd00::1]:20001 with IPv6
        pub connect_addr: String,
        /// Address where the validator expects the redirected connection; empty for the proxy's
        /// outbound port on all addresses
        pub listen_addr: String,
        /// Time until the validator fails
        pub timeout: String = "10s".into(),
        /// Replaces the whole security context of the validator's container
        #[schemars(with = "Option<OpenObject>")]
        pub security_context: Option<SecurityContext>,
    }
}

/// The only operating system with images.
pub(super) fn linux() -> StringMap {
    StringMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())])
}
