//! Rolling restarts under clients with keep-alive connections: the mesh causes no additional
//! failures.

use std::thread;

use mesh_test_support::cluster::Cluster;
use mesh_test_support::cluster::installation::Installation;
use serde_json::Value;

const NAMESPACE: &str = "stops";
const MANIFEST: &str = include_str!("stops.yaml");
const CLIENTS: &str = include_str!("keep_alive.py");

/// Longer than two rolling restarts of three pods.
const SECONDS: u32 = 90;
const RESTARTS: u32 = 2;

/// An application, and whether it and its clients are meshed.
struct MeshSetting {
    name: &'static str,
    server_meshed: bool,
    client_meshed: bool,
}

const SETTINGS: [MeshSetting; 3] = [
    MeshSetting {
        name: "plain",
        server_meshed: false,
        client_meshed: false,
    },
    MeshSetting {
        name: "meshed",
        server_meshed: true,
        client_meshed: false,
    },
    MeshSetting {
        name: "between",
        server_meshed: true,
        client_meshed: true,
    },
];

#[test]
fn rolling_restarts_fail_no_more_requests_than_without_a_mesh() {
    let Some(cluster) = Cluster::acquire_for_long_test("rolling restarts under unmeshed clients")
    else {
        return;
    };
    let _mesh = Installation::by_helm(&cluster, &[]);
    let _namespace = Namespace(&cluster);
    let (common, each) = MANIFEST
        .split_once("---\napiVersion: apps/v1")
        .expect("the manifest begins with the common objects");
    cluster.apply(common);
    for setting in &SETTINGS {
        let inject = |meshed: bool| if meshed { "enabled" } else { "disabled" };
        let manifest = format!("apiVersion: apps/v1{each}")
            .replace("NAME", setting.name)
            .replace("INJECT", inject(setting.server_meshed))
            .replace("CLIENT", inject(setting.client_meshed));
        cluster.apply(&manifest);
    }
    let deployment = |name: &str| format!("deployment/{name}");
    for MeshSetting { name, .. } in &SETTINGS {
        cluster.rolled_out(NAMESPACE, &deployment(name));
        cluster.rolled_out(NAMESPACE, &deployment(&format!("client-of-{name}")));
    }
    let counts = thread::scope(|scope| {
        let clients = SETTINGS.each_ref().map(|MeshSetting { name, .. }| {
            let cluster = &cluster;
            scope.spawn(move || run_clients(cluster, name))
        });
        for _ in 0..RESTARTS {
            for MeshSetting { name, .. } in &SETTINGS {
                let deployment = deployment(name);
                cluster.kubectl(format!("rollout restart -n {NAMESPACE} {deployment}"));
            }
            for MeshSetting { name, .. } in &SETTINGS {
                cluster.rolled_out(NAMESPACE, &deployment(name));
            }
        }
        for client in &clients {
            assert!(
                !client.is_finished(),
                "the restarts took longer than the clients"
            );
        }
        clients.map(|client| client.join().expect("the clients have counted"))
    });
    for (setting, counts) in SETTINGS.iter().zip(&counts) {
        println!("{}: {counts:#}", setting.name);
    }
    let mut wrong = Vec::new();
    let [plain, meshed @ ..] = &counts;
    for (setting, counts) in SETTINGS[1..].iter().zip(meshed) {
        for (kind, counts) in counts.as_object().expect("the counts have names") {
            let count = |what: &str| counts[what].as_u64().unwrap_or(u64::MAX);
            let without = |what: &str| plain[kind][what].as_u64().unwrap_or(0);
            // A request may be in flight when the server closes the connection, at most one per
            // client of a pod. It gets no response.
            let is_good = count("answered") > 0
                && count("used") == 0
                && count("new") <= without("new")
                && count("closed") <= without("closed") + 1;
            if !is_good {
                wrong.push(format!(
                    "{} {kind}: {counts}\nwithout a mesh: {}",
                    setting.name, plain[kind]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs the clients of an application in their pod and returns their counters.
fn run_clients(cluster: &Cluster, name: &str) -> Value {
    let workload = format!("deployment/client-of-{name}");
    let seconds = SECONDS.to_string();
    let (ok, output) = cluster.exec(
        NAMESPACE,
        &workload,
        ["python3", "-c", CLIENTS, name, &seconds],
    );
    assert!(ok, "{output}");
    serde_json::from_str(output.trim()).unwrap_or_else(|error| panic!("{error}: {output}"))
}

struct Namespace<'a>(&'a Cluster);

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        if thread::panicking() && std::env::var_os("MESH_TEST_KEEP").is_some() {
            return;
        }
        self.0.delete_namespace(NAMESPACE);
    }
}
