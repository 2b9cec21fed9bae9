//! The values of the charts `linkerd-multicluster` and `linkerd-multicluster-link`, with the names,
//! defaults and meanings of Linkerd's charts.

use k8s_openapi::api::core::v1::{LocalObjectReference, NodeAffinity};

use super::common::{Image, OpenObject, Resources, StringMap, Tolerations, digits};
use super::reading::{ChartValues, IgnoredKey, ignored};

values! {
    /// The values of the chart `linkerd-multicluster`.
    pub struct MulticlusterValues {
        /// Version of the mesh, and default tag of its images
        pub linkerd_version: String = env!("CARGO_PKG_VERSION").into(),
        /// Trust domain of the control plane, the suffix of the gateway's identity
        #[schemars(length(min = 1))]
        pub identity_trust_domain: String = "cluster.local".into(),
        /// Namespace of the control plane
        pub linkerd_namespace: String = "linkerd".into(),

        /// The gateway: meshed clients of other clusters reach the exported Services of this one
        /// through it
        pub gateway: MulticlusterGateway,

        /// The service mirrors of linked clusters: an item for each Link of the release's namespace
        /// that has no `linkerd-multicluster-link`. `link.ref.name` is the name of the Link; all
        /// keys of `controllerDefaults` are possible besides, and replace its values
        #[schemars(with = "Vec<LinkController>")]
        pub controllers: Vec<OpenObject>,
        /// What `controllers` have in common
        pub controller_defaults: ControllerDefaults,
        /// The service mirror that adds the Services of this cluster to federated Services
        pub local_service_mirror: LocalServiceMirror,
        /// Let the service mirrors of Links create the namespaces of mirrors, which needs the right
        /// to create namespaces. Otherwise a Service whose namespace does not exist is not mirrored
        pub enable_namespace_creation: bool = false,

        /// Create a ServiceAccount, with a token, that service mirrors of other clusters read this
        /// cluster with
        pub remote_mirror_service_account: bool = true,
        /// Name of this ServiceAccount
        #[schemars(length(min = 1))]
        pub remote_mirror_service_account_name: String =
            "linkerd-service-mirror-remote-access-default".into(),

        /// Pull policy of images
        #[schemars(extend("enum" = ["Always", "IfNotPresent", "Never"]))]
        pub image_pull_policy: String = "IfNotPresent".into(),
        /// Secrets for pulling images, for example `[{name: registry}]`
        #[schemars(with = "Vec<OpenObject>")]
        pub image_pull_secrets: Vec<LocalObjectReference>,
        /// Labels of all objects of the chart
        pub common_labels: StringMap,
        /// Labels of the pods
        pub pod_labels: StringMap,
        /// Annotations of the pods
        pub pod_annotations: StringMap,
        /// Number of old ReplicaSets that are kept
        pub revision_history_limit: u32 = 10,
        /// Schedule the replicas of the gateway and of the local service mirror on different nodes,
        /// and in different zones if possible, with PodDisruptionBudgets
        pub enable_pod_anti_affinity: bool = false,
        /// Node affinity of the gateway and of the local service mirror
        #[schemars(with = "Option<OpenObject>")]
        pub node_affinity: Option<NodeAffinity>,
        /// Node selector of the local service mirror
        pub node_selector: StringMap,
        /// Tolerations of the local service mirror
        pub tolerations: Tolerations,

        /// Label the namespace of the extension with a Job after an installation by Helm
        pub create_namespace_metadata_job: bool = true,
        /// The Job of `createNamespaceMetadataJob`
        pub namespace_metadata: MulticlusterNamespaceMetadata,
    }

    /// The gateway.
    pub struct MulticlusterGateway {
        /// Install the gateway
        pub enabled: bool = true,
        /// Replicas of the gateway
        #[schemars(range(min = 1))]
        pub replicas: u32 = 1,
        /// Name of the gateway's objects, and the first part of its identity
        #[schemars(length(min = 1, max = 63))]
        pub name: String = "linkerd-gateway".into(),
        /// Port of the Service for connections of other clusters
        #[schemars(range(min = 1, max = 65535))]
        pub port: u32 = 4143,
        /// Type of the Service
        #[schemars(extend("enum" = ["ClusterIP", "LoadBalancer", "NodePort"]))]
        pub service_type: String = "LoadBalancer".into(),
        /// Port of `port` on the nodes, with the types `LoadBalancer` and `NodePort`; `null` for
        /// one that Kubernetes selects
        #[schemars(range(min = 1, max = 65535))]
        pub node_port: Option<u32>,
        /// Port of the health checks of the load balancer on the nodes, with the type
        /// `LoadBalancer` and `serviceExternalTrafficPolicy=Local`; `null` for one that Kubernetes
        /// selects
        #[schemars(range(min = 1, max = 65535))]
        pub health_check_node_port: Option<u32>,
        /// How other clusters find out whether the gateway works
        pub probe: GatewayProbe,
        /// Annotations of the Service
        pub service_annotations: StringMap,
        /// External traffic policy of the Service, `Cluster` or `Local`; empty for Kubernetes'
        /// default
        #[schemars(extend("enum" = ["", "Cluster", "Local"]))]
        pub service_external_traffic_policy: String,
        /// Annotations of the Deployment
        pub deployment_annotations: StringMap,
        /// Load balancer class of the Service
        pub load_balancer_class: String,
        /// Address that the load balancer of the Service should have
        #[serde(rename = "loadBalancerIP")]
        pub load_balancer_ip: String,
        /// Networks (CIDR) whose clients the load balancer admits; empty for all
        pub load_balancer_source_ranges: Vec<String>,
        /// Seconds that a pod of the gateway may take to end; empty for Kubernetes' default, 30
        #[serde(deserialize_with = "digits")]
        #[schemars(extend("type" = ["string", "integer"], "pattern" = "^[0-9]*$"))]
        pub termination_grace_period_seconds: String,
        /// Node selector of the gateway
        pub node_selector: StringMap,
        /// Tolerations of the gateway
        pub tolerations: Tolerations,
        /// Image, with tag, of the container that the gateway's pods have beside the proxy, which
        /// does nothing until it ends; empty for the image of the local service mirror
        pub pause_image: String,
        /// User ID of this container
        #[serde(rename = "UID")]
        #[schemars(range(min = 1))]
        pub uid: i64 = 2103,
        /// Group ID of this container
        #[serde(rename = "GID")]
        #[schemars(range(min = 0))]
        pub gid: i64 = 2103,
    }

    /// The probe of a gateway.
    pub struct GatewayProbe {
        /// Path of the request
        #[schemars(extend("pattern" = "^/"))]
        pub path: String = "/ready".into(),
        /// Port of the Service for probes
        #[schemars(range(min = 1, max = 65535))]
        pub port: u32 = 4191,
        /// Port of `probe.port` on the nodes, with the types `LoadBalancer` and `NodePort`; `null`
        /// for one that Kubernetes selects
        #[schemars(range(min = 1, max = 65535))]
        pub node_port: Option<u32>,
        /// Seconds between two probes
        #[schemars(range(min = 1, max = 3600))]
        pub seconds: u32 = 3,
    }

    /// What the service mirrors of Links have in common.
    pub struct ControllerDefaults {
        /// Replicas of a service mirror; one is active
        #[schemars(range(min = 1))]
        pub replicas: u32 = 1,
        /// Image of a service mirror
        pub image: Image = Image::named(CONTROLLER),
        /// The gateway of the linked cluster
        pub gateway: LinkedGateway,
        /// Log level of a service mirror
        pub log_level: String = "info".into(),
        /// Log format of a service mirror
        #[schemars(extend("enum" = ["plain", "json"]))]
        pub log_format: String = "plain".into(),
        /// Mirror headless Services with a Service for each of their pods that has a host name
        pub enable_headless_services: bool = false,
        /// User ID of a service mirror
        #[serde(rename = "UID")]
        #[schemars(range(min = 1))]
        pub uid: i64 = 2103,
        /// Group ID of a service mirror
        #[serde(rename = "GID")]
        #[schemars(range(min = 0))]
        pub gid: i64 = 2103,
        /// Resource requests and limits of a service mirror
        pub resources: MirrorResources,
        /// Node selector of a service mirror
        pub node_selector: StringMap,
        /// Tolerations of a service mirror
        pub tolerations: Tolerations,
        /// Schedule the replicas of a service mirror on different nodes, and in different zones if
        /// possible, with a PodDisruptionBudget
        pub enable_pod_anti_affinity: bool = false,
        /// Node affinity of a service mirror
        #[schemars(with = "OpenObject")]
        pub node_affinity: NodeAffinity,
    }

    /// The gateway of a linked cluster.
    pub struct LinkedGateway {
        /// Create a Service for the probes of the gateway; without it, it is not probed
        pub enabled: bool = true,
        /// The probes
        pub probe: LinkedGatewayProbe,
    }

    /// The probes of the gateway of a linked cluster.
    #[derive(Copy)]
    pub struct LinkedGatewayProbe {
        /// Port of the Service for probes, as in the Link
        #[schemars(range(min = 1, max = 65535))]
        pub port: u32 = 4191,
    }

    /// Resource requests and limits of a service mirror, as in the control plane's chart or as in
    /// Kubernetes: Linkerd's documentation has the first form, and its chart the second one.
    pub struct MirrorResources {
        /// In the form of the control plane's chart
        #[serde(flatten)]
        pub by_resource: Resources,
        /// Limits in the form of Kubernetes, for example `{memory: 250Mi}`
        pub limits: OpenObject,
        /// Requests in the form of Kubernetes
        pub requests: OpenObject,
    }

    /// The service mirror of a Link.
    #[schemars(extend("required" = ["link"]))]
    pub struct LinkController {
        /// The Link
        pub link: LinkKey,
        /// What is different from `controllerDefaults`
        #[serde(flatten)]
        pub controller: ControllerDefaults,
        /// Accepted without effect, as in `controllerDefaults`
        pub enable_pprof: bool,
        /// Accepted without effect, as in `controllerDefaults`
        pub retry_limit: u32,
    }

    /// A reference to a Link.
    #[schemars(extend("required" = ["ref"]))]
    pub struct LinkKey {
        /// The Link
        #[serde(rename = "ref")]
        pub reference: LinkName,
    }

    /// The name of a Link in the namespace of the release.
    #[schemars(extend("required" = ["name"]))]
    pub struct LinkName {
        /// Name of the Link
        #[schemars(length(max = 57), extend("pattern" = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
        pub name: String,
    }

    /// The local service mirror.
    pub struct LocalServiceMirror {
        /// Label selector of the Services of this cluster that are members of federated Services
        pub federated_service_selector: String = "mirror.linkerd.io/federated=member".into(),
        /// Labels that federated Services do not get from Services of this cluster, separated by
        /// commas; `prefix/*` is every label with the prefix
        pub excluded_labels: String,
        /// Annotations that federated Services do not get from Services of this cluster, in the
        /// same form
        pub excluded_annotations: String,
        /// Replicas of the local service mirror; one is active
        #[schemars(range(min = 1))]
        pub replicas: u32 = 1,
        /// Image of the local service mirror
        pub image: Image = Image::named(CONTROLLER),
        /// Log level of the local service mirror
        pub log_level: String = "info".into(),
        /// Log format of the local service mirror
        #[schemars(extend("enum" = ["plain", "json"]))]
        pub log_format: String = "plain".into(),
        /// User ID of the local service mirror
        #[serde(rename = "UID")]
        #[schemars(range(min = 1))]
        pub uid: i64 = 2103,
        /// Group ID of the local service mirror
        #[serde(rename = "GID")]
        #[schemars(range(min = 0))]
        pub gid: i64 = 2103,
        /// Resource requests and limits of the local service mirror
        pub resources: MirrorResources,
    }

    /// The Job that labels the namespace.
    pub struct MulticlusterNamespaceMetadata {
        /// Image of the Job
        pub image: MulticlusterJobImage,
        /// Node selector of the Job
        pub node_selector: StringMap,
        /// Tolerations of the Job
        pub tolerations: Tolerations,
    }

    /// The image of the Job.
    pub struct MulticlusterJobImage {
        /// Registry and path of the image
        pub registry: String = "mesh".into(),
        /// Name of the image, without tag
        pub name: String = "controller".into(),
        /// Tag of the image; empty for `linkerdVersion`
        pub tag: String,
        /// Pull policy of the image; empty for `imagePullPolicy`
        #[schemars(extend("enum" = ["", "Always", "IfNotPresent", "Never"]))]
        pub pull_policy: String,
    }

    /// The values of the chart `linkerd-multicluster-link`.
    pub struct MulticlusterLinkValues {
        /// Name of the Link, which is the name of the linked cluster
        #[schemars(extend("pattern" = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"))]
        pub target_cluster_name: String,
        /// Image of the service mirror, without tag
        pub controller_image: String = CONTROLLER.into(),
        /// Tag of the image of the service mirror
        pub controller_image_version: String = env!("CARGO_PKG_VERSION").into(),
        /// Secrets for pulling images, for example `[{name: registry}]`
        #[schemars(with = "Vec<OpenObject>")]
        pub image_pull_secrets: Vec<LocalObjectReference>,
        /// The gateway of the linked cluster
        pub gateway: LinkedGateway,
        /// Mirror headless Services with a Service for each of their pods that has a host name
        pub enable_headless_services: bool = false,
        /// Let the service mirror create the namespaces of mirrors, which needs the right to create
        /// namespaces. Otherwise a Service whose namespace does not exist is not mirrored
        pub enable_namespace_creation: bool = false,
        /// Log level of the service mirror
        pub log_level: String = "info".into(),
        /// Log format of the service mirror
        #[schemars(extend("enum" = ["plain", "json"]))]
        pub log_format: String = "plain".into(),
        /// Replicas of the service mirror; one is active
        #[schemars(range(min = 1))]
        pub replicas: u32 = 1,
        /// User ID of the service mirror
        #[serde(rename = "serviceMirrorUID")]
        #[schemars(range(min = 1))]
        pub service_mirror_uid: i64 = 2103,
        /// Group ID of the service mirror
        #[serde(rename = "serviceMirrorGID")]
        #[schemars(range(min = 0))]
        pub service_mirror_gid: i64 = 2103,
        /// Resource requests and limits of the service mirror
        pub resources: MirrorResources,
        /// Labels of all objects of the chart
        pub common_labels: StringMap,
        /// Labels of the pods
        pub pod_labels: StringMap,
        /// Annotations of the pods
        pub pod_annotations: StringMap,
        /// Node selector of the service mirror
        pub node_selector: StringMap,
        /// Node affinity of the service mirror
        #[schemars(with = "Option<OpenObject>")]
        pub node_affinity: Option<NodeAffinity>,
        /// Tolerations of the service mirror
        pub tolerations: Tolerations,
        /// Schedule the replicas of the service mirror on different nodes, and in different zones
        /// if possible, with a PodDisruptionBudget
        pub enable_pod_anti_affinity: bool = false,
        /// Number of old ReplicaSets that are kept
        pub revision_history_limit: u32 = 10,
    }
}

/// The image of the controllers.
const CONTROLLER: &str = "mesh/controller";

const NO_PSP: &str = "Kubernetes no longer has PodSecurityPolicies";
const NO_PROFILES: &str = "the service mirrors serve no profiles";
const NO_LIMIT: &str = "failed writes are repeated without a limit";

impl ChartValues for MulticlusterValues {
    const CHART: &'static str = "linkerd-multicluster";
    const IGNORED: &'static [IgnoredKey] = ignored! {
        "controllerDefaults.enablePprof": NO_PROFILES,
        "controllerDefaults.retryLimit": NO_LIMIT,
        "enablePSP": NO_PSP,
        "localServiceMirror.enablePprof": NO_PROFILES,
        "localServiceMirror.serviceMirrorRetryLimit": NO_LIMIT,
        "proxyOutboundPort": "the proxies of the extension have the ports of the control plane's values",
    };
}

impl ChartValues for MulticlusterLinkValues {
    const CHART: &'static str = "linkerd-multicluster-link";
    const IGNORED: &'static [IgnoredKey] = ignored! {
        "enablePSP": NO_PSP,
        "enablePprof": NO_PROFILES,
        "serviceMirrorRetryLimit": NO_LIMIT,
    };
}
