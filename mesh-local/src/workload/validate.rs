//! What a node cannot run, said before anything is started: which object, which field, what to do.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodSpec, Probe, Volume};
use mesh_k8s::pod::{self, PROXY_CONTAINER, ports};

use super::Workload;
use crate::manifest::{Key, Manifests, Problem};

/// What is known of the node while manifests are judged.
pub struct Known<'a> {
    /// Is there a program for this image?
    pub has_image: &'a dyn Fn(&str) -> bool,
}

/// Everything that stands against running a pod, one sentence each.
pub(super) fn faults(manifests: &Manifests, known: &Known<'_>, pod: &Pod) -> Vec<String> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let mut faults = Vec::new();
    if spec.containers.is_empty() {
        faults.push("spec.containers: a pod needs at least one container".to_owned());
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let volumes: BTreeSet<&str> = spec
        .volumes
        .iter()
        .flatten()
        .map(|volume| volume.name.as_str())
        .collect();
    let mut names = BTreeSet::new();
    for container in pod::containers(spec) {
        let name = &container.name;
        let mut fault =
            |field: &str, text: String| faults.push(format!("container {name}: {field}: {text}"));
        if !names.insert(name) {
            fault(
                "name",
                "two containers of one pod have this name; rename one".into(),
            );
        }
        let image = container.image.as_deref().unwrap_or_default();
        if container.command.as_ref().is_none_or(Vec::is_empty) && !(known.has_image)(image) {
            fault(
                "command",
                format!(
                    "the node has no image {image:?} and needs the program to run; add command: [program, argument, …] with a program of this machine"
                ),
            );
        }
        for mount in container.volume_mounts.iter().flatten() {
            if !volumes.contains(mount.name.as_str()) {
                fault(
                    "volumeMounts",
                    format!("spec.volumes has no {:?}", mount.name),
                );
            }
        }
        for var in container.env.iter().flatten() {
            if let Some(text) = env_fault(manifests, namespace, var) {
                fault("env", text);
            }
        }
        for (field, probe) in [
            ("livenessProbe", &container.liveness_probe),
            ("readinessProbe", &container.readiness_probe),
            ("startupProbe", &container.startup_probe),
        ] {
            if let Some(text) = probe
                .as_ref()
                .and_then(|probe| probe_fault(container, probe))
            {
                fault(field, text);
            }
        }
    }
    for volume in spec.volumes.iter().flatten() {
        if let Some(text) = volume_fault(manifests, namespace, volume) {
            faults.push(format!("volume {}: {text}", volume.name));
        }
    }
    faults.extend(port_clashes(spec));
    faults
}

/// Pods in the host's network that declare the same port: the second could not listen.
pub(super) fn host_port_clashes(pods: &BTreeMap<Key, Workload>) -> Vec<Problem> {
    let mut taken: BTreeMap<(i32, String), &Key> = BTreeMap::new();
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
                    place: None,
                    object: Some(format!("Pod {key}")),
                    message: format!("port {number} of the host is also declared by Pod {other}; change one of them"),
                });
            }
        }
    }
    problems
}

/// Containers of one pod share their addresses, so a port can have one of them only; the proxy's
/// are taken too.
fn port_clashes(spec: &PodSpec) -> Vec<String> {
    let mut taken: BTreeMap<(i32, &str), &str> = BTreeMap::new();
    let mut faults = Vec::new();
    for (container, port) in ports::declared(spec) {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let number = port.container_port;
        if ports::number(number).is_none() {
            faults.push(format!(
                "container {}: ports: {number} is no port number (1-65535)",
                container.name
            ));
        } else if let Some(other) = taken.insert((number, protocol), &container.name)
            && other != container.name
        {
            let who = if other == PROXY_CONTAINER || container.name == PROXY_CONTAINER {
                "the proxy listens there; move it with config.linkerd.io/inbound-port or admin-port, or change this one"
            } else {
                "change one of them, for containers of one pod share its addresses"
            };
            faults.push(format!(
                "container {}: ports: {number} is also declared by container {other}: {who}",
                container.name
            ));
        }
    }
    faults
}

fn env_fault(manifests: &Manifests, namespace: &str, var: &EnvVar) -> Option<String> {
    let source = var.value_from.as_ref()?;
    let name = &var.name;
    let has =
        |kind: &str, object: &str, key: &str, optional: Option<bool>, present: Option<bool>| {
            let missing = match present {
                None => format!("there is no {kind} {namespace}/{object}"),
                Some(false) => format!("{kind} {namespace}/{object} has no key {key:?}"),
                Some(true) => return None,
            };
            (optional != Some(true)).then(|| format!("{name}: {missing}"))
        };
    if let Some(reference) = &source.config_map_key_ref {
        let map = manifests
            .config_maps
            .get(&Key::new(namespace, &reference.name));
        let present = map.map(|map| {
            let data = map.data.as_ref();
            data.is_some_and(|data| data.contains_key(&reference.key))
        });
        return has(
            "ConfigMap",
            &reference.name,
            &reference.key,
            reference.optional,
            present,
        );
    }
    if let Some(reference) = &source.secret_key_ref {
        let secret = manifests.secrets.get(&Key::new(namespace, &reference.name));
        let present = secret.map(|secret| {
            let data = secret
                .data
                .as_ref()
                .is_some_and(|data| data.contains_key(&reference.key));
            let plain = secret.string_data.as_ref();
            data || plain.is_some_and(|data| data.contains_key(&reference.key))
        });
        return has(
            "Secret",
            &reference.name,
            &reference.key,
            reference.optional,
            present,
        );
    }
    let unsupported = source.field_ref.is_none();
    unsupported
        .then(|| format!("{name}: valueFrom can be fieldRef, configMapKeyRef or secretKeyRef here"))
}

fn probe_fault(container: &Container, probe: &Probe) -> Option<String> {
    if let Some(action) = &probe.http_get {
        if action
            .scheme
            .as_deref()
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"))
        {
            return Some("httpGet over HTTPS is not supported here; use tcpSocket or exec".into());
        }
        return unknown_port(container, &action.port);
    }
    if let Some(action) = &probe.tcp_socket {
        return unknown_port(container, &action.port);
    }
    match &probe.exec {
        Some(action)
            if action
                .command
                .as_ref()
                .is_some_and(|command| !command.is_empty()) =>
        {
            None
        }
        Some(_) => Some("exec needs a command".into()),
        None => Some("needs httpGet, tcpSocket or exec".into()),
    }
}

fn unknown_port(
    container: &Container,
    port: &k8s_openapi::apimachinery::pkg::util::intstr::IntOrString,
) -> Option<String> {
    let resolved = pod::probes::resolve_port(container, port);
    resolved
        .is_none()
        .then(|| format!("the container declares no port {port:?}"))
}

fn volume_fault(manifests: &Manifests, namespace: &str, volume: &Volume) -> Option<String> {
    let missing = |kind: &str, name: &str, optional: Option<bool>| {
        (optional != Some(true)).then(|| format!("there is no {kind} {namespace}/{name}"))
    };
    let has_map = |name: &str| {
        manifests
            .config_maps
            .contains_key(&Key::new(namespace, name))
    };
    let has_secret = |name: &str| manifests.secrets.contains_key(&Key::new(namespace, name));
    if let Some(source) = &volume.config_map {
        return if has_map(&source.name) {
            None
        } else {
            missing("ConfigMap", &source.name, source.optional)
        };
    }
    if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        return if has_secret(name) {
            None
        } else {
            missing("Secret", name, source.optional)
        };
    }
    if let Some(source) = &volume.projected {
        return source.sources.iter().flatten().find_map(|source| {
            let map = source.config_map.as_ref().filter(|map| !has_map(&map.name));
            let secret = source
                .secret
                .as_ref()
                .filter(|secret| !has_secret(&secret.name));
            map.and_then(|map| missing("ConfigMap", &map.name, map.optional))
                .or_else(|| {
                    secret.and_then(|secret| missing("Secret", &secret.name, secret.optional))
                })
        });
    }
    if let Some(source) = &volume.host_path {
        let exists = std::path::Path::new(&source.path).exists();
        let makes = matches!(
            source.type_.as_deref(),
            Some("DirectoryOrCreate" | "FileOrCreate")
        );
        return (!exists && !makes).then(|| format!("hostPath: there is no {}", source.path));
    }
    let supported = volume.empty_dir.is_some() || volume.downward_api.is_some();
    (!supported).then(|| {
        "only emptyDir, configMap, secret, projected, downwardAPI and hostPath are supported here".into()
    })
}
