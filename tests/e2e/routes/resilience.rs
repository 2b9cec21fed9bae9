//! Retries by a route, retries by a ServiceProfile within its budget, and circuit breakers.

use std::fs;

use mesh_test_support::eventually::eventually;
use serde_json::{Value, json};

use super::application::{Application, NAMESPACE};

const MANIFEST: &str = include_str!("resilience.yaml");

/// The failures in a row that open a breaker, by the annotation of the Service.
const MAX_FAILURES: usize = 7;

/// At first 8 of 16 requests succeed, and half of the others at each retry, so three retries leave
/// one failure. The server counts the attempts of each request.
pub(super) fn retries_hide_failures_up_to_limit(app: &Application<'_>) {
    const URL: &str = "http://retried/half";
    app.cluster.apply(MANIFEST);
    app.wait_for_conditions(
        "httproutes.gateway.networking.k8s.io/retried",
        &["Accepted", "ResolvedRefs"],
    );
    eventually("requests are retried", || {
        app.control("a", "reset");
        let report = app.load("client", URL, 16, "");
        (report.outcome("200") == 15)
            .then_some(())
            .ok_or(format!("{report:?}"))
    });
    let labels = ["route_name=\"retried\"", "parent_name=\"retried\""];
    let retry = |name: &str| {
        let family = format!("outbound_http_route_retry_{name}_total");
        app.metric("client", &family, &labels)
    };
    let families = ["requests", "successes", "limit_exceeded"];
    let before = families.map(retry);
    app.control("a", "reset");

    let report = app.load("client", URL, 1600, "");
    println!("    {report:?}");
    assert_eq!(report.outcome("200"), 1500, "{report:?}");
    assert_eq!(report.outcome("503"), 100, "{report:?}");
    let records = app.records("a");
    assert_eq!(records.requests["/half"], 1600 + 800 + 400 + 200);
    let after = families.map(retry);
    let counted = [0, 1, 2].map(|at| after[at] - before[at]);
    assert_eq!(counted, [800 + 400 + 200, 700, 100], "{families:?}");
}

/// The profile is generated; of it, only the budget is changed.
pub(super) fn budget_bounds_retries(app: &Application<'_>) {
    const NAME: &str = "profiled.routes.svc.cluster.local";
    const FLOOR: u64 = 1;
    const TTL: u64 = 10;
    /// Retries of one request, whatever is left of the budget.
    const MAX_RETRIES: u64 = 10;
    let directory = tempfile::tempdir().expect("a directory");
    let document = directory.path().join("openapi.yaml");
    fs::write(&document, include_str!("openapi.yaml")).expect("a file");
    let document = document.display();
    let profile = app.cluster.meshctl(format!(
        "profile --open-api {document} -n {NAMESPACE} profiled"
    ));
    let mut profile: Value = serde_norway::from_str(&profile).expect("YAML");
    profile["spec"]["retryBudget"] = json!({
        "retryRatio": 0.2, "minRetriesPerSecond": FLOOR, "ttl": format!("{TTL}s"),
    });
    app.cluster.apply(MANIFEST);
    app.cluster.apply(&profile.to_string());
    eventually("the timeout of the profile is in effect", || {
        let report = app.load("client", "http://profiled/slow", 4, "");
        (report.outcome("504") == 4)
            .then_some(())
            .ok_or(format!("{report:?}"))
    });

    let thing = [
        &*format!("dst=\"{NAME}:80\""),
        "rt_route=\"GET /things/{id}\"",
    ];
    let count = |family: &str, labels: &[&str]| {
        let labels = [&thing, labels].concat();
        app.metric("client", family, &labels)
    };
    let requests = 2000;
    app.control("a", "reset");
    app.control("a", "fail");
    let report = app.load("client", "http://profiled/things/7", requests, "");
    let records = app.control("a", "heal");
    let requests = u64::from(requests);
    let extra = records.requests["/things/7"] - requests;
    println!("    {report:?}, {extra} retries");
    assert_eq!(report.outcome("503"), requests, "{report:?}");
    let seconds = report.seconds.ceil() as u64;
    let bound = requests / 5 + FLOOR * (seconds + TTL);
    assert!(
        extra <= bound,
        "{extra} retries in {seconds} s, at most {bound}"
    );
    assert!(extra >= requests / 10, "only {extra} retries");

    assert_eq!(count("route_request_total", &[]), requests);
    assert_eq!(count("route_actual_request_total", &[]), requests + extra);
    // Every request ends with a retry that the budget refuses, or that would be its eleventh.
    let refused = count("route_retryable_total", &["skipped=\"no_budget\""]);
    assert!(refused <= requests, "{refused} refused");
    assert!(
        requests - refused <= extra / MAX_RETRIES,
        "{refused} refused"
    );
    assert_eq!(count("route_retryable_total", &[]), refused + extra);
    assert_eq!(
        count(
            "route_response_total",
            &["classification=\"failure\"", "status_code=\"503\""]
        ),
        requests
    );
}

/// One of three replicas fails. Its own record of when requests came shows the breaker.
pub(super) fn breaker_opens_and_probes_one_at_a_time(app: &Application<'_>) {
    const URL: &str = "http://breaker/";
    app.cluster.apply(MANIFEST);
    eventually("all replicas serve", || {
        let report = app.load("client", URL, 60, "");
        (report.servers.len() == 3)
            .then_some(())
            .ok_or(format!("{report:?}"))
    });
    let pods = app.cluster.pods(&format!("-n {NAMESPACE} -l app=flaky"));
    let name = pods[0]["metadata"]["name"].as_str().expect("a name");
    let failing = &format!("pod/{name}");
    let endpoints = |state: &str| {
        let labels = ["backend_name=\"breaker\"", state];
        app.metric("client", "outbound_http_balancer_endpoints", &labels)
    };
    app.control(failing, "reset");
    app.control(failing, "fail");

    // With one connection, no request is under way when the breaker opens.
    let load = app.start_load("client", URL, 1);
    eventually("the replica is probed twice", || {
        let seen = app.records(failing).times.len();
        (seen >= MAX_FAILURES + 2)
            .then_some(())
            .ok_or(format!("it received {seen} requests"))
    });
    // Each data thread counts, and learns of the breaker with its next request.
    assert!(endpoints("endpoint_state=\"pending\"") > 0);
    app.control(failing, "heal");
    eventually("the replica serves again", || {
        let served = app
            .records(failing)
            .statuses
            .get("200")
            .copied()
            .unwrap_or_default();
        (served >= 10)
            .then_some(())
            .ok_or(format!("it served {served} requests"))
    });
    let report = load.finish();
    let records = app.records(failing);
    println!("    {report:?} {records:?}");
    let failures = records.statuses["503"];
    let probes = failures as usize - MAX_FAILURES;
    assert_eq!(report.outcome("503"), failures);
    assert_eq!(report.outcomes.len(), 2, "{report:?}");
    // The jitter only lengthens back-offs, and the first probe that succeeds is the last one.
    for probe in 0..=probes {
        let at = MAX_FAILURES + probe;
        let pause = records.times[at] - records.times[at - 1];
        let back_off = f64::from(1 << probe.min(5));
        assert!(
            pause >= back_off,
            "probe {probe} after {pause} s: {records:?}"
        );
    }
    let opened = |cause: &str| {
        let labels = ["backend_name=\"breaker\"", cause];
        app.metric("client", "mesh_proxy_breaker_opened_total", &labels)
    };
    assert_eq!(opened("cause=\"consecutive_failures\""), 1);
    assert_eq!(opened("cause=\"failed_probe\""), probes as u64);
    assert_eq!(endpoints("endpoint_state=\"pending\""), 0);
}
