//! `/status` and `/pods` of the admin server: what the socket answers, for readers that reach the
//! port and not the socket.
//!
//! `meshctl` asks here on a cluster, through a port-forward into the agent's pod, which ends on the
//! node's loopback.

use std::sync::{Arc, OnceLock};

use http::{Method, StatusCode};
use mesh_core::node::{Answer, Request};
use mesh_runtime::admin::{self, Admin, Call, Response};
use serde::Serialize;

use super::Caretaker;

/// Answers once the agent has a caretaker, which is after the admin server has begun to listen.
#[derive(Clone, Debug, Default)]
pub(super) struct Questions {
    caretaker: Arc<OnceLock<Arc<Caretaker>>>,
}

impl Questions {
    pub(super) fn add_to(&self, admin: Admin) -> Admin {
        let (status, pods) = (self.clone(), self.clone());
        admin
            .route("/status", move |call| {
                let questions = status.clone();
                async move { questions.answer(&call, Request::Status).await }
            })
            .route("/pods", move |call| {
                let questions = pods.clone();
                async move { questions.answer(&call, Request::Pods).await }
            })
    }

    /// From now on there are answers.
    pub(super) fn answered_by(&self, caretaker: &Arc<Caretaker>) {
        // Set once, by the one who starts the agent.
        let _first = self.caretaker.set(Arc::clone(caretaker));
    }

    async fn answer(&self, call: &Call, request: Request) -> Response {
        if call.method != Method::GET {
            return admin::text(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
        }
        // The port may be open for a metrics collector; names of pods are not for everybody who
        // reaches it.
        if !call.is_local() {
            return admin::text(StatusCode::FORBIDDEN, "only from this node itself\n");
        }
        let Some(caretaker) = self.caretaker.get() else {
            return admin::text(
                StatusCode::SERVICE_UNAVAILABLE,
                "the agent is still choosing its tier\n",
            );
        };
        match caretaker.ask(request).await {
            Answer::Status(status) => json(&status),
            Answer::Pods(pods) => json(&pods),
            Answer::Refused(refusal) => {
                admin::text(StatusCode::SERVICE_UNAVAILABLE, refusal.message)
            }
            other => admin::text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("no answer to this question: {other:?}\n"),
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
