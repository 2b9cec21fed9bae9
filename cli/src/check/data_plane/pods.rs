//! Conflicts between application and proxy in meshed pods.

use mesh_core::annotation;
use mesh_k8s::kinds::{Pod, ResourceExt};
use mesh_k8s::pod::{self, ports as pod_ports};

use super::super::fix;
use super::super::framework::{CheckResult, Finding, Outcome};
use crate::facts::{Facts, full_name};

/// The outbound port is not part of [`pod_ports::ProxyPorts`], because only the pod itself connects
/// to it.
const OUTBOUND: &str = "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR";

/// Finds containers that use a port of the proxy. The program that starts second cannot listen on
/// it.
pub(super) fn ports(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    for pod in facts.meshed_pods()? {
        let (Some(spec), Some(own)) = (&pod.spec, pod_ports::proxy_ports(pod)) else {
            continue;
        };
        let env = super::proxy_container(pod)
            .map(pod::plain_env)
            .unwrap_or_default();
        let outbound = env
            .get(OUTBOUND)
            .and_then(|addr| addr.parse::<std::net::SocketAddr>().ok())
            .map(|addr| addr.port());
        let taken = [
            Some(own.inbound),
            Some(own.control),
            Some(own.admin),
            outbound,
        ];
        for (container, port) in pod_ports::declared(spec) {
            let number = pod_ports::port_number(port.container_port);
            if container.name == pod::PROXY_CONTAINER
                || !pod_ports::is_tcp(port)
                || number.is_none()
                || !taken.contains(&number)
            {
                continue;
            }
            let finding = Finding::new(format!(
                "container {} of {} has port {}, on which the proxy listens",
                container.name,
                full_name(pod),
                port.container_port
            ));
            wrong.push(finding.with_fix(format!(
                "change the port in {}, or that of the proxy by an annotation (config.linkerd.io/inbound-port, outbound-port, control-port, admin-port)",
                fix::workload(pod).unwrap_or_else(|| format!("pod {}", full_name(pod)))
            )));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// The containers of other meshes, and how a pod template excludes them.
const FOREIGN_PROXIES: [(&str, &str, &str); 3] = [
    (
        "istio-proxy",
        "Istio",
        "annotations: sidecar.istio.io/inject: \"false\"",
    ),
    (
        "consul-dataplane",
        "Consul",
        "annotations: consul.hashicorp.com/connect-inject: \"false\"",
    ),
    (
        "kuma-sidecar",
        "Kuma",
        "labels: kuma.io/sidecar-injection: disabled",
    ),
];

/// Finds pods with the proxies of two meshes. Each encrypts for peers of its own mesh only, so that
/// connections of the inner one fail.
pub(super) fn foreign_proxies(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    for pod in facts.meshed_pods()? {
        let containers = pod.spec.iter().flat_map(pod::containers);
        let foreign = containers.filter_map(|container| {
            FOREIGN_PROXIES
                .iter()
                .find(|(name, ..)| container.name == *name)
        });
        let Some((name, mesh, exclusion)) = foreign.into_iter().next() else {
            continue;
        };
        let finding = Finding::new(format!(
            "{} has the proxy of {mesh} (container {name}) and that of this mesh: both redirect its connections",
            full_name(pod)
        ));
        let namespace = pod.namespace().unwrap_or_default();
        wrong.push(match fix::workload(pod) {
            Some(workload) => finding.with_fix(format!(
                "kubectl -n {namespace} edit {workload}: in its template {exclusion}, or annotations: {}: disabled",
                annotation::INJECT
            )),
            None => finding.with_fix(format!(
                "in the manifest of the pod {exclusion}, or annotations: {}: disabled; then {}",
                annotation::INJECT,
                fix::restart_command(pod)
            )),
        });
    }
    Ok(Outcome::fail_if(wrong, ""))
}

/// Finds Jobs that do not complete because their proxy is an ordinary container, which keeps
/// running.
pub(super) fn jobs(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    for pod in facts.meshed_pods()? {
        let job = pod
            .owner_references()
            .iter()
            .find(|owner| owner.kind == "Job");
        let Some(job) = job.filter(|_| is_kept_running_by_proxy(pod)) else {
            continue;
        };
        let namespace = pod.namespace().unwrap_or_default();
        let finding = Finding::new(format!(
            "{} of Job {} has finished, but its proxy keeps running: the Job does not complete",
            full_name(pod),
            job.name
        ));
        wrong.push(finding.with_fix(format!(
            "kubectl -n {namespace} delete job {}; in its template: config.linkerd.io/proxy-enable-native-sidecar: \"true\", whose proxy exits with the Job",
            job.name
        )));
    }
    Ok(Outcome::warn_if(wrong, ""))
}

fn is_kept_running_by_proxy(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.container_statuses.as_ref());
    let (mut proxy_runs, mut others) = (false, 0_usize);
    for status in statuses.into_iter().flatten() {
        let state = status.state.as_ref();
        if status.name == pod::PROXY_CONTAINER {
            proxy_runs = state.is_some_and(|state| state.running.is_some());
        } else if state.is_some_and(|state| state.terminated.is_some()) {
            others += 1;
        } else {
            return false;
        }
    }
    proxy_runs && others > 0
}
