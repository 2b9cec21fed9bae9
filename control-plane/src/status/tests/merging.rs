//! Patches of statuses that exist.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::status::patch::patch;

const ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: a, namespace: shop, generation: 7, resourceVersion: '12'}
spec: {parentRefs: [{group: '', kind: Service, name: web, port: 80}, {kind: Gateway, name: edge}]}
";

fn now() -> Timestamp {
    "2026-05-06T07:08:09.5Z".parse().unwrap()
}

fn with_status(status: &Value) -> String {
    format!("{ROUTE}\nstatus: {status}\n")
}

/// Returns the patch of a route with this status.
fn patched(status: &Value) -> Option<Value> {
    let objects = objects(&with_status(status));
    let object = find(&objects, "a");
    patch(object, &desired(&objects, object), now())
}

fn accepted(time: &str) -> Value {
    json!({
        "type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
        "lastTransitionTime": time, "observedGeneration": 7,
    })
}

fn resolved(time: &str) -> Value {
    json!({
        "type": "ResolvedRefs", "status": "True", "reason": "ResolvedRefs", "message": "",
        "lastTransitionTime": time, "observedGeneration": 7,
    })
}

fn own(conditions: &[Value]) -> Value {
    json!({
        "controllerName": "linkerd.io/policy-controller",
        "parentRef": {
            "group": "core", "kind": "Service", "namespace": "shop", "name": "web", "port": 80,
        },
        "conditions": conditions,
    })
}

/// An entry of another controller, with a field that this one does not know.
fn foreign() -> Value {
    json!({
        "controllerName": "example.com/gateway",
        "parentRef": { "name": "edge" },
        "conditions": [{
            "type": "Accepted", "status": "False", "reason": "Pending", "message": "later",
            "lastTransitionTime": "2020-01-01T00:00:00Z",
        }],
        "unknown": [1, { "a": null }],
    })
}

const NOW: &str = "2026-05-06T07:08:09Z";
const BEFORE: &str = "2021-02-03T04:05:06Z";

#[test]
fn first_status_has_object_version_and_all_conditions() {
    let patch = patched(&json!({})).unwrap();
    let expect = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": { "name": "a", "namespace": "shop", "resourceVersion": "12" },
        "status": { "parents": [own(&[accepted(NOW), resolved(NOW)])] },
    });
    assert_eq!(patch, expect);
}

#[test]
fn status_that_is_as_it_should_be_is_not_patched() {
    let parents = json!({ "parents": [foreign(), own(&[accepted(BEFORE), resolved(BEFORE)])] });
    assert_eq!(patched(&parents), None);
    let other_order = json!({ "parents": [own(&[accepted(BEFORE), resolved(BEFORE)]), foreign()] });
    assert_eq!(patched(&other_order), None);
}

#[test]
fn entries_of_other_controllers_stay_unchanged_in_their_places() {
    let status = json!({ "parents": [foreign(), own(&[]), foreign()] });
    let patch = patched(&status).unwrap();
    let expect = [foreign(), own(&[accepted(NOW), resolved(NOW)]), foreign()];
    assert_eq!(patch["status"]["parents"], json!(expect));
}

#[test]
fn time_changes_with_the_value_of_a_condition_only() {
    let mut reason = accepted(BEFORE);
    reason["reason"] = "Other".into();
    reason["message"] = "text".into();
    let mut generation = resolved(BEFORE);
    generation["observedGeneration"] = 6.into();
    let mut value = accepted(BEFORE);
    value["status"] = "False".into();
    let mut time = resolved("yesterday");
    for (existing, expect) in [
        (
            [reason, generation.clone()],
            [accepted(BEFORE), resolved(BEFORE)],
        ),
        (
            [value, generation.clone()],
            [accepted(NOW), resolved(BEFORE)],
        ),
        (
            [accepted(BEFORE), time.take()],
            [accepted(BEFORE), resolved(NOW)],
        ),
        (
            [accepted(BEFORE), resolved("yesterday")],
            [accepted(BEFORE), resolved(NOW)],
        ),
    ] {
        let patch = patched(&json!({ "parents": [own(&existing)] })).unwrap();
        assert_eq!(patch["status"]["parents"], json!([own(&expect)]));
    }
}

#[test]
fn entry_of_parent_that_is_no_longer_referenced_is_removed() {
    let mut other = own(&[accepted(BEFORE)]);
    other["parentRef"]["name"] = "before".into();
    let status = json!({ "parents": [other, foreign()] });
    let replaced = patched(&status).unwrap();
    let expect = [foreign(), own(&[accepted(NOW), resolved(NOW)])];
    assert_eq!(replaced["status"]["parents"], json!(expect));

    let gateway =
        with_status(&status).replace("{group: '', kind: Service, name: web, port: 80}, ", "");
    let objects = objects(&gateway);
    let object = find(&objects, "a");
    let removed = patch(object, &desired(&objects, object), now()).unwrap();
    assert_eq!(removed["status"]["parents"], json!([foreign()]));
}

#[test]
fn route_of_other_controllers_only_is_not_patched() {
    for status in [
        json!({}),
        json!({ "parents": [] }),
        json!({ "parents": [foreign()] }),
    ] {
        let gateway =
            with_status(&status).replace("{group: '', kind: Service, name: web, port: 80}, ", "");
        let objects = objects(&gateway);
        let object = find(&objects, "a");
        assert_eq!(patch(object, &desired(&objects, object), now()), None);
    }
}

#[test]
fn malformed_status_is_replaced() {
    for status in [
        json!({ "parents": "none" }),
        json!({ "parents": [{ "controllerName": "linkerd.io/policy-controller" }] }),
        json!({ "parents": [own(&[json!(3), json!({ "type": 1 })])] }),
        json!({ "parents": [{ "controllerName": "linkerd.io/policy-controller", "conditions": {} }] }),
    ] {
        let patch = patched(&status).unwrap();
        let expect = [own(&[accepted(NOW), resolved(NOW)])];
        assert_eq!(patch["status"]["parents"], json!(expect), "{status}");
    }
}

#[test]
fn status_of_linkerd_is_completed_without_new_times() {
    // Linkerd's conditions have no generation.
    let without_generation = |mut condition: Value| {
        condition
            .as_object_mut()
            .unwrap()
            .remove("observedGeneration");
        condition
    };
    let existing = [accepted(BEFORE), resolved(BEFORE)].map(without_generation);
    let patch = patched(&json!({ "parents": [own(&existing)] })).unwrap();
    let expect = [own(&[accepted(BEFORE), resolved(BEFORE)])];
    assert_eq!(patch["status"]["parents"], json!(expect));
}
