//! The values of the controllers (identity, destination, policy, injector) and of their monitoring.

use k8s_openapi::api::core::v1::EnvVar;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{OpenObject, ProbeTimeout, Resources, StringMap};

/// The identity service.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Identity {
    /// The ConfigMap `linkerd-identity-trust-roots` is managed externally, for example by
    /// trust-manager
    #[serde(rename = "externalCA")]
    pub external_ca: bool,
    /// Copy the trust anchors into every namespace with meshed pods, so that running proxies
    /// receive new anchors
    pub publish_trust_roots: bool,
    /// Give proxies a projected token whose audience is the identity service. With `false` they use
    /// the token of their service account
    pub service_account_token_projection: bool,
    /// The issuer of the proxies' certificates
    pub issuer: Issuer,
    /// Rate limit of the identity service's requests to the API server
    #[serde(rename = "kubeAPI")]
    pub kube_api: KubeApi,
    /// Liveness probe of the identity service
    pub liveness_probe: ProbeTimeout,
    /// Readiness probe of the identity service
    pub readiness_probe: ProbeTimeout,
    /// Annotations of the identity pods
    pub pod_annotations: StringMap,
    /// Environment variables of the identity service, in the notation of Kubernetes
    #[schemars(with = "Vec<OpenObject>")]
    pub additional_env: Vec<EnvVar>,
}

/// The issuer of the proxies' certificates.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Issuer {
    /// Format of the Secret `linkerd-identity-issuer`: `linkerd.io/tls` (crt.pem, key.pem) or
    /// `kubernetes.io/tls` (tls.crt, tls.key), which is managed externally, for example by
    /// cert-manager
    #[schemars(extend("enum" = ["linkerd.io/tls", "kubernetes.io/tls"]))]
    pub scheme: String,
    /// Tolerated difference between the clocks of two nodes
    pub clock_skew_allowance: String,
    /// Lifetime of the proxies' certificates
    pub issuance_lifetime: String,
    /// Certificate and key of the issuer. If empty, the mesh creates and stores a trust anchor and
    /// an issuer
    pub tls: IssuerTls,
}

/// The certificate and key of the issuer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IssuerTls {
    /// Certificate of the issuer, in PEM
    #[serde(rename = "crtPEM")]
    pub crt_pem: String,
    /// Private key of the issuer, in PEM
    #[serde(rename = "keyPEM")]
    pub key_pem: String,
}

/// The rate limit of requests to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeApi {
    /// Requests per second
    #[serde(rename = "clientQPS")]
    pub client_qps: u32,
    /// Requests in a burst
    pub client_burst: u32,
}

/// The destination service.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DestinationController {
    /// HTTP/2 client settings of proxies for connections to meshed pods
    #[schemars(with = "OpenObject")]
    pub meshed_http2_client_protobuf: serde_json::Value,
    /// Liveness probe of the destination service
    pub liveness_probe: ProbeTimeout,
    /// Readiness probe of the destination service
    pub readiness_probe: ProbeTimeout,
    /// Annotations of the destination pods
    pub pod_annotations: StringMap,
    /// Environment variables of the destination service, in the notation of Kubernetes
    #[schemars(with = "Vec<OpenObject>")]
    pub additional_env: Vec<EnvVar>,
}

/// The policy service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyController {
    /// Log level of the policy service
    pub log_level: String,
    /// CIDR blocks of the addresses from which kubelets send probes
    pub probe_networks: Vec<String>,
    /// Resource requests and limits of the policy service
    pub resources: Resources,
    /// Liveness probe of the policy service
    pub liveness_probe: ProbeTimeout,
    /// Readiness probe of the policy service
    pub readiness_probe: ProbeTimeout,
}

/// The webhook of the injector: its certificate and the objects that the API server sends to it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyInjector {
    /// The Secret `linkerd-proxy-injector-k8s-tls` is managed externally; `caBundle`,
    /// `injectCaFrom` or `injectCaFromSecret` sets its CA
    pub external_secret: bool,
    /// Certificate of the webhook, in PEM. If empty, and without `externalSecret`, the injector
    /// creates and renews its own
    #[serde(rename = "crtPEM")]
    pub crt_pem: String,
    /// Private key of the webhook, in PEM
    #[serde(rename = "keyPEM")]
    pub key_pem: String,
    /// CA certificates with which the API server verifies the certificate of the webhook, in PEM
    pub ca_bundle: String,
    /// Certificate (namespace/name) from which cert-manager injects the `caBundle`
    pub inject_ca_from: String,
    /// Secret (namespace/name) from which cert-manager injects the `caBundle`
    pub inject_ca_from_secret: String,
    /// Namespaces whose objects the API server sends to the webhook
    #[schemars(with = "OpenObject")]
    pub namespace_selector: LabelSelector,
    /// Objects that the API server sends to the webhook
    #[schemars(with = "OpenObject")]
    pub object_selector: LabelSelector,
    /// Seconds that the API server waits for a response
    #[schemars(range(min = 1, max = 30))]
    pub timeout_seconds: i32,
    /// Liveness probe of the injector
    pub liveness_probe: ProbeTimeout,
    /// Readiness probe of the injector
    pub readiness_probe: ProbeTimeout,
    /// Annotations of the injector's pods
    pub pod_annotations: StringMap,
    /// Environment variables of the injector, in the notation of Kubernetes
    #[schemars(with = "Vec<OpenObject>")]
    pub additional_env: Vec<EnvVar>,
}

/// Settings that all controllers share.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Controller {
    /// The PodDisruptionBudgets of `enablePodDisruptionBudget`
    pub pod_disruption_budget: PodDisruptionBudget,
}

/// The PodDisruptionBudgets of the controllers.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDisruptionBudget {
    /// Pods of a controller that may be unavailable, as a number or percentage
    #[schemars(extend("type" = ["integer", "string"]))]
    pub max_unavailable: serde_json::Value,
}

/// The PodMonitors for the Prometheus operator.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodMonitor {
    /// Create PodMonitors; requires the Prometheus operator
    pub enabled: bool,
    /// Interval between scrapes
    pub scrape_interval: String,
    /// Timeout of a scrape
    pub scrape_timeout: String,
    /// Labels of the PodMonitors, for the selector of Prometheus
    pub labels: StringMap,
    /// Metrics of the controllers
    pub controller: PodMonitorTarget,
    /// Metrics of the proxies
    pub proxy: PodMonitorTarget,
    /// Metrics of the agents; requires a `meshAgent.adminAddr` that is not a loopback address
    pub agent: PodMonitorTarget,
}

/// A component with a PodMonitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodMonitorTarget {
    /// Create this PodMonitor
    pub enabled: bool,
}

/// The update strategy of the controllers' Deployments.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStrategy {
    /// Bounds of a rolling update
    pub rolling_update: RollingUpdate,
}

/// The bounds of a rolling update.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// Pods that may be unavailable during an update, as a number or percentage
    #[schemars(extend("type" = ["integer", "string"]))]
    pub max_unavailable: serde_json::Value,
    /// Additional pods during an update, as a number or percentage
    #[schemars(extend("type" = ["integer", "string"]))]
    pub max_surge: serde_json::Value,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            external_ca: false,
            publish_trust_roots: true,
            service_account_token_projection: true,
            issuer: Issuer::default(),
            kube_api: KubeApi::default(),
            liveness_probe: ProbeTimeout::default(),
            readiness_probe: ProbeTimeout::default(),
            pod_annotations: StringMap::new(),
            additional_env: Vec::new(),
        }
    }
}

impl Default for Issuer {
    fn default() -> Self {
        Self {
            scheme: "linkerd.io/tls".into(),
            clock_skew_allowance: "20s".into(),
            issuance_lifetime: "24h0m0s".into(),
            tls: IssuerTls::default(),
        }
    }
}

impl Default for KubeApi {
    fn default() -> Self {
        Self {
            client_qps: 100,
            client_burst: 200,
        }
    }
}

impl Default for DestinationController {
    fn default() -> Self {
        Self {
            // A dead peer is detected after 13 s, with or without streams.
            meshed_http2_client_protobuf: serde_json::json!({
                "keep_alive": {
                    "interval": { "seconds": 10 },
                    "timeout": { "seconds": 3 },
                    "while_idle": true,
                },
            }),
            liveness_probe: ProbeTimeout::default(),
            readiness_probe: ProbeTimeout::default(),
            pod_annotations: StringMap::new(),
            additional_env: Vec::new(),
        }
    }
}

impl Default for PolicyController {
    fn default() -> Self {
        Self {
            log_level: "info".into(),
            // A kubelet may send probes from any address of its node, and the chart cannot know
            // them.
            probe_networks: vec!["0.0.0.0/0".into(), "::/0".into()],
            resources: Resources::default(),
            liveness_probe: ProbeTimeout::default(),
            readiness_probe: ProbeTimeout::default(),
        }
    }
}

impl Default for ProxyInjector {
    fn default() -> Self {
        let requirement = |key: &str, operator: &str, values: &[&str]| LabelSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: (!values.is_empty())
                .then(|| values.iter().map(|value| (*value).to_owned()).collect()),
        };
        let selector = |requirements: Vec<LabelSelectorRequirement>| LabelSelector {
            match_expressions: Some(requirements),
            match_labels: None,
        };
        Self {
            external_secret: false,
            crt_pem: String::new(),
            key_pem: String::new(),
            ca_bundle: String::new(),
            inject_ca_from: String::new(),
            inject_ca_from_secret: String::new(),
            namespace_selector: selector(vec![
                requirement(
                    "config.linkerd.io/admission-webhooks",
                    "NotIn",
                    &["disabled"],
                ),
                requirement(
                    "kubernetes.io/metadata.name",
                    "NotIn",
                    &["kube-system", "cert-manager"],
                ),
            ]),
            // The injector depends on these pods, so they must start without it.
            object_selector: selector(vec![
                requirement("linkerd.io/control-plane-component", "DoesNotExist", &[]),
                requirement("linkerd.io/cni-resource", "DoesNotExist", &[]),
            ]),
            timeout_seconds: 10,
            liveness_probe: ProbeTimeout::default(),
            readiness_probe: ProbeTimeout::default(),
            pod_annotations: StringMap::new(),
            additional_env: Vec::new(),
        }
    }
}

impl Default for PodDisruptionBudget {
    fn default() -> Self {
        Self {
            max_unavailable: 1.into(),
        }
    }
}

impl Default for PodMonitor {
    fn default() -> Self {
        Self {
            enabled: false,
            scrape_interval: "10s".into(),
            scrape_timeout: "10s".into(),
            labels: StringMap::new(),
            controller: PodMonitorTarget::default(),
            proxy: PodMonitorTarget::default(),
            agent: PodMonitorTarget { enabled: false },
        }
    }
}

impl Default for PodMonitorTarget {
    fn default() -> Self {
        Self { enabled: true }
    }
}

impl Default for RollingUpdate {
    fn default() -> Self {
        Self {
            max_unavailable: "25%".into(),
            max_surge: "25%".into(),
        }
    }
}
