//! Redundant authorizations: another one already authorizes all their clients.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use super::finding::Finding;
use super::objects::{Object, Objects, POLICY, text};

pub(super) fn analyze(objects: &Objects, findings: &mut Vec<Finding>) {
    let mut by_target: BTreeMap<_, Vec<&Object>> = BTreeMap::new();
    for policy in objects.of(POLICY, "AuthorizationPolicy") {
        let target = (&policy.namespace, target(policy));
        by_target.entry(target).or_default().push(policy);
    }
    for policies in by_target.values() {
        let sets: Vec<_> = policies.iter().map(|policy| requirements(policy)).collect();
        for (at, cover) in covers(&sets).into_iter().enumerate() {
            let Some(cover) = cover else { continue };
            let (code, problem) = if sets[at] == sets[cover] {
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
                policies[at],
                "spec.requiredAuthenticationRefs",
                code,
                format!("AuthorizationPolicy {} {problem}", policies[cover].name),
                "delete one of the two",
            ));
        }
    }
    let mut first: HashMap<(&str, &Value), &str> = HashMap::new();
    for policy in objects.of(POLICY, "ServerAuthorization") {
        let other = *first
            .entry((policy.namespace.as_str(), policy.spec()))
            .or_insert(&policy.name);
        if other != policy.name {
            findings.push(Finding::new(
                policy,
                "spec",
                "duplicate",
                format!(
                    "ServerAuthorization {other} authorizes the same clients of the same Servers"
                ),
                "delete one of the two",
            ));
        }
    }
}

/// Returns for each set the first other one that is a proper subset of it, or that is equal and
/// comes before it.
///
/// A set is looked up by its rarest element, so that each is compared with few others.
fn covers<T: Ord>(sets: &[BTreeSet<T>]) -> Vec<Option<usize>> {
    let mut first: BTreeMap<&BTreeSet<T>, usize> = BTreeMap::new();
    let mut counts: BTreeMap<&T, usize> = BTreeMap::new();
    for (at, set) in sets.iter().enumerate() {
        first.entry(set).or_insert(at);
        for element in set {
            *counts.entry(element).or_default() += 1;
        }
    }
    // The empty set has no element, and is a subset of all.
    let mut by_rarest: BTreeMap<Option<&T>, Vec<usize>> = BTreeMap::new();
    for (set, at) in &first {
        let rarest = set.iter().min_by_key(|element| counts[element]);
        by_rarest.entry(rarest).or_default().push(*at);
    }
    let cover = |(at, set): (usize, &BTreeSet<T>)| {
        let elements = set.iter().map(Some).chain([None]);
        let candidates = elements.filter_map(|element| by_rarest.get(&element));
        candidates
            .flatten()
            .copied()
            .filter(|&other| sets[other].is_subset(set))
            .filter(|&other| other < at || sets[other].len() < set.len())
            .min()
    };
    sets.iter().enumerate().map(cover).collect()
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

#[cfg(test)]
mod tests {
    use super::super::tests::Counted;
    use super::*;

    #[test]
    fn subsets_and_earlier_equal_sets_cover() {
        let set = |elements: &[u32]| -> BTreeSet<u32> { elements.iter().copied().collect() };
        let sets = [&[1, 2][..], &[1], &[1, 2], &[3], &[2, 3, 4], &[1]].map(set);
        let expected = [Some(1), None, Some(0), None, Some(3), Some(1)];
        assert_eq!(covers(&sets), expected);
        let with_empty = [&[1][..], &[], &[]].map(set);
        assert_eq!(covers(&with_empty), [Some(1), None, Some(1)]);
    }

    #[test]
    fn comparisons_of_policies_grow_with_their_number() {
        let per_set = |count: u32, set: fn(u32) -> [u32; 2]| {
            let sets: Vec<BTreeSet<Counted>> =
                (0..count).map(|at| set(at).map(Counted).into()).collect();
            let (_, steps) = Counted::steps(|| covers(&sets));
            steps / u64::from(count)
        };
        // An element that all have, and equal sets.
        let kinds: [fn(u32) -> [u32; 2]; 3] = [|at| [0, at + 1], |at| [0, at / 2 + 1], |_| [0, 1]];
        for set in kinds {
            let (few, many) = (per_set(500, set), per_set(4_000, set));
            // Lookups in sorted maps, whose depth grows with the logarithm.
            assert!(many < 2 * few, "{many} {few}");
        }
    }
}
