//! Names of the objects and components that facts are about.

use mesh_k8s::{inject, trust};

/// The components by the label of their pods; each is a Deployment `linkerd-NAME`.
pub(crate) const COMPONENTS: [&str; 3] = ["identity", "destination", "proxy-injector"];

/// The ConfigMap of trust anchors in the control plane's namespace. Earlier versions copied it to
/// each namespace with meshed pods.
pub(crate) const TRUST_ROOTS: &str = inject::TRUST_ROOTS_CONFIG_MAP;
pub(crate) const BUNDLE_KEY: &str = inject::TRUST_ROOTS_KEY;
/// The ConfigMap where the identity service keeps the anchors that it sends, and their number.
pub(crate) const TRUST_BUNDLE: &str = trust::BUNDLE_CONFIG_MAP;

/// The registration of the injector's webhook.
pub(crate) const INJECTOR_REGISTRATION: &str = "linkerd-proxy-injector-webhook-config";
/// The Secret of the injector's serving certificate.
pub(crate) const INJECTOR_SECRET: &str = "linkerd-proxy-injector-k8s-tls";
pub(crate) const INJECTOR_SERVICE: &str = "linkerd-proxy-injector";

/// The names of the objects of a validator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ValidatorNames {
    /// The validator in messages.
    pub(crate) name: &'static str,
    /// The container that serves the webhook.
    pub(crate) container: &'static str,
    pub(crate) registration: &'static str,
    pub(crate) secret: &'static str,
    pub(crate) service: &'static str,
    /// What the API server stores unchecked without the webhook.
    pub(crate) objects: &'static str,
}

pub(crate) const POLICY_VALIDATOR: ValidatorNames = ValidatorNames {
    name: "policy validator",
    container: "policy",
    registration: "linkerd-policy-validator-webhook-config",
    secret: "linkerd-policy-validator-k8s-tls",
    service: "linkerd-policy-validator",
    objects: "policies",
};

pub(crate) const PROFILE_VALIDATOR: ValidatorNames = ValidatorNames {
    name: "ServiceProfile validator",
    container: "sp-validator",
    registration: "linkerd-sp-validator-webhook-config",
    secret: "linkerd-sp-validator-k8s-tls",
    service: "linkerd-sp-validator",
    objects: "ServiceProfiles",
};

/// All validators.
pub(crate) const VALIDATORS: [ValidatorNames; 2] = [PROFILE_VALIDATOR, POLICY_VALIDATOR];

/// The APIService of the tap API.
pub(crate) const TAP_API: &str = "v1alpha1.tap.linkerd.io";
/// The webhook configuration of the tap injector.
pub(crate) const TAP_INJECTOR: &str = "linkerd-tap-injector-webhook-config";
/// The Secrets of the serving certificates of the viz extension.
pub(crate) const TAP_SECRET: &str = "tap-k8s-tls";
pub(crate) const TAP_INJECTOR_SECRET: &str = "tap-injector-k8s-tls";

/// The namespace of cluster DNS and of the leases of Kubernetes' controllers.
pub(crate) const SYSTEM_NAMESPACE: &str = "kube-system";
/// The ConfigMap of CoreDNS in [`SYSTEM_NAMESPACE`].
pub(crate) const DNS_CONFIG: &str = "coredns";

/// The kernel's type information.
pub(crate) const BTF: &str = "/sys/kernel/btf/vmlinux";

/// The metric of proxies with the end of their certificate.
pub(crate) const CERTIFICATE_EXPIRY: &str = "control_identity_cert_expiration_timestamp_seconds";
