//! Errors of requests, and the table of their HTTP status, gRPC code, `error` label and whether the
//! client's connection is closed. The inbound and outbound request paths raise them, and
//! [`crate::http::synthetic_response`] converts them to responses.
//!
//! The values are Linkerd's; dashboards, retries and clients depend on them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::{fmt, io};

use http::StatusCode;
use mesh_http2::ErrorCode;

use crate::transport::connect::ConnectError;

/// Why a request failed.
#[derive(Debug)]
pub struct Error {
    pub(crate) kind: Kind,
    /// The cause, preceded by its contexts from the outermost inwards.
    message: String,
}

/// The direction of a request. Some `error` labels depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Inbound,
    Outbound,
}

/// The kind of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    RouteNotFound,
    Unauthorized,
    RateLimited,
    InvalidRedirect,
    /// In ingress mode: the header that selects the destination is invalid.
    InvalidOverride,
    /// A proxy of another cluster names a Service that this gateway does not serve.
    GatewayDomainInvalid,
    /// A request of another cluster has passed this gateway before.
    GatewayLoop,
    /// The controller sent a policy that cannot be applied.
    InvalidPolicy,
    /// No endpoint became available in time.
    FailFast,
    /// Rejected immediately: too many requests in flight, or no endpoints.
    LoadShed,
    /// A time limit of the policy expired before the response headers.
    ResponseTimeout,
    /// The time limit of a ServiceProfile's route expired.
    ProfileTimeout,
    /// `l5d-require-id` is not the endpoint's identity.
    IdentityRequired,
    /// The backend does not identify a destination.
    NoDispatcher,
    /// The peer refused, reset or closed the connection.
    Io,
    ConnectTimeout,
    /// The peer reset the HTTP/2 stream. HTTP/2 clients receive the same error code.
    Reset(ErrorCode),
    Unexpected,
}

/// The `error` label of what has no label of its own.
pub(crate) const UNEXPECTED: &str = "unexpected";

/// The response to a [`Kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ErrorMapping {
    pub(crate) status: StatusCode,
    /// The status code of a gRPC response.
    pub(crate) grpc: u16,
    /// Whether the client's connection closes after the response.
    pub(crate) closes_connection: bool,
}

/// Why connecting to an endpoint failed. Clonable, because all requests that wait for the same
/// connection receive it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DialError {
    #[error(transparent)]
    Connect(Arc<ConnectError>),
    #[error("cannot establish TLS with {addr}: {message}")]
    Tls { addr: SocketAddr, message: Arc<str> },
    #[error("cannot send the transport header to {addr}")]
    Header {
        addr: SocketAddr,
        source: Arc<io::Error>,
    },
    #[error("the proxy does not have a certificate yet")]
    NoCertificate,
    #[error("connection closed before a request could be sent")]
    Closed,
}

impl DialError {
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Self::Connect(error) if matches!(**error, ConnectError::TimedOut { .. }))
    }

    /// Whether the endpoint refused the connection.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Connect(error) if error.is_refused())
    }
}

impl From<ConnectError> for DialError {
    fn from(error: ConnectError) -> Self {
        Self::Connect(Arc::new(error))
    }
}

impl Error {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// Prepends a context: `backend Service.ns.web:80: service in fail-fast`.
    #[must_use]
    pub(crate) fn within(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Formats `error` and its sources in one line. A source that its error already prints is not
/// repeated.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.ends_with(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

impl Kind {
    /// Returns the response to this kind.
    pub(crate) fn mapping(&self) -> ErrorMapping {
        use grpc_code::{
            ABORTED, DEADLINE_EXCEEDED, INTERNAL, INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED,
            RESOURCE_EXHAUSTED, UNAVAILABLE,
        };
        let (status, grpc, closes_connection) = match self {
            Self::RouteNotFound | Self::GatewayDomainInvalid => {
                (StatusCode::NOT_FOUND, NOT_FOUND, false)
            }
            Self::GatewayLoop => (StatusCode::LOOP_DETECTED, ABORTED, true),
            Self::Unauthorized => (StatusCode::FORBIDDEN, PERMISSION_DENIED, false),
            Self::RateLimited => (StatusCode::TOO_MANY_REQUESTS, RESOURCE_EXHAUSTED, false),
            Self::InvalidOverride => (StatusCode::BAD_REQUEST, INVALID_ARGUMENT, false),
            Self::LoadShed => (StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, true),
            Self::ResponseTimeout => (StatusCode::GATEWAY_TIMEOUT, DEADLINE_EXCEEDED, false),
            Self::FailFast | Self::ProfileTimeout | Self::ConnectTimeout => {
                (StatusCode::GATEWAY_TIMEOUT, DEADLINE_EXCEEDED, true)
            }
            Self::IdentityRequired | Self::NoDispatcher | Self::Io | Self::Reset(_) => {
                (StatusCode::BAD_GATEWAY, UNAVAILABLE, true)
            }
            Self::InvalidRedirect | Self::InvalidPolicy | Self::Unexpected => {
                (StatusCode::INTERNAL_SERVER_ERROR, INTERNAL, true)
            }
        };
        ErrorMapping {
            status,
            grpc,
            closes_connection,
        }
    }

    /// Returns the `error` label of `inbound_http_errors_total` and `outbound_http_errors_total`.
    /// `None` if the proxy has not failed: other metrics count this, or none.
    pub(crate) fn reason(&self, side: Side) -> Option<&'static str> {
        let reason = match self {
            Self::RouteNotFound | Self::Unauthorized | Self::Reset(_) => return None,
            Self::FailFast => "failfast",
            Self::LoadShed => "loadshed",
            Self::Io | Self::ConnectTimeout => "i/o",
            Self::GatewayDomainInvalid => "gateway domain invalid",
            Self::GatewayLoop => "gateway loop",
            Self::IdentityRequired if side == Side::Outbound => "identity required",
            Self::ResponseTimeout | Self::ProfileTimeout if side == Side::Outbound => {
                "response timeout"
            }
            _ => UNEXPECTED,
        };
        Some(reason)
    }
}

/// Codes of `google.rpc.Code`, the values of the `grpc-status` header.
pub(crate) mod grpc_code {
    pub(crate) const INVALID_ARGUMENT: u16 = 3;
    pub(crate) const DEADLINE_EXCEEDED: u16 = 4;
    pub(crate) const NOT_FOUND: u16 = 5;
    pub(crate) const PERMISSION_DENIED: u16 = 7;
    pub(crate) const RESOURCE_EXHAUSTED: u16 = 8;
    pub(crate) const FAILED_PRECONDITION: u16 = 9;
    pub(crate) const ABORTED: u16 = 10;
    pub(crate) const INTERNAL: u16 = 13;
    pub(crate) const UNAVAILABLE: u16 = 14;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_map_to_responses() {
        let check = |kind: Kind, status: u16, grpc: u16, closes_connection: bool| {
            let mapping = kind.mapping();
            assert_eq!(
                (
                    mapping.status.as_u16(),
                    mapping.grpc,
                    mapping.closes_connection
                ),
                (status, grpc, closes_connection),
                "{kind:?}"
            );
        };
        check(Kind::RouteNotFound, 404, 5, false);
        check(Kind::Unauthorized, 403, 7, false);
        check(Kind::InvalidRedirect, 500, 13, true);
        check(Kind::InvalidOverride, 400, 3, false);
        check(Kind::GatewayDomainInvalid, 404, 5, false);
        check(Kind::GatewayLoop, 508, 10, true);
        check(Kind::InvalidPolicy, 500, 13, true);
        check(Kind::RateLimited, 429, 8, false);
        check(Kind::FailFast, 504, 4, true);
        check(Kind::LoadShed, 503, 14, true);
        check(Kind::Io, 502, 14, true);
        check(Kind::ConnectTimeout, 504, 4, true);
        check(Kind::ResponseTimeout, 504, 4, false);
        check(Kind::ProfileTimeout, 504, 4, true);
        check(Kind::IdentityRequired, 502, 14, true);
        check(Kind::NoDispatcher, 502, 14, true);
        check(Kind::Reset(ErrorCode::CANCEL), 502, 14, true);
        check(Kind::Unexpected, 500, 13, true);
    }

    #[test]
    fn error_labels_depend_on_the_side() {
        use Side::{Inbound, Outbound};
        assert_eq!(Kind::FailFast.reason(Inbound), Some("failfast"));
        assert_eq!(
            Kind::ResponseTimeout.reason(Outbound),
            Some("response timeout")
        );
        assert_eq!(Kind::RateLimited.reason(Inbound), Some("unexpected"));
        assert_eq!(Kind::Unauthorized.reason(Inbound), None);
        assert_eq!(
            Kind::IdentityRequired.reason(Outbound),
            Some("identity required")
        );
    }

    #[test]
    fn context_precedes_the_message() {
        let error = Error::new(Kind::FailFast, "service in fail-fast")
            .within("backend Service.ns.web:80")
            .within("logical service 10.0.0.1:80");
        assert_eq!(
            error.to_string(),
            "logical service 10.0.0.1:80: backend Service.ns.web:80: service in fail-fast"
        );
    }
}
