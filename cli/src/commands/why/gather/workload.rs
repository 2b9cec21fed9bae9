//! Reads pods, and the reports of their node agents about them.

use anyhow::Context as _;
use kube::Api;
use mesh_core::annotation;
use mesh_core::identity::{Identity, service_account};
use mesh_core::ports::PortSet;
use mesh_k8s::kinds::{Pod, ResourceExt as _};
use mesh_k8s::pod;
use mesh_k8s::values::Values;

use super::super::facts::{Enrolment, Fact, Workload, WorkloadKind};
use crate::cluster::error;
use crate::commands::diagnostics::find_pods;
use crate::exit::Failure;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::resource::{AgentReport, MeshPod};

/// Returns the pod that the command line names, or a ready one of the workload.
pub(super) async fn client(mesh: &Mesh, name: &str, global: &Global) -> anyhow::Result<MeshPod> {
    let found = match find_pods(mesh, name, global).await {
        Ok(pods) => pods,
        // Names of pods may have dots, so that the whole one is tried first.
        Err(error) => match name.rsplit_once('.') {
            Some((name, namespace)) if !name.contains('/') => {
                let qualified = format!("{namespace}/{name}");
                let pods = find_pods(mesh, &qualified, global).await;
                pods.map_err(|_also_missing| error)?
            }
            _ => return Err(error),
        },
    };
    let of_workload = found.len() > 1;
    let usable = |pod: &MeshPod| !pod.is_terminal && (!of_workload || pod.ready);
    let mut pods: Vec<MeshPod> = found.into_iter().filter(usable).collect();
    // A meshed pod first.
    pods.sort_by_key(|pod| !pod.is_meshed());
    let first = pods.into_iter().next();
    first.ok_or_else(|| Failure::Input(format!("{name} has no ready pod")).into())
}

/// Returns the object of a pod.
pub(super) async fn pod(mesh: &Mesh, namespace: &str, name: &str) -> anyhow::Result<Pod> {
    match mesh {
        Mesh::Local(node) => {
            let found = node.object("Pod", namespace, name)?;
            found.with_context(|| format!("pod {namespace}/{name} does not exist any more"))
        }
        Mesh::Cluster(cluster) => {
            let api: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
            let what = format!("read pod {namespace}/{name}");
            api.get(name)
                .await
                .map_err(|error| error::failed(&what, error))
        }
    }
}

/// Returns the node of a pod.
pub(super) fn node(mesh: &Mesh, pod: &Pod) -> String {
    match mesh {
        Mesh::Local(node) => node.paths.name().to_string(),
        Mesh::Cluster(_) => {
            let name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            name.unwrap_or_default()
        }
    }
}

/// Returns the report of a node's agent.
pub(super) async fn agent(mesh: &Mesh, node: &str) -> Fact<AgentReport> {
    match mesh {
        Mesh::Local(local) => Ok(local.agent().await),
        Mesh::Cluster(cluster) => {
            let report = cluster.agent_of(node).await;
            report.map_err(|error| format!("{error:#}"))
        }
    }
}

pub(super) fn read(
    mesh: &Mesh,
    values: &Values,
    pod: &Pod,
    agent: Result<&AgentReport, &String>,
) -> anyhow::Result<Workload> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let ip = pod::ips(pod).first().copied();
    let ip = ip.with_context(|| format!("pod {namespace}/{name} has no address yet"))?;
    let has_proxy = pod::ports::proxy_ports(pod).is_some();
    let service_account_name = pod::service_account(pod).to_owned();
    let identity = if has_proxy {
        let control = pod::control_plane_namespace(pod);
        let control = control.unwrap_or_else(|| mesh.control_namespace());
        let domain = values.trust_domain();
        let text = service_account(&service_account_name, &namespace, control, domain);
        Some(Identity::parse(&text)?)
    } else {
        None
    };
    Ok(Workload {
        kind: WorkloadKind::Pod,
        enrolment: enrolment(agent, &namespace, &name),
        skip_outbound: skipped(pod, annotation::SKIP_OUTBOUND_PORTS, has_proxy),
        skip_inbound: skipped(pod, annotation::SKIP_INBOUND_PORTS, has_proxy),
        service_account: service_account_name,
        namespace,
        name,
        ip,
        identity,
    })
}

/// Returns the ports that bypass the proxy, by the annotation or its default.
fn skipped(pod: &Pod, key: &str, has_proxy: bool) -> PortSet {
    let list = match pod::annotation(pod, key) {
        _ if !has_proxy => "",
        Some(list) => list,
        None => annotation::DEFAULT_SKIP_PORTS,
    };
    pod::ports::resolve_list(pod.spec.as_ref(), list)
}

fn enrolment(agent: Result<&AgentReport, &String>, namespace: &str, name: &str) -> Fact<Enrolment> {
    let agent = agent.map_err(String::clone)?;
    let pods = agent.pods.as_ref().map_err(|error| format!("{error:#}"))?;
    let is_pod = |pod: &mesh_core::node::PodRef| pod.namespace == namespace && pod.name == name;
    if let Some(status) = pods.iter().find(|status| is_pod(&status.pod)) {
        return Ok(Enrolment::Enrolled(status.tier));
    }
    let waiting = agent.status.as_ref().ok();
    let waiting = waiting.and_then(|status| status.waiting.iter().find(|it| is_pod(&it.pod)));
    Ok(match waiting {
        Some(waiting) => Enrolment::Waiting(waiting.reason.clone()),
        None => Enrolment::Absent,
    })
}
