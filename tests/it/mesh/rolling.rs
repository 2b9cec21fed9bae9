//! Pods and controllers are replaced under load; no request fails.

use std::sync::atomic::{AtomicBool, Ordering};

use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::faults::send;
use super::manifests;
use crate::harness::mesh::Mesh;

/// The initial pods, and those that replace them one after the other.
const OLD: [&str; 3] = ["web-a", "web-b", "web-c"];
const NEW: [&str; 3] = ["web-d", "web-e", "web-f"];

/// Clients that count the outcomes of their requests; see the script's documentation.
const CLIENTS: &str = include_str!("../../e2e/keep_alive.py");

/// Long enough for all pods to be replaced.
const SECONDS: &str = "45";

/// One run of a load generator, repeated during an action. `SERVICE` stands for the address of the
/// Service `web`, since the DNS server of a local node is unavailable for a moment when its records
/// change.
#[derive(Clone, Copy)]
pub(super) struct Load {
    command: &'static str,
    is_flawless: fn(&str) -> bool,
}

/// Two hundred requests per second on eight keep-alive connections.
pub(super) const KEPT: Load = Load {
    command: "h2load --h1 -n 600 -c 8 --rps=25 http://SERVICE/",
    is_flawless: h2load_is_flawless,
};

/// The same by HTTP/2.
pub(super) const HTTP2: Load = Load {
    command: "h2load -p h2c -n 600 -c 8 --rps=25 http://SERVICE:81/",
    is_flawless: h2load_is_flawless,
};

/// Each request on a new connection.
pub(super) const NEW_CONNECTIONS: Load = Load {
    command: "wrk -t1 -c2 -d3s -H 'Connection: close' http://SERVICE/",
    is_flawless: wrk_is_flawless,
};

fn h2load_is_flawless(report: &str) -> bool {
    report.contains("600 succeeded, 0 failed, 0 errored, 0 timeout") && report.contains("600 2xx")
}

fn wrk_is_flawless(report: &str) -> bool {
    report.contains("requests in")
        && !report.contains("Non-2xx")
        && !report.contains("Socket errors")
}

/// Repeats the loads during `action`, at least once. Returns the reports with a failed request.
pub(super) fn under_load(mesh: &Mesh, loads: &[Load], action: impl FnOnce()) -> Vec<String> {
    /// Stops the loads even if the action panics.
    struct StopOnDrop<'a>(&'a AtomicBool);
    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    let service = address(mesh, "app/client", "web.app");
    let repeat = |load: &Load| {
        let mut flawed = Vec::new();
        let command = load.command.replace("SERVICE", &service);
        loop {
            let last = stop.load(Ordering::Relaxed);
            let report = mesh.exec("app/client", ["sh", "-c", &command]);
            if !(load.is_flawless)(&report) {
                flawed.push(format!("{:?}: {report}", load.command));
            }
            if last {
                return flawed;
            }
        }
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = loads
            .iter()
            .map(|load| scope.spawn(|| repeat(load)))
            .collect();
        {
            let _stop = StopOnDrop(&stop);
            action();
        }
        running
            .into_iter()
            .flat_map(|load| load.join().expect("the load can be run"))
            .collect()
    })
}

/// The address of a Service, given as `name.namespace`, for the pod of that client.
fn address(mesh: &Mesh, client: &str, service: &str) -> String {
    let name = format!("{service}.svc.cluster.local");
    let found = mesh.exec(client, format!("getent ahostsv4 {name}"));
    let address = found.split_whitespace().next();
    address.expect("the Service has an address").to_owned()
}

fn file(pod: &str) -> String {
    format!("{pod}.yaml")
}

fn start(mesh: &Mesh, pod: &str) {
    mesh.write(&file(pod), &manifests::web_replica("app", pod));
    mesh.meshctl("local apply");
}

/// Returns the node's status if a pod is not ready.
pub(super) fn all_ready(mesh: &Mesh) -> Result<(), Value> {
    let status = mesh.json("local status -o json");
    let pods = status["pods"].as_array().expect("the status lists pods");
    let all = pods.iter().all(|pod| pod["ready"] == true);
    all.then_some(()).ok_or(status)
}

/// Returns the number of requests that the proxy of a pod has forwarded to its application.
fn served(mesh: &Mesh, pod: &str) -> f64 {
    mesh.metrics(&format!("app/{pod}"))
        .iter()
        .filter(|line| line.starts_with("request_total{direction=\"inbound\""))
        .filter(|line| line.contains("target_port=\"808"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// As in a rolling update: a new pod becomes ready, an old one receives SIGTERM, and the endpoints
/// change while it stops. nginx stops without waiting for open connections.
#[test]
fn rolling_replacement_fails_no_request() {
    require_root!();
    let base = manifests::namespace("app", true)
        + &manifests::client("app")
        + &manifests::web_service("app");
    let mesh = Mesh::up(&[("app.yaml", &base)]);
    for pod in OLD {
        start(&mesh, pod);
    }
    let flawed = under_load(&mesh, &[KEPT, HTTP2, NEW_CONNECTIONS], || {
        for pod in OLD {
            eventually("each old pod serves", || served(&mesh, pod) > 0.0);
        }
        for (old, new) in OLD.iter().zip(NEW) {
            start(&mesh, new);
            mesh.remove(&file(old));
            mesh.meshctl("local apply");
        }
    });
    assert!(flawed.is_empty(), "{}", flawed.join("\n"));
    for pod in NEW {
        assert!(served(&mesh, pod) > 0.0, "{pod} serves");
    }
}

/// An unmeshed client keeps connections to a meshed and an unmeshed application, all of whose pods
/// are replaced.
#[test]
fn stopping_pods_send_no_error_to_unmeshed_clients() {
    require_root!();
    let namespaces = [("meshed", true), ("bare", false)];
    let base = |name: &str, meshed: bool| {
        manifests::namespace(name, meshed) + &manifests::web_service(name)
    };
    let client = base("bare", false) + &manifests::client("bare");
    let mesh = Mesh::up(&[
        ("meshed.yaml", &base("meshed", true)),
        ("bare.yaml", &client),
    ]);
    let file = |namespace: &str, pod: &str| format!("{namespace}-{pod}.yaml");
    let start = |pod: &str| {
        for (namespace, _) in namespaces {
            let manifest = manifests::web_replica_with_slow_shutdown(namespace, pod);
            mesh.write(&file(namespace, pod), &manifest);
        }
        mesh.meshctl("local apply");
    };
    for pod in OLD {
        start(pod);
    }
    let counts = std::thread::scope(|scope| {
        let clients = namespaces.map(|(namespace, _)| {
            let mesh = &mesh;
            scope.spawn(move || {
                let host = address(mesh, "bare/client", &format!("web.{namespace}"));
                mesh.exec("bare/client", ["python3", "-c", CLIENTS, &host, SECONDS])
            })
        });
        for (old, new) in OLD.iter().zip(NEW) {
            start(new);
            for (namespace, _) in namespaces {
                mesh.remove(&file(namespace, old));
            }
            mesh.meshctl("local apply");
        }
        clients.map(|client| client.join().expect("the clients can be run"))
    });
    for ((namespace, _), output) in namespaces.iter().zip(counts) {
        let counts: Value =
            serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"));
        println!("{namespace}: {counts:#}");
        for (kind, counts) in counts.as_object().expect("the counts have names") {
            assert_ne!(counts["answered"], 0, "{namespace} {kind}: {counts}");
            assert_eq!(counts["used"], 0, "{namespace} {kind}: {counts}");
        }
    }
}

/// All controllers and proxies of the control plane are killed at the same time and restarted.
#[test]
fn control_plane_crash_fails_no_request() {
    require_root!();
    let base = manifests::namespace("app", true)
        + &manifests::client("app")
        + &manifests::web("app")
        + &manifests::redis("app");
    let mesh = Mesh::up(&[("app.yaml", &base)]);
    let redis = address(&mesh, "app/client", "redis.app");
    let ping = format!("timeout 60 redis-cli -h {redis} ping");
    let flawed = under_load(&mesh, &[KEPT, NEW_CONNECTIONS], || {
        let before = mesh.processes("mesh-controller");
        assert!(before.len() >= 3, "{before:?}");
        send(&before, Signal::SIGKILL);
        // The pod has not connected to this Service before: discovery succeeds once the controllers
        // are back.
        assert_eq!(mesh.exec("app/client", &ping).trim(), "PONG");
        eventually("the control plane is back", || all_ready(&mesh));
        let after = mesh.processes("mesh-controller");
        assert!(before.iter().all(|pid| !after.contains(pid)), "{after:?}");
    });
    assert!(flawed.is_empty(), "{}", flawed.join("\n"));
}
