//! Rules of routes that never match, because another rule has the same match and precedence.
//!
//! If several rules match a request, the most specific one applies; if they are equally specific,
//! the older route wins, and within a route the first rule. So a rule is certainly never used if
//! earlier rules have each of its matches, for the same parent and hosts.

use std::collections::BTreeMap;

use mesh_objects::model::{Object as Record, ParentKind, ParentRef};
use mesh_objects::policy::attachment::RouteRank;
use serde_json::{Value, json};

use super::finding::Finding;
use super::objects::{Object, Objects, list};
use super::routes;

/// A match of a rule in a form that can be compared, with the host.
type Match = String;

/// A rule for a parent, with the namespace of its route.
struct Rule<'a, M> {
    namespace: &'a str,
    matches: Vec<M>,
}

pub(super) fn analyze(objects: &Objects, findings: &mut Vec<Finding>) {
    let mut by_parent: BTreeMap<(RouteRank, &ParentRef), Vec<&Object>> = BTreeMap::new();
    for (route, kind) in routes::routes(objects) {
        let Some(rank) = RouteRank::new(kind.indexed()) else {
            continue;
        };
        let parents = routes::parents(route).iter();
        for parent in parents.filter(|parent| parent.kind != ParentKind::Other) {
            by_parent.entry((rank, parent)).or_default().push(route);
        }
    }
    for ((rank, parent), mut routes) in by_parent {
        routes.sort_by_key(|route| route.record().and_then(Record::precedence));
        let (mut places, mut rules) = (Vec::new(), Vec::new());
        for route in routes {
            for (at, rule) in route.list("rules").iter().enumerate() {
                places.push((route, at));
                rules.push(Rule {
                    namespace: &route.namespace,
                    matches: matches(route, rule, rank),
                });
            }
        }
        for (place, earlier) in places.iter().zip(shadowed(&rules, &parent.name.namespace)) {
            if let Some(earlier) = earlier {
                findings.push(never_matches(*place, places[earlier]));
            }
        }
    }
}

/// Returns for each rule, if earlier rules have all its matches, the first rule that has its first
/// match. Routes of other namespaces than the parent's apply to clients of their namespace only.
fn shadowed<M: Ord>(rules: &[Rule<'_, M>], parent_namespace: &str) -> Vec<Option<usize>> {
    let mut first: BTreeMap<(&str, &M), usize> = BTreeMap::new();
    let mut shadowed = Vec::new();
    for (at, rule) in rules.iter().enumerate() {
        let earlier = |one| {
            let namespaces = [parent_namespace, rule.namespace].into_iter();
            namespaces
                .filter_map(|namespace| first.get(&(namespace, one)).copied())
                .min()
        };
        let all: Option<Vec<usize>> = rule.matches.iter().map(earlier).collect();
        shadowed.push(all.and_then(|all| all.first().copied()));
        for one in &rule.matches {
            first.entry((rule.namespace, one)).or_insert(at);
        }
    }
    shadowed
}

fn never_matches((route, at): (&Object, usize), (other, other_at): (&Object, usize)) -> Finding {
    let other = if other.full_name() == route.full_name() && other.kind == route.kind {
        format!("spec.rules[{other_at}] has")
    } else {
        format!(
            "spec.rules[{other_at}] of {} {}, which is older, has",
            other.kind,
            other.full_name()
        )
    };
    Finding::new(
        route,
        format!("spec.rules[{at}]"),
        "never-matches",
        format!("never matches: {other} the same matches"),
        "make its matches more specific, or merge the two",
    )
}

/// Returns each combination of host and match of a rule.
fn matches(route: &Object, rule: &Value, rank: RouteRank) -> Vec<Match> {
    let everything = [json!({})];
    let matches = match list(&rule["matches"]) {
        [] => &everything,
        matches => matches,
    };
    let all_hosts = [Value::Null];
    let hosts = match route.list("hostnames") {
        [] => &all_hosts,
        hosts => hosts,
    };
    let pairs = hosts
        .iter()
        .flat_map(|host| matches.iter().map(move |one| (host, one)));
    pairs
        .map(|(host, one)| format!("{host} {}", normalized(one, rank)))
        .collect()
}

/// Returns a match with the defaults written out and the lists sorted.
fn normalized(one: &Value, rank: RouteRank) -> Value {
    let sorted = |field: &str| {
        let mut entries: Vec<String> = list(&one[field])
            .iter()
            .map(|entry| {
                let name = entry["name"].as_str().unwrap_or_default();
                let kind = entry["type"].as_str().unwrap_or("Exact");
                // Names of headers have no case, names of parameters do.
                let name = if field == "headers" {
                    name.to_ascii_lowercase()
                } else {
                    name.to_owned()
                };
                format!("{name} {kind} {}", entry["value"])
            })
            .collect();
        entries.sort();
        entries
    };
    let path = match (rank, &one["path"]) {
        (RouteRank::Http, path) => json!([
            path["type"].as_str().unwrap_or("PathPrefix"),
            path["value"].as_str().unwrap_or("/"),
        ]),
        _ => Value::Null,
    };
    json!({
        "path": path,
        "headers": sorted("headers"),
        "queryParams": sorted("queryParams"),
        "method": one["method"],
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::Counted;
    use super::*;

    #[test]
    fn rules_are_compared_with_those_for_the_same_clients() {
        let rule = |namespace, matches: &[u32]| Rule {
            namespace,
            matches: matches.to_vec(),
        };
        let rules = [
            rule("shop", &[1, 2]),
            rule("a", &[3]),
            rule("b", &[3]),
            // Earlier rules have both.
            rule("a", &[3, 1]),
            rule("b", &[1, 4]),
            // Clients of all namespaces use it, but only some use the other rule.
            rule("shop", &[3]),
            rule("shop", &[2]),
            // The first of the rules that have it applies.
            rule("a", &[3]),
        ];
        let expected = [None, None, None, Some(1), None, None, Some(0), Some(1)];
        assert_eq!(shadowed(&rules, "shop"), expected);
    }

    #[test]
    fn comparisons_of_rules_grow_with_their_number() {
        let per_rule = |count: u32| {
            let rule = |at: u32| Rule {
                namespace: if at.is_multiple_of(2) { "a" } else { "b" },
                matches: vec![Counted(at), Counted(at + count)],
            };
            let rules: Vec<_> = (0..count).map(rule).collect();
            let (found, steps) = Counted::steps(|| shadowed(&rules, "shop"));
            assert!(found.iter().all(Option::is_none));
            steps / u64::from(count)
        };
        // Lookups in a sorted map, whose depth grows with the logarithm.
        assert!(per_rule(4_000) < 2 * per_rule(500), "{}", per_rule(4_000));
    }
}
