//! A dual-stack cluster: which address families pass the proxy, refuse, or are policed, as the
//! values say.

use mesh_test_support::cluster::Cluster;
use mesh_test_support::cluster::installation::Installation;
use mesh_test_support::eventually::eventually;
use serde_json::Value;

use crate::faults::report::Report;

const NAMESPACE: &str = "families";

const MANIFEST: &str = include_str!("families.yaml");

/// The check that reports policies that IPv6 bypasses.
const CHECK: &str = "policy-ip-families";

const AUTHENTICATED: &str =
    "200 from client.families.serviceaccount.identity.linkerd.cluster.local";
const DIRECT: &str = "200 from unknown";
const DENIED: &str = "403";
const REFUSED: &str = "refused";

/// Values of the chart, and the outcome over IPv6. IPv4 always passes both proxies.
struct Setting {
    values: &'static [&'static str],
    meshed: &'static str,
    unmeshed: &'static str,
    /// The check fails, because IPv6 bypasses the server's policy.
    bypassed: bool,
}

const SETTINGS: [Setting; 3] = [
    Setting {
        values: &[],
        meshed: DIRECT,
        unmeshed: DIRECT,
        bypassed: true,
    },
    Setting {
        values: &["refuseIPv6=true"],
        meshed: REFUSED,
        unmeshed: REFUSED,
        bypassed: false,
    },
    Setting {
        values: &["disableIPv6=false"],
        meshed: AUTHENTICATED,
        unmeshed: DENIED,
        bypassed: false,
    },
];

#[test]
fn both_families_of_a_dual_stack_cluster_are_policed_as_the_values_say() {
    let Some(cluster) = Cluster::acquire("a dual-stack cluster") else {
        return;
    };
    if !is_dual_stack(&cluster) {
        println!("skipped: a dual-stack cluster: the pods of this one have one address family");
        return;
    }
    let mesh = Installation::by_helm(&cluster, SETTINGS[0].values);
    for (index, setting) in SETTINGS.iter().enumerate() {
        if index > 0 {
            mesh.upgrade(setting.values);
        }
        cluster.apply(MANIFEST);
        for workload in ["server", "meshed", "unmeshed"] {
            cluster.rolled_out(NAMESPACE, &format!("deployment/{workload}"));
        }
        expect_outcomes(&cluster, "meshed", AUTHENTICATED, setting.meshed);
        expect_outcomes(&cluster, "unmeshed", DENIED, setting.unmeshed);
        let report = Report::fetch(&cluster, "check --proxy");
        let reported = report.row_with_detail(CHECK, "families").is_ok();
        assert_eq!(reported, setting.bypassed, "{:?}\n{report}", setting.values);
        // `check` of the next upgrade must succeed.
        cluster.delete_namespace(NAMESPACE);
    }
}

fn is_dual_stack(cluster: &Cluster) -> bool {
    let nodes = cluster.list("nodes");
    nodes.iter().all(|node| {
        let ranges = node["spec"]["podCIDRs"].as_array();
        ranges.is_some_and(|ranges| ranges.len() == 2)
    })
}

/// Requests the server's pod and Service over both families.
fn expect_outcomes(cluster: &Cluster, client: &str, ipv4: &str, ipv6: &str) {
    let pod = cluster
        .pods(&format!("-n {NAMESPACE} -l app=server"))
        .remove(0);
    let service = cluster.json(format!("get service server -n {NAMESPACE}"));
    let pod_ips = pod["status"]["podIPs"].as_array().into_iter().flatten();
    let pod_ips = pod_ips.map(|address| ("pod", &address["ip"], 8080));
    let cluster_ips = service["spec"]["clusterIPs"].as_array();
    let cluster_ips = cluster_ips.into_iter().flatten();
    let cluster_ips = cluster_ips.map(|address| ("service", address, 80));
    let (mut targets, mut expected) = (String::new(), Vec::new());
    for (kind, address, port) in pod_ips.chain(cluster_ips) {
        let address = Value::as_str(address).expect("an address");
        let (family, outcome) = if address.contains(':') {
            ("IPv6", ipv6)
        } else {
            ("IPv4", ipv4)
        };
        targets += &format!(" {family}-{kind}={address}={port}");
        expected.push(format!("{family}-{kind}: {outcome}"));
    }
    assert_eq!(
        expected.len(),
        4,
        "two addresses of pod and Service: {expected:?}"
    );
    eventually(&format!("requests of the {client} client"), || {
        let command = format!("python3 /programs/client.py{targets}");
        let (_, output) = cluster.exec(NAMESPACE, &format!("deployment/{client}"), &command);
        let lines: Vec<&str> = output.lines().collect();
        let is_complete = expected.iter().all(|line| lines.contains(&line.as_str()));
        is_complete
            .then_some(())
            .ok_or_else(|| format!("{output}\nexpected: {expected:#?}"))
    });
}
