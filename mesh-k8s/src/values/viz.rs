//! The values of the chart `linkerd-viz`, with the names, defaults and meanings of Linkerd's chart.

use k8s_openapi::api::core::v1::{Container, LocalObjectReference, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Value, json};

use super::common::{OpenObject, Resources, StringMap};
use super::controllers::selector;
use super::reading::{ChartValues, IgnoredKey, ignored};
use super::redirection;

values! {
    /// The values of the chart.
    pub struct VizValues {
        /// Version of the mesh, and default tag of its images
        pub linkerd_version: String = env!("CARGO_PKG_VERSION").into(),
        /// DNS domain of the cluster
        pub cluster_domain: String = "cluster.local".into(),
        /// Trust domain of the control plane; empty for `clusterDomain`
        pub identity_trust_domain: String,
        /// Namespace of the control plane
        pub linkerd_namespace: String = "linkerd".into(),
        /// Namespace of the node agents, whose metrics Prometheus reads; empty for none
        pub mesh_agent_namespace: String = "linkerd-agent".into(),

        /// Registry and path of images without a registry of their own
        pub default_registry: String = "mesh".into(),
        /// Pull policy of images
        #[schemars(extend("enum" = ["Always", "IfNotPresent", "Never"]))]
        pub default_image_pull_policy: String = "IfNotPresent".into(),
        /// Secrets for pulling images, for example `[{name: registry}]`
        #[schemars(with = "Vec<OpenObject>")]
        pub image_pull_secrets: Vec<LocalObjectReference>,
        /// Log level of the components
        pub default_log_level: String = "info".into(),
        /// Log format of the components
        #[schemars(extend("enum" = ["plain", "json"]))]
        pub default_log_format: String = "plain".into(),
        /// User ID of the components
        #[serde(rename = "defaultUID")]
        #[schemars(range(min = 1))]
        pub default_uid: i64 = 2103,
        /// Group ID of the components; negative for the image's group
        #[serde(rename = "defaultGID")]
        pub default_gid: i64 = -1,

        /// Labels of all objects of the chart
        pub common_labels: StringMap,
        /// Labels of the pods
        pub pod_labels: StringMap,
        /// Annotations of the pods
        pub pod_annotations: StringMap,
        /// Node selector of the pods
        pub node_selector: StringMap = redirection::linux(),
        /// Tolerations of the pods
        #[schemars(with = "Vec<OpenObject>")]
        pub tolerations: Vec<Toleration>,
        /// Number of old ReplicaSets that are kept
        pub revision_history_limit: u32 = 10,
        /// Schedule the replicas of a component on different nodes, and in different zones if
        /// possible
        pub enable_pod_anti_affinity: bool = false,
        /// Create PodDisruptionBudgets for the components with more than one replica
        pub enable_pod_disruption_budget: bool = false,

        /// URL of a Prometheus that scrapes the mesh, such as http://prometheus.monitoring:9090;
        /// requires `prometheus.enabled` to be `false`
        pub prometheus_url: String,
        /// Secret with the credentials for `prometheusUrl`, keys `user` and `password`
        pub prometheus_creds_secret: String,

        /// The metrics API, which answers `viz stat` and the dashboard
        #[serde(rename = "metricsAPI")]
        pub metrics_api: MetricsApi,
        /// The tap API, which lets users watch requests
        pub tap: Tap,
        /// The webhook that enables tap in the proxies of new pods
        pub tap_injector: TapInjector,
        /// The dashboard
        pub dashboard: Dashboard,
        /// Links of the dashboard to Grafana, and dashboards for it
        pub grafana: Grafana,
        /// The Prometheus of the extension
        pub prometheus: Prometheus,
        /// Recording rules and alerts for the Prometheus operator; the Prometheus of the extension
        /// has them in any case
        pub prometheus_rule: PrometheusRule,

        /// Label the namespace of the extension with a Job after an installation by Helm
        pub create_namespace_metadata_job: bool = true,
        /// The Job of `createNamespaceMetadataJob`
        pub namespace_metadata: NamespaceMetadata,
    }

    /// An image. Empty fields have defaults in other values.
    pub struct ComponentImage {
        /// Registry and path of the image; empty for `defaultRegistry`
        pub registry: String,
        /// Name of the image, without tag
        pub name: String = "viz".into(),
        /// Tag of the image; empty for `linkerdVersion`
        pub tag: String,
        /// Pull policy of the image; empty for `defaultImagePullPolicy`
        #[schemars(extend("enum" = ["", "Always", "IfNotPresent", "Never"]))]
        pub pull_policy: String,
    }

    /// What the components have in common.
    pub struct Component {
        /// Image of the component
        pub image: ComponentImage,
        /// Log level; empty for `defaultLogLevel`
        pub log_level: String,
        /// Log format; empty for `defaultLogFormat`
        #[schemars(extend("enum" = ["", "plain", "json"]))]
        pub log_format: String,
        /// User ID; `null` for `defaultUID`
        #[serde(rename = "UID")]
        pub uid: Option<i64>,
        /// Group ID; `null` for `defaultGID`
        #[serde(rename = "GID")]
        pub gid: Option<i64>,
        /// Resource requests and limits of the component
        pub resources: Resources,
        /// The proxy of the component
        pub proxy: ComponentProxy,
        /// Node selector; replaces `nodeSelector` unless it is empty
        pub node_selector: StringMap,
        /// Tolerations; replace `tolerations` unless they are empty
        #[schemars(with = "Vec<OpenObject>")]
        pub tolerations: Vec<Toleration>,
    }

    /// The proxy of a component.
    pub struct ComponentProxy {
        /// Resource requests and limits of the proxy; an empty one has the value in the control
        /// plane's `proxy.resources`
        pub resources: Resources,
    }

    /// The metrics API.
    pub struct MetricsApi {
        /// Replicas of the metrics API
        #[schemars(range(min = 1))]
        pub replicas: u32 = 1,
        #[serde(flatten)]
        pub component: Component,
    }

    /// The tap API.
    pub struct Tap {
        /// Replicas of the tap API
        #[schemars(range(min = 1))]
        pub replicas: u32 = 1,
        #[serde(flatten)]
        pub component: Component,
        /// Names of header fields whose values are left out of tap events
        pub ignore_headers: Vec<String>,
        #[serde(flatten)]
        pub certificate: Certificate,
    }

    /// The tap injector.
    pub struct TapInjector {
        /// Replicas of the tap injector
        #[schemars(range(min = 1))]
        pub replicas: u32 = 1,
        #[serde(flatten)]
        pub component: Component,
        /// What the API server does if the webhook does not respond: with `Ignore` pods cannot be
        /// tapped, with `Fail` they are not created
        #[schemars(extend("enum" = ["Ignore", "Fail"]))]
        pub failure_policy: String = "Ignore".into(),
        /// Seconds that the API server waits for a response
        #[schemars(range(min = 1, max = 30))]
        pub timeout_seconds: i32 = 10,
        /// Namespaces whose pods the API server sends to the webhook
        #[schemars(with = "OpenObject")]
        pub namespace_selector: LabelSelector = selector([
            ("config.linkerd.io/admission-webhooks", "NotIn", &["disabled"]),
            ("kubernetes.io/metadata.name", "NotIn", &["kube-system"]),
        ]),
        /// Pods that the API server sends to the webhook
        #[schemars(with = "OpenObject")]
        pub object_selector: LabelSelector,
        #[serde(flatten)]
        pub certificate: Certificate,
    }

    /// The dashboard.
    pub struct Dashboard {
        /// Replicas of the dashboard
        #[schemars(range(min = 1))]
        pub replicas: u32 = 1,
        #[serde(flatten)]
        pub component: Component,
        /// Regular expression for the Host header of requests, which prevents DNS rebinding; empty
        /// for localhost and the names of the Service `web`
        pub enforced_host_regexp: String,
        /// Do not permit the dashboard to tap, and to read and show definitions of workloads. It
        /// has no users of its own: everyone who can open it may otherwise watch requests and read
        /// specifications, where values of environments are redacted
        pub restrict_privileges: bool = false,
        /// Clients of the dashboard over the network; by default none. `meshctl viz dashboard` and
        /// `kubectl port-forward` need nothing here
        pub access: DashboardAccess,
        /// The Service of the dashboard
        pub service: DashboardService,
    }

    /// The clients of the dashboard.
    pub struct DashboardAccess {
        /// Identities of meshed clients, for example of an ingress
        /// (`nginx.ingress.serviceaccount.identity.linkerd.cluster.local`); `*` for every meshed
        /// client
        pub identities: Vec<String>,
        /// Networks (CIDR) of clients that may be without a proxy, for example of the API server,
        /// for `kubectl proxy`
        pub networks: Vec<String>,
    }

    /// The Service of the dashboard.
    pub struct DashboardService {
        /// Annotations of the Service
        pub annotations: StringMap,
    }

    /// Grafana.
    pub struct Grafana {
        /// URL of a Grafana that the browsers of users reach; the dashboard links to it
        pub external_url: String,
        /// Prefix of the uid of Grafana's dashboards in the links
        pub uid_prefix: String,
        /// ConfigMaps with dashboards for Grafana's sidecar
        pub dashboards: GrafanaDashboards,
    }

    /// The ConfigMaps with Grafana's dashboards.
    pub struct GrafanaDashboards {
        /// Create the ConfigMaps
        pub enabled: bool = false,
        /// Namespace of the ConfigMaps; empty for the extension's namespace
        pub namespace: String,
        /// Labels that Grafana's sidecar finds them by
        pub labels: StringMap = [("grafana_dashboard".to_owned(), "1".to_owned())].into(),
        /// Annotations that tell the sidecar the folder
        pub annotations: StringMap = [("grafana_folder".to_owned(), "Mesh".to_owned())].into(),
    }

    /// The PrometheusRules.
    pub struct PrometheusRule {
        /// Create the PrometheusRules; requires the Prometheus operator
        pub enabled: bool = false,
        /// Namespace of the PrometheusRules; empty for the extension's namespace
        pub namespace: String,
        /// Labels of the PrometheusRules, for the selector of Prometheus
        pub labels: StringMap,
        /// Annotations of the PrometheusRules
        pub annotations: StringMap,
        /// URL of the directory with the runbooks that alerts link to; empty for the path in the
        /// repository
        pub runbook_url: String,
    }

    /// The certificate that a component presents to the API server.
    pub struct Certificate {
        /// The Secret with the certificate (`tap-k8s-tls`, `tap-injector-k8s-tls`) is managed
        /// externally; `caBundle`, `injectCaFrom` or `injectCaFromSecret` sets its CA
        pub external_secret: bool,
        /// Certificate, in PEM. If empty, and without `externalSecret`, the component creates and
        /// renews its own
        #[serde(rename = "crtPEM")]
        pub crt_pem: String,
        /// Private key of the certificate, in PEM
        #[serde(rename = "keyPEM")]
        pub key_pem: String,
        /// CA certificates for the API server to verify the certificate, in PEM
        pub ca_bundle: String,
        /// Certificate (namespace/name) whose CA cert-manager injects as `caBundle`
        pub inject_ca_from: String,
        /// Secret (namespace/name) whose CA cert-manager injects as `caBundle`
        pub inject_ca_from_secret: String,
    }

    /// The Prometheus of the extension.
    pub struct Prometheus {
        /// Run a Prometheus that scrapes the mesh
        pub enabled: bool = true,
        #[serde(flatten)]
        pub component: Component = Component {
            image: ComponentImage {
                name: "prometheus".into(),
                ..ComponentImage::default()
            },
            uid: Some(65534),
            gid: Some(65534),
            ..Component::default()
        },
        /// Flags of Prometheus, without the leading dashes
        pub args: OpenObject = object(json!({
            "storage.tsdb.path": "/data",
            "storage.tsdb.retention.time": "6h",
            "config.file": "/etc/prometheus/prometheus.yml",
        })),
        /// The section `global` of the configuration of Prometheus
        pub global_config: OpenObject = object(json!({
            "scrape_interval": "10s",
            "scrape_timeout": "10s",
            "evaluation_interval": "10s",
        })),
        /// The section `remote_write` of the configuration of Prometheus
        pub remote_write: Vec<OpenObject>,
        /// The section `alerting.alertmanagers` of the configuration of Prometheus
        pub alertmanagers: Vec<OpenObject>,
        /// The section `alerting.alert_relabel_configs` of the configuration of Prometheus
        pub alert_relabel_configs: Vec<OpenObject>,
        /// CPU, memory, network and disks of containers, from the kubelets
        pub container_metrics: ContainerMetrics,
        /// Additional scrape jobs
        pub scrape_configs: Vec<OpenObject>,
        /// Relabelling of all series of proxies before they are stored
        pub metric_relabel_configs: Vec<OpenObject>,
        /// ConfigMaps with rules: `name` of the volume, `subPath`, which must end in `_rules.yml`
        /// or `_rules.yaml`, and `configMap`
        pub rule_config_map_mounts: Vec<RuleConfigMapMount>,
        /// Additional containers of the pod
        #[schemars(with = "Vec<OpenObject>")]
        pub sidecar_containers: Vec<Container>,
        /// The PersistentVolumeClaim of the data; without it they are lost with the pod
        #[schemars(with = "Option<OpenObject>")]
        pub persistence: Option<Persistence>,
    }

    /// The metrics of containers.
    #[derive(Copy)]
    pub struct ContainerMetrics {
        /// Scrape the kubelets, which needs get of `nodes/metrics`, and list and watch of `nodes`
        pub enabled: bool = false,
        /// Send the token of Prometheus to kubelets whose certificate is not signed by the CA of
        /// the cluster, which is so where they sign their own
        pub insecure_skip_verify: bool = false,
    }

    /// A ConfigMap with rules.
    pub struct RuleConfigMapMount {
        /// Name of the volume
        pub name: String,
        /// Key of the ConfigMap and name of the file
        pub sub_path: String,
        /// Name of the ConfigMap
        pub config_map: String,
    }

    /// The PersistentVolumeClaim of Prometheus.
    pub struct Persistence {
        /// Storage class; empty for the default one
        pub storage_class: String,
        /// Access mode
        pub access_mode: String = "ReadWriteOnce".into(),
        /// Size
        pub size: String = "8Gi".into(),
    }

    /// The Job that labels the namespace.
    pub struct NamespaceMetadata {
        /// Image of the Job
        pub image: ComponentImage,
        /// Node selector of the Job; replaces `nodeSelector` unless it is empty
        pub node_selector: StringMap,
        /// Tolerations of the Job; replace `tolerations` unless they are empty
        #[schemars(with = "Vec<OpenObject>")]
        pub tolerations: Vec<Toleration>,
    }
}

const NO_PSP: &str = "Kubernetes no longer has PodSecurityPolicies";
const NO_PROFILES: &str = "the components serve no profiles";
const NO_REVERSE_PROXY: &str =
    "the dashboard forwards no requests to other programs; grafana.externalUrl is a link";

impl ChartValues for VizValues {
    const CHART: &'static str = "linkerd-viz";
    const IGNORED: &'static [IgnoredKey] = ignored! {
        "enablePSP": NO_PSP,
        "enablePprof": NO_PROFILES,
        "grafana.url": NO_REVERSE_PROXY,
        "jaegerUrl": NO_REVERSE_PROXY,
    };
}

fn object(value: Value) -> OpenObject {
    match value {
        Value::Object(map) => map,
        _ => OpenObject::new(),
    }
}
