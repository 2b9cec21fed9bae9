//! Faults that a route injects into requests.

use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;

use super::manifests;
use crate::harness::mesh::Mesh;

/// The shortest time of a delayed request, in seconds.
const DELAY: f64 = 1.0;

/// A route of the server's Service: `/teapot` has the fault of the annotation, other paths have
/// none.
fn route(fault: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
         metadata: {{name: web, namespace: app, annotations: {{fault.linkerd.io/planted: '{fault}'}}}}\n\
         spec:\n  parentRefs: [{{group: '', kind: Service, name: web, port: 80}}]\n  rules:\n  \
         - matches: [{{path: {{type: Exact, value: /teapot}}}}]\n    \
         filters: [{{type: ExtensionRef, extensionRef: {{group: fault.linkerd.io, kind: Fault, name: planted}}}}]\n    \
         backendRefs: [{{name: web, port: 80}}]\n  \
         - backendRefs: [{{name: web, port: 80}}]\n"
    )
}

/// Returns the status and the seconds of one request.
fn request(mesh: &Mesh, path: &str) -> (String, f64) {
    let curl = "curl -s -m 20 -o /dev/null -w '%{http_code} %{time_total}'";
    let output = mesh.exec(
        "app/client",
        ["sh", "-c", &format!("{curl} http://web{path}")],
    );
    let (status, seconds) = output.split_once(' ').expect("two values");
    let seconds = seconds.trim().parse().expect("seconds");
    (status.to_owned(), seconds)
}

#[test]
fn faults_of_a_route_are_injected_while_their_annotation_describes_them() {
    require_root!();
    let mesh = Mesh::up(&[
        ("app.yaml", &manifests::app()),
        ("route.yaml", &route("abort=599")),
    ]);
    let expect = |status: &str, what: &str| {
        eventually(what, || {
            (request(&mesh, "/teapot").0 == status).then_some(())
        });
    };
    expect("599", "requests of the rule are aborted");
    assert_eq!(request(&mesh, "/").0, "200", "a rule without the fault");

    mesh.write("route.yaml", &route("abort=599, percent=0"));
    expect("418", "a share of no request leaves every request alone");

    mesh.write("route.yaml", &route(&format!("delay={DELAY}s")));
    eventually("requests of the rule are delayed", || {
        (request(&mesh, "/teapot").1 >= DELAY).then_some(())
    });
    assert_eq!(
        request(&mesh, "/teapot").0,
        "418",
        "a delay changes nothing else"
    );
}
