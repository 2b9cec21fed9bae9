//! Matching of label selectors.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// The labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Returns whether the selector matches an object with these labels. An empty selector matches
/// every object; a selector with an unknown operator matches none.
pub fn matches(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    let empty = Labels::new();
    let labels = labels.unwrap_or(&empty);
    let equal = selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector
            .match_expressions
            .iter()
            .flatten()
            .all(|requirement| satisfies(requirement, labels))
}

/// Returns whether a Service with this selector matches a pod with these labels. A Service without
/// selector matches none: its EndpointSlices are not written by Kubernetes.
pub fn service_matches(selector: Option<&Labels>, labels: Option<&Labels>) -> bool {
    match selector {
        Some(selector) if !selector.is_empty() => selector
            .iter()
            .all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value)),
        _ => false,
    }
}

fn satisfies(requirement: &LabelSelectorRequirement, labels: &Labels) -> bool {
    let value = labels.get(&requirement.key);
    let listed = |value: &String| {
        requirement
            .values
            .iter()
            .flatten()
            .any(|listed| listed == value)
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn label_selector_matches_by_labels_and_expressions() {
        let pod = labels(&[("app", "web"), ("tier", "front")]);
        let check = |selector: &str, expect: bool| {
            let selector: LabelSelector = serde_norway::from_str(selector).unwrap();
            assert_eq!(matches(&selector, Some(&pod)), expect, "{selector:?}");
        };
        check("{}", true);
        check("{matchLabels: {app: web}}", true);
        check("{matchLabels: {app: web, tier: back}}", false);
        check(
            "{matchExpressions: [{key: app, operator: In, values: [web, api]}]}",
            true,
        );
        check(
            "{matchExpressions: [{key: gone, operator: In, values: [web]}]}",
            false,
        );
        check(
            "{matchExpressions: [{key: gone, operator: NotIn, values: [web]}]}",
            true,
        );
        check(
            "{matchExpressions: [{key: app, operator: NotIn, values: [web]}]}",
            false,
        );
        check("{matchExpressions: [{key: app, operator: Exists}]}", true);
        check(
            "{matchExpressions: [{key: app, operator: DoesNotExist}]}",
            false,
        );
        check(
            "{matchExpressions: [{key: app, operator: Near, values: [web]}]}",
            false,
        );
    }

    #[test]
    fn service_without_selector_matches_no_pod() {
        let pod = labels(&[("app", "web")]);
        assert!(service_matches(
            Some(&labels(&[("app", "web")])),
            Some(&pod)
        ));
        assert!(!service_matches(
            Some(&labels(&[("app", "db")])),
            Some(&pod)
        ));
        assert!(!service_matches(Some(&Labels::new()), Some(&pod)));
        assert!(!service_matches(None, Some(&pod)));
        assert!(!service_matches(Some(&labels(&[("app", "web")])), None));
    }
}
