//! `meshctl diagnostics proxy-metrics` and `controller-metrics`.

use crate::exit::Failure;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::mesh::controllers::ADMIN_PORTS;
use crate::resource::{MeshPod, ResourceKind, Scope, WORKLOADS};
use crate::{clients, output};

const PROXY_METRICS_EXAMPLES: &str = "\
Examples:
  meshctl diagnostics proxy-metrics shop/web-0
  meshctl diagnostics proxy-metrics deployment/web -n shop";

#[derive(Debug, clap::Args)]
#[command(after_help = PROXY_METRICS_EXAMPLES)]
pub(super) struct ProxyMetricsArgs {
    /// NAME or NAMESPACE/NAME of a pod, or KIND/NAME of a workload with -n NAMESPACE
    resource: String,
}

pub(super) async fn print_proxy_metrics(
    mesh: &Mesh,
    args: &ProxyMetricsArgs,
    global: &Global,
) -> anyhow::Result<()> {
    let pods = find_pods(mesh, &args.resource, global).await?;
    // The metrics of a single pod are printed unchanged, for other programs.
    if let [pod] = pods.as_slice() {
        let port = pod.admin_port()?;
        return output::text(&mesh.get(pod, port, "/metrics").await?);
    }
    let targets: Vec<(&MeshPod, String, u16)> = pods
        .iter()
        .filter_map(|pod| Some((pod, "linkerd-proxy".to_owned(), pod.admin_port?)))
        .collect();
    sections(mesh, &targets).await
}

/// Returns a pod by its name, or the meshed pods of a workload.
pub(crate) async fn find_pods(
    mesh: &Mesh,
    resource: &str,
    global: &Global,
) -> anyhow::Result<Vec<MeshPod>> {
    let workload = resource.split_once('/').and_then(|(kind, name)| {
        let kind = ResourceKind::parse(kind).filter(|kind| WORKLOADS.contains(kind))?;
        Some((kind.as_str(), name))
    });
    let Some((kind, name)) = workload else {
        return Ok(vec![mesh.pod(resource, global).await?]);
    };
    let mut pods = mesh.pods(&mesh.scope(global)).await?;
    pods.retain(|pod| pod.owner.kind == kind && pod.owner.name == name && !pod.is_terminal);
    if pods.is_empty() {
        let message = format!("{kind}/{name} has no pods; select the namespace with -n");
        return Err(Failure::Input(message).into());
    }
    Ok(pods)
}

pub(super) async fn print_controller_metrics(mesh: &Mesh) -> anyhow::Result<()> {
    let scope = Scope::Namespace(mesh.control_namespace().to_owned());
    let pods = mesh.pods(&scope).await?;
    let mut targets = Vec::new();
    for pod in pods.iter().filter(|pod| !pod.is_terminal) {
        for (component, container, port) in ADMIN_PORTS {
            let has = pod.containers.iter().any(|name| name == container);
            if pod.component.as_deref() == Some(component) && has {
                targets.push((pod, container.to_owned(), port));
            }
        }
    }
    if targets.is_empty() {
        let message = format!(
            "namespace {} has no controllers; -L selects another",
            mesh.control_namespace()
        );
        return Err(Failure::Unreachable(message).into());
    }
    sections(mesh, &targets).await
}

/// Prints a section for each target, which begins with a comment, as the Prometheus format allows.
async fn sections(mesh: &Mesh, targets: &[(&MeshPod, String, u16)]) -> anyhow::Result<()> {
    let responses = targets.iter().map(async |(pod, container, port)| {
        let response = mesh.get(pod, *port, "/metrics").await;
        (pod.to_string(), container.clone(), response)
    });
    for (pod, container, response) in clients::concurrently(responses).await {
        match response {
            Ok(text) => output::text(&format!("# POD {pod} CONTAINER {container}\n{text}\n"))?,
            Err(error) => output::note(&format!("{pod}, {container}: {error:#}")),
        }
    }
    Ok(())
}
