//! The fields of a route that have no effect on its Servers, so that they are logged.

use std::borrow::Cow;

use mesh_core::route::filter::Proxies;

use crate::model::{ParentKind, Route};

/// Logs them, each with its remedy.
pub(super) fn warn_of_ignored<M>(route: &Route<M>) {
    for (field, problem) in ignored(route) {
        tracing::warn!(
            kind = route.id.kind.as_str(), object = %route.id.name, field, problem = &*problem,
            "Ignored field of a route of a Server"
        );
    }
}

/// The other parents of a route may use fields that Servers ignore, except for references to
/// Servers themselves.
fn ignored<M>(route: &Route<M>) -> Vec<(String, Cow<'static, str>)> {
    let is_server = |kind: ParentKind| kind == ParentKind::Server;
    let mut found = Vec::new();
    for (at, parent) in route.parents.iter().enumerate() {
        if !is_server(parent.kind) {
            continue;
        }
        let field = format!("spec.parentRefs[{at}]");
        if parent.port.is_some() {
            let problem = "the route has no effect on Servers: remove the port";
            found.push((format!("{field}.port"), problem.into()));
        }
        if parent.section.is_some() {
            let problem = "the route has no effect on Servers: remove the sectionName";
            found.push((format!("{field}.sectionName"), problem.into()));
        }
        if parent.name.namespace != route.id.name.namespace {
            let problem =
                "the route has no effect on Servers: create it in the namespace of the Server";
            found.push((format!("{field}.namespace"), problem.into()));
        }
    }
    let only_servers = route.parents.iter().all(|parent| is_server(parent.kind));
    if route.parents.is_empty() || !only_servers {
        return found;
    }
    for (at, rule) in route.rules.iter().enumerate() {
        let mut filters = rule.filters.iter().enumerate();
        let left_out =
            filters.find_map(|(at, it)| Some((rule.place(at), it.left_out(Proxies::OfServer)?)));
        if let Some((filter, effect)) = left_out {
            let problem = format!("{effect}: remove the filter");
            found.push((
                format!("spec.rules[{at}].filters[{filter}]"),
                problem.into(),
            ));
        }
        if rule.backends.as_ref().is_some_and(|it| !it.is_empty()) {
            let problem = "a Server has no other backend than its pod: remove the backends";
            found.push((format!("spec.rules[{at}].backendRefs"), problem.into()));
        }
        if rule.request_timeout.is_some() || rule.backend_timeout.is_some() {
            let problem = "proxies of a Server have no timeouts: remove them, or set them in a route of the Service";
            found.push((format!("spec.rules[{at}].timeouts"), problem.into()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::policy_http_route;

    fn fields(spec: &str) -> Vec<String> {
        let text = format!("metadata: {{name: get, namespace: shop}}\nspec: {spec}");
        let route = policy_http_route(&serde_norway::from_str(&text).unwrap()).unwrap();
        ignored(&route)
            .into_iter()
            .map(|(field, _)| field)
            .collect()
    }

    #[test]
    fn fields_without_effect_on_servers_are_found() {
        let server = "{group: policy.linkerd.io, kind: Server, name: web}";
        let service = "{group: core, kind: Service, name: web, port: 80}";
        let rules = "rules: [{}, {filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [a]}}], \
                     backendRefs: [{name: web, port: 80}], timeouts: {request: 1s}}]";
        let of_rules = [
            "spec.rules[1].filters[0]",
            "spec.rules[1].backendRefs",
            "spec.rules[1].timeouts",
        ];
        assert_eq!(
            fields(&format!("{{parentRefs: [{server}], {rules}}}")),
            of_rules
        );
        let none: [&str; 0] = [];
        let both = format!("{{parentRefs: [{service}, {server}], {rules}}}");
        assert_eq!(fields(&both), none);
        assert_eq!(fields(&format!("{{{rules}}}")), none);
        let wrong = server.replace('}', ", port: 80, sectionName: a, namespace: other}");
        assert_eq!(
            fields(&format!("{{parentRefs: [{service}, {wrong}]}}")),
            [
                "spec.parentRefs[1].port",
                "spec.parentRefs[1].sectionName",
                "spec.parentRefs[1].namespace",
            ]
        );
    }
}
