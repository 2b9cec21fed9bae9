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
        let mut used: BTreeMap<Match, (&Object, usize)> = BTreeMap::new();
        for route in routes {
            // Routes of several namespaces apply to different clients.
            used.retain(|_, (other, _)| {
                *other.namespace == *parent.name.namespace || other.namespace == route.namespace
            });
            for (at, rule) in route.list("rules").iter().enumerate() {
                let matches = matches(route, rule, rank);
                let before: Vec<_> = matches.iter().filter_map(|one| used.get(one)).collect();
                if before.len() == matches.len()
                    && let Some((other, other_at)) = before.first()
                {
                    findings.push(never_matches(route, at, other, *other_at));
                }
                for one in matches {
                    used.entry(one).or_insert((route, at));
                }
            }
        }
    }
}

fn never_matches(route: &Object, at: usize, other: &Object, other_at: usize) -> Finding {
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
