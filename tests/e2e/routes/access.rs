//! A rate limit by identity, and an EgressNetwork that denies.

use mesh_test_support::eventually::eventually;

use super::application::Application;

const EXTERNAL: &str = "203.0.113.20";

/// Two requests per second of each identity, and nearly no limit for one.
pub(super) fn rate_limit_applies_by_identity(app: &Application<'_>) {
    const URL: &str = "http://b:81/";
    const LIMIT: u64 = 2;
    app.cluster.apply(include_str!("access.yaml"));
    app.wait_for_conditions("httplocalratelimitpolicies/limited", &["Accepted"]);
    eventually("the limit is in effect", || {
        let report = app.load("client", URL, 50, "");
        (report.outcome("429") > 0)
            .then_some(())
            .ok_or(format!("{report:?}"))
    });
    let limited = || {
        let labels = ["ratelimit_scope=\"identity\"", "ratelimit_name=\"limited\""];
        app.metric("b", "inbound_http_local_ratelimit_total", &labels)
    };
    let before = limited();
    app.control("b", "reset");
    let report = app.load("client", URL, 500, "");
    let other = app.load("other", URL, 500, "");
    println!("    {report:?}");
    let (accepted, refused) = (report.outcome("200"), report.outcome("429"));
    assert_eq!(accepted + refused, 500, "{report:?}");
    // A burst, and the rate while it lasted.
    let most = LIMIT + LIMIT * (report.seconds.ceil() as u64);
    assert!(accepted > 0 && accepted <= most, "{report:?}");
    assert_eq!(other.outcome("200"), 500, "{other:?}");
    assert_eq!(app.records("b").requests["/"], accepted + 500);
    assert_eq!(limited() - before, refused);
}

/// The server has an address outside of the cluster's networks.
pub(super) fn egress_is_denied_except_one_host(app: &Application<'_>) {
    app.cluster.apply(include_str!("egress.yaml"));
    app.rolled_out("outside");
    app.wait_for_conditions("egressnetworks/outside", &["Accepted"]);
    for route in ["httproutes", "tlsroutes"] {
        let route = format!("{route}.gateway.networking.k8s.io/allowed");
        app.wait_for_conditions(&route, &["Accepted", "ResolvedRefs"]);
    }
    let load = |host: &str| {
        let url = format!("http://{EXTERNAL}/{host}");
        app.load("client", &url, 100, &format!("--host {host}"))
    };
    eventually("the routes are in effect", || {
        let (allowed, denied) = (load("allowed.example"), load("denied.example"));
        let are_right = allowed.outcome("200") == 100 && denied.outcome("403") == 100;
        are_right
            .then_some(())
            .ok_or(format!("{allowed:?} {denied:?}"))
    });
    app.control("outside", "reset");
    let (allowed, denied) = (load("allowed.example"), load("denied.example"));
    assert_eq!(allowed.outcome("200"), 100, "{allowed:?}");
    assert_eq!(denied.outcome("403"), 100, "{denied:?}");
    let received = app.records("outside").requests;
    assert_eq!(received.get("/allowed.example"), Some(&100));
    assert_eq!(received.get("/denied.example"), None);

    let get = |name: &str| {
        let command =
            format!("curl -sSk --max-time 30 --connect-to ::{EXTERNAL}:443 https://{name}/");
        app.try_run("client", command)
    };
    let (ok, answer) = get("allowed.example");
    assert!(ok && answer == "outside", "{answer}");
    let (ok, answer) = get("denied.example");
    assert!(!ok, "{answer}");
    assert_eq!(
        app.records("outside").server_names.get("denied.example"),
        None
    );
    for (route, status) in [("allowed", "200"), ("http-egress-deny", "403")] {
        let labels = [
            "parent_kind=\"EgressNetwork\"",
            "parent_name=\"outside\"",
            &*format!("route_name=\"{route}\""),
            &*format!("http_status=\"{status}\",error=\"\""),
        ];
        let family = "outbound_http_route_request_statuses_total";
        let count = app.metric("client", family, &labels);
        assert!(count >= 200, "{route}: {count}");
    }
}
