//! The client of the metrics API.

use std::time::Duration;

use http::StatusCode;
use mesh_api::grpc::{Channel, Endpoint, TransportError};
use mesh_api::linkerd2::viz::api_client::ApiClient;
use mesh_api::linkerd2::viz::{Pod, SelfCheckRequest};
use serde_json::Value;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::json::ToJson;
use super::query::{MetricsQuery, pods_request};
use super::topology;

/// A metrics API. Clones share one connection, which is opened by the first call and again after it
/// broke.
#[derive(Clone, Debug)]
pub(crate) struct MetricsClient {
    api: ApiClient<Channel>,
    addr: String,
}

/// Why a question has no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) error: String,
}

impl Failure {
    /// The request is invalid.
    pub(crate) fn invalid(error: String) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            error,
        }
    }

    pub(crate) fn internal(error: &impl ToString) -> Self {
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            error: error.to_string(),
        }
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The metrics API waits at most 10 s for its turn. Prometheus' default timeout is 2 minutes, but a
/// viewer leaves earlier.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// Tables have at most 10,000 rows.
const MAX_RESPONSE: usize = 8 << 20;

/// Returns a connection to a host and port, which is opened by the first call.
pub(super) fn channel(addr: &str) -> Result<Channel, TransportError> {
    let endpoint = Endpoint::new(addr)?;
    Ok(endpoint.connect_timeout(CONNECT_TIMEOUT).connect_lazy())
}

impl MetricsClient {
    /// Returns a client for a host and port, which does not connect yet.
    pub(crate) fn new(addr: &str) -> Result<Self, TransportError> {
        Ok(Self {
            api: ApiClient::new(channel(addr)?).max_decoding_message_size(MAX_RESPONSE),
            addr: addr.to_owned(),
        })
    }

    /// Returns the response to a question as JSON.
    pub(crate) async fn ask(&self, query: &MetricsQuery) -> Result<Value, Failure> {
        match timeout(CALL_TIMEOUT, self.call(query)).await {
            Ok(result) => result.map_err(|status| self.failure(&status)),
            Err(_elapsed) => Err(Failure {
                status: StatusCode::GATEWAY_TIMEOUT,
                error: format!(
                    "the metrics API at {} did not respond within {} s",
                    self.addr,
                    CALL_TIMEOUT.as_secs()
                ),
            }),
        }
    }

    /// Returns the pods of a namespace. The caller has a deadline.
    pub(super) async fn pods(&self, namespace: &str) -> Result<Vec<Pod>, Failure> {
        let request = pods_request(namespace);
        let listed = self.api.clone().list_pods(request).await;
        match listed {
            Ok(pods) => Ok(pods.into_inner().pods),
            Err(status) => Err(self.failure(&status)),
        }
    }

    async fn call(&self, query: &MetricsQuery) -> Result<Value, Status> {
        let mut api = self.api.clone();
        Ok(match query {
            MetricsQuery::Stat(request) => {
                api.stat_summary(request.clone()).await?.get_ref().to_json()
            }
            MetricsQuery::Routes(request) => {
                api.top_routes(request.clone()).await?.get_ref().to_json()
            }
            MetricsQuery::Edges(request) => api.edges(request.clone()).await?.get_ref().to_json(),
            MetricsQuery::Topology(request) => topology::topology(&api, request).await?,
            MetricsQuery::Pods(request) => {
                api.list_pods(request.clone()).await?.get_ref().to_json()
            }
            MetricsQuery::Services(request) => {
                let services = api.list_services(request.clone()).await?;
                services.get_ref().to_json()
            }
            MetricsQuery::Gateways(request) => {
                api.gateways(request.clone()).await?.get_ref().to_json()
            }
            MetricsQuery::Authz(request) => api.authz(request.clone()).await?.get_ref().to_json(),
            MetricsQuery::SelfCheck => api
                .self_check(SelfCheckRequest {})
                .await?
                .get_ref()
                .to_json(),
        })
    }

    fn failure(&self, status: &Status) -> Failure {
        let message = status.message();
        let error = match status.code() {
            Code::Unavailable => {
                let addr = &self.addr;
                format!("cannot get statistics from the metrics API at {addr}: {message}")
            }
            _ => message.to_owned(),
        };
        Failure {
            status: match status.code() {
                Code::InvalidArgument => StatusCode::BAD_REQUEST,
                Code::NotFound => StatusCode::NOT_FOUND,
                Code::Unavailable | Code::FailedPrecondition | Code::ResourceExhausted => {
                    StatusCode::SERVICE_UNAVAILABLE
                }
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            },
            error,
        }
    }
}
