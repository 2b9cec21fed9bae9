//! Meshed pods whose application and proxy get in each other's way.

use mesh_k8s::{
    kinds::{Pod, ResourceExt},
    pod::{self, ports as pod_ports},
};

use super::super::{Facts, Line, Outcome, Verdict, facts::full_name, repair};

/// The outbound port has no name in [`pod_ports::ProxyPorts`]; connections to it never leave the
/// pod.
const OUTBOUND: &str = "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR";

/// Two programs of one pod cannot listen on one port: whichever comes second does not start.
pub(super) fn ports(facts: &Facts) -> Verdict {
    let mut wrong = Vec::new();
    for pod in facts.meshed_pods()? {
        let (Some(spec), Some(own)) = (&pod.spec, pod_ports::of_proxy(pod)) else {
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
            let number = pod_ports::number(port.container_port);
            if container.name == pod::PROXY_CONTAINER
                || !pod_ports::is_tcp(port)
                || number.is_none()
                || !taken.contains(&number)
            {
                continue;
            }
            let line = Line::new(format!(
                "container {} of {} has port {}, on which the proxy listens",
                container.name,
                full_name(pod),
                port.container_port
            ));
            wrong.push(line.fixed_by(format!(
                "choose another port in {}, or move the proxy's by an annotation (config.linkerd.io/inbound-port, outbound-port, control-port, admin-port)",
                repair::workload(pod).unwrap_or_else(|| format!("pod {}", full_name(pod)))
            )));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// A proxy that is an ordinary container does not end when its Job's work is done.
pub(super) fn jobs(facts: &Facts) -> Verdict {
    let mut wrong = Vec::new();
    for pod in facts.meshed_pods()? {
        let job = pod
            .owner_references()
            .iter()
            .find(|owner| owner.kind == "Job");
        let Some(job) = job.filter(|_| is_held_open(pod)) else {
            continue;
        };
        let namespace = pod.namespace().unwrap_or_default();
        let line = Line::new(format!(
            "{} of Job {} has done its work, and its proxy runs on: the Job does not complete",
            full_name(pod),
            job.name
        ));
        wrong.push(line.fixed_by(format!(
            "kubectl -n {namespace} delete job {}; in its template: config.linkerd.io/proxy-enable-native-sidecar: \"true\", whose proxy ends with the work",
            job.name
        )));
    }
    Ok(Outcome::warn_if(wrong, ""))
}

fn is_held_open(pod: &Pod) -> bool {
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
