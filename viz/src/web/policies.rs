//! `/api/policies`: the inbound policies of the ports of a workload, as its proxies enforce them.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use mesh_api::linkerd2::viz::Resource;
use mesh_k8s::pod::PROXY_CONTAINER;
use mesh_k8s::pod::ports::{declared, is_tcp, port_number, skip_inbound};
use serde_json::{Value, json};

use super::client::Failure;
use super::pods::{self, PodsOf, pods_of};
use super::sources::Sources;

mod json;

/// A port that a container of a pod declares.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    number: u16,
    name: String,
    /// Connections to it bypass the proxy.
    is_skipped: bool,
}

/// The ports of one pod that are asked about.
const MAX_PORTS: usize = 16;

/// Calls to the policy controller at a time.
const CONCURRENT_CALLS: usize = 16;

/// Returns `ports`, each with its `policy` and the `pods` that have it; pods without a proxy, and
/// how many pods and ports were left out.
pub(super) async fn policies(sources: &Sources, resource: &Resource) -> Result<Value, Failure> {
    let PodsOf { pods, omitted } = pods_of(sources, resource).await?;
    let (meshed, other): (Vec<Pod>, Vec<Pod>) = pods.into_iter().partition(pods::is_meshed);
    let (asked, ports_omitted) = asked(&meshed);
    let namespace = &resource.namespace;
    let answers: Vec<(String, Port, Value)> = stream::iter(asked)
        .map(|(pod, port)| async move {
            let policy = policy(sources, namespace, &pod, &port).await?;
            Ok((pod, port, policy))
        })
        .buffered(CONCURRENT_CALLS)
        .try_collect()
        .await?;
    Ok(json!({
        "ports": merged(answers),
        "podsWithoutProxy": other.iter().map(pods::name).collect::<Vec<_>>(),
        "podsOmitted": omitted,
        "portsOmitted": ports_omitted,
    }))
}

/// Returns the ports that are asked about, each with the name of its pod, and how many are not.
fn asked(pods: &[Pod]) -> (Vec<(String, Port)>, usize) {
    let mut omitted = 0;
    let mut asked = Vec::new();
    for pod in pods {
        let ports = ports(pod);
        omitted += ports.len().saturating_sub(MAX_PORTS);
        let ports = ports.into_iter().take(MAX_PORTS);
        asked.extend(ports.map(|port| (pods::name(pod).to_owned(), port)));
    }
    (asked, omitted)
}

async fn policy(
    sources: &Sources,
    namespace: &str,
    pod: &str,
    port: &Port,
) -> Result<Value, Failure> {
    if port.is_skipped {
        return Ok(Value::Null);
    }
    let policy = sources.policies.policy(namespace, pod, port.number).await?;
    let policy = policy.as_ref();
    Ok(policy.map_or(Value::Null, |it| json::policy(it, namespace)))
}

/// Returns the TCP ports of a pod's own containers, by number.
fn ports(pod: &Pod) -> Vec<Port> {
    let skipped = skip_inbound(pod);
    let declared = pod.spec.iter().flat_map(declared);
    let own = declared
        .filter(|(container, port)| container.name != PROXY_CONTAINER && is_tcp(port))
        .filter_map(|(_, port)| {
            let number = port_number(port.container_port)?;
            Some(Port {
                number,
                name: port.name.clone().unwrap_or_default(),
                is_skipped: skipped.contains(number),
            })
        });
    let mut ports: Vec<Port> = own.collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Returns each different policy of a port once.
fn merged(answers: Vec<(String, Port, Value)>) -> Vec<Value> {
    let mut merged: BTreeMap<(Port, String), (Value, Vec<String>)> = BTreeMap::new();
    for (pod, port, policy) in answers {
        let entry = merged.entry((port, policy.to_string()));
        entry.or_insert_with(|| (policy, Vec::new())).1.push(pod);
    }
    let ports = merged.into_iter().map(|((port, _), (policy, pods))| {
        json!({
            "port": port.number,
            "name": port.name,
            "skipped": port.is_skipped,
            "policy": policy,
            "pods": pods,
        })
    });
    ports.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotations: &Value, ports: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "web-1", "annotations": annotations },
            "spec": { "containers": [
                { "name": "web", "ports": ports },
                { "name": PROXY_CONTAINER, "ports": [{ "containerPort": 4143 }] },
            ] },
        }))
        .unwrap()
    }

    #[test]
    fn ports_are_those_of_the_application_once_by_number() {
        let pod = pod(
            &json!({ "config.linkerd.io/skip-inbound-ports": "9000-9001" }),
            &json!([
                { "containerPort": 9000, "name": "raw" },
                { "containerPort": 8080, "name": "http" },
                { "containerPort": 8080, "name": "http" },
                { "containerPort": 53, "protocol": "UDP" },
            ]),
        );
        let port = |number, name: &str, is_skipped| Port {
            number,
            name: name.to_owned(),
            is_skipped,
        };
        assert_eq!(
            ports(&pod),
            [port(8080, "http", false), port(9000, "raw", true)]
        );
    }

    #[test]
    fn ports_of_a_pod_are_bounded() {
        let declared = |count: usize| {
            let ports: Value = (1..=count)
                .map(|port| json!({ "containerPort": port }))
                .collect();
            pod(&json!({}), &ports)
        };
        let (asked_about, omitted) = asked(&[declared(MAX_PORTS), declared(MAX_PORTS + 3)]);
        assert_eq!((asked_about.len(), omitted), (2 * MAX_PORTS, 3));
    }

    #[test]
    fn equal_policies_of_pods_are_shown_once() {
        let port = Port {
            number: 80,
            name: String::new(),
            is_skipped: false,
        };
        let answer = |pod: &str, policy: i32| (pod.to_owned(), port.clone(), json!(policy));
        let merged = merged(vec![answer("a", 1), answer("b", 2), answer("c", 1)]);
        let pods: Vec<&Value> = merged.iter().map(|port| &port["pods"]).collect();
        assert_eq!(pods, [&json!(["a", "c"]), &json!(["b"])]);
    }
}
