//! Pods that are replaced under clients that keep their connections: what fails with a mesh fails
//! without one.

use std::thread;

use serde_json::Value;

use crate::{cluster::Cluster, installation::Installation};

const NAMESPACE: &str = "stops";
const MANIFEST: &str = include_str!("stops.yaml");
const CLIENTS: &str = include_str!("keep_alive.py");

/// Longer than two restarts of three pods take, one after the other.
const SECONDS: u32 = 90;
const RESTARTS: u32 = 2;

/// An application, whether it and its clients are in the mesh.
struct Setting {
    name: &'static str,
    served: bool,
    asked: bool,
}

const SETTINGS: [Setting; 3] = [
    Setting {
        name: "plain",
        served: false,
        asked: false,
    },
    Setting {
        name: "meshed",
        served: true,
        asked: false,
    },
    Setting {
        name: "between",
        served: true,
        asked: true,
    },
];

#[test]
fn rolling_restarts_fail_no_more_requests_than_without_a_mesh() {
    let Some(cluster) = Cluster::given_time("rolling restarts under unmeshed clients") else {
        return;
    };
    let _mesh = Installation::by_helm(&cluster, &[]);
    let _namespace = Namespace(&cluster);
    let (common, each) = MANIFEST
        .split_once("---\napiVersion: apps/v1")
        .expect("the manifest begins with what all have in common");
    cluster.apply(common);
    for setting in &SETTINGS {
        let inject = |meshed: bool| if meshed { "enabled" } else { "disabled" };
        let manifest = format!("apiVersion: apps/v1{each}")
            .replace("NAME", setting.name)
            .replace("INJECT", inject(setting.served))
            .replace("CLIENT", inject(setting.asked));
        cluster.apply(&manifest);
    }
    let deployment = |name: &str| format!("deployment/{name}");
    for Setting { name, .. } in &SETTINGS {
        cluster.rolled_out(NAMESPACE, &deployment(name));
        cluster.rolled_out(NAMESPACE, &deployment(&format!("client-of-{name}")));
    }
    let counts = thread::scope(|scope| {
        let asking = SETTINGS.each_ref().map(|Setting { name, .. }| {
            let cluster = &cluster;
            scope.spawn(move || ask(cluster, name))
        });
        for _ in 0..RESTARTS {
            for Setting { name, .. } in &SETTINGS {
                let deployment = deployment(name);
                cluster.kubectl(&["rollout", "restart", "-n", NAMESPACE, &deployment]);
            }
            for Setting { name, .. } in &SETTINGS {
                cluster.rolled_out(NAMESPACE, &deployment(name));
            }
        }
        for asking in &asking {
            assert!(
                !asking.is_finished(),
                "the restarts took longer than the clients, which proves nothing"
            );
        }
        asking.map(|asking| asking.join().expect("the clients have counted"))
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
            // A request may be on its way at the moment in which the server closes: as many as a
            // pod has clients, at worst. None is answered for that.
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

/// Runs the clients of an application in their pod, to their end.
fn ask(cluster: &Cluster, name: &str) -> Value {
    let workload = format!("deployment/client-of-{name}");
    let seconds = SECONDS.to_string();
    let (ok, said) = cluster.exec(
        NAMESPACE,
        &workload,
        &["python3", "-c", CLIENTS, name, &seconds],
    );
    assert!(ok, "{said}");
    serde_json::from_str(said.trim()).unwrap_or_else(|error| panic!("{error}: {said}"))
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
