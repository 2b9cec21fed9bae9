//! The graph of objects: edges with the statistics of their requests.
//!
//! The metrics API has the statistics of the requests from one object, by destination. So a graph
//! takes one call for its edges, and one for each object that has outgoing edges.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use mesh_api::grpc::Channel;
use mesh_api::linkerd2::viz::api_client::ApiClient;
use mesh_api::linkerd2::viz::edges_response::Response as EdgesResult;
use mesh_api::linkerd2::viz::stat_summary_request::Outbound;
use mesh_api::linkerd2::viz::stat_summary_response::Response as StatResult;
use mesh_api::linkerd2::viz::stat_table::Table;
use mesh_api::linkerd2::viz::stat_table::pod_group::Row;
use mesh_api::linkerd2::viz::{
    BasicStats, Edge, EdgesRequest, Resource, ResourceSelection, StatSummaryRequest, TcpStats,
};
use serde_json::{Value, json};
use tonic::Status;

use super::json::ToJson;

/// A type, namespace and name.
type Source = (String, String, String);

/// The statistics by destination: namespace and name.
type Destinations = BTreeMap<(String, String), Statistics>;

/// The statistics of requests, and of connections.
type Statistics = (Option<BasicStats>, Option<TcpStats>);

/// The objects whose outgoing requests are asked about. A larger graph cannot be read.
const MAX_SOURCES: usize = 60;

const NAMESPACE: &str = "namespace";

/// Each call has five queries of Prometheus.
const CONCURRENT_CALLS: usize = 4;

const WINDOW: &str = "1m";

/// Returns the graph as JSON: `ok.edges`, each with `stats` and `tcpStats`, and
/// `ok.sourcesWithoutStats`, how many objects have outgoing edges without statistics because there
/// are too many. An error of the metrics API is returned as of edges.
pub(super) async fn topology(
    api: &ApiClient<Channel>,
    request: &EdgesRequest,
) -> Result<Value, Status> {
    let edges = api.clone().edges(request.clone()).await?.into_inner();
    let Some(EdgesResult::Ok(ok)) = edges.response else {
        return Ok(edges.to_json());
    };
    let sources = ok.edges.iter().filter_map(|edge| edge.src.as_ref());
    let sources: BTreeSet<Source> = sources.map(key).collect();
    let omitted = sources.len().saturating_sub(MAX_SOURCES);
    let asked = sources.into_iter().take(MAX_SOURCES);
    let stats: BTreeMap<Source, Destinations> = stream::iter(asked)
        .map(|source| requests_from(api.clone(), source))
        .buffer_unordered(CONCURRENT_CALLS)
        .try_collect()
        .await?;
    let edges: Vec<Value> = ok
        .edges
        .iter()
        .map(|edge| with_stats(edge, &stats))
        .collect();
    Ok(json!({ "ok": { "edges": edges, "sourcesWithoutStats": omitted } }))
}

fn key(resource: &Resource) -> Source {
    let Resource {
        namespace,
        r#type: kind,
        name,
    } = resource.clone();
    // An edge of a namespace repeats its name; statistics do not.
    let namespace = if kind == NAMESPACE {
        String::new()
    } else {
        namespace
    };
    (kind, namespace, name)
}

/// Returns the statistics of the requests of an object.
async fn requests_from(
    mut api: ApiClient<Channel>,
    source: Source,
) -> Result<(Source, Destinations), Status> {
    let (kind, namespace, name) = source.clone();
    let resource = |namespace: String, name: String| Resource {
        namespace,
        r#type: kind.clone(),
        name,
    };
    let request = StatSummaryRequest {
        selector: Some(ResourceSelection {
            resource: Some(resource(String::new(), String::new())),
            label_selector: String::new(),
        }),
        time_window: WINDOW.to_owned(),
        outbound: Some(Outbound::FromResource(resource(namespace, name))),
        tcp_stats: true,
        ..StatSummaryRequest::default()
    };
    let response = api.stat_summary(request).await?.into_inner();
    match response.response {
        Some(StatResult::Ok(ok)) => {
            let tables = ok.stat_tables.into_iter().filter_map(|table| table.table);
            let rows = tables.flat_map(|Table::PodGroup(group)| group.rows);
            Ok((source, rows.filter_map(destination).collect()))
        }
        Some(StatResult::Error(error)) => Err(Status::internal(error.error)),
        None => Ok((source, Destinations::new())),
    }
}

fn destination(row: Row) -> Option<((String, String), Statistics)> {
    let resource = row.resource?;
    Some((
        (resource.namespace, resource.name),
        (row.stats, row.tcp_stats),
    ))
}

fn with_stats(edge: &Edge, stats: &BTreeMap<Source, Destinations>) -> Value {
    let found = edge
        .src
        .as_ref()
        .zip(edge.dst.as_ref())
        .and_then(|(src, dst)| {
            let destinations = stats.get(&key(src))?;
            let (_, namespace, name) = key(dst);
            destinations.get(&(namespace, name))
        });
    let (http, tcp) = found.copied().unwrap_or_default();
    let mut json = edge.to_json();
    json["stats"] = http.to_json();
    json["tcpStats"] = tcp.to_json();
    json
}
