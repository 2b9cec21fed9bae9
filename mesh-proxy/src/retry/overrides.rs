//! Timeouts and retries in request headers, which are removed. Called only if the policy allows
//! them; otherwise the headers are forwarded unchanged.

use std::rc::Rc;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use mesh_core::resilience::{Timeouts, parse_grpc_condition, parse_http_condition};
use mesh_core::retry::{DEFAULT_BACKOFF, DEFAULT_LIMIT, DEFAULT_REQUEST_BYTES};
use mesh_core::units::{list_items, parse_duration};

use super::policy::{Conditions, ListedConditions, RetryPolicy};

const REQUEST: [HeaderName; 2] = [
    HeaderName::from_static("l5d-request-timeout"),
    HeaderName::from_static("l5d-timeout"),
];
const RESPONSE: HeaderName = HeaderName::from_static("l5d-response-timeout");
const RETRY_HTTP: HeaderName = HeaderName::from_static("l5d-retry-http");
const RETRY_GRPC: HeaderName = HeaderName::from_static("l5d-retry-grpc");
const RETRY_LIMIT: HeaderName = HeaderName::from_static("l5d-retry-limit");
const RETRY_TIMEOUT: HeaderName = HeaderName::from_static("l5d-retry-timeout");

/// Most retries that a request can ask for. Larger numbers count as this one: a request that its
/// application copies from a client must not multiply the load without bound. Twice the three
/// retries that users configure, and a few more.
const MAX_LIMIT: u16 = 10;

/// Most conditions that a request can list; further ones are ignored.
const MAX_CONDITIONS: usize = 16;

/// Applies the headers to the timeouts of a rule.
pub(crate) fn timeouts(timeouts: &mut Timeouts, headers: &mut HeaderMap) {
    for name in REQUEST {
        if let Some(limit) = take_duration(headers, &name) {
            timeouts.request = Some(limit);
        }
    }
    if let Some(limit) = take_duration(headers, &RESPONSE) {
        timeouts.response = Some(limit);
    }
}

/// Applies the headers to the policy of a rule. Without a policy, conditions enable retries.
pub(crate) fn retry(
    policy: Option<Rc<RetryPolicy>>,
    headers: &mut HeaderMap,
) -> Option<Rc<RetryPolicy>> {
    let statuses = take_conditions(headers, &RETRY_HTTP, parse_http_condition);
    let grpc_codes = take_conditions(headers, &RETRY_GRPC, parse_grpc_condition);
    let limit = take(headers, &RETRY_LIMIT, |text| {
        text.trim().parse::<u16>().ok()
    });
    let limit = limit.map(|limit| limit.min(MAX_LIMIT));
    let timeout = take_duration(headers, &RETRY_TIMEOUT);
    if statuses.is_none() && grpc_codes.is_none() && limit.is_none() && timeout.is_none() {
        return policy;
    }
    let mut policy = match policy {
        Some(policy) => (*policy).clone(),
        None if statuses.is_none() && grpc_codes.is_none() => return None,
        None => RetryPolicy {
            conditions: Conditions::Listed(ListedConditions::default()),
            max_retries: DEFAULT_LIMIT,
            max_request_bytes: DEFAULT_REQUEST_BYTES,
            timeout: None,
            backoff: Some(DEFAULT_BACKOFF),
            budget: None,
        },
    };
    if let Conditions::Listed(listed) = &mut policy.conditions {
        if let Some(statuses) = statuses {
            listed.statuses = statuses;
        }
        if let Some(grpc_codes) = grpc_codes {
            listed.grpc_codes = grpc_codes;
        }
    }
    if let Some(limit) = limit {
        policy.max_retries = limit;
    }
    if timeout.is_some() {
        policy.timeout = timeout;
    }
    (policy.max_retries > 0).then(|| Rc::new(policy))
}

/// Removes the header and returns its duration. An invalid or zero duration sets no timeout.
fn take_duration(headers: &mut HeaderMap, name: &HeaderName) -> Option<Duration> {
    let limit = take(headers, name, |text| parse_duration(text).ok())?;
    (!limit.is_zero()).then_some(limit)
}

/// Removes the header and returns its list. Invalid items are ignored; `None` if none is valid.
fn take_conditions<T>(
    headers: &mut HeaderMap,
    name: &HeaderName,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Option<Vec<T>> {
    let conditions: Vec<T> = take(headers, name, |text| {
        Some(
            list_items(text)
                .filter_map(|item| parse(item).ok())
                .take(MAX_CONDITIONS)
                .collect(),
        )
    })?;
    (!conditions.is_empty()).then_some(conditions)
}

fn take<T>(
    headers: &mut HeaderMap,
    name: &HeaderName,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Option<T> {
    let value = headers.remove(name)?;
    parse(value.to_str().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn timeout_header_is_removed_and_invalid_values_are_ignored() {
        let mut valid = headers(&[("l5d-response-timeout", "250ms")]);
        let limit = take_duration(&mut valid, &RESPONSE);
        assert_eq!(limit, Some(Duration::from_millis(250)));
        assert!(valid.is_empty());
        for invalid in ["0s", "soon", "10"] {
            let mut invalid = headers(&[("l5d-response-timeout", invalid)]);
            assert_eq!(take_duration(&mut invalid, &RESPONSE), None);
            assert!(invalid.is_empty());
        }
    }

    fn of_rule() -> RetryPolicy {
        RetryPolicy {
            conditions: Conditions::Listed(ListedConditions {
                statuses: vec![500..=500],
                grpc_codes: vec![13],
            }),
            max_retries: 3,
            max_request_bytes: 1_000,
            timeout: Some(Duration::from_secs(1)),
            backoff: None,
            budget: None,
        }
    }

    fn applied(
        policy: Option<RetryPolicy>,
        fields: &[(&'static str, &str)],
    ) -> Option<RetryPolicy> {
        let mut headers = headers(fields);
        let policy = retry(policy.map(Rc::new), &mut headers);
        assert!(headers.is_empty(), "{headers:?}");
        policy.map(|policy| (*policy).clone())
    }

    #[test]
    fn conditions_in_headers_enable_retries_with_defaults() {
        let expected = |statuses: Vec<_>, grpc_codes: Vec<_>| {
            Some(RetryPolicy {
                conditions: Conditions::Listed(ListedConditions {
                    statuses,
                    grpc_codes,
                }),
                max_retries: 1,
                max_request_bytes: 65_536,
                timeout: None,
                backoff: Some(DEFAULT_BACKOFF),
                budget: None,
            })
        };
        assert_eq!(
            applied(
                None,
                &[("l5d-retry-http", "5xx, 409,gateway-error,nonsense")]
            ),
            expected(vec![500..=599, 409..=409, 502..=504], vec![])
        );
        assert_eq!(
            applied(None, &[("l5d-retry-grpc", "unavailable,internal")]),
            expected(vec![], vec![14, 13])
        );
        // Nothing says what to retry.
        for fields in [
            [("l5d-retry-limit", "3")],
            [("l5d-retry-timeout", "1s")],
            [("l5d-retry-http", "6xx")],
            [("l5d-retry-grpc", "")],
        ] {
            assert_eq!(applied(None, &fields), None, "{fields:?}");
        }
    }

    #[test]
    fn headers_replace_settings_of_the_rule() {
        assert_eq!(applied(Some(of_rule()), &[]), Some(of_rule()));
        let all = [
            ("l5d-retry-http", "503"),
            ("l5d-retry-grpc", "cancelled"),
            ("l5d-retry-limit", "2"),
            ("l5d-retry-timeout", "30ms"),
        ];
        let expected = RetryPolicy {
            conditions: Conditions::Listed(ListedConditions {
                statuses: vec![503..=503],
                grpc_codes: vec![1],
            }),
            max_retries: 2,
            timeout: Some(Duration::from_millis(30)),
            ..of_rule()
        };
        assert_eq!(applied(Some(of_rule()), &all), Some(expected));
        assert_eq!(applied(Some(of_rule()), &[("l5d-retry-limit", "0")]), None);
    }

    #[test]
    fn values_of_headers_are_bounded() {
        let limit = |text: &str| {
            let policy = applied(Some(of_rule()), &[("l5d-retry-limit", text)]);
            policy.unwrap().max_retries
        };
        assert_eq!(limit("11"), MAX_LIMIT);
        assert_eq!(limit("65535"), MAX_LIMIT);
        for invalid in ["65536", "-1", "many", ""] {
            assert_eq!(limit(invalid), 3, "{invalid}");
        }
        let many = vec!["503"; 10_000].join(",");
        let policy = applied(None, &[("l5d-retry-http", &many)]).unwrap();
        let Conditions::Listed(listed) = policy.conditions else {
            unreachable!();
        };
        assert_eq!(listed.statuses.len(), MAX_CONDITIONS);
        let longest = format!("{}ms", u64::MAX);
        let policy = applied(Some(of_rule()), &[("l5d-retry-timeout", &longest)]).unwrap();
        assert_eq!(policy.timeout, Some(Duration::from_millis(u64::MAX)));
    }

    #[test]
    fn only_first_of_several_values_counts() {
        let fields = [("l5d-retry-limit", "1"), ("l5d-retry-limit", "2")];
        assert_eq!(applied(Some(of_rule()), &fields).unwrap().max_retries, 1);
    }
}
