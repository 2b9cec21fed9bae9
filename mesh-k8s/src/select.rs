//! Label selectors: their notation on command lines, and which labels they match.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// The labels of an object.
pub type Labels = BTreeMap<String, String>;

/// The command line has no limit of its own.
const MAX_SELECTOR: usize = 4096;

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

/// Returns the selector of all objects with these labels, in the notation of `kubectl`.
pub fn text(labels: &Labels) -> String {
    let pairs = labels.iter().map(|(key, value)| format!("{key}={value}"));
    pairs.collect::<Vec<_>>().join(",")
}

/// Parses a label selector in the notation of `kubectl`, of at most 4,096 bytes.
///
/// # Errors
///
/// The text is too long or not a selector; the error says what the parser expected.
pub fn parse(text: &str) -> Result<LabelSelector, String> {
    let invalid = |problem: &str| {
        let shown: String = text.chars().take(100).collect();
        format!("invalid label selector {shown:?}: {problem}")
    };
    if text.len() > MAX_SELECTOR {
        return Err(invalid("it is too long"));
    }
    let mut requirements = Vec::new();
    for part in split_outside_parentheses(text) {
        let part = part.trim();
        if part.is_empty() && text.trim().is_empty() {
            continue;
        }
        requirements.push(parse_requirement(part).map_err(invalid)?);
    }
    Ok(LabelSelector {
        match_labels: None,
        match_expressions: Some(requirements),
    })
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

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

fn parse_requirement(text: &str) -> Result<LabelSelectorRequirement, &'static str> {
    let requirement = |key: &str, operator: &str, values: Option<Vec<String>>| {
        let valid = |text: &str, also: &str| {
            text.chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c) || also.contains(c))
        };
        if key.is_empty() || !valid(key, "/") {
            return Err("expected the key of a label");
        }
        if !values.iter().flatten().all(|value| valid(value, "")) {
            return Err("expected the value of a label");
        }
        Ok(LabelSelectorRequirement {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values,
        })
    };
    let one = |value: &str| Some(vec![value.trim().to_owned()]);
    if let Some((key, value)) = text.split_once("!=") {
        return requirement(key.trim(), "NotIn", one(value));
    }
    if let Some((key, value)) = text.split_once('=') {
        let value = value.strip_prefix('=').unwrap_or(value);
        return requirement(key.trim(), "In", one(value));
    }
    if let Some((before, values)) = text.split_once('(') {
        let values = values.strip_suffix(')').ok_or("expected a )")?;
        let values = values.split(',').map(|value| value.trim().to_owned());
        let (key, operator) = match before.trim().rsplit_once(char::is_whitespace) {
            Some((key, "in")) => (key, "In"),
            Some((key, "notin")) => (key, "NotIn"),
            _ => return Err("expected in or notin"),
        };
        return requirement(key.trim(), operator, Some(values.collect()));
    }
    match text.strip_prefix('!') {
        Some(key) => requirement(key.trim(), "DoesNotExist", None),
        None => requirement(text, "Exists", None),
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

    #[test]
    fn selectors_have_the_notation_of_kubectl() {
        let labels = [("app", "web"), ("tier", "front")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        let labels = Labels::from(labels);
        for (text, expect) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier!=back", true),
            ("app = api", false),
            ("app in (api, web), tier", true),
            ("app notin (web)", false),
            ("!app", false),
            ("!linkerd.io/none,tier in (front)", true),
        ] {
            let selector = parse(text).unwrap();
            assert_eq!(matches(&selector, Some(&labels)), expect, "{text}");
        }
        assert_eq!(text(&labels), "app=web,tier=front");
        assert_eq!(text(&Labels::new()), "");
        for bad in [
            "app,",
            "app in web",
            "app in (web",
            "a b",
            "=x",
            "app>1",
            "a=b=c",
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.starts_with("invalid label selector"), "{error}");
        }
        assert!(parse(&"a,".repeat(MAX_SELECTOR)).is_err());
    }
}
