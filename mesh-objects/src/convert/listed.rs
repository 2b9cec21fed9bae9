//! Objects of the metrics API.

use kube::core::{DynamicObject, PartialObjectMeta};
use mesh_core::annotation::CONTROL_PLANE_COMPONENT;
use mesh_k8s::inject::{DISABLE_TAP, TAP_ENABLED};
use mesh_k8s::kinds::core::{ContainerState, ContainerStateTerminated, ContainerStatus};
use mesh_k8s::kinds::{ObjectMeta, Pod, Service};
use mesh_k8s::pod as accessors;
use mesh_k8s::pod::{PROXY_CONTAINER, is_annotated, ports};
use serde::Deserialize;

use super::{name, owner};
use crate::model::{
    ContainerError, Detail, ListedKind, ListedObject, PodDetail, PodPhase, ProfileDetail,
};

/// Bounds the texts of container errors, which come from container runtimes and applications. The
/// API server allows 4 KiB for a termination message.
const MAX_ERROR_TEXT: usize = 1024;

/// Bounds the container errors of a pod.
const MAX_ERRORS: usize = 32;

/// Bounds the routes and the overrides of a ServiceProfile.
const MAX_PROFILE_ITEMS: usize = 1_000;

/// Only the metadata of an object.
pub(crate) type Metadata = PartialObjectMeta<DynamicObject>;

pub(crate) fn listed(kind: ListedKind, meta: &ObjectMeta) -> ListedObject {
    with_detail(kind, meta, Detail::None)
}

pub(crate) fn listed_pod(pod: &Pod) -> ListedObject {
    let detail = PodDetail {
        phase: phase(pod),
        status: status(pod).into(),
        summary: summary(pod).into(),
        ip: pod
            .status
            .as_ref()
            .and_then(|status| status.pod_ip.as_deref())
            .unwrap_or_default()
            .into(),
        service_account: accessors::service_account(pod).into(),
        control_plane_ns: accessors::control_plane_namespace(pod)
            .unwrap_or_default()
            .into(),
        control_plane: accessors::label(pod, CONTROL_PLANE_COMPONENT)
            .is_some_and(|component| !component.is_empty()),
        is_tap_enabled: is_annotated(&pod.metadata, TAP_ENABLED),
        is_tap_disabled: is_annotated(&pod.metadata, DISABLE_TAP),
        admin_port: ports::proxy_ports(pod).map(|ports| ports.admin),
        tap_port: ports::proxy_ports(pod).map(|ports| ports.control),
        proxy_ready: statuses(pod).any(|it| it.name == PROXY_CONTAINER && it.ready),
        proxy_version: proxy_version(pod).into(),
        resource_version: pod
            .metadata
            .resource_version
            .as_deref()
            .unwrap_or_default()
            .into(),
        errors: errors(pod),
    };
    with_detail(
        ListedKind::Pod,
        &pod.metadata,
        Detail::Pod(Box::new(detail)),
    )
}

/// An ExternalName Service has no pods.
pub(crate) fn listed_service(service: &Service) -> ListedObject {
    let spec = service.spec.as_ref();
    let external = spec.is_some_and(|spec| spec.type_.as_deref() == Some("ExternalName"));
    let selector = spec
        .filter(|_| !external)
        .and_then(|spec| spec.selector.clone())
        .unwrap_or_default();
    with_detail(
        ListedKind::Service,
        &service.metadata,
        Detail::Service(selector),
    )
}

pub(crate) fn listed_profile(profile: &DynamicObject) -> ListedObject {
    #[derive(Default, Deserialize)]
    struct Profile {
        #[serde(default)]
        spec: Spec,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec {
        routes: Vec<Route>,
        dst_overrides: Vec<Override>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Route {
        name: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Override {
        authority: String,
        /// A quantity: a number or a string.
        weight: serde_json::Value,
    }
    let weight = |weight: &serde_json::Value| match weight {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    // The API server validates profiles against their definition. The table of a profile that
    // cannot be read has no routes.
    let profile_data = Profile::deserialize(&profile.data).unwrap_or_default();
    let detail = ProfileDetail {
        routes: profile_data
            .spec
            .routes
            .into_iter()
            .map(|route| route.name)
            .take(MAX_PROFILE_ITEMS)
            .collect(),
        overrides: profile_data
            .spec
            .dst_overrides
            .into_iter()
            .map(|it| (it.authority, weight(&it.weight)))
            .take(MAX_PROFILE_ITEMS)
            .collect(),
    };
    with_detail(
        ListedKind::ServiceProfile,
        &profile.metadata,
        Detail::Profile(detail),
    )
}

fn with_detail(kind: ListedKind, meta: &ObjectMeta, detail: Detail) -> ListedObject {
    ListedObject {
        kind,
        name: name(meta),
        labels: meta.labels.clone().unwrap_or_default(),
        owner: owner(meta),
        detail,
    }
}

fn phase(pod: &Pod) -> PodPhase {
    match phase_text(pod) {
        "Running" => PodPhase::Running,
        "Succeeded" => PodPhase::Succeeded,
        "Failed" => PodPhase::Failed,
        _ => PodPhase::Pending,
    }
}

fn phase_text(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

fn reason(pod: &Pod) -> Option<&str> {
    let reason = pod.status.as_ref()?.reason.as_deref();
    reason.filter(|reason| !reason.is_empty())
}

fn summary(pod: &Pod) -> &str {
    if reason(pod) == Some("Evicted") {
        "Evicted"
    } else if pod.metadata.deletion_timestamp.is_some() {
        "Terminating"
    } else {
        phase_text(pod)
    }
}

/// Returns the status that `kubectl get pods` shows, apart from deletion.
fn status(pod: &Pod) -> String {
    let initial = reason(pod).unwrap_or(phase_text(pod)).to_owned();
    let Some(status) = &pod.status else {
        return initial;
    };
    let init = status.init_container_statuses.as_deref().unwrap_or(&[]);
    if let Some(status) = init_status(pod, init) {
        return status;
    }
    let mut shown = initial;
    let mut running = false;
    for container in status.container_statuses.iter().flatten().rev() {
        let state = container.state.as_ref();
        if let Some(reason) = waiting_reason(state) {
            shown = reason.to_owned();
        } else if let Some(terminated) = state.and_then(|state| state.terminated.as_ref()) {
            shown = terminated_reason(terminated);
        } else if container.ready && state.is_some_and(|state| state.running.is_some()) {
            running = true;
        }
    }
    if shown == "Completed" && running {
        shown = "Running".to_owned();
    }
    shown
}

/// Returns the status of the first init container that is neither complete nor a started sidecar.
fn init_status(pod: &Pod, statuses: &[ContainerStatus]) -> Option<String> {
    let declared = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.init_containers.as_deref())
        .unwrap_or(&[]);
    let is_sidecar = |name: &str| {
        declared.iter().any(|container| {
            container.name == name && container.restart_policy.as_deref() == Some("Always")
        })
    };
    let (at, container) = statuses.iter().enumerate().find(|(_, container)| {
        let terminated = container
            .state
            .as_ref()
            .and_then(|state| state.terminated.as_ref());
        let complete = terminated.is_some_and(|it| !has_failed(it));
        let started =
            is_sidecar(&container.name) && container.started == Some(true) && container.ready;
        !complete && !started
    })?;
    let state = container.state.as_ref();
    let shown = match state.and_then(|state| state.terminated.as_ref()) {
        Some(terminated) => format!("Init:{}", terminated_reason(terminated)),
        None => match waiting_reason(state) {
            Some(reason) if reason != "PodInitializing" => format!("Init:{reason}"),
            _ => format!("Init:{at}/{}", declared.len()),
        },
    };
    Some(shown)
}

fn waiting_reason(state: Option<&ContainerState>) -> Option<&str> {
    let reason = state?.waiting.as_ref()?.reason.as_deref();
    reason.filter(|reason| !reason.is_empty())
}

fn terminated_reason(terminated: &ContainerStateTerminated) -> String {
    match (terminated.reason.as_deref(), terminated.signal) {
        (Some(reason), _) if !reason.is_empty() => reason.to_owned(),
        (_, Some(signal)) if signal != 0 => format!("Signal:{signal}"),
        _ => format!("ExitCode:{}", terminated.exit_code),
    }
}

fn has_failed(terminated: &ContainerStateTerminated) -> bool {
    terminated.exit_code != 0 || terminated.signal.is_some_and(|signal| signal != 0)
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    containers.into_iter().chain(init).flatten()
}

/// Returns the errors of containers that are not ready: the current state and the last one.
fn errors(pod: &Pod) -> Vec<ContainerError> {
    let mut errors = Vec::new();
    for container in statuses(pod).filter(|container| !container.ready) {
        let mut add = |reason: &Option<String>, message: &Option<String>| {
            errors.push(ContainerError {
                container: container.name.clone(),
                image: cut(&container.image),
                reason: cut(reason.as_deref().unwrap_or_default()),
                message: cut(message.as_deref().unwrap_or_default()),
            });
        };
        if let Some(state) = &container.state {
            if let Some(waiting) = &state.waiting {
                add(&waiting.reason, &waiting.message);
            }
            if let Some(terminated) = state.terminated.as_ref().filter(|it| has_failed(it)) {
                add(&terminated.reason, &terminated.message);
            }
        }
        if let Some(state) = &container.last_state {
            if let Some(waiting) = &state.waiting {
                add(&waiting.reason, &waiting.message);
            }
            if let Some(terminated) = &state.terminated {
                add(&terminated.reason, &terminated.message);
            }
        }
    }
    errors.truncate(MAX_ERRORS);
    errors
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_ERROR_TEXT)].to_owned()
}

fn proxy_version(pod: &Pod) -> &str {
    let Some(spec) = &pod.spec else {
        return "";
    };
    let proxy = accessors::containers(spec).find(|container| container.name == PROXY_CONTAINER);
    let image = proxy.and_then(|proxy| proxy.image.as_deref());
    match image {
        Some(image) if !image.contains('@') => {
            let file = image.rsplit('/').next().unwrap_or_default();
            file.rsplit_once(':').map_or("", |(_, tag)| tag)
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(yaml: &str) -> Pod {
        serde_norway::from_str(yaml).unwrap()
    }

    #[test]
    fn status_is_that_of_kubectl() {
        let check = |spec: &str, status: &str, expect: &str| {
            let text = format!("{{spec: {{containers: [], {spec}}}, status: {{{status}}}}}");
            assert_eq!(super::status(&pod(&text)), expect, "{text}");
        };
        let waiting = |reason: &str| format!("{{waiting: {{reason: {reason}}}}}");
        let base = "imageID: i, image: i, restartCount: 0";
        check("", "phase: Running", "Running");
        check("", "phase: Failed, reason: Evicted", "Evicted");
        check(
            "",
            &format!(
                "phase: Pending, containerStatuses: [{{name: a, ready: false, {base}, state: {}}}]",
                waiting("ImagePullBackOff")
            ),
            "ImagePullBackOff",
        );
        check(
            "",
            &format!(
                "phase: Running, containerStatuses: [{{name: a, ready: true, {base}, state: {{running: {{}}}}}}, {{name: b, ready: false, {base}, state: {{terminated: {{exitCode: 0, reason: Completed}}}}}}]"
            ),
            "Running",
        );
        check(
            "",
            &format!(
                "phase: Failed, containerStatuses: [{{name: a, ready: false, {base}, state: {{terminated: {{exitCode: 3}}}}}}]"
            ),
            "ExitCode:3",
        );
        check(
            "initContainers: [{name: a}, {name: b}]",
            &format!(
                "phase: Pending, initContainerStatuses: [{{name: a, ready: true, {base}, state: {{terminated: {{exitCode: 0}}}}}}, {{name: b, ready: false, {base}, state: {{running: {{}}}}}}]"
            ),
            "Init:1/2",
        );
        check(
            "initContainers: [{name: a, restartPolicy: Always}]",
            &format!(
                "phase: Running, initContainerStatuses: [{{name: a, ready: true, started: true, {base}, state: {{running: {{}}}}}}]"
            ),
            "Running",
        );
    }

    #[test]
    fn errors_are_of_containers_that_are_not_ready_and_bounded() {
        let text = "
spec: {containers: []}
status:
  containerStatuses:
  - name: ready
    ready: true
    image: i
    imageID: i
    restartCount: 1
    state: {running: {}}
    lastState: {terminated: {exitCode: 1, reason: Error}}
  - name: app
    ready: false
    image: app:1
    imageID: i
    restartCount: 4
    state: {waiting: {reason: CrashLoopBackOff, message: back-off 40s}}
    lastState: {terminated: {exitCode: 1, reason: Error, message: LONG}}
  initContainerStatuses:
  - {name: done, ready: false, image: i, imageID: i, restartCount: 0, state: {terminated: {exitCode: 0}}}
";
        let found = errors(&pod(&text.replace("LONG", &"ä".repeat(1000))));
        let reasons: Vec<_> = found
            .iter()
            .map(|it| (it.container.as_str(), it.reason.as_str()))
            .collect();
        assert_eq!(reasons, [("app", "CrashLoopBackOff"), ("app", "Error")]);
        assert_eq!(found[0].message, "back-off 40s");
        assert_eq!(found[1].message, "ä".repeat(512));
    }

    #[test]
    fn proxy_version_is_tag_of_image() {
        for (image, expect) in [
            ("cr.l5d.io/linkerd/proxy:edge-25.1.1", "edge-25.1.1"),
            ("localhost:5000/proxy", ""),
            ("proxy@sha256:abc", ""),
        ] {
            let text = format!("spec: {{containers: [{{name: linkerd-proxy, image: '{image}'}}]}}");
            assert_eq!(proxy_version(&pod(&text)), expect, "{image}");
        }
    }

    #[test]
    fn profile_has_routes_and_weights() {
        let text = "
metadata: {name: web.shop.svc.cluster.local, namespace: shop}
spec:
  routes: [{name: GET /a, condition: {method: GET}}, {name: POST /b}]
  dstOverrides: [{authority: web-2.shop.svc.cluster.local, weight: 500m}, {authority: web-3, weight: 2}]
";
        let profile = listed_profile(&serde_norway::from_str(text).unwrap());
        let Detail::Profile(detail) = profile.detail else {
            panic!("{profile:?}");
        };
        assert_eq!(detail.routes, ["GET /a", "POST /b"]);
        let weights: Vec<_> = detail.overrides.iter().map(|(_, it)| it.as_str()).collect();
        assert_eq!(weights, ["500m", "2"]);
    }
}
