//! The decision whether a pod is injected.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mesh_core::annotation;

use crate::pod;

/// Whether a pod is injected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The pod gets a proxy.
    Inject {
        /// Whether the proxy routes by the headers of requests instead of the original destination.
        ingress: bool,
    },
    /// The pod is not injected, for at least one reason.
    Skip(Vec<SkipReason>),
}

mesh_core::names! {
    /// Why a pod is not injected. The names are label values of metrics.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum SkipReason {
        /// The pod uses the network of its node.
        HostNetwork = "host_network_enabled",
        /// The pod already has a proxy of this or another mesh.
        SidecarExists = "sidecar_already_exists",
        /// The namespace has an invalid `linkerd.io/inject`.
        InvalidNamespaceAnnotation = "invalid_inject_annotation_at_ns",
        /// The pod has an invalid `linkerd.io/inject`.
        InvalidWorkloadAnnotation = "invalid_inject_annotation_at_workload",
        /// The namespace enables injection and the pod disables it.
        DisabledByAnnotation = "injection_disable_annotation_present",
        /// Neither namespace nor pod enables injection.
        NotEnabled = "injection_enable_annotation_absent",
        /// The pod has no token, which its proxy needs to obtain a certificate.
        NoServiceAccountToken = "disabled_automount_service_account_token_account",
    }
}

impl SkipReason {
    /// Returns the explanation in events and reports.
    pub const fn text(self) -> &'static str {
        match self {
            Self::HostNetwork => "hostNetwork is enabled",
            Self::SidecarExists => "pod has a sidecar injected already",
            Self::InvalidNamespaceAnnotation => {
                "the namespace's linkerd.io/inject annotation is not enabled, ingress or disabled"
            }
            Self::InvalidWorkloadAnnotation => {
                "the pod's linkerd.io/inject annotation is not enabled, ingress or disabled"
            }
            Self::DisabledByAnnotation => "the pod has linkerd.io/inject: disabled",
            Self::NotEnabled => "neither the namespace nor the pod has linkerd.io/inject: enabled",
            Self::NoServiceAccountToken => {
                "automountServiceAccountToken is false and service account token projection is off"
            }
        }
    }
}

/// Decides whether a pod is injected, from the `linkerd.io/inject` annotations of namespace and pod
/// and from the pod's spec. `token_projection`: proxies get a projected token of their own.
pub fn decide(namespace: &ObjectMeta, pod: &Pod, token_projection: bool) -> Decision {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let mut reasons = Vec::new();
    if pod::is_host_network(pod) {
        reasons.push(SkipReason::HostNetwork);
    }
    if has_sidecar(spec) {
        reasons.push(SkipReason::SidecarExists);
    }
    let mode = resolve_mode(InjectMode::of(namespace), InjectMode::of(&pod.metadata));
    if let Err(reason) = mode {
        reasons.push(reason);
    }
    if !token_projection && spec.automount_service_account_token == Some(false) {
        reasons.push(SkipReason::NoServiceAccountToken);
    }
    match mode {
        Ok(ingress) if reasons.is_empty() => Decision::Inject { ingress },
        _ => Decision::Skip(reasons),
    }
}

/// The value of `linkerd.io/inject`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InjectMode {
    Absent,
    Enabled,
    Ingress,
    Disabled,
    Invalid,
}

impl InjectMode {
    fn of(meta: &ObjectMeta) -> Self {
        match pod::meta_annotation(meta, annotation::INJECT) {
            None | Some("") => Self::Absent,
            Some("enabled") => Self::Enabled,
            Some("ingress") => Self::Ingress,
            Some("disabled") => Self::Disabled,
            Some(_) => Self::Invalid,
        }
    }
}

/// Returns whether injection is in ingress mode, or why the annotations do not enable injection.
/// The annotation of the pod takes precedence.
fn resolve_mode(namespace: InjectMode, pod: InjectMode) -> Result<bool, SkipReason> {
    match (namespace, pod) {
        (InjectMode::Invalid, _) => Err(SkipReason::InvalidNamespaceAnnotation),
        (_, InjectMode::Invalid) => Err(SkipReason::InvalidWorkloadAnnotation),
        (_, InjectMode::Enabled) => Ok(false),
        (_, InjectMode::Ingress) => Ok(true),
        (InjectMode::Enabled, InjectMode::Absent) => Ok(false),
        (InjectMode::Ingress, InjectMode::Absent) => Ok(true),
        (InjectMode::Enabled | InjectMode::Ingress, InjectMode::Disabled) => {
            Err(SkipReason::DisabledByAnnotation)
        }
        (InjectMode::Absent | InjectMode::Disabled, InjectMode::Absent | InjectMode::Disabled) => {
            Err(SkipReason::NotEnabled)
        }
    }
}

/// Returns whether the pod already has a proxy of this or another mesh.
fn has_sidecar(spec: &PodSpec) -> bool {
    let image = |container: &Container, prefixes: [&str; 2]| {
        let image = container.image.as_deref().unwrap_or_default();
        prefixes.iter().any(|prefix| image.starts_with(prefix))
    };
    let proxy = pod::containers(spec).any(|container| {
        matches!(
            container.name.as_str(),
            pod::PROXY_CONTAINER | "istio-proxy"
        ) || image(
            container,
            ["cr.l5d.io/linkerd/proxy:", "gcr.io/istio-release/proxyv2:"],
        )
    });
    let init = spec.init_containers.iter().flatten().any(|container| {
        matches!(container.name.as_str(), pod::INIT_CONTAINER | "istio-init")
            || image(
                container,
                [
                    "cr.l5d.io/linkerd/proxy-init:",
                    "gcr.io/istio-release/proxy_init:",
                ],
            )
    });
    proxy || init
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(inject: Option<&str>) -> ObjectMeta {
        ObjectMeta {
            annotations: inject.map(|value| [(annotation::INJECT.into(), value.into())].into()),
            ..Default::default()
        }
    }

    #[test]
    fn pod_annotation_takes_precedence_over_namespace() {
        use SkipReason::{
            DisabledByAnnotation, InvalidNamespaceAnnotation, InvalidWorkloadAnnotation, NotEnabled,
        };
        let inject = Ok(false);
        let ingress = Ok(true);
        let check = |namespace, pod, expect: Result<bool, SkipReason>| {
            let pod_object = Pod {
                metadata: meta(pod),
                ..Default::default()
            };
            let expect = match expect {
                Ok(ingress) => Decision::Inject { ingress },
                Err(reason) => Decision::Skip(vec![reason]),
            };
            assert_eq!(
                decide(&meta(namespace), &pod_object, true),
                expect,
                "namespace {namespace:?}, pod {pod:?}"
            );
        };
        check(None, None, Err(NotEnabled));
        check(None, Some(""), Err(NotEnabled));
        check(None, Some("enabled"), inject);
        check(None, Some("ingress"), ingress);
        check(None, Some("disabled"), Err(NotEnabled));
        check(None, Some("yes"), Err(InvalidWorkloadAnnotation));
        check(Some("disabled"), None, Err(NotEnabled));
        check(Some("disabled"), Some("enabled"), inject);
        check(Some("enabled"), None, inject);
        check(Some("enabled"), Some("disabled"), Err(DisabledByAnnotation));
        check(Some("enabled"), Some("ingress"), ingress);
        check(Some("ingress"), None, ingress);
        check(Some("ingress"), Some("enabled"), inject);
        check(
            Some("true"),
            Some("enabled"),
            Err(InvalidNamespaceAnnotation),
        );
    }

    #[test]
    fn unsuitable_pods_are_skipped() {
        use SkipReason::{HostNetwork, NoServiceAccountToken, NotEnabled, SidecarExists};
        let check = |spec: &str, projection: bool, expect: &[SkipReason]| {
            let pod = Pod {
                spec: Some(serde_norway::from_str(spec).unwrap()),
                ..Default::default()
            };
            let decision = decide(&meta(Some("enabled")), &pod, projection);
            let expect = match expect {
                [] => Decision::Inject { ingress: false },
                reasons => Decision::Skip(reasons.to_vec()),
            };
            assert_eq!(decision, expect, "{spec}");
        };
        check("containers: [{name: a}]", true, &[]);
        check("{containers: [], hostNetwork: true}", true, &[HostNetwork]);
        check(
            "containers: [{name: linkerd-proxy}]",
            true,
            &[SidecarExists],
        );
        check("containers: [{name: istio-proxy}]", true, &[SidecarExists]);
        check(
            "containers: [{name: a, image: 'cr.l5d.io/linkerd/proxy:x'}]",
            true,
            &[SidecarExists],
        );
        check(
            "{containers: [], initContainers: [{name: linkerd-proxy}]}",
            true,
            &[SidecarExists],
        );
        check(
            "{containers: [], initContainers: [{name: istio-init}]}",
            true,
            &[SidecarExists],
        );
        check("containers: [{name: linkerd-init}]", true, &[]);
        let no_token = "{containers: [], automountServiceAccountToken: false}";
        check(no_token, true, &[]);
        check(no_token, false, &[NoServiceAccountToken]);
        let pod = Pod {
            spec: Some(PodSpec {
                host_network: Some(true),
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(
            decide(&meta(None), &pod, true),
            Decision::Skip(vec![HostNetwork, NotEnabled])
        );
    }
}
