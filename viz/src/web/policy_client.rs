//! The client of the policy controller. It calls the API that tells proxies the policies of their
//! ports. So it gets the answer that the proxies enforce, and needs no rights to read objects.

use http::StatusCode;
use mesh_api::grpc::{Channel, TransportError};
use mesh_api::inbound::server_policy;
use mesh_api::proto::inbound::PortSpec;
use mesh_api::proto::inbound::inbound_server_policies_client::InboundServerPoliciesClient;
use mesh_core::policy::inbound::ServerPolicy;
use serde_json::json;
use tonic::Code;

use super::client::{Failure, channel};

/// A policy controller. Clones share one connection, which is opened by the first call and again
/// after it broke.
#[derive(Clone, Debug)]
pub(crate) struct PolicyClient {
    api: InboundServerPoliciesClient<Channel>,
    addr: String,
}

/// The policy of a port, which has a few routes and authorizations.
const MAX_RESPONSE: usize = 1 << 20;

impl PolicyClient {
    /// Returns a client for a host and port, which does not connect yet.
    pub(crate) fn new(addr: &str) -> Result<Self, TransportError> {
        let api = InboundServerPoliciesClient::new(channel(addr)?);
        Ok(Self {
            api: api.max_decoding_message_size(MAX_RESPONSE),
            addr: addr.to_owned(),
        })
    }

    /// Returns the policy of a port of a pod; `None` for a pod that the controller does not know.
    pub(super) async fn policy(
        &self,
        namespace: &str,
        pod: &str,
        port: u16,
    ) -> Result<Option<ServerPolicy>, Failure> {
        let request = PortSpec {
            workload: json!({ "ns": namespace, "pod": pod }).to_string(),
            port: port.into(),
        };
        let addr = &self.addr;
        match self.api.clone().get_port(request).await {
            Ok(server) => server_policy(server.into_inner()).map(Some).map_err(|error| {
                failure(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    format!("the policy of port {port} of the pod {namespace}/{pod} from the policy controller at {addr}: {error}"),
                )
            }),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(failure(
                StatusCode::SERVICE_UNAVAILABLE,
                format!(
                    "cannot get policies from the policy controller at {addr}: {}",
                    status.message()
                ),
            )),
        }
    }
}

fn failure(status: StatusCode, error: String) -> Failure {
    Failure { status, error }
}
