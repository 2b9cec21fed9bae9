//! What can go wrong with one request, and the one table that says what follows: the status, the
//! gRPC code, whether the client's connection is closed, and the value of the `error` label. Raised
//! by the inbound and outbound request paths, turned into a response by [`crate::http::respond`].
//!
//! The numbers are Linkerd's; dashboards, retries and clients depend on them.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderValue, StatusCode};

use crate::http::ErrorCode;
use crate::transport::connect::ConnectError;

/// A request that ends here.
#[derive(Debug)]
pub struct Error {
    pub kind: Kind,
    /// From the innermost fact outwards: `service in fail-fast`, then what contained it. Cold, so a
    /// string is good enough.
    message: String,
}

/// Which direction a proxy was serving; the names of some errors differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Inbound,
    Outbound,
}

/// Why a request ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The client asked for something HTTP does not allow.
    BadRequest,
    RouteNotFound,
    Unauthorized,
    RateLimited,
    /// A redirect filter's answer; not a failure.
    Redirect {
        status: StatusCode,
        location: HeaderValue,
    },
    InvalidRedirect,
    /// The controller sent something that cannot be obeyed; the message says what.
    InvalidPolicy,
    InjectedHttp(StatusCode),
    InjectedGrpc(u16),
    GatewayDomainInvalid,
    GatewayLoop,
    /// A request or connection would come back to the proxy itself.
    Loop,
    /// No endpoint became available in time.
    FailFast,
    /// Refused at once: too much in flight, or known to be without endpoints.
    LoadShed,
    /// A time limit of the policy, before response headers.
    ResponseTimeout,
    /// The time limit of a ServiceProfile's route.
    ProfileTimeout,
    /// `l5d-require-id` names somebody else.
    IdentityRequired,
    /// The backend names nothing that can be sent to.
    NoDispatcher,
    /// The other side refused, reset or closed the connection.
    Io,
    ConnectTimeout,
    /// The other side reset the HTTP/2 stream; HTTP/2 clients see the same reset.
    Reset(ErrorCode),
    Unexpected,
}

/// What follows from a [`Kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consequence {
    pub status: StatusCode,
    /// Code of the gRPC form of the answer.
    pub grpc: u16,
    /// Whether the client's connection ends after the answer.
    pub closes: bool,
}

/// Why no connection to an endpoint could be made. Clonable, because everybody who waited for the
/// same connection is told.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DialError {
    #[error(transparent)]
    Connect(Arc<ConnectError>),
    #[error("the TLS session with {addr} could not be made: {message}")]
    Tls { addr: SocketAddr, message: Arc<str> },
    #[error("the transport header could not be sent to {addr}")]
    Header {
        addr: SocketAddr,
        #[source]
        source: Arc<io::Error>,
    },
    #[error("the proxy has no certificate yet to authenticate itself with")]
    NoCertificate,
    #[error("connections are closed before anything can be sent")]
    Closed,
}

impl DialError {
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Connect(error) if matches!(**error, ConnectError::TimedOut { .. }))
    }

    /// Whether nothing listens at the address.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Connect(error) if error.is_refused())
    }
}

impl From<ConnectError> for DialError {
    fn from(error: ConnectError) -> Self {
        Self::Connect(Arc::new(error))
    }
}

impl Error {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// Says what the error happened in: `backend Service.ns.web:80: service in fail-fast`.
    #[must_use]
    pub fn within(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// `error` and its causes in one line. A cause that its error already prints is not repeated.
pub fn chain(error: &dyn std::error::Error) -> String {
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
    /// The table.
    pub fn consequence(&self) -> Consequence {
        use grpc_code::{
            ABORTED, DEADLINE_EXCEEDED, FAILED_PRECONDITION, INTERNAL, INVALID_ARGUMENT, NOT_FOUND,
            PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNAVAILABLE,
        };
        let (status, grpc, closes) = match self {
            Self::BadRequest => (StatusCode::BAD_REQUEST, INVALID_ARGUMENT, false),
            Self::RouteNotFound | Self::GatewayDomainInvalid => {
                (StatusCode::NOT_FOUND, NOT_FOUND, false)
            }
            Self::Unauthorized => (StatusCode::FORBIDDEN, PERMISSION_DENIED, false),
            Self::RateLimited => (StatusCode::TOO_MANY_REQUESTS, RESOURCE_EXHAUSTED, false),
            Self::Redirect { status, .. } => (*status, NOT_FOUND, false),
            Self::InjectedHttp(status) => (*status, FAILED_PRECONDITION, false),
            Self::InjectedGrpc(code) => (StatusCode::OK, *code, false),
            Self::GatewayLoop => (StatusCode::LOOP_DETECTED, ABORTED, true),
            Self::LoadShed => (StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, true),
            Self::ResponseTimeout => (StatusCode::GATEWAY_TIMEOUT, DEADLINE_EXCEEDED, false),
            Self::FailFast | Self::ProfileTimeout | Self::ConnectTimeout => {
                (StatusCode::GATEWAY_TIMEOUT, DEADLINE_EXCEEDED, true)
            }
            Self::IdentityRequired | Self::NoDispatcher | Self::Io | Self::Reset(_) => {
                (StatusCode::BAD_GATEWAY, UNAVAILABLE, true)
            }
            Self::InvalidRedirect | Self::InvalidPolicy | Self::Loop | Self::Unexpected => {
                (StatusCode::INTERNAL_SERVER_ERROR, INTERNAL, true)
            }
        };
        Consequence {
            status,
            grpc,
            closes,
        }
    }

    /// Value of the `error` label of `inbound_http_errors_total` and `outbound_http_errors_total`.
    /// `None`: not an error of the proxy's own, counted elsewhere (by the authorization and route
    /// counters) or not at all.
    pub fn reason(&self, side: Side) -> Option<&'static str> {
        let reason = match self {
            Self::RouteNotFound | Self::Unauthorized | Self::Redirect { .. } | Self::Reset(_) => {
                return None;
            }
            Self::FailFast => "failfast",
            Self::LoadShed => "loadshed",
            Self::Io | Self::ConnectTimeout => "i/o",
            Self::GatewayLoop if side == Side::Inbound => "gateway loop",
            Self::GatewayDomainInvalid if side == Side::Inbound => "gateway domain invalid",
            Self::IdentityRequired if side == Side::Outbound => "identity required",
            Self::ResponseTimeout | Self::ProfileTimeout if side == Side::Outbound => {
                "response timeout"
            }
            _ => "unexpected",
        };
        Some(reason)
    }
}

/// Codes of `google.rpc.Code`, as the `grpc-status` header carries them.
pub mod grpc_code {
    pub const INVALID_ARGUMENT: u16 = 3;
    pub const DEADLINE_EXCEEDED: u16 = 4;
    pub const NOT_FOUND: u16 = 5;
    pub const PERMISSION_DENIED: u16 = 7;
    pub const RESOURCE_EXHAUSTED: u16 = 8;
    pub const FAILED_PRECONDITION: u16 = 9;
    pub const ABORTED: u16 = 10;
    pub const INTERNAL: u16 = 13;
    pub const UNAVAILABLE: u16 = 14;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consequences() {
        let check = |kind: Kind, status: u16, grpc: u16, closes: bool| {
            let consequence = kind.consequence();
            assert_eq!(
                (
                    consequence.status.as_u16(),
                    consequence.grpc,
                    consequence.closes
                ),
                (status, grpc, closes),
                "{kind:?}"
            );
        };
        check(Kind::RouteNotFound, 404, 5, false);
        check(Kind::Unauthorized, 403, 7, false);
        check(
            Kind::Redirect {
                status: StatusCode::MOVED_PERMANENTLY,
                location: HeaderValue::from_static("http://a/"),
            },
            301,
            5,
            false,
        );
        check(Kind::InvalidRedirect, 500, 13, true);
        check(Kind::InvalidPolicy, 500, 13, true);
        check(Kind::RateLimited, 429, 8, false);
        check(Kind::GatewayDomainInvalid, 404, 5, false);
        check(Kind::GatewayLoop, 508, 10, true);
        check(Kind::FailFast, 504, 4, true);
        check(Kind::LoadShed, 503, 14, true);
        check(Kind::Io, 502, 14, true);
        check(Kind::ConnectTimeout, 504, 4, true);
        check(Kind::ResponseTimeout, 504, 4, false);
        check(Kind::ProfileTimeout, 504, 4, true);
        check(Kind::IdentityRequired, 502, 14, true);
        check(Kind::NoDispatcher, 502, 14, true);
        check(Kind::InjectedHttp(StatusCode::IM_A_TEAPOT), 418, 9, false);
        check(Kind::InjectedGrpc(2), 200, 2, false);
        check(Kind::Reset(ErrorCode::CANCEL), 502, 14, true);
        check(Kind::Unexpected, 500, 13, true);
    }

    #[test]
    fn reasons_differ_by_side() {
        use Side::{Inbound, Outbound};
        assert_eq!(Kind::FailFast.reason(Inbound), Some("failfast"));
        assert_eq!(
            Kind::ResponseTimeout.reason(Outbound),
            Some("response timeout")
        );
        assert_eq!(Kind::GatewayLoop.reason(Inbound), Some("gateway loop"));
        assert_eq!(Kind::RateLimited.reason(Inbound), Some("unexpected"));
        assert_eq!(Kind::Unauthorized.reason(Inbound), None);
        assert_eq!(
            Kind::IdentityRequired.reason(Outbound),
            Some("identity required")
        );
    }

    #[test]
    fn context_is_put_in_front() {
        let error = Error::new(Kind::FailFast, "service in fail-fast")
            .within("backend Service.ns.web:80")
            .within("logical service 10.0.0.1:80");
        assert_eq!(
            error.to_string(),
            "logical service 10.0.0.1:80: backend Service.ns.web:80: service in fail-fast"
        );
    }
}
