//! The response to a question, from the server that knows it: statistics are from the metrics API,
//! policies from the policy controller, and endpoints and the pods of proxies from the API server.
//! The metrics of the last two are from Prometheus or from scrapes of the proxies ([`Sources`]).

use http::StatusCode;
use serde_json::Value;
use tokio::time::timeout;

use super::client::{CALL_TIMEOUT, Failure};
use super::query::{Query, WorkloadQuery};
use super::sources::Sources;
use super::{endpoints, policies, proxies};

/// Returns the response to a question as JSON.
pub(super) async fn ask(sources: &Sources, query: &Query) -> Result<Value, Failure> {
    let query = match query {
        // The client has this deadline itself, and its error names the server.
        Query::Metrics(query) => return sources.metrics.ask(query).await,
        Query::Workload(query) => query,
    };
    let answer = async {
        match query {
            WorkloadQuery::Policies(it) => policies::policies(sources, it).await,
            WorkloadQuery::Proxies(it) => proxies::proxies(sources, it).await,
            WorkloadQuery::Endpoints(it) => endpoints::endpoints(sources, it).await,
        }
    };
    let answer = timeout(CALL_TIMEOUT, answer).await;
    answer.unwrap_or_else(|_elapsed| {
        Err(Failure {
            status: StatusCode::GATEWAY_TIMEOUT,
            error: format!("no response within {} s", CALL_TIMEOUT.as_secs()),
        })
    })
}
