//! Asks the controllers for their responses to the client's proxy, and the proxy for its counters.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use mesh_core::endpoint::{Endpoint, EndpointUpdate};
use mesh_core::exposition::{self, Sample};
use mesh_core::policy::outbound::Target as PolicyTarget;
use mesh_core::profile::Profile;
use mesh_k8s::values::Values;

use super::super::facts::{Discovery, EndpointLoad, Fact, Target};
use crate::mesh::Mesh;
use crate::mesh::controllers::{self, QueryContext, Source};
use crate::resource::MeshPod;

pub(super) async fn read(
    mesh: &Mesh,
    values: &Values,
    client: &MeshPod,
    node: &str,
    target: &Target,
) -> Discovery {
    // As the proxy identifies itself; the answers depend on namespace and zone.
    let token = serde_json::json!({
        "ns": client.namespace, "pod": client.name, "nodeName": node,
    });
    let token = token.to_string();
    let query = QueryContext {
        source: Source::Mesh { mesh, pod: None },
        token: &token,
    };
    let domain = &values.cluster_domain;
    Box::pin(ask(&query, &query, domain, target, load(mesh, client))).await
}

/// Asks the destination and the policy controller, each with the proxy's token for it.
pub(super) async fn ask(
    destination: &QueryContext<'_>,
    policy: &QueryContext<'_>,
    domain: &str,
    target: &Target,
    load: impl Future<Output = Fact<Vec<EndpointLoad>>>,
) -> Discovery {
    let address = target.address.to_string();
    let policy_target = PolicyTarget::Addr(target.address);
    let (profile, policy, load) = tokio::join!(
        controllers::profile(destination, &address),
        controllers::outbound_policy(policy, &policy_target),
        load,
    );
    let text = |error: anyhow::Error| format!("{error:#}");
    let profile = profile.map_err(text);
    let endpoints = match authority(domain, target, profile.as_ref().ok()) {
        Some(authority) => endpoints(destination, &authority).await.map_err(text),
        // The address of a pod is its own endpoint.
        None => Ok(profile
            .iter()
            .flat_map(|profile| profile.endpoint.clone())
            .collect()),
    };
    Discovery {
        profile,
        policy: policy.map_err(text),
        endpoints,
        load,
    }
}

/// Returns what is unknown for a reason.
pub(super) fn unknown(reason: &str, load: Fact<Vec<EndpointLoad>>) -> Discovery {
    Discovery {
        profile: Err(reason.to_owned()),
        policy: Err(reason.to_owned()),
        endpoints: Err(reason.to_owned()),
        load,
    }
}

/// Returns the name that the endpoints of the target's Service are looked up by; `None` if the
/// target does not belong to one.
fn authority(domain: &str, target: &Target, profile: Option<&Profile>) -> Option<String> {
    let port = target.address.port();
    if let Some((namespace, name)) = target.service.as_deref().and_then(|it| it.split_once('/')) {
        return Some(format!("{name}.{namespace}.svc.{domain}:{port}"));
    }
    // The Service of an address.
    let name = profile
        .filter(|profile| profile.endpoint.is_none())?
        .fqn
        .as_deref();
    Some(format!("{}:{port}", name.filter(|name| !name.is_empty())?))
}

async fn endpoints(query: &QueryContext<'_>, authority: &str) -> anyhow::Result<Vec<Endpoint>> {
    let update = controllers::endpoints(query, authority).await?;
    Ok(match update {
        EndpointUpdate::Add {
            endpoints,
            set_labels,
        } => {
            let with_labels = |endpoint: Endpoint| Endpoint {
                labels: endpoint.labels.or(&set_labels),
                ..endpoint
            };
            endpoints.into_iter().map(with_labels).collect()
        }
        EndpointUpdate::Remove(_) | EndpointUpdate::Empty { .. } => Vec::new(),
    })
}

async fn load(mesh: &Mesh, client: &MeshPod) -> Fact<Vec<EndpointLoad>> {
    let scrape = async {
        let port = client.admin_port()?;
        mesh.get(client, port, "/metrics").await
    };
    let text = scrape.await.map_err(|error| format!("{error:#}"))?;
    Ok(loads(&exposition::parse(&text)))
}

#[derive(Default)]
struct Sums {
    requests: f64,
    connections: f64,
    latency_ms: f64,
    latencies: f64,
}

/// Sums the outbound counters of a proxy by endpoint.
pub(super) fn loads(samples: &[Sample]) -> Vec<EndpointLoad> {
    let mut by_address: BTreeMap<SocketAddr, Sums> = BTreeMap::new();
    let outbound = samples
        .iter()
        .filter(|sample| sample.label("direction") == "outbound");
    for sample in outbound {
        let Ok(address) = sample.label("target_addr").parse() else {
            continue;
        };
        let sums: &mut Sums = by_address.entry(address).or_default();
        match sample.name.as_str() {
            "request_total" => sums.requests += sample.value,
            "tcp_open_connections" if sample.label("peer") == "dst" => {
                sums.connections += sample.value;
            }
            "response_latency_ms_sum" => sums.latency_ms += sample.value,
            "response_latency_ms_count" => sums.latencies += sample.value,
            _ => {}
        }
    }
    let load = |(address, sums): (SocketAddr, Sums)| EndpointLoad {
        address,
        requests: sums.requests as u64,
        open_connections: sums.connections as u64,
        mean_latency: (sums.latencies > 0.0).then(|| {
            let seconds = sums.latency_ms / sums.latencies / 1e3;
            Duration::try_from_secs_f64(seconds).unwrap_or_default()
        }),
    };
    by_address.into_iter().map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_by_endpoint() {
        let to = r#"direction="outbound",target_addr="10.0.0.1:80""#;
        let text = format!(
            "request_total{{{to},authority=\"a\"}} 3\nrequest_total{{{to},authority=\"b\"}} 2\n\
             tcp_open_connections{{{to},peer=\"dst\"}} 1\nresponse_latency_ms_sum{{{to}}} 10\n\
             response_latency_ms_count{{{to}}} 4\n\
             request_total{{direction=\"inbound\",target_addr=\"10.0.0.2:80\"}} 9\n\
             request_total{{direction=\"outbound\",target_addr=\"10.0.0.3:80\"}} 1\n"
        );
        let loads = loads(&exposition::parse(&text));
        assert_eq!(
            loads[0],
            EndpointLoad {
                address: "10.0.0.1:80".parse().unwrap(),
                requests: 5,
                open_connections: 1,
                mean_latency: Some(Duration::from_micros(2_500)),
            }
        );
        assert_eq!(
            (loads[1].open_connections, loads[1].mean_latency),
            (0, None)
        );
        assert_eq!(loads.len(), 2);
    }
}
