//! The application of these tests: two servers, three replicas of a third, and two clients with
//! identities of their own. The programs are `app.py`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use mesh_test_support::command::Words;
use mesh_test_support::eventually::eventually;
use serde::Deserialize;
use serde_json::{Value, json};

use mesh_test_support::cluster::Cluster;

pub(super) const NAMESPACE: &str = "routes";

const SERVERS: [(&str, &str); 3] = [("a", "1"), ("b", "1"), ("flaky", "3")];
const CLIENTS: [&str; 2] = ["client", "other"];

static NEXT: AtomicU32 = AtomicU32::new(0);

pub(super) struct Application<'a> {
    pub(super) cluster: &'a Cluster,
}

/// The counts of a client.
#[derive(Debug, Deserialize)]
pub(super) struct Report {
    /// Requests by status, or by the error that the client got instead of a response.
    pub(super) outcomes: BTreeMap<String, u64>,
    /// Responses by the server's pod; without a name if a proxy responded.
    pub(super) servers: BTreeMap<String, u64>,
    /// The same for each 500 responses in a row.
    pub(super) windows: Vec<BTreeMap<String, u64>>,
    pub(super) seconds: f64,
}

/// The counts of a server since it was reset.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Records {
    /// Requests by path.
    pub(super) requests: BTreeMap<String, u64>,
    /// Requests by host.
    pub(super) hosts: BTreeMap<String, u64>,
    pub(super) statuses: BTreeMap<String, u64>,
    /// Times of the first hundred requests, in seconds.
    pub(super) times: Vec<f64>,
    pub(super) connections: u64,
    /// TLS handshakes by server name.
    pub(super) server_names: BTreeMap<String, u64>,
}

/// A load that lasts until it is ended.
pub(super) struct RunningLoad<'a> {
    application: &'a Application<'a>,
    client: &'static str,
    output: String,
    stop: String,
}

impl<'a> Application<'a> {
    pub(super) fn open(cluster: &'a Cluster) -> Self {
        let mut manifests = include_str!("namespace.yaml").to_owned();
        for (name, count) in SERVERS {
            let server = include_str!("server.yaml").replace("NAME", name);
            manifests.push_str(&server.replace("COUNT", count));
        }
        for name in CLIENTS {
            manifests.push_str(&include_str!("client.yaml").replace("NAME", name));
        }
        let metadata = |name: &str| json!({"name": name, "namespace": NAMESPACE});
        let programs = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("app"),
            "data": {"app.py": include_str!("app.py")},
        });
        let names = ["a.example".to_owned(), "*.b.example".to_owned()];
        let certified = rcgen::generate_simple_self_signed(names).expect("a certificate");
        let certificate = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": metadata("certificate"),
            "stringData": {
                "tls.crt": certified.cert.pem(), "tls.key": certified.signing_key.serialize_pem(),
            },
        });
        cluster.apply(&format!("{manifests}{programs}\n---\n{certificate}\n"));
        let application = Self { cluster };
        let servers = SERVERS.iter().map(|(name, _)| *name);
        for name in servers.chain(CLIENTS) {
            application.rolled_out(name);
        }
        application
    }

    pub(super) fn rolled_out(&self, name: &str) {
        self.cluster
            .rolled_out(NAMESPACE, &format!("deployment/{name}"));
    }

    /// Waits until the object has each of these conditions, for each of its parents if it is a
    /// route, and all of its conditions are true.
    pub(super) fn wait_for_conditions(&self, object: &str, expected: &[&str]) {
        eventually(&format!("conditions of {object}"), || {
            let status = self.cluster.json(format!("get {object} -n {NAMESPACE}"))["status"].take();
            let parents = status["parents"].as_array().cloned();
            let places = parents.unwrap_or_else(|| vec![status.clone()]);
            let are_right = places.iter().all(|place| are_true(place, expected));
            are_right.then_some(()).ok_or(status.to_string())
        });
    }

    /// Waits until a condition of a route is false for this reason, for each of its parents.
    pub(super) fn wait_for_reason(&self, object: &str, (kind, reason): (&str, &str)) {
        eventually(
            &format!("{kind} of {object} has the reason {reason}"),
            || {
                let status =
                    self.cluster.json(format!("get {object} -n {NAMESPACE}"))["status"].take();
                let parents = status["parents"].as_array().cloned().unwrap_or_default();
                let has_reason = |parent: &Value| {
                    let mut conditions = parent["conditions"].as_array().into_iter().flatten();
                    conditions.any(|found| {
                        let is_false = found["type"] == *kind && found["status"] == "False";
                        is_false && found["reason"] == *reason
                    })
                };
                let is_right = !parents.is_empty() && parents.iter().all(has_reason);
                is_right.then_some(()).ok_or(status.to_string())
            },
        );
    }

    /// Runs a program in a workload or pod (`pod/NAME`), which must succeed.
    pub(super) fn run(&self, workload: &str, command: impl Words) -> String {
        let (ok, output) = self.try_run(workload, command);
        assert!(ok, "in {workload}: {output}");
        output
    }

    pub(super) fn try_run(&self, workload: &str, command: impl Words) -> (bool, String) {
        let workload = if workload.contains('/') {
            workload.to_owned()
        } else {
            format!("deployment/{workload}")
        };
        self.cluster.exec(NAMESPACE, &workload, command)
    }

    /// Sends requests and waits for the end.
    pub(super) fn load(&self, client: &str, url: &str, count: u32, options: &str) -> Report {
        let output = self.run(
            client,
            format!("python3 /app/app.py load {url} {count} {options}"),
        );
        parse(&output)
    }

    /// Starts 20 requests per second on each connection. The client is detached from kubectl, so
    /// that it survives an outage of the API server.
    pub(super) fn start_load(
        &'a self,
        client: &'static str,
        url: &str,
        connections: u32,
    ) -> RunningLoad<'a> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let output = format!("/tmp/load-{number}.json");
        let stop = format!("/tmp/load-{number}.stop");
        let program =
            format!("python3 /app/app.py load {url} 0 --connections {connections} --until {stop}");
        let script = format!("setsid {program} > {output} 2>&1 < /dev/null &");
        self.run(client, ["sh", "-c", &script]);
        RunningLoad {
            application: self,
            client,
            output,
            stop,
        }
    }

    /// Opens connections; returns how many each server answered.
    pub(super) fn connect(
        &self,
        client: &str,
        host: &str,
        port: u16,
        count: u32,
    ) -> BTreeMap<String, u64> {
        let command = format!("python3 /app/app.py connect {host} {port} {count}");
        parse(&self.run(client, command))
    }

    /// Sends a command to a server; returns its records.
    pub(super) fn control(&self, server: &str, command: &str) -> Records {
        parse(&self.run(server, format!("curl -sS http://127.0.0.1:8000/{command}")))
    }

    pub(super) fn records(&self, server: &str) -> Records {
        self.control(server, "records")
    }

    /// Returns the sum of a family's series that have all of these labels, of a workload's proxies.
    pub(super) fn metric(&self, workload: &str, family: &str, labels: &[&str]) -> u64 {
        let text = self.cluster.meshctl(format!(
            "diagnostics proxy-metrics -n {NAMESPACE} deployment/{workload}"
        ));
        let values = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let found = series.strip_prefix(family)?.strip_prefix('{')?;
            let has_labels = labels.iter().all(|label| found.contains(label));
            has_labels.then(|| value.parse::<f64>().expect("a number"))
        });
        values.sum::<f64>() as u64
    }
}

impl Report {
    pub(super) fn outcome(&self, outcome: &str) -> u64 {
        self.outcomes.get(outcome).copied().unwrap_or_default()
    }

    /// Returns the number of responses of a workload's pods.
    pub(super) fn served_by(&self, workload: &str) -> u64 {
        of_workload(&self.servers, workload)
    }
}

impl RunningLoad<'_> {
    pub(super) fn finish(self) -> Report {
        let (client, output) = (self.client, &self.output);
        self.application.run(client, format!("touch {}", self.stop));
        eventually(&format!("the load in {client} ends"), || {
            let (_, text) = self.application.try_run(client, format!("cat {output}"));
            serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))
        })
    }
}

impl Drop for Application<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("MESH_TEST_KEEP").is_some() {
            return;
        }
        self.cluster.delete_namespace(NAMESPACE);
    }
}

/// Returns the sum of the counts of a workload's pods.
pub(super) fn of_workload(counts: &BTreeMap<String, u64>, workload: &str) -> u64 {
    let prefix = format!("{workload}-");
    let of_pods = counts.iter().filter(|(pod, _)| pod.starts_with(&prefix));
    of_pods.map(|(_, count)| count).sum()
}

/// Returns whether there are conditions of all these types and no condition is false.
fn are_true(status: &Value, expected: &[&str]) -> bool {
    let Some(conditions) = status["conditions"].as_array() else {
        return false;
    };
    let has = |kind: &&str| conditions.iter().any(|found| found["type"] == **kind);
    expected.iter().all(has) && conditions.iter().all(|found| found["status"] == "True")
}

fn parse<T: for<'de> Deserialize<'de>>(output: &str) -> T {
    serde_json::from_str(output).unwrap_or_else(|error| panic!("{error}: {output}"))
}
