//! The reply of a filter, which ends a request in place of the application.
//!
//! It is not an error: the policy asks for it, and metrics count its status. [`crate::filter`]
//! makes replies, [`crate::http::synthetic_response`] converts them to responses.

use std::fmt;

use http::{HeaderMap, HeaderValue, StatusCode};
use mesh_core::route::cors;

use crate::error::grpc_code;

/// A reply, for HTTP requests and gRPC calls alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalReply {
    kind: ReplyKind,
    /// What the filter did, preceded by its contexts from the outermost inwards.
    message: String,
}

/// The filter's response.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ReplyKind {
    Redirect {
        status: StatusCode,
        location: HeaderValue,
    },
    /// The response to a preflight request, with these headers.
    CorsPreflight(HeaderMap),
    /// A failure that the policy injects.
    Failure { status: StatusCode, grpc: u16 },
}

impl LocalReply {
    pub(crate) fn redirect(status: StatusCode, location: HeaderValue, message: String) -> Self {
        let kind = ReplyKind::Redirect { status, location };
        Self { kind, message }
    }

    pub(crate) fn cors_preflight(headers: HeaderMap) -> Self {
        Self {
            kind: ReplyKind::CorsPreflight(headers),
            message: "response to a CORS preflight request".to_owned(),
        }
    }

    pub(crate) fn http_failure(status: StatusCode, message: &str) -> Self {
        let grpc = grpc_code::FAILED_PRECONDITION;
        Self::failure(status, grpc, message)
    }

    pub(crate) fn grpc_failure(code: u16, message: &str) -> Self {
        Self::failure(StatusCode::OK, code, message)
    }

    fn failure(status: StatusCode, grpc: u16, message: &str) -> Self {
        Self {
            kind: ReplyKind::Failure { status, grpc },
            message: message.to_owned(),
        }
    }

    /// Prepends a context, as [`Error::within`](crate::error::Error::within) does.
    #[must_use]
    pub(crate) fn within(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the status of the response to an HTTP request.
    pub(crate) fn status(&self) -> StatusCode {
        match &self.kind {
            ReplyKind::Redirect { status, .. } | ReplyKind::Failure { status, .. } => *status,
            ReplyKind::CorsPreflight(_) => StatusCode::OK,
        }
    }

    /// Returns the status code of the response to a gRPC call. Clients of gRPC know neither
    /// redirects nor preflight requests.
    pub(crate) fn grpc_code(&self) -> u16 {
        match &self.kind {
            ReplyKind::Failure { grpc, .. } => *grpc,
            ReplyKind::Redirect { .. } | ReplyKind::CorsPreflight(_) => grpc_code::NOT_FOUND,
        }
    }

    /// Whether the reply fails the request. Its message is disclosed then as an error's is, and
    /// the metrics of errors count it as `unexpected`, as in Linkerd's proxy.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self.kind, ReplyKind::Failure { .. })
    }

    /// Sets the headers that make the response a redirect, or one to a preflight request.
    pub(crate) fn set_headers(&self, headers: &mut HeaderMap) {
        match &self.kind {
            ReplyKind::Redirect { location, .. } => {
                headers.insert(http::header::LOCATION, location.clone());
            }
            ReplyKind::CorsPreflight(cors) => cors::set_headers(cors, headers),
            ReplyKind::Failure { .. } => {}
        }
    }
}

impl fmt::Display for LocalReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
