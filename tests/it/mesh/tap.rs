//! `meshctl viz` taps the proxies of a local node, and only root may.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use mesh_test_support::command::{built, output_text};
use mesh_test_support::eventually::eventually;
use mesh_test_support::program::Program;
use mesh_test_support::require_root;
use serde_json::Value;

use super::{manifests, send_requests};
use crate::harness::mesh::Mesh;

const CLIENT: &str = "client.app.serviceaccount.identity.linkerd.cluster.local";
pub(super) const WEB: &str = "web.app.serviceaccount.identity.linkerd.cluster.local";
const OBSERVER: &str = "tap.linkerd-viz.serviceaccount.identity.linkerd.cluster.local";

/// The number of a user without rights.
const UNPRIVILEGED: &str = "65534";

/// A client and a server in the mesh, and a pod that disables tap.
fn mesh() -> Mesh {
    let secret = manifests::pod("app", "secret", &["sleep", "infinity"], &[], "").replace(
        "  name: secret\n  namespace: app\n",
        "  name: secret\n  namespace: app\n  annotations: {viz.linkerd.io/disable-tap: 'true'}\n",
    );
    Mesh::up(&[("app.yaml", &(manifests::app() + &secret))])
}

/// Sends requests for two paths until the programs are dropped.
fn send_to_both_paths(mesh: &Mesh) -> [Program; 2] {
    ["teapot", "empty"]
        .map(|path| send_requests(mesh, "app/client", &format!("http://web/{path}"), 20))
}

/// Returns the next document of a tap.
fn next_document(tap: &Program) -> Value {
    let mut text = String::new();
    loop {
        let line = tap.next_line();
        text += &line.unwrap_or_else(|| panic!("the tap has ended: {text}"));
        if let Ok(document) = serde_json::from_str(&text) {
            return document;
        }
    }
}

#[test]
fn requests_of_a_local_node_are_tapped() {
    require_root!();
    let mesh = mesh();
    let _requests = send_to_both_paths(&mesh);

    let tap = mesh.start_meshctl("viz tap po/web -n app --path /teapot -o json");
    for _ in 0..10 {
        let event = next_document(&tap);
        assert_eq!(event["proxyDirection"], "INBOUND", "{event}");
        let source = &event["source"]["metadata"];
        assert_eq!(source["client_id"], CLIENT, "{event}");
        assert_eq!(source["tls"], "true", "{event}");
        assert_eq!(source["pod"], "client", "{event}");
        assert_eq!(event["destination"]["metadata"]["pod"], "web", "{event}");
        if let Some(path) = event["requestInitEvent"]["path"].as_str() {
            assert!(path.starts_with("/teapot?"), "{event}");
        }
        let status = &event["responseInitEvent"]["httpStatus"];
        assert!(status.is_null() || *status == 418, "{event}");
    }
    drop(tap);

    let tap = mesh.start_meshctl("viz tap po/client -n app --to po/web");
    let line = tap.next_line().expect("an event");
    let is_outbound = line.contains(" proxy=out ") && line.contains(" tls=true ");
    assert!(is_outbound, "{line}");
    drop(tap);

    // The route of a request is its path without the query. Probes are requests, too.
    eventually("a profile with both paths", || {
        let profile = mesh.json("viz profile --tap po/web -n app web --tap-duration 2s -o json");
        let routes = profile["spec"]["routes"].as_array().expect("routes");
        let has = |name: &str| routes.iter().any(|route| route["name"] == name);
        let has_both = has("GET /empty") && has("GET /teapot");
        has_both.then_some(()).ok_or(profile)
    });

    let list = mesh.meshctl("viz list -n app");
    let expected = "Pods with tap enabled:\n\t* app/client\n\t* app/web\nPods with tap disabled:\n\t* app/secret\n";
    assert_eq!(list, expected);
}

#[test]
fn only_root_taps_a_local_node() {
    require_root!();
    let mesh = mesh();
    let observe = "http://ADDRESS:4190/io.linkerd.proxy.tap.Tap/Observe";
    let observe = observe.replace("ADDRESS", &mesh.address("app", "web"));
    // The service responds before it reads a message. A body would race: curl fails if a response
    // ends the stream before curl sends its body.
    let script = format!(
        "curl -sS -m 10 -D - --http2-prior-knowledge -X POST -H 'content-type: application/grpc' -H 'te: trailers' -H 'l5d-require-id: {WEB}' {observe}"
    );
    // Another workload, through its proxy, which authenticates it.
    let refused = mesh.exec("app/client", ["sh", "-c", &script]);
    assert!(refused.contains("grpc-status: 16"), "{refused}");
    let reason = format!("{CLIENT}%20is%20not%20{OBSERVER}");
    assert!(refused.contains(&reason), "{refused}");
    // A process of the machine, without TLS.
    let output = Command::new("sh").args(["-c", &script]).output();
    let refused = output_text(&output.expect("sh runs"));
    assert!(refused.contains("grpc-status: 16"), "{refused}");
    assert!(refused.contains("has%20no%20mTLS"), "{refused}");

    let refused = run_unprivileged(&mesh, "viz tap po/web -n app");
    assert!(refused.contains("only root may tap"), "{refused}");
    // A program that does not check this cannot ask for a token.
    let socket = format!("/run/mesh-local/{}/control.sock", mesh.name());
    let refused = unprivileged("curl", &["-v", "--unix-socket", &socket, "http://node/"]);
    let output = refused_output(refused);
    assert!(output.contains("Permission denied"), "{output}");

    let denied = mesh.try_meshctl("viz tap po/secret -n app");
    let output = output_text(&denied);
    assert_eq!(denied.status.code(), Some(65), "{output}");
    assert!(output.contains("1 have tap disabled"), "{output}");
}

fn unprivileged(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args([
            "--reuid",
            UNPRIVILEGED,
            "--regid",
            UNPRIVILEGED,
            "--clear-groups",
        ])
        .arg(program)
        .args(args);
    command
}

/// Runs meshctl as another user, who may not read the directory of the build.
fn run_unprivileged(mesh: &Mesh, args: &str) -> String {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), readable).expect("the directory is ours");
    let copy: PathBuf = directory.path().join("meshctl");
    std::fs::copy(built("meshctl"), &copy).expect("a copy of meshctl");
    let program = copy
        .to_str()
        .expect("temporary directories have plain names");
    let args: Vec<&str> = args.split(' ').collect();
    let mut command = unprivileged(program, &args);
    command.env("MESHCTL_LOCAL", mesh.name());
    refused_output(command)
}

fn refused_output(mut command: Command) -> String {
    let output = command.output().expect("setpriv runs");
    assert!(!output.status.success(), "{}", output_text(&output));
    output_text(&output)
}
