//! `/api/endpoints`: the endpoints of a Service, each with its load from clients in the mesh.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::try_join_all;
use mesh_api::linkerd2::viz::Resource;
use serde_json::{Value, json};

use super::client::Failure;
use super::json::ToJson;
use super::objects;
use super::sources::Sources;
use crate::metrics::{Family, Grouping, Matchers, SourceError, TimeWindow};
use crate::metrics_api::{Measure, Measurement, Metric, Stats, latency_queries};

/// Some of the EndpointSlices of a Service.
struct Slices {
    slices: Vec<Value>,
    are_all: bool,
}

/// The load of each IP address.
type Loads = BTreeMap<String, Stats>;

/// A slice has at most 1,000 endpoints, by default 100.
const MAX_SLICES: usize = 10;

/// The endpoints that are shown.
const MAX_ENDPOINTS: usize = 500;

/// Series are of addresses, because not every endpoint is a pod.
const BY: &str = "target_ip";

/// Returns `endpoints`, `endpointsOmitted`, `slicesOmitted`, `timeWindow` and `metricsProblem`.
pub(super) async fn endpoints(sources: &Sources, service: &Resource) -> Result<Value, Failure> {
    let Slices { slices, are_all } = slices(sources, service).await?;
    let mut rows = distinct(slices.iter().flat_map(rows));
    let omitted = rows.len().saturating_sub(MAX_ENDPOINTS);
    rows.truncate(MAX_ENDPOINTS);
    let (loads, problem) = match loads(sources, service).await {
        Ok(loads) => (loads, None),
        Err(problem) => (Loads::new(), Some(problem)),
    };
    for row in &mut rows {
        let load = row["address"]
            .as_str()
            .and_then(|address| loads.get(address));
        let stats = load.map(|load| load.basic.unwrap_or_default());
        row["stats"] = stats.to_json();
        let tcp = load.map(|load| load.tcp.unwrap_or_default());
        row["openConnections"] = tcp.map(|tcp| tcp.open_connections).to_json();
    }
    Ok(json!({
        "endpoints": rows,
        "endpointsOmitted": omitted,
        "slicesOmitted": !are_all,
        "timeWindow": TimeWindow::minute().to_string(),
        "metricsProblem": problem,
    }))
}

/// Returns the names of the pods that are endpoints of a Service, in their order.
pub(super) async fn pods(sources: &Sources, service: &Resource) -> Result<Vec<String>, Failure> {
    let Slices { slices, .. } = slices(sources, service).await?;
    let rows = slices.iter().flat_map(rows);
    // A pod has an endpoint for each IP family.
    let names: BTreeSet<String> = rows
        .filter_map(|row| row["pod"].as_str().map(ToOwned::to_owned))
        .collect();
    Ok(names.into_iter().collect())
}

async fn slices(sources: &Sources, service: &Resource) -> Result<Slices, Failure> {
    let Resource {
        namespace, name, ..
    } = service;
    let path = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{name}&limit={MAX_SLICES}"
    );
    let mut list = objects::get(&sources.cluster, &path).await?;
    let are_all = list["metadata"]["continue"]
        .as_str()
        .is_none_or(str::is_empty);
    let slices = match list["items"].take() {
        Value::Array(slices) => slices,
        _ => Vec::new(),
    };
    Ok(Slices { slices, are_all })
}

/// Returns each address with its ports once: while endpoints move between slices, they are in both.
fn distinct(rows: impl Iterator<Item = Value>) -> Vec<Value> {
    let mut seen = BTreeSet::new();
    let distinct = rows.filter(|row| {
        let key = (row["address"].to_string(), row["ports"].to_string());
        seen.insert(key)
    });
    distinct.collect()
}

/// Returns the endpoints of a slice, without their load.
fn rows(slice: &Value) -> Vec<Value> {
    let ports = slice["ports"].as_array().into_iter().flatten();
    let ports: Vec<&Value> = ports.map(|port| &port["port"]).collect();
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    let rows = endpoints.filter_map(|endpoint| {
        let address = endpoint["addresses"].get(0)?.as_str()?;
        let target = &endpoint["targetRef"];
        let pod = (target["kind"] == "Pod").then(|| &target["name"]);
        let conditions = &endpoint["conditions"];
        Some(json!({
            "address": address,
            "ports": ports,
            "pod": pod,
            "node": endpoint["nodeName"],
            "zone": endpoint["zone"],
            // A missing condition means ready, as the API says.
            "ready": conditions["ready"].as_bool().unwrap_or(true),
            "terminating": conditions["terminating"].as_bool().unwrap_or(false),
        }))
    });
    rows.collect()
}

async fn loads(sources: &Sources, service: &Resource) -> Result<Loads, String> {
    let queried = sources.queried()?;
    let results = queries(service)
        .into_iter()
        .map(|(metric, query)| async move {
            let samples = queried.query(&query).await?;
            Ok::<_, SourceError>((metric, samples))
        });
    let results = try_join_all(results).await;
    results.map(by_address).map_err(|error| error.to_string())
}

fn queries(service: &Resource) -> Vec<Measure> {
    let selected = Matchers::new()
        .equal("direction", "outbound")
        .equal("dst_namespace", service.namespace.as_str())
        .equal("dst_service", service.name.as_str());
    let window = TimeWindow::minute();
    let by = Grouping::of(&[BY]);
    let requests = by.and(&["classification"]);
    let requests = selected.increase(Family::Responses, &window, &requests);
    let latencies = latency_queries(&selected, Family::ResponseLatency, &window, &by);
    let connections = selected.clone().equal("peer", "dst");
    let connections = connections.sum(Family::OpenConnections, &by);
    [
        (Metric::Requests, requests),
        (Metric::OpenConnections, connections),
    ]
    .into_iter()
    .chain(latencies)
    .collect()
}

fn by_address(results: Vec<Measurement>) -> Loads {
    let mut loads = Loads::new();
    for (metric, samples) in results {
        for sample in samples {
            let load = loads.entry(sample.label(BY).to_owned());
            load.or_default().add(metric, &sample);
        }
    }
    loads
}

#[cfg(test)]
mod tests {
    use mesh_cluster::prometheus::Sample;

    use super::*;

    #[test]
    fn endpoints_are_pods_and_other_addresses() {
        let slice = json!({
            "ports": [{ "port": 8080 }],
            "endpoints": [
                {
                    "addresses": ["10.1.0.5"], "nodeName": "n1", "zone": "a",
                    "conditions": { "ready": false, "terminating": true },
                    "targetRef": { "kind": "Pod", "name": "web-1" },
                },
                { "addresses": ["192.0.2.7"], "targetRef": { "kind": "ExternalWorkload", "name": "vm" } },
                { "addresses": [] },
            ],
        });
        let found = rows(&slice);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0]["pod"], "web-1");
        assert_eq!(found[0]["ports"], json!([8080]));
        assert_eq!(
            (&found[0]["ready"], &found[0]["terminating"]),
            (&json!(false), &json!(true))
        );
        assert_eq!(
            (&found[1]["pod"], &found[1]["ready"]),
            (&Value::Null, &json!(true))
        );
        assert!(rows(&json!({})).is_empty());
        let twice = distinct(rows(&slice).into_iter().chain(found));
        assert_eq!(twice.len(), 2);
    }

    #[test]
    fn load_is_what_clients_count() {
        let service = Resource {
            namespace: "shop".to_owned(),
            r#type: "service".to_owned(),
            name: "web".to_owned(),
        };
        assert_eq!(
            queries(&service)[0].1.to_string(),
            "sum(increase(response_total{direction=\"outbound\", dst_namespace=\"shop\", dst_service=\"web\"}[1m])) by (target_ip, classification)"
        );
        let sample = |classification: &str, value| {
            let labels = [(BY, "10.1.0.5"), ("classification", classification)];
            let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
            Sample {
                labels: labels.into(),
                time: 0.0,
                value,
            }
        };
        let requests = vec![sample("success", 40.2), sample("failure", 2.0)];
        let loads = by_address(vec![
            (Metric::Requests, requests),
            (Metric::Latency(2), vec![sample("", 38.0)]),
            (Metric::OpenConnections, vec![sample("", 3.0)]),
        ]);
        let load = &loads["10.1.0.5"];
        let (stats, tcp) = (load.basic.unwrap(), load.tcp.unwrap());
        assert_eq!((stats.success_count, stats.failure_count), (40, 2));
        assert_eq!((stats.latency_ms_p99, tcp.open_connections), (38, 3));
    }
}
