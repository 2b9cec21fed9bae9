//! Converts headers for HTTP/2 streams.

use http::header::{CONTENT_LENGTH, HeaderMap, TE, TRANSFER_ENCODING};
use http_body::Body as _;

use crate::http::headers::{reduce_te_to_trailers, strip_connection_headers};
use crate::http::{Body, http1};

/// Returns the `content-length`. Contradictory values have been rejected already.
pub(in crate::http) fn declared_length(headers: &HeaderMap) -> Option<u64> {
    http1::parse_decimal(headers.get(CONTENT_LENGTH)?.as_bytes())
}

/// Removes the headers that a request must not have (RFC 9113, section 8.2.2).
pub(in crate::http) fn prepare_request(headers: &mut HeaderMap, body: &Body) {
    reduce_te_to_trailers(headers);
    prepare(headers, body);
}

/// Removes the headers that a response must not have.
pub(in crate::http) fn prepare_response(headers: &mut HeaderMap, body: &Body) {
    headers.remove(TE);
    prepare(headers, body);
}

fn prepare(headers: &mut HeaderMap, body: &Body) {
    strip_connection_headers(headers);
    headers.remove(TRANSFER_ENCODING);
    if let Some(length) = body.size_hint().exact()
        && !headers.contains_key(CONTENT_LENGTH)
    {
        headers.insert(CONTENT_LENGTH, length.into());
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        pairs.collect()
    }

    #[test]
    fn connection_specific_headers_are_removed() {
        let hop = [
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("accept", "*/*"),
        ];
        let mut request = headers(&hop);
        prepare_request(&mut request, &Body::empty());
        assert_eq!(request, headers(&[("accept", "*/*")]));
        let mut response = headers(&[("te", "trailers")]);
        prepare_response(&mut response, &Body::full("four"));
        assert_eq!(response, headers(&[("content-length", "4")]));
    }

    #[test]
    fn te_is_reduced_to_trailers() {
        for (given, left) in [
            ("trailers", Some("trailers")),
            ("deflate, trailers", Some("trailers")),
            ("deflate", None),
        ] {
            let mut request = headers(&[("te", given)]);
            prepare_request(&mut request, &Body::empty());
            let left = left.map(HeaderValue::from_static);
            assert_eq!(request.get(TE), left.as_ref(), "{given}");
        }
    }
}
