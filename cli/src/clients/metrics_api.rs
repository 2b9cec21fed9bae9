//! Client of the viz extension's metrics API (`linkerd2.viz.Api`), which has the statistics of
//! workloads from Prometheus. The commands of `meshctl viz` use it.

mod request;
mod rows;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use mesh_api::grpc::Channel;
use mesh_api::linkerd2::viz::api_client::ApiClient;
use mesh_api::linkerd2::viz::{
    CheckResult, CheckStatus, ListPodsRequest, ResourceError, SelfCheckRequest, authz_response,
    edges_response, stat_summary_response, stat_table, top_routes_response,
};
use tokio::net::TcpStream;
use tonic::Status;

use super::grpc;
use crate::clients::connection::Connection;
use crate::exit::Failure;

pub(crate) use self::request::{Peer, StatQuery, Target, TimeWindow};
#[cfg(test)]
pub(crate) use self::rows::Tcp;
pub(crate) use self::rows::{AuthzRow, Edge, PolicyObject, Requests, RouteRow, StatRow};

pub(crate) const PORT: u16 = 8085;

#[derive(Clone)]
pub(crate) struct MetricsApi {
    client: ApiClient<Channel>,
}

/// The routes of one object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouteTable {
    /// The kind and name of the object, as in `deployment/web`.
    pub(crate) resource: String,
    pub(crate) rows: Vec<RouteRow>,
}

/// A call waits for several rounds of queries. Each round has 10 s.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of a response. The metrics API returns at most 10,000 rows for each of nine kinds,
/// and a row is about 200 bytes.
const MAX_RESPONSE: usize = 32 << 20;

impl MetricsApi {
    /// `server` is the name of the server for error messages.
    pub(crate) async fn new(connection: Connection, server: &str) -> anyhow::Result<Self> {
        let channel = grpc::channel(connection, server).await?;
        Ok(Self {
            client: ApiClient::new(channel).max_decoding_message_size(MAX_RESPONSE),
        })
    }

    /// Connects to the metrics API at an address, without a cluster.
    pub(crate) async fn connect(addr: SocketAddr) -> anyhow::Result<Self> {
        let server = format!("the metrics API at {addr}");
        let connect = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(addr)).await;
        let stream = match connect {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                let problem = format!("cannot connect to {server}: {error}");
                return Err(Failure::Unreachable(problem).into());
            }
            Err(_elapsed) => {
                let problem = format!("no connection to {server}");
                return Err(Failure::TimedOut(problem).into());
            }
        };
        Self::new(Connection::new(stream), &server).await
    }

    /// Returns the rows of all tables.
    pub(crate) async fn stat(&self, query: &StatQuery) -> anyhow::Result<Vec<StatRow>> {
        let mut client = self.client.clone();
        let response = call(client.stat_summary(query.to_message())).await?;
        match response.response {
            Some(stat_summary_response::Response::Ok(ok)) => {
                let rows = ok.stat_tables.into_iter().flat_map(table_rows);
                Ok(rows.map(|row| StatRow::new(row, &query.window)).collect())
            }
            Some(stat_summary_response::Response::Error(error)) => Err(refused(&error)),
            None => Err(no_result()),
        }
    }

    pub(crate) async fn edges(&self, target: &Target) -> anyhow::Result<Vec<Edge>> {
        let mut client = self.client.clone();
        let response = call(client.edges(target.to_edges_message())).await?;
        match response.response {
            Some(edges_response::Response::Ok(ok)) => {
                Ok(ok.edges.into_iter().map(Edge::new).collect())
            }
            Some(edges_response::Response::Error(error)) => Err(refused(&error)),
            None => Err(no_result()),
        }
    }

    /// Returns the routes of objects by the ServiceProfiles of their Services.
    pub(crate) async fn routes(&self, query: &StatQuery) -> anyhow::Result<Vec<RouteTable>> {
        let mut client = self.client.clone();
        let response = call(client.top_routes(query.to_routes_message())).await?;
        match response.response {
            Some(top_routes_response::Response::Ok(ok)) => {
                let table = |table: mesh_api::linkerd2::viz::RouteTable| {
                    let rows = table.rows.into_iter();
                    RouteTable {
                        resource: table.resource,
                        rows: rows.map(|row| RouteRow::new(row, &query.window)).collect(),
                    }
                };
                Ok(ok.routes.into_iter().map(table).collect())
            }
            Some(top_routes_response::Response::Error(error)) => Err(refused(&error)),
            None => Err(no_result()),
        }
    }

    /// Returns the description of each check that the metrics API makes, and the problem if there
    /// is one.
    pub(crate) async fn self_check(&self) -> anyhow::Result<Vec<(String, Option<String>)>> {
        let mut client = self.client.clone();
        let response = call(client.self_check(SelfCheckRequest {})).await?;
        let result = |check: CheckResult| {
            let is_ok = check.status() == CheckStatus::Ok;
            let problem = (!is_ok).then_some(check.friendly_message_to_user);
            (check.check_description, problem)
        };
        Ok(response.results.into_iter().map(result).collect())
    }

    /// Returns the pods with series in Prometheus, as namespace/name.
    pub(crate) async fn scraped_pods(&self) -> anyhow::Result<BTreeSet<String>> {
        let mut client = self.client.clone();
        let response = call(client.list_pods(ListPodsRequest::default())).await?;
        let pods = response.pods.into_iter().filter(|pod| pod.added);
        Ok(pods.map(|pod| pod.name).collect())
    }

    /// Returns the requests of an object by Server, route and authorization.
    pub(crate) async fn authz(
        &self,
        target: &Target,
        window: &TimeWindow,
    ) -> anyhow::Result<Vec<AuthzRow>> {
        let mut client = self.client.clone();
        let response = call(client.authz(target.to_authz_message(window))).await?;
        match response.response {
            Some(authz_response::Response::Ok(ok)) => {
                let rows = ok.stat_table.into_iter().flat_map(table_rows);
                Ok(rows.map(|row| AuthzRow::new(row, window)).collect())
            }
            Some(authz_response::Response::Error(error)) => Err(refused(&error)),
            None => Err(no_result()),
        }
    }
}

fn table_rows(table: mesh_api::linkerd2::viz::StatTable) -> Vec<stat_table::pod_group::Row> {
    match table.table {
        Some(stat_table::Table::PodGroup(group)) => group.rows,
        None => Vec::new(),
    }
}

async fn call<T>(
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> anyhow::Result<T> {
    let result = tokio::time::timeout(CALL_TIMEOUT, call).await;
    let response = result.map_err(|_elapsed| {
        Failure::TimedOut(format!(
            "no response from the metrics API within {} s; a shorter time window or one namespace is less work",
            CALL_TIMEOUT.as_secs()
        ))
    })?;
    let response = response.map_err(|status| anyhow::anyhow!("{}", status.message()));
    Ok(response.context("the metrics API failed")?.into_inner())
}

fn refused(error: &ResourceError) -> anyhow::Error {
    anyhow::anyhow!("the metrics API refused the request: {}", error.error)
}

/// The response is of a later version, which has other results.
fn no_result() -> anyhow::Error {
    anyhow::anyhow!(
        "the metrics API responded without a result; is it of another version? `meshctl version` shows both"
    )
}

#[cfg(test)]
mod tests;
