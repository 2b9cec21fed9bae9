//! Probes of the kubelet that no route of their Server matches. A Server has a route for the probes
//! of its pods until a route is attached to it, which replaces that one (docs/adr/0161).

use http::{HeaderMap, Method};
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{HttpRoute, InboundRule, http_rule};
use mesh_core::route::Rule;
use mesh_core::route::http::RequestHead;
use mesh_objects::model::{self, PodRecord, RouteId};

use super::super::framework::{CheckResult, Finding, Outcome};
use super::super::selected::{Selected, routes_of, selected, servers};
use crate::facts::{Facts, full_name};

/// Finds HTTP probes that the proxy answers with 404, so that the pod does not become ready.
pub(super) fn unmatched(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    let store = facts.store()?;
    for server in servers(facts)? {
        let attached: Vec<RouteId> = routes_of(store, server).map(|route| route.id()).collect();
        let routes: Vec<_> = store
            .http_routes_in(&server.name.namespace)
            .filter(|route| attached.contains(&route.id))
            .collect();
        let Some(first) = routes.first() else {
            continue;
        };
        let served: Vec<HttpRoute> = routes.iter().map(|route| served(route)).collect();
        let workloads = selected(facts, server)?;
        let unmatched = workloads.iter().find_map(|workload| match *workload {
            Selected::Pod(pod, record) => {
                let ports = server.ports_of(record.into());
                Some((pod, probe(record, &ports, &served)?))
            }
            Selected::External(_) => None,
        });
        if let Some((pod, path)) = unmatched {
            let finding = Finding::new(format!(
                "{} has routes, and none matches the probe GET {path} of {}: its proxy answers 404",
                super::title(server),
                full_name(pod)
            ));
            let RouteId { kind, name } = &first.id;
            wrong.push(finding.with_fix(format!(
                "add a rule with path {path} and an AuthorizationPolicy for the nodes' addresses: {}",
                super::edit(kind.group(), kind.as_str(), name)
            )));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// Returns the route as a proxy has it, without its filters and authorizations.
fn served(route: &model::HttpRoute) -> HttpRoute {
    let rules = route.rules.iter().map(|rule| Rule {
        matches: rule.matches.clone(),
        action: InboundRule::default(),
    });
    HttpRoute {
        meta: Meta::new_default("attached"),
        hosts: route.hosts.clone(),
        rules: rules.collect(),
    }
}

/// Returns the path of a probe to one of the ports that no route matches.
fn probe<'a>(pod: &'a PodRecord, ports: &[u16], routes: &[HttpRoute]) -> Option<&'a str> {
    let headers = HeaderMap::new();
    let is_matched = |path: &str| {
        // The host of a probe is the address of the pod, which no route can name.
        let head = RequestHead {
            method: &Method::GET,
            scheme: None,
            authority: None,
            path,
            is_raw: false,
            query: None,
            headers: &headers,
        };
        http_rule(routes, &head).is_some()
    };
    let probes = pod.probes.iter().filter(|(port, _)| ports.contains(port));
    let mut paths = probes.flat_map(|(_, probes)| &probes.paths);
    paths.find(|path| !is_matched(path)).map(String::as_str)
}
