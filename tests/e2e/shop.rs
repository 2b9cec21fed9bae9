//! The application of the tests, and assertions about it.

use std::collections::BTreeSet;

use mesh_test_support::cluster::Cluster;
use mesh_test_support::command::Words;
use mesh_test_support::eventually::eventually;
use serde_json::Value;

pub(crate) const NAMESPACE: &str = "shop";

const MANIFEST: &str = include_str!("shop.yaml");

const WORKLOADS: [&str; 5] = ["client", "web", "mariadb", "etcd", "chat"];

const CLIENT: &str = "client.shop.serviceaccount.identity.linkerd.cluster.local";

pub(crate) struct Shop<'a> {
    cluster: &'a Cluster,
}

impl<'a> Shop<'a> {
    /// Annotates the namespace and deploys the application into it.
    pub(crate) fn open(cluster: &'a Cluster) -> Self {
        cluster.apply(MANIFEST);
        let shop = Self { cluster };
        shop.wait_until_ready();
        shop
    }

    pub(crate) fn wait_until_ready(&self) {
        for workload in WORKLOADS {
            self.cluster
                .rolled_out(NAMESPACE, &format!("deployment/{workload}"));
        }
    }

    /// Replaces every pod.
    pub(crate) fn restart(&self) {
        self.cluster
            .kubectl(format!("rollout restart deployment -n {NAMESPACE}"));
        self.wait_until_ready();
    }

    /// Replaces the pods of one workload.
    pub(crate) fn restart_workload(&self, workload: &str) {
        let workload = format!("deployment/{workload}");
        self.cluster
            .kubectl(format!("rollout restart -n {NAMESPACE} {workload}"));
        self.cluster.rolled_out(NAMESPACE, &workload);
    }

    /// Replaces the pods of one workload by pods whose proxies are native sidecars, or plain ones.
    pub(crate) fn set_native_sidecars(&self, workload: &str, native: bool) {
        let annotations =
            format!(r#"{{"config.linkerd.io/proxy-enable-native-sidecar":"{native}"}}"#);
        let patch =
            format!(r#"{{"spec":{{"template":{{"metadata":{{"annotations":{annotations}}}}}}}}}"#);
        let workload = format!("deployment/{workload}");
        self.cluster.kubectl(format!(
            "patch -n {NAMESPACE} {workload} --type merge --patch {patch}"
        ));
        self.cluster.rolled_out(NAMESPACE, &workload);
    }

    pub(crate) fn cluster(&self) -> &'a Cluster {
        self.cluster
    }

    /// Returns the pods that are not terminating.
    pub(crate) fn pods(&self) -> Vec<Value> {
        self.cluster.pods(&format!("-n {NAMESPACE}"))
    }

    /// Asserts that unmodified programs can communicate: HTTP/1, gRPC, a database with a
    /// server-first protocol, WebSocket.
    pub(crate) fn assert_works(&self) {
        let expect = |what: &str, command: &[&str], is_right: &dyn Fn(&str) -> bool| {
            eventually(what, || {
                let (ok, output) = self.client(command);
                let is_right = ok && is_right(&output);
                is_right.then_some(()).ok_or(output)
            });
        };
        // The server receives the client's identity from its proxy, which proves mutual
        // authentication.
        let http = "curl -sS --fail --max-time 10 http://web/".words();
        expect("HTTP/1", &http, &|output| output.contains(CLIENT));
        let endpoint = "env ETCDCTL_API=3 etcdctl --endpoints=http://etcd:2379";
        let etcd = format!("{endpoint} put greeting hello");
        expect("gRPC", &etcd.words(), &|output| output.trim() == "OK");
        let login = "mariadb -h mariadb -u root -N -e".words();
        let mariadb = [login, vec!["select 6*7"]].concat();
        expect("MariaDB", &mariadb, &|output| output.trim() == "42");
        let chat = "import asyncio, websockets\n\
            async def main():\n    \
                async with websockets.connect('ws://chat/') as socket:\n        \
                    for word in ('one', 'two', 'three'):\n            \
                        await socket.send(word)\n            \
                        print(await socket.recv())\n\
            asyncio.run(main())";
        expect("WebSocket", &["python3", "-c", chat], &|output| {
            output.lines().eq(["one", "two", "three"])
        });
    }

    /// Asserts that pods have no init container except for the native sidecar, and no added
    /// capabilities.
    pub(crate) fn assert_unprivileged(&self) {
        for pod in self.pods() {
            let name = &pod["metadata"]["name"];
            let init = pod["spec"]["initContainers"].as_array();
            let init: Vec<&Value> = init.into_iter().flatten().collect();
            let names: Vec<&Value> = init.iter().map(|container| &container["name"]).collect();
            assert_eq!(names, ["linkerd-proxy"], "init containers of {name}");
            assert_eq!(init[0]["restartPolicy"], "Always", "of {name}'s proxy");
            let containers = pod["spec"]["containers"].as_array();
            for container in init.into_iter().chain(containers.into_iter().flatten()) {
                let added = &container["securityContext"]["capabilities"]["add"];
                assert!(added.is_null(), "{name} {}: {added}", container["name"]);
            }
        }
    }

    /// Asserts that every connection of the client's proxy used mutual TLS with a verified server
    /// identity.
    pub(crate) fn assert_authenticated(&self) {
        let client = self.metrics("client");
        let outbound = |line: &&String| {
            line.starts_with("tcp_open_total")
                && line.contains("direction=\"outbound\"")
                && line.contains("peer=\"dst\"")
        };
        let opened: Vec<&String> = client.iter().filter(outbound).collect();
        for line in &opened {
            assert!(
                line.contains("tls=\"true\"") && line.contains("server_id=\""),
                "a connection of the client without mutual TLS: {line}"
            );
        }
        for workload in ["web", "mariadb", "etcd", "chat"] {
            let seen = opened
                .iter()
                .any(|line| line.contains(&format!("dst_deployment=\"{workload}\"")));
            assert!(
                seen,
                "no connection of the client's proxy to {workload}:\n{client:#?}"
            );
        }
    }

    /// Asserts that the agents redirect all pods on this tier.
    pub(crate) fn assert_redirected(&self, tier: &str) {
        let pods: BTreeSet<String> = self
            .pods()
            .iter()
            .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned))
            .collect();
        eventually("every pod is enrolled on the tier", || {
            let text = self
                .cluster
                .meshctl(format!("diagnostics redirection -n {NAMESPACE} -o json"));
            let answer: Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            let enrolled = answer["pods"].as_array().cloned().unwrap_or_default();
            let on_tier: BTreeSet<String> = enrolled
                .iter()
                .filter(|status| status["tier"] == tier)
                .filter_map(|status| status["pod"]["name"].as_str().map(str::to_owned))
                .collect();
            let missing: Vec<&String> = pods.difference(&on_tier).collect();
            let why = format!("not on tier {tier}: {missing:?}\n{text}");
            missing.is_empty().then_some(()).ok_or(why)
        });
    }

    /// Runs a program in the client's pod.
    pub(crate) fn client(&self, command: impl Words) -> (bool, String) {
        self.cluster.exec(NAMESPACE, "deployment/client", command)
    }

    /// Returns the metrics of a workload's proxies, one sample per line.
    fn metrics(&self, workload: &str) -> Vec<String> {
        let workload = format!("deployment/{workload}");
        let text = self.cluster.meshctl(format!(
            "diagnostics proxy-metrics -n {NAMESPACE} {workload}"
        ));
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples.map(str::to_owned).collect()
    }
}

impl Drop for Shop<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("MESH_TEST_KEEP").is_some() {
            return;
        }
        self.cluster.delete_namespace(NAMESPACE);
    }
}
