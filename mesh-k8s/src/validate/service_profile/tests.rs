//! Verdicts about ServiceProfiles.

use serde_json::json;

use super::*;

const NAME: &str = "web.shop.svc.cluster.local";

fn object(name: &str, spec: &str) -> Value {
    let spec: Value = serde_norway::from_str(spec).unwrap();
    json!({
        "apiVersion": "linkerd.io/v1alpha2",
        "kind": "ServiceProfile",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": spec,
    })
}

/// Returns the fields and beginnings of the problems.
fn verdict(object: &Value) -> Vec<String> {
    match service_profile(object) {
        Ok(()) => Vec::new(),
        Err(problems) => problems.iter().map(Invalid::to_string).collect(),
    }
}

#[test]
fn valid_profiles_are_accepted() {
    for spec in [
        "{}",
        "{routes: []}",
        "{routes: [{name: a, condition: {method: GET}}]}",
        "{routes: [{name: a, condition: {all: [{method: get}, {not: {pathRegex: '/a/[^/]*'}}]}, isRetryable: true, \
          timeout: 1m30s, responseClasses: [{condition: {status: {min: 500, max: 599}}, isFailure: true}]}]}",
        "{routes: [{name: a, condition: {any: []}, timeout: '0', \
          responseClasses: [{condition: {any: [{status: {min: 0, max: 404}}]}}]}]}",
        "{retryBudget: {retryRatio: 0.2, minRetriesPerSecond: 10, ttl: 10s}}",
        "{dstOverrides: [{authority: web-2.shop.svc.cluster.local, weight: 500m}, {authority: 'b:1', weight: 1}]}",
    ] {
        assert_eq!(verdict(&object(NAME, spec)), [""; 0], "{spec}");
    }
    let external = object("db.example.com", "{opaquePorts: ['5432']}");
    assert_eq!(verdict(&external), [""; 0]);
}

#[test]
fn invalid_profiles_are_refused_by_field() {
    let in_route =
        |more: &str| format!("{{routes: [{{name: a, condition: {{method: GET}}, {more}}}]}}");
    let in_class =
        |condition: &str| in_route(&format!("responseClasses: [{{condition: {condition}}}]"));
    for (spec, expect) in [
        ("{routs: []}".to_owned(), "spec: unknown field `routs`"),
        (
            in_route("retryable: true"),
            "spec.routes[0]: unknown field `retryable`",
        ),
        (
            in_class("{statuses: {}}"),
            "spec.routes[0].responseClasses[0].condition: unknown field",
        ),
        (
            "{routes: {}}".to_owned(),
            "spec.routes: invalid type: map, expected a sequence",
        ),
        (
            "{routes: [null]}".to_owned(),
            "spec.routes[0]: invalid type",
        ),
        (
            "{routes: [{condition: {method: GET}}]}".to_owned(),
            "spec.routes[0]: missing field `name`",
        ),
        (
            "{routes: [{name: a}]}".to_owned(),
            "spec.routes[0]: missing field `condition`",
        ),
        (
            "{routes: [{name: '', condition: {method: GET}}]}".to_owned(),
            "spec.routes[0].name: is empty",
        ),
        (
            "{routes: [{name: a, condition: {}}]}".to_owned(),
            "spec.routes[0].condition: is empty",
        ),
        (
            "{routes: [{name: a, condition: {all: [null]}}]}".to_owned(),
            "spec.routes[0].condition.all[0]: invalid type",
        ),
        (
            "{routes: [{name: a, condition: {any: [{not: {}}]}}]}".to_owned(),
            "spec.routes[0].condition.any[0].not: is empty",
        ),
        (
            in_route("timeout: 5 s"),
            "spec.routes[0].timeout: \"5 s\" is not a duration",
        ),
        (
            in_route("responseClasses: [null]"),
            "spec.routes[0].responseClasses[0]: invalid type",
        ),
        (
            in_route("responseClasses: [{}]"),
            "spec.routes[0].responseClasses[0]: missing field `condition`",
        ),
        (
            in_class("{}"),
            "spec.routes[0].responseClasses[0].condition: is empty",
        ),
        (
            in_class("{status: {min: 99}}"),
            "spec.routes[0].responseClasses[0].condition.status.min: 99",
        ),
        (
            in_class("{status: {max: 600}}"),
            "spec.routes[0].responseClasses[0].condition.status.max: 600",
        ),
        (
            in_class("{status: {min: 500, max: 400}}"),
            "spec.routes[0].responseClasses[0].condition.status: min 500 is greater",
        ),
        (
            "{retryBudget: {retryRatio: -0.1, minRetriesPerSecond: 1, ttl: 1s}}".to_owned(),
            "spec.retryBudget.retryRatio: -0.1 is negative",
        ),
        (
            "{retryBudget: {retryRatio: 1}}".to_owned(),
            "spec.retryBudget: missing field `ttl`",
        ),
        (
            "{retryBudget: {ttl: soon}}".to_owned(),
            "spec.retryBudget.ttl: \"soon\" is not a duration",
        ),
        (
            "{retryBudget: {ttl: 2m}}".to_owned(),
            "spec.retryBudget.ttl: proxies do not retry with \"2m\"",
        ),
        (
            "{retryBudget: {minRetriesPerSecond: -1, ttl: 1s}}".to_owned(),
            "spec.retryBudget.minRetriesPerSecond: invalid type: integer `-1`",
        ),
        (
            "{dstOverrides: [{authority: a}]}".to_owned(),
            "spec.dstOverrides[0]: missing field `weight`",
        ),
        (
            "{dstOverrides: [{authority: a, weight: 1.5}]}".to_owned(),
            "spec.dstOverrides[0].weight: invalid type: floating point `1.5`, expected a weight: a whole number",
        ),
        (
            "{opaquePorts: ['25']}".to_owned(),
            "spec.opaquePorts: has no effect for a Service",
        ),
        ("null".to_owned(), "spec: is missing"),
    ] {
        let found = verdict(&object(NAME, &spec));
        assert_eq!(found.len(), 1, "{spec}: {found:?}");
        assert!(found[0].starts_with(expect), "{spec}: {}", found[0]);
    }
}

#[test]
fn names_are_dns_names() {
    let long = "a".repeat(254);
    for bad in [
        "",
        "Web.shop",
        "web..shop",
        "-web",
        "web-",
        "web_1",
        "web.",
        &long,
    ] {
        let found = verdict(&object(bad, "{}"));
        assert!(found[0].starts_with("metadata.name: "), "{bad}: {found:?}");
        assert!(found[0].contains("is not a DNS name in lower case"));
        assert!(found[0].len() < 250, "{}", found[0]);
    }
    let mut object = object(NAME, "{}");
    object["status"] = json!({});
    assert_eq!(
        verdict(&object),
        ["status: is not a field of a ServiceProfile; remove it"]
    );
    assert!(service_profile(&json!([])).is_err());
}

/// Users change the examples, so that these must be right.
#[test]
fn template_is_valid_and_matches_what_its_names_say() {
    let text = profile::template("web", "shop", "k8s.test");
    let object: Value = serde_norway::from_str(&text).unwrap();
    assert_eq!(verdict(&object), [""; 0]);
    assert_eq!(object["metadata"]["name"], "web.shop.svc.k8s.test");
    let spec = ServiceProfileSpec::deserialize(&object["spec"]).unwrap();
    let routes = profile::convert("web", &spec).unwrap().rules.routes;
    let [products, orders] = &*routes else {
        panic!("{routes:?}");
    };
    let (get, post) = (http::Method::GET, http::Method::POST);
    assert!(products.condition.is_match(&get, "/products/17"));
    assert!(!products.condition.is_match(&get, "/orders"));
    assert!(orders.condition.is_match(&post, "/orders"));
    assert!(!orders.condition.is_match(&get, "/orders"));
}
