//! All components are replaced under load, one after the other; no request fails or bypasses a
//! proxy.

use mesh_test_support::cluster::Cluster;
use mesh_test_support::cluster::installation::{AGENT, AGENT_NAMESPACE, Installation, NAMESPACE};

use crate::load::{Downloads, HttpVersion, Load, STEADY};
use crate::node::Nodes;
use crate::shop::Shop;

/// Counts connections that bypass a proxy.
const GUARD: &str = "meshAgent.guard=count";

/// Longer than any of the replacements below takes.
const SECONDS: u32 = 75;

#[test]
fn restarts_under_load_fail_no_request() {
    let Some(cluster) = Cluster::acquire_for_long_test("restarts under load") else {
        return;
    };
    let nodes = Nodes::observe(&cluster);
    let mesh = Installation::by_helm(&cluster, &[GUARD]);
    let shop = Shop::open(&cluster);
    shop.assert_works();
    let stories: [(&str, &dyn Fn()); 7] = [
        ("the servers restarted", &|| shop.restart_workload("web")),
        ("the agents restarted", &|| {
            cluster.kubectl(format!("rollout restart -n {AGENT_NAMESPACE} {AGENT}"));
            cluster.rolled_out(AGENT_NAMESPACE, AGENT);
        }),
        ("the control plane restarted", &|| {
            cluster.kubectl(format!("rollout restart deployment -n {NAMESPACE}"));
            mesh.wait_until_ready();
        }),
        (
            "every pod of the control plane deleted at the same time",
            &|| {
                mesh.delete_control_plane_pods();
                mesh.wait_until_ready();
            },
        ),
        ("the agents upgraded and rolled back", &|| {
            mesh.upgrade(&[GUARD, "meshAgent.logLevel=debug"]);
            mesh.upgrade(&[GUARD]);
        }),
        // The agents whose DaemonSet is deleted must not remove the mesh from their nodes.
        ("the agents moved to the control plane's namespace", &|| {
            mesh.upgrade(&[GUARD, "meshAgent.namespace="]);
            cluster.kubectl(format!(
                "wait --for=delete namespace/{AGENT_NAMESPACE} --timeout=60s"
            ));
        }),
        ("the agents moved to a namespace of their own", &|| {
            mesh.upgrade(&[GUARD]);
        }),
    ];
    let mut failures = Vec::new();
    for (what, replace) in stories {
        let http1 = Load::start(&cluster, "http://web/", HttpVersion::Http1, STEADY, SECONDS);
        let http2 = Load::start(
            &cluster,
            "http://web:81/",
            HttpVersion::Http2,
            STEADY,
            SECONDS,
        );
        replace();
        assert!(http1.is_running(), "{what}: it took longer than the load");
        for load in [http1.finish(), http2.finish()] {
            println!(
                "{what}: {} succeeded, {} failed",
                load.succeeded, load.failed
            );
            if load.failed > 0 || load.succeeded == 0 {
                failures.push(format!("{what}:\n{}", load.report));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    shop.assert_redirected("full");
    shop.assert_authenticated();
    assert_eq!(nodes.bypasses(), Vec::<String>::new());
}

/// A load of ten minutes: 600,000 requests.
const CAMPAIGN_SECONDS: u32 = 600;
const CAMPAIGN_RATE: u32 = 500;
const CAMPAIGN_RESTARTS: u32 = 10;

/// Every second restart replaces pods with native sidecars by pods with plain ones, and the others
/// the other way round.
#[test]
fn ten_rolling_restarts_lose_none_of_600_000_requests() {
    let Some(cluster) = Cluster::acquire_for_long_test("ten rolling restarts") else {
        return;
    };
    let _mesh = Installation::by_helm(&cluster, &[]);
    let shop = Shop::open(&cluster);
    shop.assert_works();
    let (http1, http2) = (HttpVersion::Http1, HttpVersion::Http2);
    let load = |url, version| Load::start(&cluster, url, version, CAMPAIGN_RATE, CAMPAIGN_SECONDS);
    let loads = [load("http://web/", http1), load("http://web:81/", http2)];
    let downloads = [
        ("http://web/download", http1),
        ("http://web:81/download", http2),
    ]
    .map(|(url, version)| Downloads::start(&cluster, url, version, CAMPAIGN_SECONDS));
    let mut restarts = 0;
    while loads[0].is_running() {
        shop.set_native_sidecars("web", restarts % 2 == 1);
        restarts += 1;
    }
    let mut failures = Vec::new();
    for load in loads.map(Load::finish) {
        println!("{} succeeded, {} failed", load.succeeded, load.failed);
        if load.failed > 0 {
            failures.push(load.report);
        }
    }
    for (complete, failed) in downloads.map(Downloads::finish) {
        println!("{complete} downloads complete, {} failed", failed.len());
        assert!(complete > 0, "no download completed");
        failures.extend(failed);
    }
    println!("{restarts} restarts");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(restarts >= CAMPAIGN_RESTARTS, "{restarts} restarts");
}
