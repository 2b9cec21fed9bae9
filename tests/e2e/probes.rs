//! The kubelet's own probes of pods that deny every client: what a path admits, and what the
//! addresses of the node admit.

use mesh_test_support::cluster::Cluster;
use mesh_test_support::cluster::installation::Installation;
use mesh_test_support::eventually::eventually;
use serde_json::json;

const NAMESPACE: &str = "probes";

/// A workload of nginx, and its probe.
struct Workload {
    name: &'static str,
    probe: &'static str,
    /// The probe shows the proxy its path, and stays on it.
    shows_path: bool,
    /// What another client requests.
    url: &'static str,
}

const WORKLOADS: [Workload; 3] = [
    Workload {
        name: "path",
        // The kubelet adds the leading slash.
        probe: "{path: ready, port: 8080}",
        shows_path: true,
        url: "http://ADDRESS:8080/target",
    },
    Workload {
        name: "redirect",
        // The kubelet follows it to /target.
        probe: "{path: /moved, port: 8080}",
        shows_path: false,
        url: "http://ADDRESS:8080/target",
    },
    Workload {
        name: "https",
        probe: "{path: /ready, port: 8443, scheme: HTTPS}",
        shows_path: false,
        url: "https://ADDRESS:8443/ready",
    },
];

#[test]
fn kubelet_probes_pods_that_deny_every_client() {
    let Some(cluster) = Cluster::acquire("probes under a policy that denies") else {
        return;
    };
    let mesh = Installation::by_helm(&cluster, &[]);
    apply(&cluster);
    let rolled_out = |name: &str| cluster.rolled_out(NAMESPACE, &format!("deployment/{name}"));
    rolled_out("client");
    rolled_out("grpc");
    for workload in &WORKLOADS {
        if workload.shows_path {
            rolled_out(workload.name);
        } else {
            wait_for_denied_probe(&cluster, workload.name);
        }
    }
    WORKLOADS
        .iter()
        .for_each(|workload| expect_denied(&cluster, workload));

    // The bridge plugin of the test clusters connects with the first address of the node's range.
    mesh.upgrade(&["policyController.nodeProbeSources={podCIDRs}"]);
    for workload in &WORKLOADS {
        rolled_out(workload.name);
        expect_denied(&cluster, workload);
    }
    cluster.delete_namespace(NAMESPACE);
}

fn apply(cluster: &Cluster) {
    let names = ["probes.example".to_owned()];
    let certified = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let certificate = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "certificate", "namespace": NAMESPACE},
        "stringData": {
            "tls.crt": certified.cert.pem(), "tls.key": certified.signing_key.serialize_pem(),
        },
    });
    let mut manifests = include_str!("probes.yaml").to_owned();
    for Workload { name, probe, .. } in &WORKLOADS {
        let nginx = include_str!("probes/nginx.yaml");
        manifests += &nginx.replace("NAME", name).replace("PROBE", probe);
    }
    cluster.apply(&format!("{manifests}---\n{certificate}\n"));
}

/// The kubelet reports a probe that was answered, but not with success.
fn wait_for_denied_probe(cluster: &Cluster, name: &str) {
    eventually(&format!("the probe of {name} is denied"), || {
        let events = cluster.list(format!(
            "events -n {NAMESPACE} --field-selector reason=Unhealthy"
        ));
        let denied = events.iter().any(|event| {
            let object = event["involvedObject"]["name"].as_str().unwrap_or_default();
            let path = &event["involvedObject"]["fieldPath"];
            let message = event["message"].as_str().unwrap_or_default();
            object.starts_with(&format!("{name}-"))
                && path == "spec.containers{main}"
                && ["403", "EOF", "reset"]
                    .iter()
                    .any(|it| message.contains(it))
        });
        denied.then_some(()).ok_or(format!("{events:#?}"))
    });
    let pods = cluster.pods(&format!("-n {NAMESPACE} -l app={name}"));
    let conditions = pods[0]["status"]["conditions"].as_array();
    let ready = conditions.into_iter().flatten();
    let mut ready = ready.filter(|condition| condition["type"] == "Ready");
    assert!(
        ready.all(|condition| condition["status"] == "False"),
        "{name}"
    );
}

/// A pod that is not the node gets no response of the application.
fn expect_denied(cluster: &Cluster, workload: &Workload) {
    let pods = cluster.pods(&format!("-n {NAMESPACE} -l app={}", workload.name));
    let address = pods[0]["status"]["podIP"].as_str().expect("an address");
    let url = workload.url.replace("ADDRESS", address);
    let command = format!("curl -sk -o /dev/null -w %{{http_code}} --max-time 10 {url}");
    let (_, output) = cluster.exec(NAMESPACE, "deployment/client", command.as_str());
    // 000: the proxy closed the connection, because it cannot answer within TLS.
    let denied = output.starts_with("403") || output.starts_with("000");
    assert!(denied, "{url}: {output}");
}
