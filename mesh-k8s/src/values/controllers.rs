//! The values of the controllers (identity, destination, policy, injector) and of their monitoring.

use k8s_openapi::api::core::v1::EnvVar;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::common::{OpenObject, ProbeTimeout, Resources, StringMap};

values! {
    /// The identity service.
    pub struct Identity {
        /// The ConfigMap `linkerd-identity-trust-roots` is managed externally, for example by
        /// trust-manager
        #[serde(rename = "externalCA")]
        pub external_ca: bool = false,
        /// Send the trust anchors to running proxies, so that they receive new ones
        pub publish_trust_roots: bool = true,
        /// The server of the trust bundle, which linked clusters with trust anchors of their own
        /// fetch
        pub bundle_endpoint: ServedBundle,
        /// Give proxies a projected token whose audience is the identity service. With `false` they
        /// use the token of their service account
        pub service_account_token_projection: bool = true,
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

    /// The server of the trust bundle.
    pub struct ServedBundle {
        /// Serve the trust bundle by HTTPS, as SPIFFE's federation has it (`https_spiffe`)
        pub enabled: bool = false,
        /// Port of the Service `linkerd-identity-bundle`
        #[schemars(range(min = 1, max = 65535))]
        pub port: u32 = 8443,
        /// Type of the Service
        #[schemars(extend("enum" = ["ClusterIP", "LoadBalancer", "NodePort"]))]
        pub service_type: String = "LoadBalancer".into(),
        /// Annotations of the Service
        pub service_annotations: StringMap,
    }

    /// The issuer of the proxies' certificates.
    pub struct Issuer {
        /// Format of the Secret `linkerd-identity-issuer`: `linkerd.io/tls` (crt.pem, key.pem) or
        /// `kubernetes.io/tls` (tls.crt, tls.key), which is managed externally, for example by
        /// cert-manager
        #[schemars(extend("enum" = ["linkerd.io/tls", "kubernetes.io/tls"]))]
        pub scheme: String = "linkerd.io/tls".into(),
        /// Tolerated difference between the clocks of two nodes
        pub clock_skew_allowance: String = "20s".into(),
        /// Lifetime of the proxies' certificates
        pub issuance_lifetime: String = "24h0m0s".into(),
        /// Certificate and key of the issuer. If empty, the mesh creates and stores a trust anchor
        /// and an issuer
        pub tls: IssuerTls,
    }

    /// The certificate and key of the issuer.
    pub struct IssuerTls {
        /// Certificate of the issuer, in PEM
        #[serde(rename = "crtPEM")]
        pub crt_pem: String,
        /// Private key of the issuer, in PEM
        #[serde(rename = "keyPEM")]
        pub key_pem: String,
    }

    /// The rate limit of requests to the API server.
    #[derive(Copy)]
    pub struct KubeApi {
        /// Requests per second
        #[serde(rename = "clientQPS")]
        pub client_qps: u32 = 100,
        /// Requests in a burst
        pub client_burst: u32 = 200,
    }

    /// The destination service.
    pub struct DestinationController {
        /// HTTP/2 client settings of proxies for connections to meshed pods
        #[schemars(with = "OpenObject")]
        // A dead peer is detected after 13 s, with or without streams.
        pub meshed_http2_client_protobuf: serde_json::Value = serde_json::json!({
                    "keep_alive": {
                        "interval": { "seconds": 10 },
                        "timeout": { "seconds": 3 },
                        "while_idle": true,
                    },
                }),
        /// Send the endpoints of clusters that Secrets link (remote discovery and federated
        /// Services). It needs the right to list the Secrets of the control plane's namespace,
        /// among them the issuer's; `false` takes it away
        pub linked_clusters: bool = true,
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
    pub struct PolicyController {
        /// Log level of the policy service
        pub log_level: String = "info".into(),
        /// CIDR blocks of the addresses that kubelets send probes from
        // A kubelet may send probes from any address of its node, and the chart cannot know them.
        pub probe_networks: Vec<String> = vec!["0.0.0.0/0".into(), "::/0".into()],
        /// Addresses of a pod's node that may connect to a port whose probes show no path (HTTPS,
        /// opaque ports) or may be redirected: `hostIPs`, the addresses in the pod's status;
        /// `podCIDRs`, the first address of each podCIDR of the Node, which plugins like bridge
        /// connect from. Every pod in the host network of that node has them, too. Empty admits
        /// none
        #[schemars(extend("items" = { "type": "string", "enum": ["hostIPs", "podCIDRs"] }))]
        pub node_probe_sources: Vec<String> = vec![],
        /// Resource requests and limits of the policy service
        pub resources: Resources,
        /// Liveness probe of the policy service
        pub liveness_probe: ProbeTimeout,
        /// Readiness probe of the policy service
        pub readiness_probe: ProbeTimeout,
    }

    /// Traffic that leaves the cluster.
    pub struct Egress {
        /// Namespace whose EgressNetworks apply to the pods of every namespace without one
        pub global_egress_network_namespace: String = "linkerd-egress".into(),
    }

    /// The webhook of the injector: its certificate and the objects that the API server sends to
    /// it.
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
        /// CA certificates for the API server to verify the certificate of the webhook, in PEM
        pub ca_bundle: String,
        /// Certificate (namespace/name) whose CA cert-manager injects as `caBundle`
        pub inject_ca_from: String,
        /// Secret (namespace/name) whose CA cert-manager injects as `caBundle`
        pub inject_ca_from_secret: String,
        /// Namespaces whose objects the API server sends to the webhook
        #[schemars(with = "OpenObject")]
        pub namespace_selector: LabelSelector = selector([
            ("config.linkerd.io/admission-webhooks", "NotIn", &["disabled"]),
            ("kubernetes.io/metadata.name", "NotIn", &["kube-system", "cert-manager"]),
        ]),
        /// Objects that the API server sends to the webhook
        #[schemars(with = "OpenObject")]
        // The injector depends on these pods, so they must start without it.
        pub object_selector: LabelSelector = selector([
            ("linkerd.io/control-plane-component", "DoesNotExist", &[]),
            ("linkerd.io/cni-resource", "DoesNotExist", &[]),
        ]),
        /// Seconds that the API server waits for a response
        #[schemars(range(min = 1, max = 30))]
        pub timeout_seconds: i32 = 10,
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

    /// The ServiceProfile validator.
    #[derive(Copy)]
    pub struct SpValidator {
        /// Liveness probe of the ServiceProfile validator
        pub liveness_probe: ProbeTimeout,
        /// Readiness probe of the ServiceProfile validator
        pub readiness_probe: ProbeTimeout,
    }

    /// A validating webhook: its certificate and the objects that the API server sends to it.
    pub struct Validator {
        /// The Secret of the webhook's certificate is managed externally; `caBundle`,
        /// `injectCaFrom` or `injectCaFromSecret` sets its CA
        pub external_secret: bool,
        /// Certificate of the webhook, in PEM. If empty, and without `externalSecret`, the
        /// controller creates and renews its own
        #[serde(rename = "crtPEM")]
        pub crt_pem: String,
        /// Private key of the webhook, in PEM
        #[serde(rename = "keyPEM")]
        pub key_pem: String,
        /// CA certificates for the API server to verify the certificate of the webhook, in PEM
        pub ca_bundle: String,
        /// Certificate (namespace/name) whose CA cert-manager injects as `caBundle`
        pub inject_ca_from: String,
        /// Secret (namespace/name) whose CA cert-manager injects as `caBundle`
        pub inject_ca_from_secret: String,
        /// Namespaces whose objects the API server sends to the webhook
        #[schemars(with = "OpenObject")]
        pub namespace_selector: LabelSelector = selector([
            ("config.linkerd.io/admission-webhooks", "NotIn", &["disabled"]),
        ]),
        /// Seconds that the API server waits for a response
        #[schemars(range(min = 1, max = 30))]
        pub timeout_seconds: i32 = 10,
    }

    /// Settings that all controllers share.
    pub struct Controller {
        /// The PodDisruptionBudgets of `enablePodDisruptionBudget`
        pub pod_disruption_budget: PodDisruptionBudget,
        /// A HorizontalPodAutoscaler each for destination (with policy), identity and injector
        pub autoscaling: Autoscaling,
    }

    /// The PodDisruptionBudgets of the controllers.
    pub struct PodDisruptionBudget {
        /// Pods of a controller that may be unavailable, as a number or percentage
        #[schemars(extend("type" = ["integer", "string"]))]
        pub max_unavailable: serde_json::Value = 1.into(),
    }

    /// The HorizontalPodAutoscalers of the controllers.
    pub struct Autoscaling {
        /// Create them; requires CPU requests of the controllers, which `values-ha.yaml` sets. Each
        /// component then has `controllerReplicas` or more
        pub enabled: bool = false,
        /// The most replicas of a component
        #[schemars(range(min = 1))]
        pub max_replicas: u32 = 10,
        /// CPU time of a controller's containers, in percent of their request; above it, the
        /// controller gets another replica
        #[serde(rename = "targetCPUUtilizationPercentage")]
        #[schemars(range(min = 1))]
        pub target_cpu_utilization_percentage: u32 = 70,
        /// Further metrics of the HorizontalPodAutoscaler of destination, in the form of
        /// `autoscaling/v2`, for example the lag of its updates
        pub destination_metrics: Vec<serde_json::Value>,
    }

    /// The PodMonitors for the Prometheus operator.
    pub struct PodMonitor {
        /// Create PodMonitors; requires the Prometheus operator
        pub enabled: bool = false,
        /// Interval between scrapes
        pub scrape_interval: String = "10s".into(),
        /// Timeout of a scrape
        pub scrape_timeout: String = "10s".into(),
        /// Labels of the PodMonitors, for the selector of Prometheus
        pub labels: StringMap,
        /// Metrics of the controllers
        pub controller: PodMonitorTarget,
        /// Metrics of the service mirrors of the multicluster extension
        pub service_mirror: PodMonitorTarget,
        /// Metrics of the proxies
        pub proxy: PodMonitorTarget,
        /// Metrics of the agents; requires a `meshAgent.adminAddr` that is not a loopback address
        pub agent: PodMonitorTarget = PodMonitorTarget { enabled: false },
    }

    /// A component with a PodMonitor.
    #[derive(Copy)]
    pub struct PodMonitorTarget {
        /// Create this PodMonitor
        pub enabled: bool = true,
    }

    /// The update strategy of the controllers' Deployments.
    pub struct DeploymentStrategy {
        /// Bounds of a rolling update
        pub rolling_update: RollingUpdate,
    }

    /// The bounds of a rolling update.
    pub struct RollingUpdate {
        /// Pods that may be unavailable during an update, as a number or percentage
        #[schemars(extend("type" = ["integer", "string"]))]
        pub max_unavailable: serde_json::Value = "25%".into(),
        /// Additional pods during an update, as a number or percentage
        #[schemars(extend("type" = ["integer", "string"]))]
        pub max_surge: serde_json::Value = "25%".into(),
    }
}

/// Returns a selector with a requirement for each key, operator and list of values.
pub(super) fn selector<const LEN: usize>(
    requirements: [(&str, &str, &[&str]); LEN],
) -> LabelSelector {
    let requirement = |(key, operator, values): (&str, &str, &[&str])| LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: (!values.is_empty())
            .then(|| values.iter().map(|value| (*value).to_owned()).collect()),
    };
    LabelSelector {
        match_expressions: Some(requirements.map(requirement).into()),
        match_labels: None,
    }
}
