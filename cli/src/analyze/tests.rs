//! Manifests with the findings that they should have.

use std::cell::Cell;
use std::cmp::Ordering;

use mesh_k8s::values::Values;
use serde::Deserialize as _;

use super::*;

mod annotations;
mod authorizations;
pub(crate) mod effect;
mod overlaps;
mod profiles;
mod proxies;
mod timeouts;

/// A namespace without findings.
const SHOP: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {timeout.linkerd.io/request: 1s, config.linkerd.io/opaque-ports: '3306'}}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}, {port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: shop}
spec: {clusterIP: None, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, annotations: {config.linkerd.io/proxy-log-level: debug}}
    spec: {containers: [{name: main, ports: [{name: http, containerPort: 8080}, {name: dns, containerPort: 53, protocol: UDP}]}]}
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web-http, namespace: shop, labels: {app: web}}
spec: {podSelector: {matchLabels: {app: web}}, port: http, proxyProtocol: HTTP/1}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: NetworkAuthentication
metadata: {name: all, namespace: shop}
spec: {networks: [{cidr: 0.0.0.0/0}]}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: web, namespace: shop}
spec:
  targetRef: {group: policy.linkerd.io, kind: Server, name: web-http}
  requiredAuthenticationRefs: [{group: policy.linkerd.io, kind: NetworkAuthentication, name: all}]
---
apiVersion: policy.linkerd.io/v1beta3
kind: HTTPRoute
metadata: {name: web-get, namespace: shop}
spec:
  parentRefs: [{group: policy.linkerd.io, kind: Server, name: web-http}]
  rules: [{matches: [{method: GET}]}]
";

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// A number whose comparisons are counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted(pub(super) u32);

impl Counted {
    /// Returns the result of `work`, and how many comparisons it made.
    pub(super) fn steps<T>(work: impl FnOnce() -> T) -> (T, u64) {
        let before = STEPS.get();
        let result = work();
        (result, STEPS.get() - before)
    }
}

impl Ord for Counted {
    fn cmp(&self, other: &Self) -> Ordering {
        STEPS.set(STEPS.get() + 1);
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Counted {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Counted {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Counted {}

fn objects(manifest: &str) -> Objects {
    let documents = serde_norway::Deserializer::from_str(manifest);
    documents
        .map(|document| serde_json::Value::deserialize(document).unwrap())
        .collect()
}

fn values(text: &str) -> Values {
    Values::read(serde_norway::from_str(text).unwrap()).unwrap()
}

/// Returns the findings of the namespace with a manifest: code, object and field of each, and the
/// texts.
fn findings(manifest: &str) -> Vec<Finding> {
    let mut findings = analyze(&objects(&format!("{SHOP}---{manifest}")));
    // The validation has tests of its own, and the manifests here are short.
    findings.retain(|finding| finding.code != "invalid");
    findings
}

/// Checks that a manifest has exactly one finding.
fn check(manifest: &str, expect: [&str; 4]) {
    let found = findings(manifest);
    let [finding] = &found[..] else {
        panic!("{manifest}\n{found:#?}");
    };
    let [code, object, field, text] = expect;
    assert_eq!(
        (finding.code, &*finding.object(), &*finding.field),
        (code, object, field),
        "{manifest}"
    );
    let texts = format!("{}; {}", finding.problem, finding.fix);
    assert!(texts.contains(text), "{texts}\n  expected {text}");
}

fn server(name: &str, spec: &str) -> String {
    format!(
        "\napiVersion: policy.linkerd.io/v1beta3\nkind: Server\nmetadata: {{name: {name}, namespace: shop}}\nspec: {spec}\n"
    )
}

fn route(group: &str, kind: &str, spec: &str) -> String {
    format!(
        "\napiVersion: {group}/v1\nkind: {kind}\nmetadata: {{name: route, namespace: shop}}\nspec: {spec}\n"
    )
}

fn policy(kind: &str, spec: &str) -> String {
    format!(
        "\napiVersion: policy.linkerd.io/v1alpha1\nkind: {kind}\nmetadata: {{name: policy, namespace: shop}}\nspec: {spec}\n"
    )
}

const GATEWAY: &str = "gateway.networking.k8s.io";

#[test]
fn objects_that_have_an_effect_have_no_findings() {
    assert_eq!(analyze(&objects(SHOP)), []);
    let route = route(
        GATEWAY,
        "HTTPRoute",
        "{parentRefs: [{group: core, kind: Service, name: web, port: 80}], rules: [{backendRefs: [{name: web, port: 8080}]}, {matches: [{path: {value: /a}}]}]}",
    );
    assert_eq!(findings(&route), []);
}

#[test]
fn object_that_the_webhook_denies_is_found() {
    let found = analyze(&objects(&server(
        "a",
        "{podSelector: {}, port: 70000, accessPolicy: some}",
    )));
    let fields: Vec<_> = found
        .iter()
        .map(|finding| (finding.code, &*finding.field))
        .collect();
    assert_eq!(
        fields,
        [("invalid", "spec.accessPolicy"), ("invalid", "spec.port")]
    );
    assert!(found.iter().all(|finding| !finding.fix.is_empty()));
    let unknown = analyze(&objects(&route(GATEWAY, "Gateway", "{}")));
    assert_eq!(unknown, []);
}

/// The injector adds them, so that no template has them.
#[test]
fn ports_of_the_proxy_are_known() {
    let of_proxy = server("admin", "{podSelector: {}, port: linkerd-admin}");
    assert_eq!(findings(&of_proxy), []);
}

#[test]
fn server_without_pods_or_port_is_found() {
    for (spec, field, text) in [
        (
            "{podSelector: {matchLabels: {app: wep}}, port: 80}",
            "spec.podSelector",
            "selects no pods of namespace shop",
        ),
        (
            "{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [web]}]}, port: 80}",
            "spec.podSelector",
            "selects no pods",
        ),
        (
            "{podSelector: {matchLabels: {app: web}}, port: grpc}",
            "spec.port",
            "no container of Deployment web has a TCP port with the name \"grpc\"",
        ),
        (
            "{podSelector: {matchLabels: {app: web}}, port: dns}",
            "spec.port",
            "TCP port",
        ),
    ] {
        check(
            &server("other", spec),
            ["selects-nothing", "Server shop/other", field, text],
        );
    }
    // A port that no container declares may be listened on.
    let number = server(
        "other",
        "{podSelector: {matchLabels: {app: web}}, port: 9999}",
    );
    assert_eq!(findings(&number), []);
}

#[test]
fn second_server_of_a_port_is_found() {
    for spec in [
        "{podSelector: {matchLabels: {app: web}}, port: http}",
        "{podSelector: {}, port: 8080}",
    ] {
        check(
            &server("web-younger", spec),
            [
                "duplicate-port",
                "Server shop/web-younger",
                "spec.port",
                "Server web-http is older",
            ],
        );
    }
}

#[test]
fn rules_about_pods_need_workloads() {
    let alone = analyze(&objects(&server(
        "a",
        "{podSelector: {matchLabels: {a: b}}, port: http}",
    )));
    assert_eq!(alone, []);
}

/// Manifests have no address yet, and only headless Services say that they get none.
#[test]
fn route_of_a_service_without_an_assigned_address_attaches() {
    let attached = route(
        GATEWAY,
        "HTTPRoute",
        "{parentRefs: [{group: core, kind: Service, name: new}]}",
    );
    let with = |spec: &str| {
        format!(
            "\napiVersion: v1\nkind: Service\nmetadata: {{name: new, namespace: shop}}\nspec: {{{spec}}}\n---{attached}"
        )
    };
    assert_eq!(
        findings(&with(
            "selector: {app: web}, ports: [{port: 80, targetPort: http}]"
        )),
        []
    );
    for spec in [
        "clusterIP: None, ports: [{port: 80}]",
        "type: ExternalName, externalName: a.test",
    ] {
        check(
            &with(spec),
            [
                "attaches-nowhere",
                "HTTPRoute shop/route",
                "spec.parentRefs[0]",
                "has no cluster IP",
            ],
        );
    }
}

#[test]
fn route_that_attaches_nowhere_is_found() {
    for (kind, parent, field, text) in [
        (
            "HTTPRoute",
            "{group: core, kind: Service, name: gone}",
            ".name",
            "there is no Service shop/gone",
        ),
        (
            "HTTPRoute",
            "{group: '', kind: Service, name: web, port: 81}",
            ".port",
            "no port 81; it has 80, 8080",
        ),
        (
            "GRPCRoute",
            "{group: core, kind: Service, name: headless}",
            "",
            "has no cluster IP",
        ),
        (
            "HTTPRoute",
            "{group: policy.linkerd.io, kind: Server, name: gone}",
            ".name",
            "there is no Server shop/gone",
        ),
        (
            "HTTPRoute",
            "{group: policy.linkerd.io, kind: Server, name: web-http, port: 80}",
            ".port",
            "remove it",
        ),
        (
            "HTTPRoute",
            "{group: policy.linkerd.io, kind: Server, name: web-http, namespace: other}",
            ".namespace",
            "in another namespace",
        ),
        (
            "GRPCRoute",
            "{group: policy.linkerd.io, kind: Server, name: web-http}",
            "",
            "GRPCRoutes do not apply to Server web-http with proxyProtocol HTTP/1",
        ),
        (
            "TLSRoute",
            "{group: policy.linkerd.io, kind: EgressNetwork, name: all, port: 443}",
            ".name",
            "there is no EgressNetwork shop/all",
        ),
    ] {
        let spec = format!("{{parentRefs: [{parent}]}}");
        let field = format!("spec.parentRefs[0]{field}");
        let object = format!("{kind} shop/route");
        check(
            &route(GATEWAY, kind, &spec),
            ["attaches-nowhere", &object, &field, text],
        );
    }
    check(
        &route(GATEWAY, "HTTPRoute", "{}"),
        [
            "attaches-nowhere",
            "HTTPRoute shop/route",
            "spec.parentRefs",
            "has no parents",
        ],
    );
    let gateway = route(GATEWAY, "HTTPRoute", "{parentRefs: [{name: edge}]}");
    assert_eq!(findings(&gateway), []);
}

#[test]
fn missing_backend_is_found() {
    for (backend, field, text) in [
        (
            "{name: gone, port: 80}",
            ".name",
            "there is no Service shop/gone, so requests to this backend fail",
        ),
        ("{name: web}", ".port", "is missing"),
        ("{name: web, port: 1}", ".port", "no port 1"),
        (
            "{kind: Bucket, name: a, port: 1}",
            ".kind",
            "Bucket shop/a cannot be a backend",
        ),
        (
            "{group: policy.linkerd.io, kind: EgressNetwork, name: all, port: 1}",
            ".name",
            "there is no EgressNetwork shop/all",
        ),
        (
            "{name: external, port: 80}",
            "",
            "Service shop/external is of type ExternalName, which has no endpoints",
        ),
    ] {
        let spec = format!(
            "{{parentRefs: [{{group: core, kind: Service, name: web}}], rules: [{{backendRefs: [{backend}]}}]}}"
        );
        let external = "\napiVersion: v1\nkind: Service\nmetadata: {name: external, namespace: shop}\nspec: {type: ExternalName, externalName: a.example, ports: [{port: 80}]}\n";
        let field = format!("spec.rules[0].backendRefs[0]{field}");
        check(
            &format!("{external}---{}", route(GATEWAY, "HTTPRoute", &spec)),
            ["missing-reference", "HTTPRoute shop/route", &field, text],
        );
    }
}

/// A backend fails where the route's status says so: for each parent, and also as a mirror.
#[test]
fn backends_are_resolved_for_each_parent_and_mirror() {
    let network = policy("EgressNetwork", "{trafficPolicy: Allow}");
    let parents = "[{group: policy.linkerd.io, kind: EgressNetwork, name: policy, port: 443}, {group: core, kind: Service, name: web}]";
    let with = |rule: &str| {
        let spec = format!("{{parentRefs: {parents}, rules: [{rule}]}}");
        format!("{network}---{}", route(GATEWAY, "HTTPRoute", &spec))
    };
    let object = "HTTPRoute shop/route";
    let backend =
        "{backendRefs: [{group: policy.linkerd.io, kind: EgressNetwork, name: policy, port: 443}]}";
    let field = "spec.rules[0].backendRefs[0]";
    check(
        &with(backend),
        ["missing-reference", object, field, "is not a parent"],
    );
    let mirror =
        "{filters: [{type: RequestMirror, requestMirror: {backendRef: {name: gone, port: 80}}}]}";
    let field = "spec.rules[0].filters[0].requestMirror.backendRef.name";
    let text = "there is no Service shop/gone, so requests to this backend fail";
    check(&with(mirror), ["missing-reference", object, field, text]);
}

#[test]
fn routes_that_contradict_each_other_are_found() {
    let spec = "{parentRefs: [{group: core, kind: Service, name: web, port: 80}]}";
    let both = format!(
        "{}---{}",
        route(GATEWAY, "HTTPRoute", spec),
        route(GATEWAY, "GRPCRoute", spec)
    );
    check(
        &both,
        [
            "conflict",
            "HTTPRoute shop/route",
            "spec.parentRefs[0]",
            "GRPCRoute shop/route references the same parent",
        ],
    );
}

/// The route with the mistake has no effect, so it takes precedence over none.
#[test]
fn grpc_route_with_a_mistaken_reference_replaces_no_http_route() {
    let calls = "{group: policy.linkerd.io, kind: Server, name: calls}";
    let with = |other: &str| {
        [
            server(
                "calls",
                "{podSelector: {}, port: 9090, proxyProtocol: gRPC}",
            ),
            route(GATEWAY, "HTTPRoute", &format!("{{parentRefs: [{calls}]}}")),
            route(
                GATEWAY,
                "GRPCRoute",
                &format!("{{parentRefs: [{calls}{other}]}}"),
            ),
        ]
        .join("---")
    };
    check(
        &with(""),
        [
            "conflict",
            "HTTPRoute shop/route",
            "spec.parentRefs[0]",
            "GRPCRoute shop/route references the same parent",
        ],
    );
    check(
        &with(", {group: policy.linkerd.io, kind: Server, name: web-http, port: 80}"),
        [
            "attaches-nowhere",
            "GRPCRoute shop/route",
            "spec.parentRefs[1].port",
            "makes the whole route unusable",
        ],
    );
}

#[test]
fn route_whose_requests_all_fail_is_found() {
    let with = |backends: &str| {
        let spec = format!(
            "{{parentRefs: [{{group: core, kind: Service, name: web}}], rules: [{{backendRefs: [{backends}]}}]}}"
        );
        route(GATEWAY, "HTTPRoute", &spec)
    };
    let none = "{name: web, port: 80, weight: 0}";
    let expect = [
        "no-backend",
        "HTTPRoute shop/route",
        "spec.rules[0].backendRefs",
        "weight 0",
    ];
    check(&with(none), expect);
    assert_eq!(
        findings(&with(&format!("{none}, {{name: web, port: 8080}}"))),
        []
    );
}

#[test]
fn route_for_an_opaque_port_is_found() {
    let service = "\napiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: shop, annotations: {config.linkerd.io/opaque-ports: '81,90-99'}}\nspec: {clusterIP: 10.96.0.2, ports: [{port: 80}, {port: 95}, {port: 81, appProtocol: http}, {port: 82, appProtocol: tcp}]}\n";
    for (kind, port, is_found) in [
        ("HTTPRoute", ", port: 95", true),
        ("GRPCRoute", "", true),
        ("HTTPRoute", ", port: 80", false),
        // The appProtocol decides before the annotation.
        ("HTTPRoute", ", port: 81", false),
        ("HTTPRoute", ", port: 82", true),
        ("TCPRoute", ", port: 95", false),
    ] {
        let spec = format!("{{parentRefs: [{{group: core, kind: Service, name: db{port}}}]}}");
        let found = findings(&format!("{service}---{}", route(GATEWAY, kind, &spec)));
        let codes: Vec<_> = found.iter().map(|finding| finding.code).collect();
        assert_eq!(codes == ["no-effect"], is_found, "{kind}{port}: {found:#?}");
    }
}

#[test]
fn rule_that_never_matches_is_found() {
    let with_rules = |rules: &str| {
        let spec = format!(
            "{{parentRefs: [{{group: core, kind: Service, name: web, port: 80}}], rules: [{rules}]}}"
        );
        route(GATEWAY, "HTTPRoute", &spec)
    };
    for rules in [
        "{}, {matches: [{path: {type: PathPrefix, value: /}}]}",
        "{matches: [{path: {value: /a}}, {method: GET}]}, {matches: [{method: GET}]}",
        "{matches: [{headers: [{name: X-A, value: b}, {name: c, value: d}]}]}, {matches: [{headers: [{name: C, value: d}, {name: x-a, type: Exact, value: b}]}]}",
    ] {
        check(
            &with_rules(rules),
            [
                "never-matches",
                "HTTPRoute shop/route",
                "spec.rules[1]",
                "spec.rules[0] has the same matches",
            ],
        );
    }
    for rules in [
        "{matches: [{path: {value: /}}]}, {matches: [{path: {value: /a}}]}",
        "{matches: [{method: GET}]}, {matches: [{method: GET}, {method: PUT}]}",
        "{matches: [{queryParams: [{name: a, value: b}]}]}, {matches: [{queryParams: [{name: A, value: b}]}]}",
    ] {
        assert_eq!(findings(&with_rules(rules)), [], "{rules}");
    }
    // The route of the older object applies.
    let older = with_rules("{matches: [{method: GET}]}").replace(
        "name: route,",
        "name: z, creationTimestamp: '2024-01-01T00:00:00Z',",
    );
    let both = format!("{}---{older}", with_rules("{matches: [{method: GET}]}"));
    check(
        &both,
        [
            "never-matches",
            "HTTPRoute shop/route",
            "spec.rules[0]",
            "HTTPRoute shop/z, which is older",
        ],
    );
}

#[test]
fn lists_are_read_and_later_objects_replace_earlier_ones() {
    let mut objects = objects(
        "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Service, metadata: {name: a}}, {apiVersion: v1, kind: Service, metadata: {name: a, namespace: default, labels: {a: b}}}, {kind: Service}, 3]}",
    );
    assert_eq!(objects.len(), 1);
    objects.extend([serde_json::json!("text")]);
    assert_eq!(objects.len(), 1);
    let service = objects.iter().next().unwrap();
    assert_eq!(service.json["metadata"]["labels"]["a"], "b");
}
