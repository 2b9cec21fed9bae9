//! The classification of responses, and small caches of handles by status.

use http::{HeaderMap, StatusCode};
use mesh_http2::ErrorCode;

/// The end of one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A complete response. `grpc` is the call's status; `None` if the exchange was not gRPC.
    Response {
        status: StatusCode,
        grpc: Option<GrpcStatus>,
    },
    /// A missing or incomplete response; `status` is set if headers were received.
    Failed {
        status: Option<StatusCode>,
        error: StreamError,
    },
}

/// A gRPC call's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrpcStatus {
    Code(u16),
    /// The response ended without a status. Linkerd reports UNKNOWN, but counts a success.
    Missing,
}

mesh_core::names! {
    /// The reason why an exchange failed, as in Linkerd's route metrics.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) enum StreamError {
        FailFast = "FAIL_FAST",
        LoadShed = "LOAD_SHED",
        RequestTimeout = "REQUEST_TIMEOUT",
        ResponseHeadersTimeout = "RESPONSE_HEADERS_TIMEOUT",
        ResponseStreamTimeout = "RESPONSE_STREAM_TIMEOUT",
        IdleTimeout = "IDLE_TIMEOUT",
        /// The client cancelled the request.
        Cancel = "CANCEL",
        Refused = "REFUSED",
        EnhanceYourCalm = "ENHANCE_YOUR_CALM",
        Reset = "RESET",
        GoAway = "GO_AWAY",
        Io = "IO",
        Unknown = "UNKNOWN",
    }
}

/// A cache of handles. A target has only a few statuses, so a linear search is faster than hashing.
#[derive(Debug)]
pub(super) struct HandleCache<K, H>(Vec<(K, H)>);

impl Outcome {
    pub(crate) fn is_failure(&self) -> bool {
        match self {
            Self::Response {
                grpc: Some(GrpcStatus::Code(code)),
                ..
            } => grpc_is_failure(*code),
            Self::Response {
                grpc: Some(GrpcStatus::Missing),
                ..
            } => false,
            Self::Response { status, grpc: None } => status.is_server_error(),
            Self::Failed { .. } => true,
        }
    }

    pub(super) fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Response { status, .. } => Some(*status),
            Self::Failed { status, .. } => *status,
        }
    }

    /// Returns the status of a complete gRPC call.
    pub(super) fn grpc(&self) -> Option<GrpcStatus> {
        match self {
            Self::Response { grpc, .. } => *grpc,
            Self::Failed { .. } => None,
        }
    }

    /// Returns the name of the error, or nothing.
    pub(super) fn error(&self) -> &'static str {
        match self {
            Self::Response { .. } => "",
            Self::Failed { error, .. } => error.as_str(),
        }
    }
}

impl GrpcStatus {
    /// Returns the number, which the older families report.
    pub(super) fn code(self) -> u16 {
        match self {
            Self::Code(code) => code,
            Self::Missing => GRPC_UNKNOWN,
        }
    }

    /// Returns the name, which the newer outbound families report.
    pub(super) fn name(self) -> &'static str {
        const NAMES: [&str; 17] = [
            "OK",
            "CANCELLED",
            "UNKNOWN",
            "INVALID_ARGUMENT",
            "DEADLINE_EXCEEDED",
            "NOT_FOUND",
            "ALREADY_EXISTS",
            "PERMISSION_DENIED",
            "RESOURCE_EXHAUSTED",
            "FAILED_PRECONDITION",
            "ABORTED",
            "OUT_OF_RANGE",
            "UNIMPLEMENTED",
            "INTERNAL",
            "UNAVAILABLE",
            "DATA_LOSS",
            "UNAUTHENTICATED",
        ];
        NAMES
            .get(usize::from(self.code()))
            .copied()
            .unwrap_or("UNKNOWN")
    }
}

impl StreamError {
    /// Returns the HTTP/2 error code (RFC 9113, section 7) that stands for the error.
    pub(super) fn reset_code(self) -> u32 {
        let code = match self {
            Self::Cancel => ErrorCode::CANCEL,
            Self::Refused => ErrorCode::REFUSED_STREAM,
            Self::EnhanceYourCalm => ErrorCode::ENHANCE_YOUR_CALM,
            _ => ErrorCode::INTERNAL_ERROR,
        };
        code.0
    }
}

impl<K: PartialEq, H> HandleCache<K, H> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn find_or(&mut self, key: K, resolve: impl FnOnce(&K) -> H) -> &H {
        let index = match self.0.iter().position(|(cached, _)| *cached == key) {
            Some(index) => index,
            None => {
                let handle = resolve(&key);
                self.0.push((key, handle));
                self.0.len() - 1
            }
        };
        &self.0[index].1
    }
}

const GRPC_UNKNOWN: u16 = 2;

/// Whether a code counts as a failure of the server, as in Linkerd: UNKNOWN, DEADLINE_EXCEEDED,
/// PERMISSION_DENIED, INTERNAL, UNAVAILABLE and DATA_LOSS.
pub(crate) fn grpc_is_failure(code: u16) -> bool {
    matches!(code, GRPC_UNKNOWN | 4 | 7 | 13 | 14 | 15)
}

/// Whether a message's content type is gRPC's.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Returns the gRPC status of headers (trailers-only responses) or trailers. Undefined codes become
/// UNKNOWN, as gRPC requires; otherwise a server could create any number of metric series.
pub(crate) fn grpc_status(headers: &HeaderMap) -> Option<u16> {
    const LAST: u16 = 16;
    let code = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    Some(if code <= LAST { code } else { GRPC_UNKNOWN })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undefined_grpc_codes_become_unknown() {
        for (value, expected) in [
            ("0", Some(0)),
            ("16", Some(16)),
            ("17", Some(2)),
            ("65535", Some(2)),
            ("65536", None),
            ("ok", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", value.parse().unwrap());
            assert_eq!(grpc_status(&headers), expected, "{value}");
        }
    }

    #[test]
    fn outcomes_are_classified_as_in_linkerd() {
        let response = |status, grpc| Outcome::Response {
            status: StatusCode::from_u16(status).unwrap(),
            grpc,
        };
        for (outcome, failure) in [
            (response(200, None), false),
            (response(404, None), false),
            (response(499, None), false),
            (response(500, None), true),
            (response(599, None), true),
            (response(200, Some(GrpcStatus::Code(0))), false),
            (response(200, Some(GrpcStatus::Code(5))), false),
            (response(200, Some(GrpcStatus::Code(8))), false),
            (response(200, Some(GrpcStatus::Code(2))), true),
            (response(200, Some(GrpcStatus::Code(14))), true),
            (response(200, Some(GrpcStatus::Missing)), false),
            (
                Outcome::Failed {
                    status: None,
                    error: StreamError::Cancel,
                },
                true,
            ),
        ] {
            assert_eq!(outcome.is_failure(), failure, "{outcome:?}");
        }
    }
}
