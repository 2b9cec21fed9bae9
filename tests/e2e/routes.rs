//! Everything that routes and policies do, on a cluster: the applications' counts agree with the
//! objects and with the proxies' metrics, and the objects have their conditions.

mod access;
mod application;
mod filters;
mod outage;
mod resilience;
mod routing;

use std::panic::{AssertUnwindSafe, catch_unwind};

use self::application::Application;
use mesh_test_support::cluster::Cluster;
use mesh_test_support::cluster::installation::Installation;

type Scenario = fn(&Application<'_>);

/// Each begins with an application in its first state, and works on Services of its own.
const SCENARIOS: [(&str, Scenario); 11] = [
    (
        "retries of a route",
        resilience::retries_hide_failures_up_to_limit,
    ),
    (
        "budget and timeout of a ServiceProfile",
        resilience::budget_bounds_retries,
    ),
    (
        "circuit breaker",
        resilience::breaker_opens_and_probes_one_at_a_time,
    ),
    ("split", routing::split_has_its_weights),
    (
        "redirect and header modifiers",
        routing::filters_change_requests_and_responses,
    ),
    ("URL rewrite", filters::rewrite_changes_path_and_host),
    (
        "mirrors",
        filters::mirror_receives_its_share_without_effect_on_clients,
    ),
    (
        "cross-origin requests",
        filters::cors_answers_preflight_requests_and_marks_responses,
    ),
    ("routes of connections", routing::connections_are_routed),
    ("rate limit", access::rate_limit_applies_by_identity),
    ("EgressNetwork", access::egress_is_denied_except_one_host),
];

/// One installation serves all scenarios, and each runs even if an earlier one has failed.
#[test]
fn routes_and_policies_do_what_they_say() {
    let Some(cluster) = Cluster::acquire("routes and policies") else {
        return;
    };
    let mesh = Installation::by_helm(&cluster, &[]);
    let application = Application::open(&cluster);
    let mut failed = Vec::new();
    for (name, scenario) in SCENARIOS {
        println!("{name}");
        if catch_unwind(AssertUnwindSafe(|| scenario(&application))).is_err() {
            failed.push(name);
        }
    }
    println!("outage of the control plane");
    outage::policies_survive_control_plane(&mesh, &application);
    assert!(failed.is_empty(), "failed: {}", failed.join(", "));
}
