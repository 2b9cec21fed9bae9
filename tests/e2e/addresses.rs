//! All addresses of a pod: from a meshed and an unmeshed client, over HTTP and over an opaque port.
//! Also the nodes that an agent is allowed to change.

use mesh_test_support::cluster::Cluster;
use mesh_test_support::cluster::installation::{AGENT_NAMESPACE, Installation};
use mesh_test_support::eventually::eventually;
use serde_json::{Value, json};

const NAMESPACE: &str = "addresses";

const MANIFEST: &str = include_str!("addresses.yaml");

/// An ExternalWorkload with the address of the server.
const MACHINE: &str = include_str!("machine.yaml");

/// The EndpointSlices of ExternalWorkloads.
const MACHINE_SLICES: &str = "endpointslices -n addresses -l endpointslice.kubernetes.io/managed-by=linkerd-external-workloads-controller";

/// The identity that the server receives for the meshed client, if the client's proxy resolves the
/// address to a pod.
const CLIENT: &str = "client.addresses.serviceaccount.identity.linkerd.cluster.local";

/// Addresses outside of every network, which kube-proxy redirects to the Service.
const EXTERNAL_IP: &str = "203.0.113.10";
const BALANCER_IP: &str = "203.0.113.11";

/// An address of a server, with its HTTP port and its opaque port.
struct AddressCase {
    name: &'static str,
    host: String,
    ports: (u16, u16),
    /// The client's proxy resolves the pod and uses mutual TLS.
    authenticated: bool,
}

#[test]
fn pods_are_reachable_by_every_address() {
    let Some(cluster) = Cluster::acquire("every way to address a pod") else {
        return;
    };
    let _mesh = Installation::by_helm(&cluster, &[]);
    cluster.apply(MANIFEST);
    let ingress = json!({"status": {"loadBalancer": {"ingress": [{"ip": BALANCER_IP}]}}});
    // The JSON has no spaces.
    cluster.kubectl(format!(
        "patch service/anywhere -n {NAMESPACE} --subresource=status --type=merge -p {ingress}"
    ));
    for workload in ["server", "host", "meshed", "unmeshed"] {
        cluster.rolled_out(NAMESPACE, &format!("deployment/{workload}"));
    }
    let server = cluster
        .pods(&format!("-n {NAMESPACE} -l app=server"))
        .remove(0);
    let server_ip = server["status"]["podIP"].as_str().expect("an address");
    cluster.apply(&MACHINE.replace("MACHINE_IP", server_ip));
    set_machine_ready(&cluster, "True");
    let cases = cases(&cluster);
    for client in ["meshed", "unmeshed"] {
        let target = |case: &AddressCase| {
            let (http, opaque) = case.ports;
            format!(" {}={}:{http}:{opaque}", case.name, case.host)
        };
        let targets: String = cases.iter().map(target).collect();
        let command = format!("python3 /programs/client.py{targets}");
        let expected: Vec<String> = cases
            .iter()
            .map(|case| {
                let who = if case.authenticated && client == "meshed" {
                    CLIENT
                } else {
                    "unknown"
                };
                format!("{}: 200 from {who}, hello", case.name)
            })
            .collect();
        eventually(
            &format!("every address works for the {client} client"),
            || {
                let workload = format!("deployment/{client}");
                let (_, output) = cluster.exec(NAMESPACE, &workload, &command);
                let missing = expected
                    .iter()
                    .filter(|line| !output.lines().any(|heard| heard == **line));
                match missing.cloned().collect::<Vec<_>>() {
                    missing if missing.is_empty() => Ok(()),
                    missing => Err(format!("missing: {missing:#?}\n{output}")),
                }
            },
        );
    }
    assert_agent_can_only_patch_own_node(&cluster);
    assert_slices_follow_machine(&cluster);
    cluster.delete_namespace(NAMESPACE);
}

/// Sets the condition that says whether the machine is an endpoint.
fn set_machine_ready(cluster: &Cluster, status: &str) {
    let condition = json!({"type": "Ready", "status": status});
    let status = json!({"status": {"conditions": [condition]}});
    cluster.kubectl(format!(
        "patch externalworkload/vm -n {NAMESPACE} --subresource=status --type=merge -p {status}"
    ));
}

fn assert_slices_follow_machine(cluster: &Cluster) {
    let expect = |what: &str, expected: &[Value]| {
        eventually(what, || {
            let slices = cluster.list(MACHINE_SLICES);
            let found: Vec<Value> = slices
                .iter()
                .map(|slice| {
                    let endpoint = &slice["endpoints"][0];
                    let owner = &slice["metadata"]["ownerReferences"][0]["name"];
                    json!([
                        owner,
                        endpoint["hostname"],
                        endpoint["zone"],
                        endpoint["conditions"]["ready"]
                    ])
                })
                .collect();
            let is_complete =
                found.len() == expected.len() && expected.iter().all(|slice| found.contains(slice));
            is_complete
                .then_some(())
                .ok_or_else(|| format!("{found:?}, expected {expected:?}"))
        });
    };
    let slices = |is_ready: bool| {
        [
            json!(["machines", null, "east", is_ready]),
            json!(["machine-names", "vm", "east", is_ready]),
        ]
    };
    expect("each Service of the machine has a slice", &slices(true));
    set_machine_ready(cluster, "False");
    expect("the machine is not ready", &slices(false));
    cluster.kubectl(format!("delete externalworkload/vm -n {NAMESPACE}"));
    expect("the machine has left its Services", &[]);
}

fn cases(cluster: &Cluster) -> Vec<AddressCase> {
    let pod = |app: &str| {
        let mut pods = cluster.pods(&format!("-n {NAMESPACE} -l app={app}"));
        pods.remove(0)
    };
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    let (server, host) = (pod("server"), pod("host"));
    let node = text(&server["status"]["hostIP"]);
    let cluster_ip = |service: &str| {
        let service = cluster.json(format!("get service {service} -n {NAMESPACE}"));
        text(&service["spec"]["clusterIP"])
    };
    let case = |name, host: &str, ports, authenticated| AddressCase {
        name,
        host: host.to_owned(),
        ports,
        authenticated,
    };
    let mut cases = vec![
        case(
            "pod-ip",
            &text(&server["status"]["podIP"]),
            (8080, 9000),
            true,
        ),
        case("cluster-ip", &cluster_ip("server"), (80, 9000), true),
        case(
            "app-protocol",
            &cluster_ip("contradictory"),
            (80, 9000),
            true,
        ),
        case(
            "headless",
            "headless.addresses.svc.cluster.local",
            (8080, 9000),
            true,
        ),
        case("machine", &cluster_ip("machines"), (80, 9000), true),
        case(
            "machine-name",
            "vm.machine-names.addresses.svc.cluster.local",
            (8080, 9000),
            true,
        ),
        case("host-port", &node, (18080, 19000), true),
        case(
            "host-network",
            &text(&host["status"]["hostIP"]),
            (28080, 29000),
            false,
        ),
        case("node-port-local", &node, (30280, 30290), false),
        case("external-ip", EXTERNAL_IP, (80, 9000), false),
        case("load-balancer-ip", BALANCER_IP, (80, 9000), false),
    ];
    for node in cluster.list("nodes") {
        let addresses = node["status"]["addresses"].as_array();
        let internal = addresses
            .into_iter()
            .flatten()
            .find(|address| address["type"] == "InternalIP");
        let ip = text(&internal.expect("a node has an address")["address"]);
        cases.push(case("node-port", &ip, (30180, 30190), false));
    }
    cases
}

/// Uses the agent's token, like an attacker who has compromised the agent.
fn assert_agent_can_only_patch_own_node(cluster: &Cluster) {
    let agents = cluster.list(format!(
        "pods -n {AGENT_NAMESPACE} -l linkerd.io/control-plane-component=mesh-agent"
    ));
    let agent = agents.first().expect("an agent runs");
    let name = agent["metadata"]["name"]
        .as_str()
        .expect("a pod has a name");
    let own = agent["spec"]["nodeName"].as_str().expect("it is scheduled");
    let bound = format!("--bound-object-kind=Pod --bound-object-name={name}");
    let token = cluster.kubectl(format!(
        "create token mesh-agent -n {AGENT_NAMESPACE} {bound}"
    ));
    // Patches like kubectl, but without reading the node first, which agents are not allowed to do.
    let bearer = format!("authorization: Bearer {}", token.trim());
    let patch = |node: &str| {
        let url = format!("https://kubernetes.default.svc/api/v1/nodes/{node}?dryRun=All");
        let change = r#"{"metadata": {"annotations": {"example.com/by-the-agent": "yes"}}}"#;
        let content = "content-type: application/merge-patch+json";
        let request = ["-X", "PATCH", "-H", &bearer, "-H", content, "-d", change];
        let curl = [&["curl", "-sk", &url][..], &request].concat();
        let (_, output) = cluster.exec(NAMESPACE, "deployment/unmeshed", curl);
        let is_node = output.replace(' ', "").contains(r#""kind":"Node""#);
        (is_node, output)
    };
    let (may, output) = patch(own);
    assert!(
        may,
        "an agent must be allowed to change its own node: {output}"
    );
    for node in cluster.list("nodes") {
        let other = node["metadata"]["name"]
            .as_str()
            .expect("a node has a name");
        if other == own {
            continue;
        }
        let (may, output) = patch(other);
        assert!(
            !may && output.contains("only change the node it runs on"),
            "an agent must not be allowed to change {other}: {output}"
        );
    }
}
