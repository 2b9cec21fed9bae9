//! The values of the chart `linkerd-control-plane`, with the names, defaults and meanings of
//! Linkerd's chart. `meshAgent` exists only in this mesh.
//!
//! These structs are the single definition of the values: the test in `tests/chart` generates the
//! chart's `values.yaml`, its schema and `docs/reference/values.md` from them, including the
//! descriptions of the fields. On a cluster the injector reads the values from the ConfigMap that
//! the chart writes; `meshctl inject` reads a values file; the local node constructs them.
//! [`reading`] defines how `null`, unknown keys and keys of Linkerd's chart are handled.

use k8s_openapi::api::core::v1::{
    LocalObjectReference, NodeAffinity, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::api::rbac::v1::Subject;
use mesh_core::identity;
use serde_json::Value;

use self::common::OpenObject;
use self::reading::ValuesError;

/// Defines structs of values with the default of each field: the expression after `=`, or else the
/// default of its type.
macro_rules! values {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$attribute:meta])* pub $field:ident: $type:ty $(= $default:expr)?,)*
        }
    )*) => {$(
        #[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize, schemars::JsonSchema)]
        #[serde(rename_all = "camelCase", default)]
        $(#[$meta])*
        pub struct $name {
            $($(#[$attribute])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($field: values!(@default $($default)?),)*
                }
            }
        }
    )*};
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}

mod common;
mod controllers;
mod multicluster;
mod proxy;
pub mod reading;
mod redirection;
mod viz;

pub use common::{Bounds, Image, ProbeTimeout, Resources, StringMap, Tolerations};
pub use controllers::{
    Autoscaling, Controller, DeploymentStrategy, DestinationController, Egress, Identity, Issuer,
    IssuerTls, KubeApi, PodDisruptionBudget, PodMonitor, PodMonitorTarget, PolicyController,
    ProxyInjector, RollingUpdate, SpValidator, Validator,
};
pub use multicluster::{
    LinkController, LinkKey, LinkName, MulticlusterLinkValues, MulticlusterValues,
};
pub use proxy::{
    Control, MeshIdentity, Metrics, Ports, ProbeTiming, Protocols, Proxy, Runtime, StartupProbe,
    Streams, TraceCollector, Tracing, Workers,
};
pub(crate) use redirection::UNPRIVILEGED_ID;
pub use redirection::{MeshAgent, MountPath, NetworkValidator, ProxyInit};
pub use viz::VizValues;

values! {
    /// The values of the chart.
    pub struct Values {
        /// The namespace of the control plane. It is not a value of the chart; code that reads the
        /// values sets it.
        #[serde(skip)]
        pub namespace: String = "linkerd".into(),
        /// Version of the mesh, and default tag of its images
        pub linkerd_version: String = env!("CARGO_PKG_VERSION").into(),
        /// DNS domain of the cluster
        pub cluster_domain: String = "cluster.local".into(),
        /// Comma-separated CIDR blocks of the addresses of pods, Services and nodes
        // The private address blocks that clusters use, as in Linkerd's chart.
        pub cluster_networks: String = "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8"
                    .into(),
        /// Do not use IPv6. With `false`, proxies also listen on IPv6 and prefer it
        #[serde(rename = "disableIPv6")]
        pub disable_ipv6: bool = true,
        /// With `disableIPv6`: refuse IPv6 connections of and to meshed pods. With `false` they
        /// pass the proxy, and no policy applies to them
        #[serde(rename = "refuseIPv6")]
        pub refuse_ipv6: bool = false,
        /// Trust domain, the suffix of identities; empty for `clusterDomain`. It cannot be changed
        /// while workloads run
        pub identity_trust_domain: String,
        /// Trust anchors, in PEM. If empty, the mesh creates one and stores it in the Secret
        /// `linkerd-trust-anchor`
        #[serde(rename = "identityTrustAnchorsPEM")]
        pub identity_trust_anchors_pem: String,
        /// Identities and certificates
        pub identity: Identity,

        /// The node agent, which redirects the connections of the meshed pods of its node
        pub mesh_agent: MeshAgent,
        /// Another CNI plugin redirects pods, for example Linkerd's. Only used if
        /// `meshAgent.enabled` is `false`
        pub cni_enabled: bool = false,
        /// The init container that redirects a pod with firewall rules if neither the agent nor a
        /// CNI plugin does
        pub proxy_init: ProxyInit,
        /// The init container that delays a pod until another CNI plugin has redirected it
        pub network_validator: NetworkValidator,

        /// The proxy of every meshed pod
        pub proxy: Proxy,
        /// The debug container of pods with the annotation `config.linkerd.io/enable-debug-sidecar`
        pub debug_container: DebugContainer,

        /// Image of the controllers, without tag
        pub controller_image: String = "mesh/controller".into(),
        /// Tag of the image of the controllers; empty for `linkerdVersion`
        pub controller_image_version: String,
        /// Pull policy of images
        #[schemars(extend("enum" = ["Always", "IfNotPresent", "Never"]))]
        pub image_pull_policy: String = "IfNotPresent".into(),
        /// Secrets for pulling images, for example `[{name: registry}]`
        #[schemars(with = "Vec<OpenObject>")]
        pub image_pull_secrets: Vec<LocalObjectReference>,
        /// Replicas of each controller
        #[schemars(range(min = 1))]
        pub controller_replicas: u32 = 1,
        /// User ID of the controllers
        #[serde(rename = "controllerUID")]
        #[schemars(range(min = 1))]
        pub controller_uid: i64 = 2103,
        /// Group ID of the controllers; negative for the image's group
        #[serde(rename = "controllerGID")]
        pub controller_gid: i64 = -1,
        /// Log level of the controllers
        pub controller_log_level: String = "info".into(),
        /// Log format of the controllers
        #[schemars(extend("enum" = ["plain", "json"]))]
        pub controller_log_format: String = "plain".into(),
        /// Carry HTTP/1 between proxies as HTTP/2
        pub enable_h2_upgrade: bool = true,
        /// The destination service: endpoints and profiles
        pub destination_controller: DestinationController,
        /// The policy service: authorization and routes
        pub policy_controller: PolicyController,
        /// Traffic that leaves the cluster
        pub egress: Egress,
        /// The webhook that adds the proxy to pods
        pub proxy_injector: ProxyInjector,
        /// The webhook that validates policies and routes. The Secret of its certificate is
        /// `linkerd-policy-validator-k8s-tls`
        pub policy_validator: Validator,
        /// The webhook that validates ServiceProfiles. The Secret of its certificate is
        /// `linkerd-sp-validator-k8s-tls`
        pub profile_validator: Validator,
        /// The container of the webhook that validates ServiceProfiles
        pub sp_validator: SpValidator,
        /// What the API server does if a webhook does not respond: with `Ignore` pods start without
        /// a proxy and policies are not validated, with `Fail` they are not created
        #[schemars(extend("enum" = ["Ignore", "Fail"]))]
        pub webhook_failure_policy: String = "Ignore".into(),
        /// Resource requests and limits of the destination service
        pub destination_resources: Resources,
        /// Resource requests and limits of the identity service
        pub identity_resources: Resources,
        /// Resource requests and limits of the ServiceProfile validator
        pub sp_validator_resources: Resources,
        /// Resource requests and limits of the injector
        pub proxy_injector_resources: Resources,
        /// Resource requests and limits of the proxy of the destination service; an empty one is
        /// taken from `proxy.resources`
        pub destination_proxy_resources: Resources,
        /// Resource requests and limits of the proxy of the identity service; an empty one is taken
        /// from `proxy.resources`
        pub identity_proxy_resources: Resources,
        /// Resource requests and limits of the proxy of the injector; an empty one is taken from
        /// `proxy.resources`
        pub proxy_injector_proxy_resources: Resources,

        /// Labels of all objects of the chart
        pub common_labels: StringMap,
        /// Labels of the controllers' pods
        pub pod_labels: StringMap,
        /// Annotations of the controllers' pods
        pub pod_annotations: StringMap,
        /// Node selector of the controllers
        pub node_selector: StringMap = redirection::linux(),
        /// Node affinity of the controllers
        #[schemars(with = "Option<OpenObject>")]
        pub node_affinity: Option<NodeAffinity>,
        /// Tolerations of the controllers' pods
        #[schemars(with = "Vec<OpenObject>")]
        pub tolerations: Vec<Toleration>,
        /// Topology spread constraints of the controllers' pods
        #[schemars(with = "Vec<OpenObject>")]
        pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
        /// Priority class of the controllers' pods
        pub priority_class_name: String,
        /// Runtime class of the controllers' pods
        pub runtime_class_name: String,
        /// Number of old ReplicaSets of the controllers that are kept
        // The default of Kubernetes.
        pub revision_history_limit: u32 = 10,
        /// Update strategy of the controllers
        pub deployment_strategy: DeploymentStrategy,
        /// Schedule the pods of a controller on different nodes, and in different zones if possible
        pub enable_pod_anti_affinity: bool = false,
        /// Create PodDisruptionBudgets for the controllers
        pub enable_pod_disruption_budget: bool = false,
        /// Settings that all controllers share
        pub controller: Controller,
        /// PodMonitors for the Prometheus operator
        pub pod_monitor: PodMonitor,
        /// URL (`http` or `https`) that receives reports of the installation from a CronJob; empty
        /// for no reports
        pub heartbeat_url: String,
        /// Send no reports, even if `heartbeatUrl` is set
        pub disable_heart_beat: bool = false,
        /// When reports are sent, a cron expression; empty for `30 4 * * *`, daily
        pub heartbeat_schedule: String,
        /// Resource requests and limits of the CronJob of reports
        pub heartbeat_resources: Resources,
        /// URL (`http`) of the Prometheus that has the figures of proxies for reports; empty for
        /// reports without them
        pub prometheus_url: String,
        /// RBAC subjects that are granted read access to the configuration of the mesh (ConfigMap
        /// `linkerd-config`)
        #[schemars(with = "Vec<OpenObject>")]
        pub config_readers: Vec<Subject>,
        /// The installation is meant to survive the loss of a node; set by `values-ha.yaml`,
        /// reported by `meshctl check`
        pub high_availability: bool = false,
    }

    /// The debug container.
    pub struct DebugContainer {
        /// Image of the debug container
        pub image: Image = Image::named("mesh/debug"),
    }
}

/// The component that redirects a pod's connections to its proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirection {
    /// The agent of the node. The pod gets no init container, and its proxy waits until the pod is
    /// redirected.
    Agent,
    /// Another project's CNI plugin. An init container delays the pod until it is redirected.
    ForeignCni,
    /// An init container with firewall rules.
    InitContainer,
}

impl Values {
    /// Reads the values that an installation recorded, of this version or an earlier one.
    ///
    /// # Errors
    ///
    /// A value of the wrong type or with invalid content.
    pub fn of_installation(mut recorded: Value, namespace: &str) -> Result<Self, ValuesError> {
        // Until 0.1.0 the agents were always in the namespace of the control plane.
        if let Some(agent) = recorded.get_mut("meshAgent").and_then(Value::as_object_mut) {
            agent.entry("namespace").or_insert_with(|| "".into());
        }
        let mut values = Self::read(recorded)?;
        namespace.clone_into(&mut values.namespace);
        Ok(values)
    }

    /// Returns the namespace of the agents.
    pub fn agent_namespace(&self) -> &str {
        non_empty(&self.mesh_agent.namespace).unwrap_or(&self.namespace)
    }

    /// Returns the strictest Pod Security level that admits the pods of the control plane's
    /// namespace. The agents use the node's network, processes and directories, and `linkerd-init`
    /// needs two capabilities, which `baseline` does not admit either.
    pub fn pod_security_level(&self) -> &'static str {
        match self.redirection() {
            Redirection::Agent if self.agent_namespace() == self.namespace => "privileged",
            Redirection::InitContainer => "privileged",
            Redirection::Agent | Redirection::ForeignCni => "restricted",
        }
    }

    /// Returns the component that redirects pods.
    pub fn redirection(&self) -> Redirection {
        match (self.mesh_agent.enabled, self.cni_enabled) {
            (true, _) => Redirection::Agent,
            (false, true) => Redirection::ForeignCni,
            (false, false) => Redirection::InitContainer,
        }
    }

    /// Returns whether IPv6 connections of meshed pods are redirected. To a proxy that does not
    /// listen on IPv6, they are redirected in order to be refused.
    pub fn redirects_ipv6(&self) -> bool {
        !self.disable_ipv6 || self.refuse_ipv6
    }

    /// Returns the trust domain, the suffix of identities.
    pub fn trust_domain(&self) -> &str {
        identity::trust_domain(&self.identity_trust_domain, &self.cluster_domain)
    }

    /// Returns the URL that receives reports of the installation, if they are sent.
    pub fn heartbeat_receiver(&self) -> Option<&str> {
        non_empty(&self.heartbeat_url).filter(|_| !self.disable_heart_beat)
    }

    /// Returns `name:tag` of an image of the mesh.
    pub fn image(&self, image: &Image) -> String {
        let version = non_empty(&image.version).unwrap_or(&self.linkerd_version);
        format!("{}:{version}", image.name)
    }

    /// Returns the pull policy of an image.
    pub fn pull_policy(&self, image: &Image) -> String {
        non_empty(&image.pull_policy)
            .unwrap_or(&self.image_pull_policy)
            .to_owned()
    }

    /// Returns the version of the proxy, for the annotation of injected pods.
    pub fn proxy_version(&self) -> &str {
        non_empty(&self.proxy.image.version).unwrap_or(&self.linkerd_version)
    }
}

pub(crate) fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
