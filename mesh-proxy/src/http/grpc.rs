//! The parts of gRPC that a proxy needs: recognising gRPC requests, and the names of its fields.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Version};

pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(crate) const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(crate) const APPLICATION_GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Whether errors must be reported as gRPC statuses: for HTTP/2 with a content type that begins
/// with `application/grpc`.
pub(crate) fn is_grpc(version: Version, headers: &HeaderMap) -> bool {
    version == Version::HTTP_2
        && headers
            .get(CONTENT_TYPE)
            .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}
