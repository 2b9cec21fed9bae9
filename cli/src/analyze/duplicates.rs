//! Redundant authorizations: another one already authorizes all their clients.

use std::collections::BTreeSet;

use serde_json::Value;

use super::finding::Finding;
use super::objects::{Object, Objects, POLICY, text};

pub(super) fn analyze(objects: &Objects, findings: &mut Vec<Finding>) {
    for policy in objects.of(POLICY, "AuthorizationPolicy") {
        let mut others = objects.of(POLICY, "AuthorizationPolicy");
        if let Some(other) = others.find(|other| is_covered(policy, other)) {
            let (code, problem) = if requirements(policy) == requirements(other) {
                (
                    "duplicate",
                    "authorizes the same clients of the same target",
                )
            } else {
                (
                    "no-effect",
                    "already authorizes these clients: it has the same target and requires only a part of these authentications",
                )
            };
            findings.push(Finding::new(
                policy,
                "spec.requiredAuthenticationRefs",
                code,
                format!("AuthorizationPolicy {} {problem}", other.name),
                "delete one of the two",
            ));
        }
    }
    for policy in objects.of(POLICY, "ServerAuthorization") {
        let same = objects.of(POLICY, "ServerAuthorization").find(|other| {
            other.namespace == policy.namespace
                && other.name < policy.name
                && other.spec() == policy.spec()
        });
        if let Some(other) = same {
            findings.push(Finding::new(
                policy,
                "spec",
                "duplicate",
                format!(
                    "ServerAuthorization {} authorizes the same clients of the same Servers",
                    other.name
                ),
                "delete one of the two",
            ));
        }
    }
}

/// Returns whether `other` authorizes each client of `policy`; of equal ones the first by name
/// does.
fn is_covered(policy: &Object, other: &Object) -> bool {
    if other.namespace != policy.namespace || target(other) != target(policy) {
        return false;
    }
    let (own, others) = (requirements(policy), requirements(other));
    others.is_subset(&own) && (own != others || other.name < policy.name)
}

/// Returns group, kind and name, which have no case but for the name.
fn target(policy: &Object) -> (String, String, &str) {
    let target = &policy.spec()["targetRef"];
    let (group, kind) = group_and_kind(target);
    (group, kind, text(&target["name"]))
}

/// Returns the authentications that a client needs all of.
fn requirements(policy: &Object) -> BTreeSet<(String, String, &str, &str)> {
    let references = policy.list("requiredAuthenticationRefs").iter();
    references
        .map(|reference| {
            let (group, kind) = group_and_kind(reference);
            let namespace = reference["namespace"].as_str();
            let namespace = namespace.unwrap_or(&policy.namespace);
            (group, kind, namespace, text(&reference["name"]))
        })
        .collect()
}

fn group_and_kind(reference: &Value) -> (String, String) {
    let group = text(&reference["group"]).to_ascii_lowercase();
    let group = if group == "core" {
        String::new()
    } else {
        group
    };
    (group, text(&reference["kind"]).to_ascii_lowercase())
}
