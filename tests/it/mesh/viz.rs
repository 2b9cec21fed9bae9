//! `meshctl viz` has statistics of a local node, which has no Prometheus.

use mesh_test_support::command::output_text;
use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;
use serde_json::Value;

use super::{manifests, send_requests};
use crate::harness::mesh::Mesh;

/// The load: three of four requests succeed.
const LOAD: [(&str, u32); 2] = [("empty", 15), ("broken", 5)];

/// The shortest window, so that the load fills it soon.
const WINDOW: &str = "-t 15s -o json";

fn is_near(number: &Value, expected: f64, tolerance: f64) -> bool {
    let number = number.as_f64();
    number.is_some_and(|number| (number - expected).abs() <= tolerance * expected)
}

#[test]
fn statistics_of_a_local_node_are_those_of_its_load() {
    require_root!();
    let mesh = Mesh::up(&[("app.yaml", &manifests::app())]);
    let _requests = LOAD.map(|(path, rate)| {
        let url = format!("http://web.app.svc.cluster.local/{path}");
        send_requests(&mesh, "app/client", &url, rate)
    });

    eventually("the rate of requests and successes", || {
        let rows = mesh.json(format!("viz stat po/web -n app {WINDOW}"));
        let row = &rows[0];
        let is_right = row["kind"] == "pod"
            && row["name"] == "web"
            && row["meshed"] == "1/1"
            && is_near(&row["rps"], 20.0, 0.15)
            && is_near(&row["success"], 0.75, 0.05)
            && row["latency_ms_p99"].as_u64().is_some();
        is_right.then_some(()).ok_or(rows)
    });
    // The client's proxy counts the same requests.
    let rows = mesh.json(format!("viz stat po/client --to po/web -n app {WINDOW}"));
    assert!(is_near(&rows[0]["success"], 0.75, 0.1), "{rows}");
    let rows = mesh.json(format!("viz stat svc/web -n app {WINDOW}"));
    assert!(is_near(&rows[0]["success"], 0.75, 0.1), "{rows}");

    let edges = mesh.json("viz edges po -n app -o json");
    let edges = edges.as_array().expect("a list");
    let edge = edges.iter().find(|edge| edge["src"] == "client");
    let edge = edge.unwrap_or_else(|| panic!("no edge of the client: {edges:?}"));
    assert_eq!(edge["dst"], "web");
    assert_eq!(edge["client_id"], "client.app");
    assert_eq!(edge["server_id"], "web.app");
    assert_eq!(edge["no_tls_reason"], "");

    let rows = mesh.json(format!("viz authz po/web -n app {WINDOW}"));
    let rows = rows.as_array().expect("a list");
    let is_admitted = rows.iter().any(|row| is_near(&row["success"], 0.75, 0.1));
    assert!(is_admitted, "{rows:?}");
}

#[test]
fn what_a_local_node_does_not_have_is_refused() {
    require_root!();
    let mesh = Mesh::up(&[("app.yaml", &manifests::namespace("app", true))]);
    for (command, code, problem) in [
        (
            "viz stat deploy -t 10m",
            1,
            "samples of the proxies are kept for 5 min",
        ),
        (
            "viz stat deploy --viz-namespace other",
            65,
            "--viz-namespace has no effect",
        ),
        ("viz stat-inbound deploy", 65, "has no Prometheus"),
        ("viz dashboard", 65, "no dashboard"),
    ] {
        let refused = mesh.try_meshctl(command);
        let output = output_text(&refused);
        assert_eq!(refused.status.code(), Some(code), "{command}: {output}");
        assert!(output.contains(problem), "{command}: {output}");
    }
}
