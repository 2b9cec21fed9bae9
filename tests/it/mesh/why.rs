//! `meshctl why` explains connections of a running mesh.

use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;
use serde_json::Value;

use super::faults::{POLICY, small_mesh};
use crate::harness::mesh::Mesh;

const CLIENT: &str = "client.app.serviceaccount.identity.linkerd.cluster.local";

fn why(mesh: &Mesh, question: &str) -> Value {
    let output = mesh.try_meshctl(format!("why -o json {question}"));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    })
}

fn step<'a>(report: &'a Value, name: &str) -> &'a Value {
    let steps = report["steps"].as_array().expect("a list of steps");
    let mut steps = steps.iter();
    let step = steps.find(|step| step["name"] == name);
    step.unwrap_or_else(|| panic!("no step {name}: {report}"))
}

#[test]
fn why_explains_requests_and_its_hint_admits_the_client() {
    require_root!();
    let mesh = small_mesh();
    let request = "app/client web.app:80 -- GET /";
    // The controller may not know the endpoints yet.
    // Nor has a proxy that is still starting a tap.
    let unknown = ["no proxy reported it", "its proxy was not asked"];
    let report = eventually(
        "the request is admitted, and both proxies report it",
        || {
            let report = why(&mesh, request);
            let text = report.to_string();
            let is_reported = !unknown.iter().any(|unknown| text.contains(unknown));
            (report["verdict"]["outcome"] == "admitted" && is_reported).then_some(report)
        },
    );
    assert_eq!(report["verdict"]["status"], 200);
    let kernel = step(&report, "kernel");
    let redirected = kernel["summary"].as_str().expect("a text");
    assert!(
        redirected.contains("redirected to the client's proxy at"),
        "{report}"
    );
    // The time between two decisions of the kernel programs.
    assert!(kernel["milliseconds"].is_number(), "{report}");
    assert!(
        step(&report, "tls").to_string().contains(CLIENT),
        "{report}"
    );
    let endpoint = step(&report, "endpoint")["summary"].to_string();
    assert!(endpoint.contains("pod app/web"), "{report}");

    mesh.write("policy.yaml", POLICY);
    let report = eventually("the policy refuses the client", || {
        let report = why(&mesh, request);
        (report["verdict"]["outcome"] == "refused").then_some(report)
    });
    let text = format!("refused by Server app/web: no AuthorizationPolicy names identity {CLIENT}");
    assert_eq!(report["verdict"]["text"], text.as_str());
    let policy = step(&report, "policy");
    assert_eq!(
        policy["details"][0],
        "AuthorizationPolicy app/web: names other.app.serviceaccount.identity.linkerd.cluster.local"
    );

    // The hint is a command that writes the missing object.
    let hint = policy["hints"][0].as_str().expect("a hint");
    let object = hint
        .split_once("<<EOF\n")
        .and_then(|(_, rest)| rest.strip_suffix("\nEOF"));
    mesh.write("hint.yaml", object.expect("an object in the hint"));
    eventually("the object of the hint admits the client", || {
        let report = why(&mesh, request);
        (report["verdict"]["outcome"] == "admitted").then_some(())
    });
}

#[test]
fn why_explains_clients_outside_the_mesh() {
    require_root!();
    let mesh = small_mesh();
    let report = why(&mesh, "outside/client web.app:80 -- GET /");
    assert_eq!(report["verdict"]["outcome"], "bypassed", "{report}");
    let kernel = step(&report, "kernel");
    assert!(
        kernel["summary"]
            .to_string()
            .contains("pod outside/client has no proxy"),
        "{report}"
    );
    let output = mesh.try_meshctl("why app/client web.app:80 -- DELETE /");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && error.contains("--allow-unsafe"),
        "{error}"
    );
}
