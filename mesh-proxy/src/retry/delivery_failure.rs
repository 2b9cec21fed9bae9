//! Why a request got no response from the application, as reported by the inbound proxy. The
//! client's proxy uses it to decide whether to retry on another endpoint.
//!
//! Exchanged only with authenticated peers of the mesh; see docs/adr/0030.

use http::{HeaderMap, HeaderValue};

use crate::http::headers::PROXY_UNDELIVERED;

/// How far a request got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryFailure {
    /// No byte of it has reached the application, or the application has reported that it did not
    /// process it, or it is idempotent and had been retried.
    NotSent,
    /// The application's connection ended before a response. It is unknown whether the application
    /// has processed the request.
    Indeterminate,
}

const UNSENT: HeaderValue = HeaderValue::from_static("unsent");
const LOST: HeaderValue = HeaderValue::from_static("lost");

impl DeliveryFailure {
    pub(crate) fn insert_into(self, headers: &mut HeaderMap) {
        let value = match self {
            Self::NotSent => UNSENT,
            Self::Indeterminate => LOST,
        };
        headers.insert(PROXY_UNDELIVERED, value);
    }

    /// Removes it from a response and returns it.
    pub(crate) fn take(headers: &mut HeaderMap) -> Option<Self> {
        match headers.remove(PROXY_UNDELIVERED)? {
            value if value == UNSENT => Some(Self::NotSent),
            value if value == LOST => Some(Self::Indeterminate),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserted_header_is_taken_once() {
        let mut headers = HeaderMap::new();
        for failure in [DeliveryFailure::NotSent, DeliveryFailure::Indeterminate] {
            failure.insert_into(&mut headers);
            assert_eq!(DeliveryFailure::take(&mut headers), Some(failure));
            assert_eq!(DeliveryFailure::take(&mut headers), None);
        }
        headers.insert(PROXY_UNDELIVERED, HeaderValue::from_static("perhaps"));
        assert_eq!(DeliveryFailure::take(&mut headers), None);
        assert!(headers.is_empty());
    }
}
