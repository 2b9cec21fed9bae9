//! The controllers: identity, destination and policy, the injector, and what observes them.

use k8s_openapi::{
    api::core::v1::EnvVar, apimachinery::pkg::apis::meta::v1::LabelSelector,
    apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{Open, ProbeTimeout, Resources, Strings};

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Identity {
    /// The ConfigMap `linkerd-identity-trust-roots` is somebody else's, trust-manager's for example
    #[serde(rename = "externalCA")]
    pub external_ca: bool,
    /// Copy the trust anchors into every namespace with meshed pods, so that new anchors reach
    /// running proxies
    pub publish_trust_roots: bool,
    /// Give proxies a token for the identity service alone. Without it the service account's token
    /// serves
    pub service_account_token_projection: bool,
    /// What signs the certificates of the proxies
    pub issuer: Issuer,
    /// How fast the identity service may ask the API server
    #[serde(rename = "kubeAPI")]
    pub kube_api: KubeApi,
    /// Liveness probe of the identity service
    pub liveness_probe: ProbeTimeout,
    /// Readiness probe of the identity service
    pub readiness_probe: ProbeTimeout,
    /// Annotations of the identity pods
    pub pod_annotations: Strings,
    /// Environment variables for the identity service, as Kubernetes writes them
    #[schemars(with = "Vec<Open>")]
    pub additional_env: Vec<EnvVar>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Issuer {
    /// Form of the Secret `linkerd-identity-issuer`: `linkerd.io/tls` (crt.pem, key.pem) or
    /// `kubernetes.io/tls` (tls.crt, tls.key), which somebody else makes, cert-manager for example
    #[schemars(extend("enum" = ["linkerd.io/tls", "kubernetes.io/tls"]))]
    pub scheme: String,
    /// How far the clocks of two nodes may be apart
    pub clock_skew_allowance: String,
    /// How long the proxies' certificates live
    pub issuance_lifetime: String,
    /// The issuer itself. Left empty, the mesh makes a trust anchor and an issuer once and keeps
    /// them
    pub tls: IssuerTls,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IssuerTls {
    /// The issuer's certificate, in PEM
    #[serde(rename = "crtPEM")]
    pub crt_pem: String,
    /// The issuer's key, in PEM
    #[serde(rename = "keyPEM")]
    pub key_pem: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeApi {
    /// Requests per second
    #[serde(rename = "clientQPS")]
    pub client_qps: u32,
    /// Requests at once
    pub client_burst: u32,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DestinationController {
    /// HTTP/2 settings that proxies use towards meshed pods
    #[schemars(with = "Open")]
    pub meshed_http2_client_protobuf: serde_json::Value,
    /// Liveness probe of the destination service
    pub liveness_probe: ProbeTimeout,
    /// Readiness probe of the destination service
    pub readiness_probe: ProbeTimeout,
    /// Annotations of the destination pods
    pub pod_annotations: Strings,
    /// Environment variables for the destination service, as Kubernetes writes them
    #[schemars(with = "Vec<Open>")]
    pub additional_env: Vec<EnvVar>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyController {
    /// What the policy service logs
    pub log_level: String,
    /// Blocks of addresses that kubelets probe from
    pub probe_networks: Vec<String>,
    /// Requests and limits of the policy service
    pub resources: Resources,
    /// Liveness probe of the policy service
    pub liveness_probe: ProbeTimeout,
    /// Readiness probe of the policy service
    pub readiness_probe: ProbeTimeout,
}

/// A webhook: where its certificate comes from, and what is sent to it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyInjector {
    /// The Secret `linkerd-proxy-injector-k8s-tls` is somebody else's; `caBundle`, `injectCaFrom`
    /// or `injectCaFromSecret` says who signed it
    pub external_secret: bool,
    /// The webhook's certificate, in PEM. Left empty, and without `externalSecret`, the injector
    /// makes and renews its own
    #[serde(rename = "crtPEM")]
    pub crt_pem: String,
    /// The webhook's key, in PEM
    #[serde(rename = "keyPEM")]
    pub key_pem: String,
    /// What the API server verifies the webhook's certificate with, in PEM
    pub ca_bundle: String,
    /// Certificate (namespace/name) from which cert-manager writes the `caBundle`
    pub inject_ca_from: String,
    /// Secret (namespace/name) from which cert-manager writes the `caBundle`
    pub inject_ca_from_secret: String,
    /// Namespaces whose pods are sent to the webhook
    #[schemars(with = "Open")]
    pub namespace_selector: LabelSelector,
    /// Objects that are sent to the webhook
    #[schemars(with = "Open")]
    pub object_selector: LabelSelector,
    /// Seconds that the API server waits for an answer
    #[schemars(range(min = 1, max = 30))]
    pub timeout_seconds: i32,
    /// Liveness probe of the injector
    pub liveness_probe: ProbeTimeout,
    /// Readiness probe of the injector
    pub readiness_probe: ProbeTimeout,
    /// Annotations of the injector's pods
    pub pod_annotations: Strings,
    /// Environment variables for the injector, as Kubernetes writes them
    #[schemars(with = "Vec<Open>")]
    pub additional_env: Vec<EnvVar>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Controller {
    /// The budgets that `enablePodDisruptionBudget` makes
    pub pod_disruption_budget: PodDisruptionBudget,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDisruptionBudget {
    /// So many pods of a controller may be away at once, as a number or in per cent
    #[schemars(extend("type" = ["integer", "string"]))]
    pub max_unavailable: serde_json::Value,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodMonitor {
    /// Make PodMonitors; needs the Prometheus operator
    pub enabled: bool,
    /// Time between two scrapes
    pub scrape_interval: String,
    /// Time limit of a scrape
    pub scrape_timeout: String,
    /// Labels of the PodMonitors, by which a Prometheus selects them
    pub labels: Strings,
    /// The controllers' metrics
    pub controller: Monitored,
    /// The proxies' metrics
    pub proxy: Monitored,
    /// The agents' metrics; needs `meshAgent.adminAddr` on more than loopback
    pub agent: Monitored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Monitored {
    /// Make this PodMonitor
    pub enabled: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStrategy {
    /// How the controllers are updated
    pub rolling_update: RollingUpdate,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// So many pods may be missing, as a number or in per cent
    #[schemars(extend("type" = ["integer", "string"]))]
    pub max_unavailable: serde_json::Value,
    /// So many pods may be there in addition
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
            pod_annotations: Strings::new(),
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
            // A peer that vanished without a word is noticed after 13 s, used or not.
            meshed_http2_client_protobuf: serde_json::json!({
                "keep_alive": {
                    "interval": { "seconds": 10 },
                    "timeout": { "seconds": 3 },
                    "while_idle": true,
                },
            }),
            liveness_probe: ProbeTimeout::default(),
            readiness_probe: ProbeTimeout::default(),
            pod_annotations: Strings::new(),
            additional_env: Vec::new(),
        }
    }
}

impl Default for PolicyController {
    fn default() -> Self {
        Self {
            log_level: "info".into(),
            // A kubelet may probe from any address of its node, and the chart cannot know them.
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
            // The pods that the injector itself needs to start must not wait for it.
            object_selector: selector(vec![
                requirement("linkerd.io/control-plane-component", "DoesNotExist", &[]),
                requirement("linkerd.io/cni-resource", "DoesNotExist", &[]),
            ]),
            timeout_seconds: 10,
            liveness_probe: ProbeTimeout::default(),
            readiness_probe: ProbeTimeout::default(),
            pod_annotations: Strings::new(),
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
            labels: Strings::new(),
            controller: Monitored::default(),
            proxy: Monitored::default(),
            agent: Monitored { enabled: false },
        }
    }
}

impl Default for Monitored {
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
