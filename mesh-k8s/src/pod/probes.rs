//! The kubelet's requests to a pod, which it must be able to send even where policy denies all
//! other clients.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, PodSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use mesh_core::policy::inbound::PortProbes;

use super::containers;
use super::ports::port_number;

mod target;

pub use target::request_target;

/// Returns the requests of all liveness, readiness and startup probes and of lifecycle hooks by
/// port. A named port is resolved in the probe's own container. `tcpSocket` needs no request.
pub fn by_port(spec: &PodSpec) -> BTreeMap<u16, PortProbes> {
    let mut ports = BTreeMap::new();
    for container in containers(spec) {
        let probes = [
            &container.liveness_probe,
            &container.readiness_probe,
            &container.startup_probe,
        ];
        for probe in probes.into_iter().flatten() {
            if let Some(action) = &probe.http_get {
                add_http(&mut ports, container, action, Kind::Probe);
            }
            if let Some(action) = &probe.grpc
                && let Some(port) = port_number(action.port)
            {
                let at: &mut PortProbes = ports.entry(port).or_default();
                at.grpc = true;
            }
        }
        let lifecycle = container.lifecycle.iter();
        let hooks = lifecycle.flat_map(|it| [&it.post_start, &it.pre_stop]);
        for action in hooks.flatten().filter_map(|hook| hook.http_get.as_ref()) {
            add_http(&mut ports, container, action, Kind::Hook);
        }
    }
    ports
}

/// Returns the number of a probe's port; `None` if no port of the container has the name. Like the
/// kubelet it ignores the port's protocol.
pub fn resolve_port(container: &Container, port: &IntOrString) -> Option<u16> {
    match port {
        IntOrString::Int(port) => port_number(*port),
        IntOrString::String(name) => container
            .ports
            .iter()
            .flatten()
            .find(|port| port.name.as_deref() == Some(name))
            .and_then(|port| port_number(port.container_port))
            .or_else(|| name.parse().ok().filter(|port| *port > 0)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Probe,
    Hook,
}

fn add_http(
    ports: &mut BTreeMap<u16, PortProbes>,
    container: &Container,
    action: &HTTPGetAction,
    kind: Kind,
) {
    let Some(port) = resolve_port(container, &action.port) else {
        return;
    };
    // The kubelet cannot send a request to such a path.
    let Some(target) = request_target(action.path.as_deref().unwrap_or_default()) else {
        return;
    };
    let scheme = action.scheme.as_deref().unwrap_or_default();
    let is_https = scheme.eq_ignore_ascii_case("https");
    let at = ports.entry(port).or_default();
    at.tls |= is_https;
    // The kubelet repeats a hook over HTTP if the server does not speak TLS.
    if !is_https || kind == Kind::Hook {
        let path = target.split('?').next().unwrap_or(&target);
        at.paths.insert(path.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn of(text: &str) -> BTreeMap<u16, PortProbes> {
        by_port(&serde_norway::from_str(text).unwrap())
    }

    fn paths(paths: &[&str]) -> PortProbes {
        PortProbes {
            paths: paths.iter().map(|&path| path.to_owned()).collect(),
            ..PortProbes::default()
        }
    }

    #[test]
    fn paths_are_of_all_three_probe_types() {
        let ports = of("
containers:
- name: web
  ports: [{name: http, containerPort: 8080}]
  readinessProbe: {httpGet: {path: '/ready?x=1', port: http}}
  livenessProbe: {httpGet: {path: live, port: 8080, scheme: HTTP}}
  startupProbe: {httpGet: {port: '9000'}}
- name: other
  readinessProbe: {httpGet: {path: /lost, port: http}}
  livenessProbe: {tcpSocket: {port: 8080}}
- name: dns
  ports: [{name: dns, containerPort: 53, protocol: UDP}]
  livenessProbe: {httpGet: {path: /udp, port: dns}}
  readinessProbe: {httpGet: {path: 'foo:bar', port: 54}}
  startupProbe: {httpGet: {path: /, port: 70000}}
");
        let expect = [
            (53, paths(&["/udp"])),
            (8080, paths(&["/live", "/ready"])),
            (9000, paths(&["/"])),
        ];
        assert_eq!(ports, BTreeMap::from(expect));
    }

    #[test]
    fn sidecars_hooks_tls_and_grpc_are_included() {
        let ports = of("
initContainers:
- name: sidecar
  restartPolicy: Always
  readinessProbe: {httpGet: {path: /side, port: 1}}
  startupProbe: {grpc: {port: 2, service: a}}
containers:
- name: web
  ports: [{name: tls, containerPort: 3}]
  readinessProbe: {httpGet: {path: /ready, port: tls, scheme: HTTPS}}
  livenessProbe: {grpc: {port: 0}}
  lifecycle:
    postStart: {httpGet: {path: begin, port: 1}}
    preStop: {httpGet: {path: /end, port: 4, scheme: HTTPS}}
");
        let expect = [
            (1, paths(&["/begin", "/side"])),
            (
                2,
                PortProbes {
                    grpc: true,
                    ..PortProbes::default()
                },
            ),
            (
                3,
                PortProbes {
                    tls: true,
                    ..PortProbes::default()
                },
            ),
            (
                4,
                PortProbes {
                    paths: BTreeSet::from(["/end".to_owned()]),
                    tls: true,
                    grpc: false,
                },
            ),
        ];
        assert_eq!(ports, BTreeMap::from(expect));
    }
}
