//! The controllers that mirror linked clusters, and what their metrics say about gateways. Only the
//! holder of a cluster's Lease probes its gateway.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::ListParams;
use mesh_core::annotation::MIRRORED_CLUSTER;
use mesh_core::exposition::Sample;
use mesh_k8s::kinds::{Lease, Pod, ResourceExt};
use mesh_k8s::pod;

use super::{Cluster, error};
use crate::clients;
use crate::exit::Failure;
use crate::resource::Scope;

/// What a mirror controller knows about the gateway of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GatewayStatus {
    pub(crate) alive: bool,
    /// The latency of the last probe in milliseconds, if one has succeeded.
    pub(crate) latency_ms: Option<u64>,
}

/// The status by cluster. A cluster that is linked without a gateway has none.
pub(crate) type Gateways = BTreeMap<String, anyhow::Result<Option<GatewayStatus>>>;

/// The labels of the controllers' pods, as in Linkerd: of the chart for links, and of the chart of
/// the extension.
const COMPONENTS: &str = "component in (linkerd-service-mirror, controller)";

/// The names of their containers and of the port with metrics.
pub(crate) const CONTAINERS: [&str; 2] = ["service-mirror", "controller"];
const PORTS: [&str; 2] = ["svcmi-admin", "ctrl-admin"];

/// The number of the port with metrics, if it has no name.
const DEFAULT_PORT: u16 = 9999;

/// Returns the label selector of the controllers' pods and Deployments.
pub(crate) fn selector(cluster: Option<&str>) -> String {
    match cluster {
        Some(cluster) => format!("{COMPONENTS},{MIRRORED_CLUSTER}={cluster}"),
        None => format!("{COMPONENTS},{MIRRORED_CLUSTER}"),
    }
}

/// Returns the name of the Lease of the controllers of a cluster.
pub(crate) fn lease_name(cluster: &str) -> String {
    format!("service-mirror-write-{cluster}")
}

impl Cluster {
    /// Asks the mirror controllers of a namespace about the gateways: of one cluster, or of all
    /// that have a controller.
    pub(crate) async fn gateways(
        &self,
        namespace: &str,
        cluster: Option<&str>,
        timeout: Duration,
    ) -> anyhow::Result<Gateways> {
        let scope = Scope::Namespace(namespace.to_owned());
        let labelled = ListParams::default().labels(&selector(cluster));
        let (pods, leases) = tokio::join!(
            self.list::<Pod>(&scope, labelled),
            self.list::<Lease>(&scope, ListParams::default()),
        );
        let pods = pods.map_err(|error| error::failed("list the mirror controllers", error))?;
        let what = "list the Leases of the mirror controllers";
        let leases = leases.map_err(|error| error::failed(what, error))?;
        let requests = by_cluster(&pods).into_iter().map(async |(cluster, pods)| {
            let status = async {
                let leader = leader(&cluster, &pods, &leases).map_err(Failure::Unreachable)?;
                self.gateway_status(&cluster, leader, timeout).await
            };
            let status = status.await;
            (cluster, status)
        });
        Ok(clients::concurrently(requests).await.into_iter().collect())
    }

    async fn gateway_status(
        &self,
        cluster: &str,
        leader: &Pod,
        timeout: Duration,
    ) -> anyhow::Result<Option<GatewayStatus>> {
        let namespace = leader.namespace().unwrap_or_default();
        let (name, port) = (leader.name_any(), metrics_port(leader));
        let metrics = self.metrics(&namespace, &name, port, timeout).await?;
        let found = status_in(&metrics, cluster);
        Ok(found.map_err(|reason| {
            Failure::Unreachable(format!("port {port} of pod {namespace}/{name} {reason}"))
        })?)
    }
}

/// Groups pods that have not ended by the cluster that they mirror.
fn by_cluster(pods: &[Pod]) -> BTreeMap<String, Vec<&Pod>> {
    let mut by_cluster: BTreeMap<String, Vec<&Pod>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod::is_terminal(pod)) {
        let cluster = pod::label(pod, MIRRORED_CLUSTER).unwrap_or_default();
        by_cluster.entry(cluster.to_owned()).or_default().push(pod);
    }
    by_cluster
}

/// Returns the pod that holds the Lease.
fn leader<'p>(cluster: &str, pods: &[&'p Pod], leases: &[Lease]) -> Result<&'p Pod, String> {
    let name = lease_name(cluster);
    let lease = leases.iter().find(|lease| lease.name_any() == name);
    let holder = lease.and_then(|lease| lease.spec.as_ref()?.holder_identity.as_deref());
    let holder = holder
        .filter(|holder| !holder.is_empty())
        .ok_or_else(|| format!("no controller holds Lease {name} yet: is one of them running?"))?;
    let leader = pods.iter().find(|pod| pod.name_any() == holder);
    leader.copied().ok_or_else(|| {
        format!("{holder}, which holds Lease {name}, is not a pod: another one takes over soon")
    })
}

fn metrics_port(pod: &Pod) -> u16 {
    let containers = pod.spec.iter().flat_map(pod::containers);
    let ports = containers
        .filter(|container| CONTAINERS.contains(&container.name.as_str()))
        .flat_map(|container| container.ports.iter().flatten());
    let named = ports
        .filter(|port| {
            port.name
                .as_deref()
                .is_some_and(|name| PORTS.contains(&name))
        })
        .find_map(|port| u16::try_from(port.container_port).ok());
    named.unwrap_or(DEFAULT_PORT)
}

/// Returns what the metrics of a controller say about the gateway.
fn status_in(samples: &[Sample], cluster: &str) -> Result<Option<GatewayStatus>, String> {
    let value = |name: &str| {
        let mut samples = samples.iter();
        let found = samples
            .find(|sample| sample.name == name && sample.label("target_cluster_name") == cluster);
        found.map(|sample| sample.value)
    };
    let (enabled, alive) = (value("gateway_enabled"), value("gateway_alive"));
    if enabled.is_some_and(|enabled| enabled != 1.0) {
        return Ok(None);
    }
    let alive = alive.ok_or_else(|| format!("has no metric gateway_alive of cluster {cluster}"))?;
    Ok(Some(GatewayStatus {
        alive: alive == 1.0,
        latency_ms: value("gateway_latency").and_then(millis),
    }))
}

/// Returns a whole number of milliseconds; `None` for a value that cannot be one.
fn millis(value: f64) -> Option<u64> {
    Duration::try_from_secs_f64(value / 1000.0)
        .ok()
        .and_then(|latency| u64::try_from(latency.as_millis()).ok())
}

#[cfg(test)]
mod tests {
    use mesh_core::exposition;
    use serde_json::json;

    use super::*;

    fn pod(name: &str, ports: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "mc",
                "labels": { "mirror.linkerd.io/cluster-name": "east" },
            },
            "spec": { "containers": [
                { "name": "linkerd-proxy", "ports": [{ "name": "ctrl-admin", "containerPort": 1 }] },
                { "name": "controller", "ports": ports },
            ] },
            "status": { "phase": "Running" },
        }))
        .unwrap()
    }

    fn lease(name: &str, holder: &str) -> Lease {
        let spec = json!({ "holderIdentity": holder });
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
    }

    #[test]
    fn holder_of_the_lease_is_asked() {
        let pods = [pod("a", &json!([])), pod("b", &json!([]))];
        let pods: Vec<&Pod> = pods.iter().collect();
        let leases = [
            lease("service-mirror-write-west", "a"),
            lease("service-mirror-write-east", "b"),
        ];
        assert_eq!(leader("east", &pods, &leases).unwrap().name_any(), "b");
        for (holder, expect) in [("", "no controller holds"), ("gone", "gone, which holds")] {
            let leases = [lease("service-mirror-write-east", holder)];
            let error = leader("east", &pods, &leases).unwrap_err();
            assert!(error.starts_with(expect), "{error}");
        }
        assert!(leader("east", &pods, &[]).is_err());
    }

    #[test]
    fn pods_that_have_ended_are_not_asked() {
        let mut ended = pod("a", &json!([]));
        ended.status.as_mut().unwrap().phase = Some("Failed".to_owned());
        let pods = [ended, pod("b", &json!([]))];
        let by_cluster = by_cluster(&pods);
        let names: Vec<String> = by_cluster["east"].iter().map(|it| it.name_any()).collect();
        assert_eq!(names, ["b"]);
    }

    #[test]
    fn metrics_are_on_the_named_port_of_the_controller() {
        let named =
            json!([{ "containerPort": 80 }, { "name": "ctrl-admin", "containerPort": 9998 }]);
        assert_eq!(metrics_port(&pod("a", &named)), 9998);
        assert_eq!(metrics_port(&pod("a", &json!([]))), 9999);
    }

    #[test]
    fn metrics_say_whether_the_gateway_is_alive() {
        let status = |text: &str| status_in(&exposition::parse(text), "east");
        let label = "{target_cluster_name=\"east\"}";
        let other = "gateway_alive{target_cluster_name=\"west\"} 1\n";
        let alive = GatewayStatus {
            alive: true,
            latency_ms: Some(12),
        };
        let text = format!(
            "{other}gateway_enabled{label} 1\ngateway_alive{label} 1\ngateway_latency{label} 12\n"
        );
        assert_eq!(status(&text), Ok(Some(alive)));
        let dead = GatewayStatus {
            alive: false,
            latency_ms: None,
        };
        assert_eq!(status(&format!("gateway_alive{label} 0\n")), Ok(Some(dead)));
        let broken = format!("gateway_alive{label} 0\ngateway_latency{label} -1\n");
        assert_eq!(status(&broken), Ok(Some(dead)));
        let without = format!("gateway_enabled{label} 0\ngateway_alive{label} 1\n");
        assert_eq!(status(&without), Ok(None));
        assert!(
            status(other)
                .unwrap_err()
                .contains("gateway_alive of cluster east")
        );
    }
}
