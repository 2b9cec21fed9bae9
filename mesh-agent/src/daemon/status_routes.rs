//! `/status` and `/pods` of the admin server: the socket's status responses, for clients that reach
//! the port and not the socket.
//!
//! On a cluster `meshctl` requests them through a port-forward into the agent's pod, which ends on
//! the node's loopback.

use std::sync::{Arc, OnceLock};

use http::{Method, StatusCode};
use mesh_core::node::{self, Request};
use mesh_runtime::admin::{self, Admin, Call, Response};
use serde::Serialize;

use crate::node_handle::NodeHandle;

/// Responds with 503 until [`Self::set_node`], which follows the start of the admin server.
#[derive(Clone, Debug, Default)]
pub(super) struct StatusRoutes {
    node_handle: Arc<OnceLock<Arc<NodeHandle>>>,
}

impl StatusRoutes {
    pub(super) fn add_to(&self, admin: Admin) -> Admin {
        let (status, pods) = (self.clone(), self.clone());
        admin
            .route("/status", move |call| {
                let status_routes = status.clone();
                async move { status_routes.respond(&call, Request::Status).await }
            })
            .route("/pods", move |call| {
                let status_routes = pods.clone();
                async move { status_routes.respond(&call, Request::Pods).await }
            })
    }

    pub(super) fn set_node(&self, node_handle: &Arc<NodeHandle>) {
        // The agent's start is the only caller, once.
        let _first = self.node_handle.set(Arc::clone(node_handle));
    }

    async fn respond(&self, call: &Call, request: Request) -> Response {
        if call.method != Method::GET {
            return admin::text(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
        }
        // The port may be open for a metrics collector, which must not see the names of pods.
        if !call.is_local() {
            return admin::text(StatusCode::FORBIDDEN, "only from this node\n");
        }
        let Some(node_handle) = self.node_handle.get() else {
            return admin::text(
                StatusCode::SERVICE_UNAVAILABLE,
                "the agent is still choosing its tier\n",
            );
        };
        match node_handle.call(request).await {
            node::Response::Status(status) => json(&status),
            node::Response::Pods(pods) => json(&pods),
            node::Response::Refused(refusal) => {
                admin::text(StatusCode::SERVICE_UNAVAILABLE, refusal.message)
            }
            other => admin::text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("unexpected response: {other:?}\n"),
            ),
        }
    }
}

fn json<T: Serialize>(value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => admin::typed(StatusCode::OK, "application/json", body),
        Err(error) => admin::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}
