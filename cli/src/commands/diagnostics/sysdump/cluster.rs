//! Collects objects of the control plane, policies, events, logs and metrics of a cluster.

use kube::Api;
use kube::api::{ListParams, LogParams};
use mesh_k8s::kinds::core::Event;
use mesh_k8s::kinds::{ConfigMap, DaemonSet, Deployment, Node, Pod, ResourceExt, Service};
use mesh_k8s::pod;
use serde::Serialize;

use super::Dump;
use crate::cluster::{Cluster, Namespaced, error};
use crate::mesh::Mesh;
use crate::mesh::controllers::ADMIN_PORTS;
use crate::resource::Scope;
use crate::{clients, gather};

pub(super) async fn collect(mesh: &Mesh, cluster: &Cluster, lines: i64, dump: &mut Dump) {
    let mut all = vec![cluster.control_namespace.clone()];
    all.push(cluster.agent_namespace().await);
    all.dedup();
    of_kind::<Deployment>(cluster, &all, "deployments", dump).await;
    of_kind::<DaemonSet>(cluster, &all, "daemonsets", dump).await;
    of_kind::<Pod>(cluster, &all, "pods", dump).await;
    of_kind::<Service>(cluster, &all, "services", dump).await;
    of_kind::<ConfigMap>(cluster, &all, "configmaps", dump).await;
    of_kind::<Event>(cluster, &all, "events", dump).await;
    match cluster.list_all::<Node>().await {
        Ok(nodes) => dump.json("nodes.json", &nodes),
        Err(error) => dump.failed("nodes", &error::explain(&error)),
    }
    match gather::policies(mesh).await {
        Ok(policies) => dump.json("policies.json", &policies),
        Err(error) => dump.failed("policies", &error),
    }
    logs(cluster, &all, lines, dump).await;
    metrics(mesh, dump).await;
}

async fn of_kind<K: Namespaced + Serialize>(
    cluster: &Cluster,
    namespaces: &[String],
    name: &str,
    dump: &mut Dump,
) {
    match cluster
        .list_within::<K>(namespaces, ListParams::default())
        .await
    {
        // The archive already has linkerd-config, without secrets.
        Ok(mut objects) => {
            objects.retain(|object| object.meta().name.as_deref() != Some("linkerd-config"));
            dump.json(&format!("{name}.json"), &objects);
        }
        Err(error) => dump.failed(name, &error::explain(&error)),
    }
}

/// Collects the logs of all containers of the control plane and the agents, including those before
/// a restart.
async fn logs(cluster: &Cluster, namespaces: &[String], lines: i64, dump: &mut Dump) {
    let pods: Vec<Pod> = match cluster.list_within(namespaces, ListParams::default()).await {
        Ok(pods) => pods,
        Err(error) => return dump.failed("logs", &error::explain(&error)),
    };
    let mut targets = Vec::new();
    for pod in &pods {
        let restarted = |name: &str| {
            let status = pod.status.as_ref();
            let all = status.and_then(|status| status.container_statuses.as_ref());
            all.into_iter()
                .flatten()
                .any(|container| container.name == name && container.restart_count > 0)
        };
        for container in pod.spec.iter().flat_map(pod::containers) {
            targets.push((pod, container.name.clone(), false));
            if restarted(&container.name) {
                targets.push((pod, container.name.clone(), true));
            }
        }
    }
    let targets = targets
        .into_iter()
        .map(|(pod, container, previous)| async move {
            let params = LogParams {
                container: Some(container.clone()),
                previous,
                tail_lines: Some(lines),
                ..Default::default()
            };
            let suffix = if previous { "-previous" } else { "" };
            let (namespace, pod) = (pod.namespace().unwrap_or_default(), pod.name_any());
            let name = format!("logs/{pod}-{container}{suffix}.log");
            let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &namespace);
            (name, api.logs(&pod, &params).await)
        });
    for (name, result) in clients::concurrently(targets).await {
        match result {
            Ok(text) => dump.add(&name, text),
            Err(error) => dump.failed(&name, &error::explain(&error)),
        }
    }
}

async fn metrics(mesh: &Mesh, dump: &mut Dump) {
    let scope = Scope::Namespace(mesh.control_namespace().to_owned());
    let pods = mesh.pods(&scope).await.unwrap_or_default();
    let mut targets = Vec::new();
    for pod in pods.iter().filter(|pod| !pod.is_terminal) {
        if let Some(port) = pod.admin_port {
            targets.push((pod, "linkerd-proxy", port));
        }
        for (component, container, port) in ADMIN_PORTS {
            if pod.component.as_deref() == Some(component) {
                targets.push((pod, container, port));
            }
        }
    }
    let targets = targets
        .into_iter()
        .map(|(pod, container, port)| async move {
            let result = mesh.get(pod, port, "/metrics").await;
            (format!("metrics/{}-{container}.txt", pod.name), result)
        });
    for (name, result) in clients::concurrently(targets).await {
        match result {
            Ok(text) => dump.add(&name, text),
            Err(error) => dump.failed(&name, &error),
        }
    }
}
