//! Conversion of valid and invalid routes from YAML.

use mesh_core::route::filter::{Filter, PathModifier};

use super::*;
use crate::model::ParentKind;

fn gateway(spec: &str) -> Result<HttpRoute, ConvertError> {
    let text = format!(
        "metadata: {{name: web, namespace: shop, creationTimestamp: '2026-01-02T03:04:05Z'}}\nspec:\n{spec}"
    );
    gateway_http_route(&serde_norway::from_str(&text).unwrap())
}

#[test]
fn route_with_all_features_is_converted() {
    let route = gateway(
        "
  parentRefs:
  - {group: '', kind: Service, name: web, port: 80}
  - {group: policy.linkerd.io, kind: Server, name: web-http}
  - {name: some-gateway}
  hostnames: [web.example, '*.shop.example']
  rules:
  - matches:
    - path: {type: PathPrefix, value: /a}
      method: GET
      headers: [{name: X-One, value: '1'}, {name: x-two, type: RegularExpression, value: 'a.*'}]
      queryParams: [{name: q, value: 'a b'}]
    - {}
    filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {add: [{name: a, value: b}], remove: [c]}
    - type: RequestRedirect
      requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /b}}
    backendRefs:
    - {name: web-v1, port: 8080, weight: 9}
    - {name: web-v2, port: 8080, namespace: other, filters: [{type: RequestMirror}]}
    timeouts: {request: 1m30s}
  - {}
",
    )
    .unwrap();
    let kinds: Vec<ParentKind> = route.parents.iter().map(|parent| parent.kind).collect();
    assert_eq!(
        kinds,
        [ParentKind::Service, ParentKind::Server, ParentKind::Other]
    );
    assert_eq!(route.parents[0].port, Some(80));
    assert_eq!(route.created, Some(1_767_323_045));
    assert_eq!(
        route.hosts[1],
        HostMatch::Suffix(vec!["example".into(), "shop".into()])
    );
    let rule = &route.rules[0];
    assert_eq!(rule.matches[0].path, Some(PathMatch::Prefix("/a".into())));
    assert_eq!(rule.matches[0].headers.len(), 2);
    assert_eq!(rule.matches[1].path, Some(PathMatch::Prefix("/".into())));
    assert_eq!(rule.request_timeout, Some(Duration::from_secs(90)));
    let Filter::Redirect(redirect) = &rule.filters[1] else {
        panic!("{:?}", rule.filters);
    };
    assert_eq!(redirect.path, Some(PathModifier::Prefix("/b".into())));
    assert_eq!(redirect.status.unwrap(), 302);
    let backends = rule.backends.as_ref().unwrap();
    assert_eq!((backends[0].weight, backends[1].weight), (9, 1));
    assert_eq!(backends[1].backend.namespace.as_deref(), Some("other"));
    let problem = backends[1].filters.as_ref().unwrap_err();
    assert!(
        problem.contains("RequestMirror is not supported"),
        "{problem}"
    );
    assert_eq!(route.rules[1].backends, None);
}

#[test]
fn errors_name_invalid_field_of_route() {
    let check = |rule: &str, field: &str, problem: &str| {
        let error = gateway(&format!("  rules:\n  - {{}}\n  - {rule}\n")).unwrap_err();
        assert_eq!(error.field, format!("spec.rules[1].{field}"));
        assert!(error.problem.contains(problem), "{error}");
    };
    check(
        "{matches: [{path: {type: RegularExpression, value: '('}}]}",
        "matches[0].path.value",
        "regex parse error",
    );
    check(
        "{matches: [{path: {value: a}}]}",
        "matches[0].path.value",
        "start with '/'",
    );
    check(
        "{matches: [{headers: [{name: 'a b', value: x}]}]}",
        "matches[0].headers[0].name",
        "not a header name",
    );
    check(
        "{filters: [{type: RequestRedirect}]}",
        "filters[0].requestRedirect",
        "is missing",
    );
    check(
        "{timeouts: {request: soon}}",
        "timeouts.request",
        "not a duration",
    );
}

#[test]
fn regular_expressions_for_grpc_methods_are_rejected() {
    let text = "metadata: {name: g, namespace: shop}\nspec: {rules: [{matches: [{method: {service: a.B, method: Get}}]}, \
                {matches: [{method: {type: RegularExpression, service: 'a.*'}}]}]}";
    let error = gateway_grpc_route(&serde_norway::from_str(text).unwrap()).unwrap_err();
    assert_eq!(error.field, "spec.rules[1].matches[0].method.type");
}
