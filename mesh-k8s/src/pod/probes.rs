//! The HTTP probes of a pod, which the kubelet must be able to send even where policy denies all
//! other clients.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodSpec, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::containers;
use super::ports::{is_tcp, port_number};

/// Returns the paths of all liveness, readiness and startup probes by port, without queries. A
/// named port is resolved in the probe's own container.
pub fn http_paths(spec: &PodSpec) -> BTreeMap<u16, BTreeSet<String>> {
    let mut paths: BTreeMap<u16, BTreeSet<String>> = BTreeMap::new();
    for container in containers(spec) {
        let probes = [
            &container.liveness_probe,
            &container.readiness_probe,
            &container.startup_probe,
        ];
        for (port, path) in probes
            .into_iter()
            .flatten()
            .filter_map(|probe| http_path(container, probe))
        {
            paths.entry(port).or_default().insert(path);
        }
    }
    paths
}

/// Returns the number of a probe's port; `None` if no TCP port of the container has the name.
pub fn resolve_port(container: &Container, port: &IntOrString) -> Option<u16> {
    match port {
        IntOrString::Int(port) => port_number(*port),
        IntOrString::String(name) => container
            .ports
            .iter()
            .flatten()
            .find(|port| port.name.as_deref() == Some(name) && is_tcp(port))
            .and_then(|port| port_number(port.container_port))
            .or_else(|| name.parse().ok().filter(|port| *port > 0)),
    }
}

fn http_path(container: &Container, probe: &Probe) -> Option<(u16, String)> {
    let action = probe.http_get.as_ref()?;
    let port = resolve_port(container, &action.port)?;
    let path = action.path.as_deref().filter(|path| !path.is_empty());
    let path = path.unwrap_or("/");
    let path = path.split('?').next().unwrap_or(path);
    Some((port, path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_paths_include_all_three_probe_types() {
        let spec: PodSpec = serde_norway::from_str(
            "
containers:
- name: web
  ports: [{name: http, containerPort: 8080}]
  readinessProbe: {httpGet: {path: '/ready?x=1', port: http}}
  livenessProbe: {httpGet: {path: /live, port: 8080}}
  startupProbe: {httpGet: {port: '9000'}}
- name: other
  readinessProbe: {httpGet: {path: /lost, port: http}}
  livenessProbe: {tcpSocket: {port: 8080}}
",
        )
        .unwrap();
        let expect = BTreeMap::from([
            (8080, BTreeSet::from(["/live".into(), "/ready".into()])),
            (9000, BTreeSet::from(["/".to_owned()])),
        ]);
        assert_eq!(http_paths(&spec), expect);
    }
}
