//! The report of the inbound proxy to its peer that a request has not reached the application. The
//! client's proxy can then send the request to another endpoint, whatever its method.
//!
//! Exchanged only with authenticated peers of the mesh; see docs/adr/0030.

use http::{HeaderMap, HeaderValue};

use crate::http::headers::PROXY_UNDELIVERED;

const UNSENT: HeaderValue = HeaderValue::from_static("unsent");

/// Reports it with a response.
pub(crate) fn report(headers: &mut HeaderMap) {
    headers.insert(PROXY_UNDELIVERED, UNSENT);
}

/// Removes the report from a response, and returns whether there was one.
pub(crate) fn take(headers: &mut HeaderMap) -> bool {
    headers
        .remove(PROXY_UNDELIVERED)
        .is_some_and(|value| value == UNSENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_taken_once_and_any_other_value_is_removed() {
        let mut headers = HeaderMap::new();
        report(&mut headers);
        assert!(take(&mut headers));
        assert!(!take(&mut headers));
        // Earlier proxies report requests that may have been processed as `lost`.
        for other in ["lost", "perhaps"] {
            headers.insert(PROXY_UNDELIVERED, HeaderValue::from_static(other));
            assert!(!take(&mut headers));
            assert!(headers.is_empty());
        }
    }
}
