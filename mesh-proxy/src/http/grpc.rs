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

/// Whether the status of a response is in its trailers. In gRPC-Web it is a part of the body, and a
/// response of another type has none: trailers would make a broken one look complete.
pub(crate) fn has_status_in_trailers(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let subtype = value.and_then(|value| value.strip_prefix(b"application/grpc"));
    subtype.is_some_and(|subtype| matches!(subtype.first(), None | Some(b'+' | b';' | b' ')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_in_trailers_of_grpc_but_not_of_grpc_web() {
        for (value, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc; charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/json", false),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))]);
            assert_eq!(has_status_in_trailers(&headers), expected, "{value}");
        }
        assert!(!has_status_in_trailers(&HeaderMap::new()));
    }
}
