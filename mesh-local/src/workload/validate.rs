//! Validates pods before they start. Messages name the object and the field.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodSpec, Probe, Volume};
use mesh_k8s::pod::{self, PROXY_CONTAINER, ports};

use super::Workload;
use crate::manifest::{Manifests, ObjectKey, Problem};

/// The capabilities of the node that validation depends on.
pub struct NodeCapabilities<'a> {
    /// Returns whether the node has the image.
    pub has_image: &'a dyn Fn(&str) -> bool,
}

/// Returns the reasons why the node cannot run a pod.
pub(super) fn errors(
    manifests: &Manifests,
    capabilities: &NodeCapabilities<'_>,
    pod: &Pod,
) -> Vec<String> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let mut errors = Vec::new();
    if spec.containers.is_empty() {
        errors.push("spec.containers: at least one container is required".to_owned());
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let volumes = spec.volumes.iter().flatten();
    let volumes: BTreeSet<&str> = volumes.map(|volume| volume.name.as_str()).collect();
    let mut names = BTreeSet::new();
    for container in pod::containers(spec) {
        let name = &container.name;
        let mut error =
            |field: &str, text: String| errors.push(format!("container {name}: {field}: {text}"));
        if !names.insert(name) {
            error("name", "duplicate container name; rename one".into());
        }
        let image = container.image.as_deref().unwrap_or_default();
        if container.command.as_ref().is_none_or(Vec::is_empty) && !(capabilities.has_image)(image)
        {
            error(
                "command",
                format!(
                    "the node does not have image {image:?}; add command: [program, argument, …] with a program of this machine"
                ),
            );
        }
        for mount in container.volume_mounts.iter().flatten() {
            if !volumes.contains(mount.name.as_str()) {
                let text = format!("spec.volumes has no {:?}", mount.name);
                error("volumeMounts", text);
            }
        }
        for var in container.env.iter().flatten() {
            if let Some(text) = env_error(manifests, namespace, var) {
                error("env", text);
            }
        }
        for (field, probe) in [
            ("livenessProbe", &container.liveness_probe),
            ("readinessProbe", &container.readiness_probe),
            ("startupProbe", &container.startup_probe),
        ] {
            let text = probe
                .as_ref()
                .and_then(|probe| probe_error(container, probe));
            if let Some(text) = text {
                error(field, text);
            }
        }
    }
    for volume in spec.volumes.iter().flatten() {
        if let Some(text) = volume_error(manifests, namespace, volume) {
            errors.push(format!("volume {}: {text}", volume.name));
        }
    }
    errors.extend(port_clashes(spec));
    errors
}

/// Finds pods that declare the same port of the host: the second could not listen.
pub(super) fn host_port_clashes(pods: &BTreeMap<ObjectKey, Workload>) -> Vec<Problem> {
    let mut taken: BTreeMap<(i32, String), &ObjectKey> = BTreeMap::new();
    let mut problems = Vec::new();
    for (key, workload) in pods {
        let Some(spec) = &workload.pod.spec else {
            continue;
        };
        let in_host = pod::is_host_network(&workload.pod);
        for (_, port) in ports::declared(spec) {
            let number = if in_host {
                Some(port.container_port)
            } else {
                port.host_port
            };
            let Some(number) = number.filter(|number| *number > 0) else {
                continue;
            };
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            if let Some(other) = taken.insert((number, protocol), key) {
                problems.push(Problem {
                    location: None,
                    object: Some(format!("Pod {key}")),
                    message: format!("port {number} of the host is also declared by Pod {other}; change one of them"),
                });
            }
        }
    }
    problems
}

/// Finds ports that several containers of a pod declare, including the proxy. The containers share
/// their addresses, so that only one can listen.
fn port_clashes(spec: &PodSpec) -> Vec<String> {
    let mut taken: BTreeMap<(i32, &str), &str> = BTreeMap::new();
    let mut errors = Vec::new();
    for (container, port) in ports::declared(spec) {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let number = port.container_port;
        if ports::port_number(number).is_none() {
            errors.push(format!(
                "container {}: ports: {number} is not a valid port number (1-65535)",
                container.name
            ));
        } else if let Some(other) = taken.insert((number, protocol), &container.name)
            && other != container.name
        {
            let advice = if other == PROXY_CONTAINER || container.name == PROXY_CONTAINER {
                "change the port, or that of the proxy with config.linkerd.io/inbound-port or admin-port"
            } else {
                "change one of them, because containers of a pod share its addresses"
            };
            errors.push(format!(
                "container {}: ports: {number} is also declared by container {other}: {advice}",
                container.name
            ));
        }
    }
    errors
}

fn env_error(manifests: &Manifests, namespace: &str, var: &EnvVar) -> Option<String> {
    let source = var.value_from.as_ref()?;
    let name = &var.name;
    let (kind, object, key, optional, has_key) = if let Some(reference) = &source.config_map_key_ref
    {
        let key = &reference.key;
        let map = manifests
            .config_maps
            .get(&ObjectKey::new(namespace, &reference.name));
        let has_key = map.map(|map| map.data.iter().any(|data| data.contains_key(key)));
        (
            "ConfigMap",
            &reference.name,
            key,
            reference.optional,
            has_key,
        )
    } else if let Some(reference) = &source.secret_key_ref {
        let key = &reference.key;
        let secret = manifests
            .secrets
            .get(&ObjectKey::new(namespace, &reference.name));
        let has_key = secret.map(|secret| {
            secret.data.iter().any(|data| data.contains_key(key))
                || secret.string_data.iter().any(|data| data.contains_key(key))
        });
        ("Secret", &reference.name, key, reference.optional, has_key)
    } else {
        let unsupported = "valueFrom supports only fieldRef, configMapKeyRef and secretKeyRef";
        return source
            .field_ref
            .is_none()
            .then(|| format!("{name}: {unsupported}"));
    };
    let missing = match has_key {
        None => format!("{kind} {namespace}/{object} does not exist"),
        Some(false) => format!("{kind} {namespace}/{object} has no key {key:?}"),
        Some(true) => return None,
    };
    (optional != Some(true)).then(|| format!("{name}: {missing}"))
}

fn probe_error(container: &Container, probe: &Probe) -> Option<String> {
    if let Some(action) = &probe.http_get {
        let scheme = action.scheme.as_deref().unwrap_or_default();
        if scheme.eq_ignore_ascii_case("https") {
            return Some("httpGet over HTTPS is not supported; use tcpSocket or exec".into());
        }
        let path = action.path.as_deref().unwrap_or_default();
        if pod::probes::request_target(path).is_none() {
            return Some(format!(
                "httpGet.path: {path:?} is not a path; begin it with a slash"
            ));
        }
        return unknown_port(container, &action.port);
    }
    if let Some(action) = &probe.tcp_socket {
        return unknown_port(container, &action.port);
    }
    let Some(action) = &probe.exec else {
        return Some("httpGet, tcpSocket or exec is required".into());
    };
    let has_command = action.command.iter().any(|command| !command.is_empty());
    (!has_command).then(|| "exec requires a command".into())
}

fn unknown_port(
    container: &Container,
    port: &k8s_openapi::apimachinery::pkg::util::intstr::IntOrString,
) -> Option<String> {
    let resolved = pod::probes::resolve_port(container, port);
    resolved
        .is_none()
        .then(|| format!("the container does not declare port {port:?}"))
}

fn volume_error(manifests: &Manifests, namespace: &str, volume: &Volume) -> Option<String> {
    let missing = |kind: &str, name: &str, optional: Option<bool>, exists: bool| {
        let is_missing = !exists && optional != Some(true);
        is_missing.then(|| format!("{kind} {namespace}/{name} does not exist"))
    };
    let missing_map = |name: &str, optional| {
        let maps = &manifests.config_maps;
        let exists = maps.contains_key(&ObjectKey::new(namespace, name));
        missing("ConfigMap", name, optional, exists)
    };
    let missing_secret = |name: &str, optional| {
        let secrets = &manifests.secrets;
        let exists = secrets.contains_key(&ObjectKey::new(namespace, name));
        missing("Secret", name, optional, exists)
    };
    if let Some(source) = &volume.config_map {
        return missing_map(&source.name, source.optional);
    }
    if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        return missing_secret(name, source.optional);
    }
    if let Some(source) = &volume.projected {
        return source.sources.iter().flatten().find_map(|source| {
            let map = source.config_map.as_ref();
            let secret = source.secret.as_ref();
            map.and_then(|map| missing_map(&map.name, map.optional))
                .or_else(|| secret.and_then(|secret| missing_secret(&secret.name, secret.optional)))
        });
    }
    if let Some(source) = &volume.host_path {
        let exists = std::path::Path::new(&source.path).exists();
        let makes = matches!(
            source.type_.as_deref(),
            Some("DirectoryOrCreate" | "FileOrCreate")
        );
        return (!exists && !makes).then(|| format!("hostPath: {} does not exist", source.path));
    }
    let supported = volume.empty_dir.is_some() || volume.downward_api.is_some();
    (!supported).then(|| {
        "only emptyDir, configMap, secret, projected, downwardAPI and hostPath are supported".into()
    })
}
