//! Reads the report's data as the controller does, with the permissions of the user.

use std::collections::BTreeSet;

use kube::Api;
use mesh_k8s::crd::ServiceProfile;
use mesh_k8s::heartbeat::{self, Absence, Figure, Observations, Parameter, Report};
use mesh_k8s::kinds::{ConfigMap, CronJob, Namespace, Node};
use mesh_k8s::values::Values;

use crate::clients;
use crate::cluster::Cluster;
use crate::cluster::error::{self, to_fact};
use crate::mesh::prometheus_server::Prometheus;

/// Returns the CronJob that sends reports, if it exists.
pub(super) async fn cron_job(cluster: &Cluster) -> anyhow::Result<Option<CronJob>> {
    let found = cluster.control_object::<CronJob>(heartbeat::NAME).await;
    found.map_err(|error| error::failed("read CronJob linkerd-heartbeat", error))
}

/// Returns the report that the controller would send now.
pub(super) async fn report(cluster: Box<Cluster>, values: &Values) -> Report {
    // Boxed, because it holds five requests.
    let observations = Box::pin(observe(&cluster)).await;
    let extensions = observations.extensions.as_deref().unwrap_or_default();
    let figures = heartbeat::figures(&values.namespace, extensions);
    let figures = query(cluster, &values.prometheus_url, &figures).await;
    Report::new(&observations, figures)
}

async fn observe(cluster: &Cluster) -> Observations {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let profiles: Api<ServiceProfile> = Api::all(cluster.client.clone());
    let configs: Api<ConfigMap> =
        Api::namespaced(cluster.client.clone(), &cluster.control_namespace);
    let (extensions, one) = (heartbeat::extension_namespaces(), heartbeat::one_object());
    let (nodes, config, version, extensions, profiles) = tokio::join!(
        cluster.list_all::<Node>(),
        configs.get(heartbeat::CONFIG),
        cluster.client.apiserver_version(),
        namespaces.list_metadata(&extensions),
        profiles.list_metadata(&one),
    );
    Observations::new(
        to_fact("list the nodes", nodes).and_then(|nodes| architecture(&nodes)),
        to_fact("read ConfigMap linkerd-config", config),
        to_fact("query the version of the API server", version),
        to_fact("list the namespaces of extensions", extensions),
        to_fact("count the ServiceProfiles", profiles),
    )
}

/// Returns the architecture of the nodes. Where they differ, it depends on the node that runs the
/// controller.
fn architecture(nodes: &[Node]) -> Result<String, String> {
    let infos = nodes.iter().filter_map(|node| {
        let info = node.status.as_ref()?.node_info.as_ref()?;
        Some(info.architecture.as_str())
    });
    let all: BTreeSet<&str> = infos.collect();
    let mut all: Vec<&str> = all.into_iter().collect();
    match (all.pop(), all.is_empty()) {
        (Some(only), true) => Ok(only.to_owned()),
        (None, _) => Err("no node reports its architecture".to_owned()),
        (Some(last), false) => Err(format!(
            "{} or {last}: it is that of the node that runs the Job",
            all.join(", ")
        )),
    }
}

async fn query(cluster: Box<Cluster>, url: &str, figures: &[Figure]) -> Vec<Parameter> {
    let absent = |absence: &Absence| {
        let figures = figures.iter();
        figures
            .map(|figure| figure.parameter(Err(absence.clone())))
            .collect()
    };
    if url.is_empty() {
        return absent(&Absence::no_prometheus());
    }
    let prometheus = match Prometheus::of_mesh(url, cluster).await {
        Ok(prometheus) => prometheus,
        Err(error) => return absent(&Absence::Unread(format!("{error:#}"))),
    };
    let queries = figures.iter().map(async |figure| {
        let samples = prometheus.query(&figure.query).await;
        let values = samples.map(|samples| samples.iter().map(|sample| sample.value).collect());
        figure.parameter(values.map_err(|error| Absence::Unread(format!("{error:#}"))))
    });
    clients::concurrently(queries).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn architecture_of_nodes_is_known_if_they_agree() {
        let architecture = |names: &[&str]| {
            let nodes = names.iter().map(|name| {
                serde_json::from_value(json!({ "status": { "nodeInfo": {
                    "architecture": name, "bootID": "", "containerRuntimeVersion": "",
                    "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "",
                    "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
                } } }))
                .unwrap()
            });
            architecture(&nodes.collect::<Vec<Node>>())
        };
        assert_eq!(architecture(&["arm64", "arm64"]).as_deref(), Ok("arm64"));
        let mixed = architecture(&["arm64", "amd64"]).unwrap_err();
        assert!(mixed.starts_with("amd64 or arm64: "), "{mixed}");
        assert!(architecture(&[]).is_err());
    }
}
