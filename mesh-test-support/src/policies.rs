//! Random sets of policies, which contradict each other and have mistakes.
//!
//! The controllers and the command line decide about the same sets, each in a test of its own
//! package, and compare with `mesh_objects::policy` or with each other.

use crate::campaign::Choices;

/// The names of Servers of a set.
pub const SERVERS: [&str; 4] = ["a", "b", "c", "d"];
/// The ports of the pods `web-0` and `api-0` in the namespace `shop`.
pub const PORTS: [u16; 2] = [8080, 9990];

/// Authentications of the ServiceAccount `api` and of the clients in 10.1.0.0/16.
const AUTHENTICATIONS: [&str; 2] = [
    "{apiVersion: policy.linkerd.io/v1alpha1, kind: MeshTLSAuthentication, metadata: {name: api, namespace: shop}, \
     spec: {identityRefs: [{kind: ServiceAccount, name: api}]}}",
    "{apiVersion: policy.linkerd.io/v1alpha1, kind: NetworkAuthentication, metadata: {name: pods, namespace: shop}, \
     spec: {networks: [{cidr: 10.1.0.0/16}]}}",
];

/// Returns a set of valid objects in YAML: two pods and a Service in the namespace `shop`, with
/// Servers, HTTPRoutes, GRPCRoutes, authentications and authorizations.
pub fn random(choices: &mut Choices) -> Vec<String> {
    let pod = |name: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}-0, namespace: shop, labels: {{app: {name}}}}}, \
             spec: {{containers: [{{name: app, ports: [{{name: http, containerPort: 8080}}, {{name: admin, containerPort: 9990}}]}}, {{name: linkerd-proxy}}]}}, \
             status: {{phase: Running, podIP: 10.1.0.1}}}}"
        )
    };
    let service = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, \
        spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{name: http, port: 80}, {name: admin, port: 81}]}}";
    let mut objects = vec![pod("web"), pod("api"), service.to_owned()];
    objects.extend(AUTHENTICATIONS.map(str::to_owned));
    for name in &SERVERS[..choices.below(SERVERS.len() + 1)] {
        objects.push(server(choices, name));
    }
    for at in 0..choices.below(5) {
        objects.push(route(choices, at));
    }
    for at in 0..choices.below(4) {
        objects.push(authorization(choices, at));
    }
    objects
}

/// Times in several notations. Two are the same time; `null` stands for none.
fn created(choices: &mut Choices) -> &'static str {
    const TIMES: [&str; 4] = [
        "null",
        "'2026-01-01T00:00:00Z'",
        "'2026-01-01T01:00:00+01:00'",
        "'2026-01-01T00:00:01Z'",
    ];
    choices.of_these::<&str>(&TIMES)
}

fn server(choices: &mut Choices, name: &str) -> String {
    let created = created(choices);
    let selector = choices.of_these(&[
        "{}",
        "{matchLabels: {app: web}}",
        "{matchLabels: {app: api}}",
    ]);
    let port = choices.of_these(&["8080", "9990", "http", "admin", "gone"]);
    let protocol = choices.of_these(&[
        "unknown", "HTTP/1", "HTTP/2", "gRPC", "gRPC", "opaque", "TLS",
    ]);
    let access = choices.of_these(&[
        "deny",
        "deny",
        "all-unauthenticated",
        "all-authenticated",
        "cluster-unauthenticated",
    ]);
    format!(
        "{{apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {{name: {name}, namespace: shop, creationTimestamp: {created}}}, \
         spec: {{podSelector: {selector}, port: {port}, proxyProtocol: {protocol}, accessPolicy: {access}}}}}"
    )
}

fn route(choices: &mut Choices, at: usize) -> String {
    let kind = choices.of_these(&[
        "policy.linkerd.io/v1beta3, kind: HTTPRoute",
        "gateway.networking.k8s.io/v1, kind: HTTPRoute",
        "gateway.networking.k8s.io/v1, kind: GRPCRoute",
    ]);
    let namespace = choices.of_these(&["shop", "shop", "other"]);
    let created = created(choices);
    let parents: Vec<String> = (0..1 + choices.below(2)).map(|_| parent(choices)).collect();
    format!(
        "{{apiVersion: {kind}, metadata: {{name: route-{at}, namespace: {namespace}, creationTimestamp: {created}}}, \
         spec: {{parentRefs: [{}], rules: [{{}}]}}}}",
        parents.join(", ")
    )
}

fn parent(choices: &mut Choices) -> String {
    let more = choices.of_these(&[
        "",
        "",
        "",
        ", port: 80",
        ", port: 82",
        ", sectionName: http",
        ", sectionName: gone",
    ]);
    let namespace = choices.of_these(&[", namespace: shop", ", namespace: shop", ""]);
    if choices.below(3) == 0 {
        let name = choices.of_these(&["web", "web", "gone"]);
        return format!("{{group: core, kind: Service, name: {name}{namespace}{more}}}");
    }
    let name = choices.of_these(&SERVERS);
    let more = if choices.below(4) == 0 { more } else { "" };
    format!("{{group: policy.linkerd.io, kind: Server, name: {name}{namespace}{more}}}")
}

fn authorization(choices: &mut Choices, at: usize) -> String {
    let server = choices.of_these(&SERVERS);
    if choices.below(4) == 0 {
        let client = choices.of_these(&[
            "{unauthenticated: true}",
            "{meshTLS: {unauthenticatedTLS: true}}",
            "{meshTLS: {serviceAccounts: [{name: api}]}}",
        ]);
        return format!(
            "{{apiVersion: policy.linkerd.io/v1beta1, kind: ServerAuthorization, metadata: {{name: policy-{at}, namespace: shop}}, \
             spec: {{server: {{name: {server}}}, client: {client}}}}}"
        );
    }
    let target = match choices.below(4) {
        0 => "{kind: Namespace, name: shop}".to_owned(),
        1 => "{group: policy.linkerd.io, kind: HTTPRoute, name: route-0}".to_owned(),
        2 => "{group: gateway.networking.k8s.io, kind: GRPCRoute, name: route-1}".to_owned(),
        _ => format!("{{group: policy.linkerd.io, kind: Server, name: {server}}}"),
    };
    let required = choices.of_these(&[
        "",
        "{kind: ServiceAccount, name: default}",
        "{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: gone}",
        "{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: api}",
        "{group: policy.linkerd.io, kind: NetworkAuthentication, name: pods}",
    ]);
    format!(
        "{{apiVersion: policy.linkerd.io/v1alpha1, kind: AuthorizationPolicy, metadata: {{name: policy-{at}, namespace: shop}}, \
         spec: {{targetRef: {target}, requiredAuthenticationRefs: [{required}]}}}}"
    )
}
