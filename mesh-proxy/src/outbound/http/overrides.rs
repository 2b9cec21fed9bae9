//! Timeouts in request headers. They are applied and removed only if the policy allows it;
//! otherwise the headers are forwarded unchanged.

use std::time::Duration;

use http::{HeaderMap, HeaderName};
use mesh_core::resilience::Timeouts;
use mesh_core::units::parse_duration;

use super::routes::Rule;

const REQUEST: [HeaderName; 2] = [
    HeaderName::from_static("l5d-request-timeout"),
    HeaderName::from_static("l5d-timeout"),
];
const RESPONSE: HeaderName = HeaderName::from_static("l5d-response-timeout");

/// Returns the timeouts of one request under `rule`.
pub(super) fn timeouts(rule: &Rule, headers: &mut HeaderMap) -> Timeouts {
    let mut timeouts = rule.timeouts();
    if !rule.allows_request_headers() {
        return timeouts;
    }
    for name in REQUEST {
        if let Some(limit) = take(headers, &name) {
            timeouts.request = Some(limit);
        }
    }
    if let Some(limit) = take(headers, &RESPONSE) {
        timeouts.response = Some(limit);
    }
    timeouts
}

/// Removes the header and returns its duration. An invalid or zero duration sets no timeout.
fn take(headers: &mut HeaderMap, name: &HeaderName) -> Option<Duration> {
    let value = headers.remove(name)?;
    let limit = parse_duration(value.to_str().ok()?).ok()?;
    (!limit.is_zero()).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_header_is_removed_and_invalid_values_are_ignored() {
        let mut headers = HeaderMap::new();
        headers.insert(RESPONSE, "250ms".parse().unwrap());
        assert_eq!(
            take(&mut headers, &RESPONSE),
            Some(Duration::from_millis(250))
        );
        assert!(headers.is_empty());
        for invalid in ["0s", "soon", "10"] {
            headers.insert(RESPONSE, invalid.parse().unwrap());
            assert_eq!(take(&mut headers, &RESPONSE), None, "{invalid}");
            assert!(headers.is_empty());
        }
    }
}
