//! All controllers are killed and come back in the middle of traffic that a policy denies, and of
//! traffic that a route splits.

use std::ops::RangeInclusive;

use mesh_test_support::cluster::Cluster;
use mesh_test_support::cluster::installation::{Installation, NAMESPACE as CONTROL_PLANE};
use mesh_test_support::eventually::eventually;

use super::application::{Application, of_workload};

const URL: &str = "http://guarded/";

/// `b` gets 50 of 500 requests, with a standard deviation of 6.7. In any window, six of them.
const SHARE_OF_B: RangeInclusive<u64> = 10..=90;

pub(super) fn policies_survive_control_plane(mesh: &Installation<'_>, app: &Application<'_>) {
    app.cluster.apply(include_str!("outage.yaml"));
    app.wait_for_conditions(
        "httproutes.gateway.networking.k8s.io/guarded",
        &["Accepted", "ResolvedRefs"],
    );
    eventually("policy and split are in effect", || {
        let allowed = app.load("client", URL, 200, "");
        let forbidden = app.load("other", URL, 200, "");
        let is_split = allowed.served_by("a") > 0 && allowed.served_by("b") > 0;
        let are_right = allowed.outcome("200") == 200 && forbidden.outcome("403") == 200;
        (is_split && are_right)
            .then_some(())
            .ok_or(format!("{allowed:?} {forbidden:?}"))
    });
    let denied = |server: &str| {
        let labels = ["srv_name=\"guarded\"", "client_id=\"other.routes."];
        app.metric(server, "inbound_http_authz_deny_total", &labels)
    };
    let before = denied("a") + denied("b");
    let allowed = app.start_load("client", URL, 8);
    let forbidden = app.start_load("other", URL, 8);
    for component in ["identity", "destination", "proxy-injector"] {
        kill(
            app.cluster,
            &format!("linkerd.io/control-plane-component={component}"),
        );
    }
    mesh.wait_until_ready();
    kill(
        app.cluster,
        "linkerd.io/control-plane-component in (identity,destination,proxy-injector)",
    );
    mesh.wait_until_ready();
    let (allowed, forbidden) = (allowed.finish(), forbidden.finish());
    println!("    {:?} {:?}", allowed.outcomes, allowed.windows);
    println!("    {:?}", forbidden.outcomes);

    assert_eq!(
        allowed.outcomes.keys().collect::<Vec<_>>(),
        ["200"],
        "{:?}",
        allowed.outcomes
    );
    assert_eq!(
        forbidden.outcomes.keys().collect::<Vec<_>>(),
        ["403"],
        "{:?}",
        forbidden.outcomes
    );
    assert!(!allowed.windows.is_empty(), "{:?}", allowed.outcomes);
    for window in &allowed.windows {
        let of_b = of_workload(window, "b");
        assert!(SHARE_OF_B.contains(&of_b), "{:?}", allowed.windows);
    }
    let counted = denied("a") + denied("b") - before;
    assert_eq!(counted, forbidden.outcome("403"));
}

/// Kills the pods of a selection without a grace period.
fn kill(cluster: &Cluster, selector: &str) {
    let delete = format!("delete pods -n {CONTROL_PLANE} --force --grace-period=0 -l");
    let delete = delete.split(' ').chain([selector]).collect::<Vec<_>>();
    cluster.kubectl(delete);
}
