//! `meshctl diagnostics proxy-metrics` and `controller-metrics`.

use futures_util::{StreamExt as _, stream};

use crate::{
    clients::{self, controllers::ADMIN_PORTS, http},
    exit::Failure,
    global::Global,
    mesh::{Mesh, MeshPod, Scope},
    output,
};

/// Examples:
///   meshctl diagnostics proxy-metrics shop/web-0
///   meshctl diagnostics proxy-metrics deployment/web -n shop
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct OfProxies {
    /// NAME or NAMESPACE/NAME of a pod, or KIND/NAME of a workload with -n NAMESPACE
    resource: String,
}

pub(super) async fn of_proxies(
    mesh: &Mesh,
    args: &OfProxies,
    global: &Global,
) -> anyhow::Result<()> {
    let pods = find(mesh, &args.resource, global).await?;
    // One pod's metrics are for programs: nothing but what the proxy said.
    if let [pod] = pods.as_slice() {
        let port = pod.admin_port()?;
        return output::text(&http::get_from_pod(mesh, pod, port, "/metrics").await?);
    }
    let asked: Vec<(&MeshPod, String, u16)> = pods
        .iter()
        .filter_map(|pod| Some((pod, "linkerd-proxy".to_owned(), pod.admin_port?)))
        .collect();
    sections(mesh, &asked).await
}

/// A pod by its name, or the meshed pods of a workload.
pub(crate) async fn find(
    mesh: &Mesh,
    resource: &str,
    global: &Global,
) -> anyhow::Result<Vec<MeshPod>> {
    let workload = resource
        .split_once('/')
        .and_then(|(kind, name)| Some((kind_of(kind)?, name)));
    let Some((kind, name)) = workload else {
        return Ok(vec![mesh.pod(resource, global).await?]);
    };
    let mut pods = mesh.pods(&mesh.scope(global)).await?;
    pods.retain(|pod| pod.owner.kind == kind && pod.owner.name == name && !pod.is_terminal);
    if pods.is_empty() {
        let message = format!("there are no pods of {kind}/{name}; choose the namespace with -n");
        return Err(Failure::Input(message).into());
    }
    Ok(pods)
}

/// The kind as pods' owners have it, by kubectl's names. Pods themselves are found by name.
fn kind_of(kind: &str) -> Option<&'static str> {
    match kind.to_ascii_lowercase().as_str() {
        "deployment" | "deployments" | "deploy" => Some("deployment"),
        "statefulset" | "statefulsets" | "sts" => Some("statefulset"),
        "daemonset" | "daemonsets" | "ds" => Some("daemonset"),
        "replicaset" | "replicasets" | "rs" => Some("replicaset"),
        "job" | "jobs" => Some("job"),
        "cronjob" | "cronjobs" | "cj" => Some("cronjob"),
        _ => None,
    }
}

pub(super) async fn of_controllers(mesh: &Mesh) -> anyhow::Result<()> {
    let scope = Scope::Namespace(mesh.control_namespace().to_owned());
    let pods = mesh.pods(&scope).await?;
    let mut asked = Vec::new();
    for pod in pods.iter().filter(|pod| !pod.is_terminal) {
        for (component, container, port) in ADMIN_PORTS {
            let has = pod.containers.iter().any(|name| name == container);
            if pod.component.as_deref() == Some(component) && has {
                asked.push((pod, container.to_owned(), port));
            }
        }
    }
    if asked.is_empty() {
        let message = format!(
            "namespace {} has no controllers; -L chooses another",
            mesh.control_namespace()
        );
        return Err(Failure::Unreachable(message).into());
    }
    sections(mesh, &asked).await
}

/// One section for each, introduced by a comment, as Prometheus' format allows.
async fn sections(mesh: &Mesh, asked: &[(&MeshPod, String, u16)]) -> anyhow::Result<()> {
    let answers = stream::iter(asked.iter().map(async |(pod, container, port)| {
        let answer = http::get_from_pod(mesh, pod, *port, "/metrics").await;
        (pod.to_string(), container.clone(), answer)
    }));
    let answers: Vec<_> = answers.buffered(clients::MAX_CONCURRENT).collect().await;
    for (pod, container, answer) in answers {
        match answer {
            Ok(text) => output::text(&format!("# POD {pod} CONTAINER {container}\n{text}\n"))?,
            Err(error) => output::note(&format!("{pod}, {container}: {error:#}")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::kind_of;

    #[test]
    fn kinds_as_kubectl_has_them() {
        assert_eq!(kind_of("deploy"), Some("deployment"));
        assert_eq!(kind_of("StatefulSets"), Some("statefulset"));
        assert_eq!(kind_of("shop"), None);
    }
}
