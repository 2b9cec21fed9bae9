//! The conditions of rate limits and EgressNetworks.

use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::status::patch::patch;

fn limit(name: &str, created: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: policy.linkerd.io/v1alpha1\nkind: HTTPLocalRateLimitPolicy\nmetadata: {{name: {name}, namespace: shop{created}}}\nspec: {spec}\n"
    )
}

fn of_server(name: &str, server: &str) -> String {
    limit(name, "", &to(server))
}

fn to(server: &str) -> String {
    format!(
        "{{targetRef: {{group: policy.linkerd.io, kind: Server, name: {server}}}, total: {{requestsPerSecond: 10}}}}"
    )
}

fn network(spec: &str) -> String {
    format!(
        "---\napiVersion: policy.linkerd.io/v1alpha1\nkind: EgressNetwork\nmetadata: {{name: a, namespace: shop}}\nspec: {spec}\n"
    )
}

/// Checks that the condition of the object `a` begins with a text.
fn check(text: &str, expect: &str) {
    let objects = objects(text);
    let DesiredStatus::Policy { accepted, .. } = desired(&objects, find(&objects, "a")) else {
        panic!("a is not a policy");
    };
    assert_eq!(
        (accepted.kind, accepted.is_true),
        ("Accepted", expect.is_empty())
    );
    let found = if accepted.is_true {
        accepted.message
    } else {
        format!("{}: {}", accepted.reason, accepted.message)
    };
    assert!(
        found.starts_with(expect),
        "{text}\n  found {found:?}\n  expected {expect:?}"
    );
}

#[test]
fn rate_limit_needs_a_server_of_http() {
    for (server, expect) in [
        ("detect", ""),
        ("http2", ""),
        ("gone", "NoMatchingTarget: there is no Server shop/gone"),
        (
            "opaque",
            "NoMatchingTarget: Server shop/opaque has proxyProtocol opaque, to which rate limits do not apply",
        ),
        (
            "grpc",
            "NoMatchingTarget: Server shop/grpc has proxyProtocol gRPC",
        ),
    ] {
        check(&of_server("a", server), expect);
    }
    let service = limit(
        "a",
        "",
        "{targetRef: {group: core, kind: Service, name: web}, total: {requestsPerSecond: 1}}",
    );
    check(
        &service,
        "NoMatchingTarget: there is no Service shop/web; expected a Server",
    );
    let invalid = limit("a", "", &to("detect").replace("10", "0"));
    check(
        &invalid,
        "UnsupportedValue: spec.total.requestsPerSecond: is 0",
    );
}

#[test]
fn oldest_rate_limit_of_a_server_applies() {
    let at = |time: &str| format!(", creationTimestamp: '{time}'");
    let (early, late) = (at("2024-01-01T00:00:00Z"), at("2025-01-01T00:00:00Z"));
    let conflict = "RateLimitReasonAlreadyExists: HTTPLocalRateLimitPolicy shop/";
    for (a, other, created, server, expect) in [
        (
            &late,
            "b",
            &early,
            "detect",
            "RateLimitReasonAlreadyExists: HTTPLocalRateLimitPolicy shop/b is older",
        ),
        (&early, "b", &late, "detect", ""),
        (&early, "b", &early, "detect", ""),
        (&early, "0", &early, "detect", conflict),
        (&String::new(), "b", &late, "detect", conflict),
        (&late, "b", &String::new(), "detect", ""),
        (&late, "b", &early, "http2", ""),
    ] {
        let text = limit("a", a, &to("detect")) + &limit(other, created, &to(server));
        check(&text, expect);
    }
    let invalid = limit("b", &early, &to("detect").replace("10", "0"));
    check(&(limit("a", &late, &to("detect")) + &invalid), "");
}

#[test]
fn egress_network_may_not_overlap_cluster_networks() {
    for (networks, expect) in [
        ("", ""),
        (", networks: [{cidr: 203.0.113.0/24}]", ""),
        (", networks: [{cidr: 0.0.0.0/0, except: [10.0.0.0/8]}]", ""),
        (
            ", networks: [{cidr: 203.0.113.0/24}, {cidr: 10.1.0.0/16}]",
            "EgressReasonNetworkOverlap: 10.1.0.0/16 overlaps the cluster network 10.0.0.0/8",
        ),
        (
            ", networks: [{cidr: 0.0.0.0/0}]",
            "EgressReasonNetworkOverlap: 0.0.0.0/0 overlaps",
        ),
    ] {
        check(
            &network(&format!("{{trafficPolicy: Allow{networks}}}")),
            expect,
        );
    }
    check(
        &network("{trafficPolicy: Allow, networks: [{cidr: nowhere}]}"),
        "UnsupportedValue: spec.networks[0]: \"nowhere\" is neither",
    );
}

#[test]
fn policy_status_has_target_and_keeps_other_conditions() {
    let now: Timestamp = "2026-05-06T07:08:09Z".parse().unwrap();
    let patched = |status: &serde_json::Value| {
        let objects = objects(&format!("{}status: {status}\n", of_server("a", "detect")));
        let object = find(&objects, "a");
        patch(object, &desired(&objects, object), now)
    };
    let target = json!({ "group": "policy.linkerd.io", "kind": "Server", "name": "detect" });
    let accepted = |time: &str| {
        json!({
            "type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
            "lastTransitionTime": time,
        })
    };
    let other = json!({ "type": "Other", "status": "False" });
    let first = patched(&json!({})).unwrap();
    assert_eq!(first["kind"], "HTTPLocalRateLimitPolicy");
    let expect = json!({ "conditions": [accepted("2026-05-06T07:08:09Z")], "targetRef": target });
    assert_eq!(first["status"], expect);
    let before = accepted("2020-01-01T00:00:00Z");
    let same = json!({ "conditions": [before, other], "targetRef": target });
    assert_eq!(patched(&same), None);
    let mut wrong = same.clone();
    wrong["targetRef"]["name"] = "before".into();
    assert_eq!(patched(&wrong).unwrap()["status"], same);
    let mut reason = same.clone();
    reason["conditions"][0]["reason"] = "Other".into();
    assert_eq!(patched(&reason).unwrap()["status"], same);
}
