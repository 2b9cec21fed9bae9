//! Whether a pod is injected, and why not.

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use mesh_core::annotation;

use crate::pod;

/// What becomes of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// `ingress`: the proxy routes by the request's headers instead of the original destination.
    Inject { ingress: bool },
    /// Never empty.
    Skip(Vec<SkipReason>),
}

/// Why a pod is not injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SkipReason {
    HostNetwork,
    SidecarExists,
    InvalidNamespaceAnnotation,
    InvalidWorkloadAnnotation,
    DisabledByAnnotation,
    NotEnabled,
    NoServiceAccountToken,
}

impl SkipReason {
    /// As metrics name it.
    pub const fn code(self) -> &'static str {
        match self {
            Self::HostNetwork => "host_network_enabled",
            Self::SidecarExists => "sidecar_already_exists",
            Self::InvalidNamespaceAnnotation => "invalid_inject_annotation_at_ns",
            Self::InvalidWorkloadAnnotation => "invalid_inject_annotation_at_workload",
            Self::DisabledByAnnotation => "injection_disable_annotation_present",
            Self::NotEnabled => "injection_enable_annotation_absent",
            Self::NoServiceAccountToken => "disabled_automount_service_account_token_account",
        }
    }

    /// As events and reports explain it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::HostNetwork => "hostNetwork is enabled",
            Self::SidecarExists => "pod has a sidecar injected already",
            Self::InvalidNamespaceAnnotation => {
                "the namespace's linkerd.io/inject annotation is none of enabled, ingress, disabled"
            }
            Self::InvalidWorkloadAnnotation => {
                "the pod's linkerd.io/inject annotation is none of enabled, ingress, disabled"
            }
            Self::DisabledByAnnotation => "the pod has linkerd.io/inject: disabled",
            Self::NotEnabled => "neither the namespace nor the pod has linkerd.io/inject: enabled",
            Self::NoServiceAccountToken => {
                "automountServiceAccountToken is false and service account token projection is off"
            }
        }
    }
}

/// Decides by the annotations of namespace and pod and by what the pod is.
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
    let asked = asked_for(Mode::of(namespace), Mode::of(&pod.metadata));
    if let Err(reason) = asked {
        reasons.push(reason);
    }
    if !token_projection && spec.automount_service_account_token == Some(false) {
        reasons.push(SkipReason::NoServiceAccountToken);
    }
    match asked {
        Ok(ingress) if reasons.is_empty() => Decision::Inject { ingress },
        _ => Decision::Skip(reasons),
    }
}

/// The value of `linkerd.io/inject`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Absent,
    Enabled,
    Ingress,
    Disabled,
    Invalid,
}

impl Mode {
    fn of(meta: &ObjectMeta) -> Self {
        let annotations = meta.annotations.as_ref();
        match annotations.and_then(|all| all.get(annotation::INJECT)) {
            None => Self::Absent,
            Some(value) => match value.as_str() {
                "" => Self::Absent,
                "enabled" => Self::Enabled,
                "ingress" => Self::Ingress,
                "disabled" => Self::Disabled,
                _ => Self::Invalid,
            },
        }
    }
}

/// Whether injection is asked for, and then whether in ingress mode. The pod's own word goes before
/// the namespace's.
fn asked_for(namespace: Mode, pod: Mode) -> Result<bool, SkipReason> {
    match (namespace, pod) {
        (Mode::Invalid, _) => Err(SkipReason::InvalidNamespaceAnnotation),
        (_, Mode::Invalid) => Err(SkipReason::InvalidWorkloadAnnotation),
        (_, Mode::Enabled) => Ok(false),
        (_, Mode::Ingress) => Ok(true),
        (Mode::Enabled, Mode::Absent) => Ok(false),
        (Mode::Ingress, Mode::Absent) => Ok(true),
        (Mode::Enabled | Mode::Ingress, Mode::Disabled) => Err(SkipReason::DisabledByAnnotation),
        (Mode::Absent | Mode::Disabled, Mode::Absent | Mode::Disabled) => {
            Err(SkipReason::NotEnabled)
        }
    }
}

/// Does the pod carry a proxy of this mesh or another already?
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
        matches!(container.name.as_str(), "linkerd-init" | "istio-init")
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
    fn the_annotations_of_namespace_and_pod() {
        use SkipReason::{
            DisabledByAnnotation, InvalidNamespaceAnnotation, InvalidWorkloadAnnotation, NotEnabled,
        };
        let inject = Ok(false);
        let ingress = Ok(true);
        let check = |namespace, pod, expect: Result<bool, SkipReason>| {
            let given = Pod {
                metadata: meta(pod),
                ..Default::default()
            };
            let expect = match expect {
                Ok(ingress) => Decision::Inject { ingress },
                Err(reason) => Decision::Skip(vec![reason]),
            };
            assert_eq!(
                decide(&meta(namespace), &given, true),
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
    fn what_the_pod_is() {
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
