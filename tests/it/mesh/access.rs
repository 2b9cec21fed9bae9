//! Access to a server by the identity of its clients: authorization and rate limits.

use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;

use super::manifests;
use crate::harness::mesh::Mesh;

/// Two clients with ServiceAccounts of their own, a server, and a client outside of the mesh.
fn mesh() -> Mesh {
    let app = manifests::app() + &manifests::pod("app", "other", &["sleep", "infinity"], &[], "");
    let outside = manifests::namespace("outside", false) + &manifests::client("outside");
    Mesh::up(&[("app.yaml", &app), ("outside.yaml", &outside)])
}

/// Both ports of the server.
pub(super) const SERVERS: &str = "\
apiVersion: policy.linkerd.io/v1beta1
kind: Server
metadata: {name: web, namespace: app, labels: {tier: front}}
spec: {podSelector: {matchLabels: {app: web}}, port: http, proxyProtocol: HTTP/1}
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: h2c, namespace: app}
spec: {podSelector: {matchLabels: {app: web}}, port: h2c, proxyProtocol: HTTP/2, accessPolicy: all-unauthenticated}
---
";

fn server_authorization(version: &str, server: &str, client: &str) -> String {
    format!(
        "{SERVERS}apiVersion: policy.linkerd.io/{version}\nkind: ServerAuthorization\n\
         metadata: {{name: clients, namespace: app}}\nspec: {{server: {server}, client: {client}}}\n"
    )
}

const URL: &str = "http://web.app/";

/// Returns the statuses of requests on one connection.
fn statuses(mesh: &Mesh, pod: &str, requests: usize) -> Vec<String> {
    let script = format!("curl -s -m 20 -w '%{{http_code}}\\n' -o /dev/null {URL}?[1-{requests}]");
    let output = mesh.exec(pod, ["sh", "-c", &script]);
    output.lines().map(str::to_owned).collect()
}

fn status(mesh: &Mesh, pod: &str) -> String {
    statuses(mesh, pod, 1).concat()
}

/// Waits until a pod's request has the status.
pub(super) fn expect_status(mesh: &Mesh, pod: &str, expect: &str, what: &str) {
    eventually(what, || (status(mesh, pod) == expect).then_some(()));
}

pub(super) fn has_metric(mesh: &Mesh, pod: &str, name: &str, labels: &[&str]) -> bool {
    mesh.metrics(pod)
        .iter()
        .any(|line| line.starts_with(name) && labels.iter().all(|label| line.contains(label)))
}

#[test]
fn server_authorization_admits_clients_by_identity() {
    require_root!();
    let mesh = mesh();
    mesh.write("policy.yaml", SERVERS);
    expect_status(
        &mesh,
        "app/client",
        "403",
        "the Server refuses every client",
    );

    let account = server_authorization(
        "v1alpha1",
        "{name: web}",
        "{meshTLS: {serviceAccounts: [{name: client}]}, networks: [{cidr: 0.0.0.0/0}, {cidr: '::/0'}]}",
    );
    mesh.write("policy.yaml", &account);
    expect_status(
        &mesh,
        "app/client",
        "200",
        "the ServiceAccount is authorized",
    );
    assert_eq!(status(&mesh, "app/other"), "403");
    assert_eq!(status(&mesh, "outside/client"), "403");
    let labels = [
        "authz_kind=\"serverauthorization\"",
        "authz_name=\"clients\"",
        "srv_name=\"web\"",
    ];
    assert!(has_metric(
        &mesh,
        "app/web",
        "inbound_http_authz_allow_total",
        &labels
    ));
    let rows = mesh.json("authz pod/web -n app -o json");
    let rows = rows["authorizations"].as_array().expect("a list of rows");
    let old = rows
        .iter()
        .find(|row| row["serverAuthorization"] == "clients");
    assert_eq!(
        old.expect("a row of the ServerAuthorization")["server"],
        "web"
    );

    let suffix = server_authorization(
        "v1beta1",
        "{selector: {matchLabels: {tier: front}}}",
        "{meshTLS: {identities: ['other.app.serviceaccount.identity.linkerd.cluster.local']}, networks: [{cidr: 0.0.0.0/0}, {cidr: '::/0'}]}",
    );
    mesh.write("policy.yaml", &suffix);
    expect_status(&mesh, "app/other", "200", "the identity is authorized");
    assert_eq!(status(&mesh, "app/client"), "403");

    let every = suffix.replace("other.app.serviceaccount", "*.app.serviceaccount");
    mesh.write("policy.yaml", &every);
    expect_status(&mesh, "app/client", "200", "the suffix is authorized");
    assert_eq!(status(&mesh, "outside/client"), "403");
}

/// The kubelet sends `/empty?full` for this path, and so does the node.
#[test]
fn pod_is_ready_under_a_policy_that_denies_all_clients() {
    require_root!();
    let meshed = "linkerd.io/inject: enabled";
    let deny = format!("{meshed}\n    config.linkerd.io/default-inbound-policy: deny");
    let app = manifests::app().replace(meshed, &deny).replace(
        "readinessProbe: {tcpSocket: {port: 8080}",
        "readinessProbe: {httpGet: {path: 'empty?full', port: http}",
    );
    assert!(app.contains("empty?full") && app.contains("policy: deny"));
    // Waits until all pods are ready.
    let mesh = Mesh::up(&[("app.yaml", &app)]);
    assert_eq!(status(&mesh, "app/client"), "403");
    let empty = "curl -s -m 20 -w %{http_code} http://web.app/empty";
    assert_eq!(mesh.exec("app/client", empty), "204");
}

#[test]
fn rate_limit_of_identity_spares_overridden_clients() {
    require_root!();
    let mesh = mesh();
    let policies = format!(
        "{SERVERS}apiVersion: policy.linkerd.io/v1alpha1
kind: HTTPLocalRateLimitPolicy
metadata: {{name: slow, namespace: app}}
spec:
  targetRef: {{group: policy.linkerd.io, kind: Server, name: web}}
  identity: {{requestsPerSecond: 2}}
  overrides: [{{requestsPerSecond: 1000, clientRefs: [{{kind: ServiceAccount, name: other}}]}}]
---
apiVersion: policy.linkerd.io/v1alpha1
kind: HTTPLocalRateLimitPolicy
metadata: {{name: grpc, namespace: app}}
spec:
  targetRef: {{group: policy.linkerd.io, kind: Server, name: h2c}}
  total: {{requestsPerSecond: 1}}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {{name: all, namespace: app}}
spec:
  targetRef: {{kind: Namespace, name: app}}
  requiredAuthenticationRefs: []
"
    );
    mesh.write("policy.yaml", &policies);
    let limited = eventually("the limit applies to the client", || {
        let seen = statuses(&mesh, "app/client", 40);
        seen.contains(&"429".to_owned()).then_some(seen)
    });
    // Clients without identity have a bucket of their own.
    assert!(
        limited
            .iter()
            .all(|status| status == "200" || status == "429"),
        "{limited:?}"
    );
    let unlimited = statuses(&mesh, "app/other", 40);
    assert_eq!(unlimited, ["200"; 40]);
    assert_eq!(statuses(&mesh, "outside/client", 1), ["200"]);
    let labels = [
        "ratelimit_group=\"policy.linkerd.io\"",
        "ratelimit_kind=\"HTTPLocalRateLimitPolicy\"",
        "ratelimit_name=\"slow\"",
        "ratelimit_scope=\"identity\"",
        "srv_name=\"web\"",
    ];
    assert!(has_metric(
        &mesh,
        "app/web",
        "inbound_http_local_ratelimit_total",
        &labels
    ));

    // A refused gRPC call has the status RESOURCE_EXHAUSTED.
    let call = "curl -s -m 20 --http2-prior-knowledge -X POST -H content-type:application/grpc -H te:trailers -D - -o /dev/null http://web.app:81/a.B/C?[1-10]";
    eventually("a gRPC call is refused", || {
        let heads = mesh.exec("app/client", call);
        heads.contains("grpc-status: 8").then_some(())
    });
}
