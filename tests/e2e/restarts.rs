//! Everything is replaced under load, one thing after the other, and no request fails and none goes
//! around a proxy.

use crate::{
    cluster::Cluster,
    installation::{AGENT, Installation, NAMESPACE},
    load::{Load, Version},
    node::Nodes,
    shop::Shop,
};

/// Counts what goes around a proxy.
const GUARD: &str = "meshAgent.guard=count";

/// Longer than any of the replacements below takes.
const SECONDS: u32 = 75;

#[test]
fn replacing_anything_fails_no_request() {
    let Some(cluster) = Cluster::given_time("restarts under load") else {
        return;
    };
    let nodes = Nodes::look_at(&cluster);
    let mesh = Installation::by_helm(&cluster, &[GUARD]);
    let shop = Shop::open(&cluster);
    shop.works();
    let stories: [(&str, &dyn Fn()); 5] = [
        ("the servers restarted", &|| shop.restart_workload("web")),
        ("the agents restarted", &|| {
            cluster.kubectl(&["rollout", "restart", "-n", NAMESPACE, AGENT]);
            cluster.rolled_out(NAMESPACE, AGENT);
        }),
        ("the control plane restarted", &|| {
            cluster.kubectl(&["rollout", "restart", "deployment", "-n", NAMESPACE]);
            mesh.is_up();
        }),
        ("every pod of the control plane deleted at once", &|| {
            mesh.delete_control_plane_pods();
            mesh.is_up();
        }),
        ("the agents upgraded and taken back", &|| {
            mesh.upgrade(&[GUARD, "meshAgent.logLevel=debug"]);
            mesh.upgrade(&[GUARD]);
        }),
    ];
    let mut failures = Vec::new();
    for (what, replace) in stories {
        let http1 = Load::start(&cluster, "http://web/", Version::Http1, SECONDS);
        let http2 = Load::start(&cluster, "http://web:81/", Version::Http2, SECONDS);
        replace();
        assert!(
            http1.goes_on(),
            "{what}: it took longer than the load, which proves nothing"
        );
        for load in [http1.finish(), http2.finish()] {
            println!(
                "{what}: {} answered, {} failed",
                load.succeeded, load.failed
            );
            if load.failed > 0 || load.succeeded == 0 {
                failures.push(format!("{what}:\n{}", load.report));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    shop.is_redirected("full");
    shop.is_authenticated();
    assert_eq!(nodes.bypasses(), Vec::<String>::new());
}
