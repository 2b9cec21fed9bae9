//! Converts headers for HTTP/2 streams.

use http::header::{CONTENT_LENGTH, HeaderMap};
use http_body::Body as _;

use crate::http::headers::{strip_http2_request, strip_http2_response};
use crate::http::{Body, http1};

/// Returns the `content-length`. Contradictory values have been rejected already.
pub(in crate::http) fn declared_length(headers: &HeaderMap) -> Option<u64> {
    http1::parse_decimal(headers.get(CONTENT_LENGTH)?.as_bytes())
}

/// Removes the headers that a request must not have, and adds the length of its body.
pub(in crate::http) fn prepare_request(headers: &mut HeaderMap, body: &Body) {
    strip_http2_request(headers);
    add_length(headers, body);
}

/// Removes the headers that a response must not have, and adds the length of its body.
pub(in crate::http) fn prepare_response(headers: &mut HeaderMap, body: &Body) {
    strip_http2_response(headers);
    add_length(headers, body);
}

fn add_length(headers: &mut HeaderMap, body: &Body) {
    if let Some(length) = body.size_hint().exact()
        && !headers.contains_key(CONTENT_LENGTH)
    {
        headers.insert(CONTENT_LENGTH, length.into());
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::TE;

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
