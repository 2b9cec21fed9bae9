//! The values of the chart `linkerd-control-plane`, by the names and with the defaults and meanings
//! of Linkerd's chart; what only this mesh has is `meshAgent`.
//!
//! The one description of them: the chart's `values.yaml`, its schema and
//! `docs/reference/values.md` are written from these structs by the test in `tests/chart`, the
//! texts of the fields included. On a cluster the injector reads them from the ConfigMap that the
//! chart writes; `meshctl inject` reads a values file; the local node makes them itself.
//! [`reading`] says how files are read: `null`, unknown keys, and keys that only Linkerd's chart
//! has.

use k8s_openapi::api::{
    core::v1::{LocalObjectReference, NodeAffinity, Toleration, TopologySpreadConstraint},
    rbac::v1::Subject,
};
use mesh_core::identity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod common;
mod controllers;
mod proxy;
pub mod reading;
mod redirection;

pub use common::{Bounds, Image, ProbeTimeout, Resources, Strings};
pub use controllers::{
    Controller, DeploymentStrategy, DestinationController, Identity, Issuer, IssuerTls, KubeApi,
    Monitored, PodDisruptionBudget, PodMonitor, PolicyController, ProxyInjector, RollingUpdate,
};
pub use proxy::{
    Control, Metrics, Ports, ProbeTiming, Protocols, Proxy, Runtime, StartupProbe, Streams, Workers,
};
pub(crate) use redirection::NOBODY;
pub use redirection::{MeshAgent, MountPath, NetworkValidator, ProxyInit};

use self::common::Open;

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Values {
    /// The namespace of the control plane. The chart does not hold it among its values; whoever
    /// reads the values adds it.
    #[serde(skip)]
    pub namespace: String,
    /// Version of the mesh, and tag of every image that has no other
    pub linkerd_version: String,
    /// The domain of the cluster's names
    pub cluster_domain: String,
    /// Comma list of the blocks that pods, Services and nodes have addresses from
    pub cluster_networks: String,
    /// Leave IPv6 alone. With `false` proxies listen on IPv6 too and prefer it
    #[serde(rename = "disableIPv6")]
    pub disable_ipv6: bool,
    /// The domain that identities end in; empty for `clusterDomain`. It cannot be changed while
    /// workloads run
    pub identity_trust_domain: String,
    /// Trust anchors, in PEM. Left empty, the mesh makes one and keeps it in the Secret
    /// `linkerd-trust-anchor`
    #[serde(rename = "identityTrustAnchorsPEM")]
    pub identity_trust_anchors_pem: String,
    /// Identities and certificates
    pub identity: Identity,

    /// The node agent: redirects the connections of the meshed pods of its node
    pub mesh_agent: MeshAgent,
    /// Another CNI plugin redirects pods, Linkerd's for example. Looked at only where
    /// `meshAgent.enabled` is `false`
    pub cni_enabled: bool,
    /// The init container that redirects a pod by firewall rules, where there is neither agent nor
    /// CNI plugin
    pub proxy_init: ProxyInit,
    /// The init container that holds a pod back until another CNI plugin has redirected it
    pub network_validator: NetworkValidator,

    /// The proxy of every meshed pod
    pub proxy: Proxy,
    /// The debugging container of pods that ask for one
    pub debug_container: DebugContainer,

    /// The controllers' image, without tag
    pub controller_image: String,
    /// Tag of the controllers' image; empty for `linkerdVersion`
    pub controller_image_version: String,
    /// When images are pulled
    #[schemars(extend("enum" = ["Always", "IfNotPresent", "Never"]))]
    pub image_pull_policy: String,
    /// Secrets for pulling the images, as in `[{name: registry}]`
    #[schemars(with = "Vec<Open>")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Pods of each controller
    #[schemars(range(min = 1))]
    pub controller_replicas: u32,
    /// User of the controllers
    #[serde(rename = "controllerUID")]
    #[schemars(range(min = 1))]
    pub controller_uid: i64,
    /// Group of the controllers; negative for the image's own
    #[serde(rename = "controllerGID")]
    pub controller_gid: i64,
    /// What the controllers log
    pub controller_log_level: String,
    /// Format of the controllers' logs
    #[schemars(extend("enum" = ["plain", "json"]))]
    pub controller_log_format: String,
    /// Carry HTTP/1 between proxies as HTTP/2
    pub enable_h2_upgrade: bool,
    /// The destination service: endpoints and profiles
    pub destination_controller: DestinationController,
    /// The policy service: who may talk to whom, and routes
    pub policy_controller: PolicyController,
    /// The webhook that adds the proxy to pods
    pub proxy_injector: ProxyInjector,
    /// What the API server does when a webhook does not answer: `Ignore` lets pods start without a
    /// proxy, `Fail` lets them wait
    #[schemars(extend("enum" = ["Ignore", "Fail"]))]
    pub webhook_failure_policy: String,
    /// Requests and limits of the destination service
    pub destination_resources: Resources,
    /// Requests and limits of the identity service
    pub identity_resources: Resources,
    /// Requests and limits of the injector
    pub proxy_injector_resources: Resources,
    /// Requests and limits of the proxy beside the destination service; what is empty is taken from
    /// `proxy.resources`
    pub destination_proxy_resources: Resources,
    /// The same beside the identity service
    pub identity_proxy_resources: Resources,
    /// The same beside the injector
    pub proxy_injector_proxy_resources: Resources,

    /// Labels of everything the chart makes
    pub common_labels: Strings,
    /// Labels of the controllers' pods
    pub pod_labels: Strings,
    /// Annotations of the controllers' pods
    pub pod_annotations: Strings,
    /// Nodes that the controllers run on
    pub node_selector: Strings,
    /// Node affinity of the controllers
    #[schemars(with = "Option<Open>")]
    pub node_affinity: Option<NodeAffinity>,
    /// Taints that the controllers' pods tolerate
    #[schemars(with = "Vec<Open>")]
    pub tolerations: Vec<Toleration>,
    /// How the controllers' pods spread over nodes and zones
    #[schemars(with = "Vec<Open>")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Priority of the controllers' pods
    pub priority_class_name: String,
    /// Runtime class of the controllers' pods
    pub runtime_class_name: String,
    /// Old revisions of the controllers that are kept
    pub revision_history_limit: u32,
    /// How the controllers are updated
    pub deployment_strategy: DeploymentStrategy,
    /// Keep the pods of a controller on different nodes, and in different zones where possible
    pub enable_pod_anti_affinity: bool,
    /// Make PodDisruptionBudgets for the controllers
    pub enable_pod_disruption_budget: bool,
    /// Settings of all controllers
    pub controller: Controller,
    /// PodMonitors of the Prometheus operator
    pub pod_monitor: PodMonitor,
    /// Users and groups, as RBAC subjects, that may read the configuration of the mesh (ConfigMap
    /// `linkerd-config`); empty for nobody but those who may anyway
    #[schemars(with = "Vec<Open>")]
    pub config_readers: Vec<Subject>,
    /// The mesh is meant to outlive the loss of a node; set by `values-ha.yaml`, shown by
    /// `meshctl check`
    pub high_availability: bool,
}

/// What redirects a pod's connections to its proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirection {
    /// The agent of the node. The pod gets no init container, and its proxy waits until it is
    /// redirected.
    Agent,
    /// Another project's CNI plugin. An init container holds the pod back until it is redirected.
    ForeignCni,
    /// An init container with firewall rules.
    InitContainer,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DebugContainer {
    /// The debugging container's image
    pub image: Image,
}

impl Default for Values {
    fn default() -> Self {
        Self {
            namespace: "linkerd".into(),
            linkerd_version: env!("CARGO_PKG_VERSION").into(),
            cluster_domain: "cluster.local".into(),
            // The private blocks that clusters take their addresses from, as in Linkerd's chart.
            cluster_networks: "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8"
                .into(),
            disable_ipv6: true,
            identity_trust_domain: String::new(),
            identity_trust_anchors_pem: String::new(),
            identity: Identity::default(),
            mesh_agent: MeshAgent::default(),
            cni_enabled: false,
            proxy_init: ProxyInit::default(),
            network_validator: NetworkValidator::default(),
            proxy: Proxy::default(),
            debug_container: DebugContainer::default(),
            controller_image: "mesh/controller".into(),
            controller_image_version: String::new(),
            image_pull_policy: "IfNotPresent".into(),
            image_pull_secrets: Vec::new(),
            controller_replicas: 1,
            controller_uid: 2103,
            controller_gid: -1,
            controller_log_level: "info".into(),
            controller_log_format: "plain".into(),
            enable_h2_upgrade: true,
            destination_controller: DestinationController::default(),
            policy_controller: PolicyController::default(),
            proxy_injector: ProxyInjector::default(),
            webhook_failure_policy: "Ignore".into(),
            destination_resources: Resources::default(),
            identity_resources: Resources::default(),
            proxy_injector_resources: Resources::default(),
            destination_proxy_resources: Resources::default(),
            identity_proxy_resources: Resources::default(),
            proxy_injector_proxy_resources: Resources::default(),
            common_labels: Strings::new(),
            pod_labels: Strings::new(),
            pod_annotations: Strings::new(),
            node_selector: redirection::linux(),
            node_affinity: None,
            tolerations: Vec::new(),
            topology_spread_constraints: Vec::new(),
            priority_class_name: String::new(),
            runtime_class_name: String::new(),
            // Kubernetes' own default.
            revision_history_limit: 10,
            deployment_strategy: DeploymentStrategy::default(),
            enable_pod_anti_affinity: false,
            enable_pod_disruption_budget: false,
            controller: Controller::default(),
            pod_monitor: PodMonitor::default(),
            config_readers: Vec::new(),
            high_availability: false,
        }
    }
}

impl Default for DebugContainer {
    fn default() -> Self {
        Self {
            image: Image {
                name: "mesh/debug".into(),
                ..Image::default()
            },
        }
    }
}

impl Values {
    pub fn redirection(&self) -> Redirection {
        match (self.mesh_agent.enabled, self.cni_enabled) {
            (true, _) => Redirection::Agent,
            (false, true) => Redirection::ForeignCni,
            (false, false) => Redirection::InitContainer,
        }
    }

    /// The domain that identities end in.
    pub fn trust_domain(&self) -> &str {
        identity::trust_domain(&self.identity_trust_domain, &self.cluster_domain)
    }

    /// `name:tag` of an image of the mesh.
    pub fn image(&self, image: &Image) -> String {
        let version = non_empty(&image.version).unwrap_or(&self.linkerd_version);
        format!("{}:{version}", image.name)
    }

    pub fn pull_policy(&self, image: &Image) -> String {
        non_empty(&image.pull_policy)
            .unwrap_or(&self.image_pull_policy)
            .to_owned()
    }

    /// The version that is written on injected pods.
    pub fn proxy_version(&self) -> &str {
        non_empty(&self.proxy.image.version).unwrap_or(&self.linkerd_version)
    }
}

pub(crate) fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
