//! Probes of the kubelet that no route of their Server matches. A Server has a route for the probes
//! of its pods until a route is attached to it, which replaces that one (docs/adr/0161).

use mesh_k8s::kinds::Pod;
use mesh_k8s::pod::probes;
use mesh_objects::policy::attachment::RouteRank;
use serde_json::Value;

use super::super::framework::{CheckResult, Finding, Outcome};
use super::super::selected::{self, Selected, routes_of, selected, servers};
use crate::facts::{Facts, full_name};

/// Finds HTTP probes that the proxy answers with 404, so that the pod does not become ready.
pub(super) fn unmatched(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    let all = selected::routes(facts)?;
    for server in servers(facts)? {
        let routes: Vec<&Value> = routes_of(&server, &all)
            .filter(|(_, route)| RouteRank::new(route.kind) == Some(RouteRank::Http))
            .map(|(json, _)| json)
            .collect();
        let Some(first) = routes.first() else {
            continue;
        };
        let workloads = selected(facts, &server)?;
        let unmatched = workloads.iter().find_map(|workload| match workload {
            Selected::Pod(pod) => Some((*pod, probe(pod, &workload.ports(&server), &routes)?)),
            Selected::External(_) => None,
        });
        if let Some((pod, path)) = unmatched {
            let finding = Finding::new(format!(
                "{} has routes, and none matches the probe GET {path} of {}: its proxy answers 404",
                super::title(&server),
                full_name(pod)
            ));
            wrong.push(finding.with_fix(format!(
                "add a rule with path {path} and an AuthorizationPolicy for the nodes' addresses: {}",
                super::edit(first)
            )));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// Returns the path of a probe to one of the ports that no route matches.
fn probe(pod: &Pod, ports: &[u16], routes: &[&Value]) -> Option<String> {
    let probes = probes::by_port(pod.spec.as_ref()?).into_iter();
    let mut paths = probes
        .filter(|(port, _)| ports.contains(port))
        .flat_map(|(_, probes)| probes.paths);
    paths.find(|path| !routes.iter().any(|route| matches(route, path)))
}

/// Returns whether a route may match the request of a probe, which has the pod's address as its
/// host.
fn matches(route: &Value, path: &str) -> bool {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    list(&route["spec"]["hostnames"]).is_empty()
        && list(&route["spec"]["rules"]).iter().any(|rule| {
            let matches = list(&rule["matches"]);
            matches.is_empty() || matches.iter().any(|one| matches_one(one, path))
        })
}

fn matches_one(one: &Value, path: &str) -> bool {
    let is_absent = |field: &str| one[field].as_array().is_none_or(Vec::is_empty);
    let is_get = one["method"].as_str().is_none_or(|method| method == "GET");
    let value = one["path"]["value"].as_str().unwrap_or("/");
    let has_path = match one["path"]["type"].as_str() {
        Some("Exact") => value == path,
        // The probe is not reported where it may match.
        Some("RegularExpression") => true,
        _ => {
            let prefix = value.trim_end_matches('/');
            path.strip_prefix(prefix)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
    };
    has_path && is_get && is_absent("headers") && is_absent("queryParams")
}
