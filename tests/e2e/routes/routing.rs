//! Splits, filters, and the routes of connections.

use mesh_test_support::eventually::eventually;
use serde_json::Value;

use super::application::{Application, of_workload};

const MANIFEST: &str = include_str!("routing.yaml");

const CONDITIONS: [&str; 2] = ["Accepted", "ResolvedRefs"];

/// 90 to 10, over ten thousand requests.
pub(super) fn split_has_its_weights(app: &Application<'_>) {
    const URL: &str = "http://split/";
    app.cluster.apply(MANIFEST);
    app.wait_for_conditions("httproutes.policy.linkerd.io/split", &CONDITIONS);
    eventually("both backends serve", || {
        let report = app.load("client", URL, 100, "");
        let serve = report.served_by("a") > 0 && report.served_by("b") > 0;
        serve.then_some(()).ok_or(format!("{report:?}"))
    });
    let counted = |backend: &str| {
        let labels = ["route_name=\"split\"", backend];
        let family = "outbound_http_route_backend_requests_total";
        app.metric("client", family, &labels)
    };
    let before = [counted("backend_name=\"a\""), counted("backend_name=\"b\"")];
    app.control("a", "reset");
    app.control("b", "reset");
    let report = app.load("client", URL, 10_000, "--connections 8");
    let received = ["a", "b"].map(|server| app.records(server).requests["/"]);
    println!("    {received:?}");
    assert_eq!(report.outcome("200"), 10_000, "{report:?}");
    assert_eq!(received, [report.served_by("a"), report.served_by("b")]);
    assert!(received[1].abs_diff(1_000) <= 200, "{received:?}");
    let after = [counted("backend_name=\"a\""), counted("backend_name=\"b\"")];
    assert_eq!([after[0] - before[0], after[1] - before[1]], received);
}

pub(super) fn filters_change_requests_and_responses(app: &Application<'_>) {
    app.cluster.apply(MANIFEST);
    app.wait_for_conditions("httproutes.gateway.networking.k8s.io/changed", &CONDITIONS);
    let get = |path: &str, options: &str| {
        app.run(
            "client",
            format!("curl -sSi --max-time 30 {options} http://changed{path}"),
        )
    };
    let redirect = eventually("the redirect is in effect", || {
        let response = get("/old", "");
        response
            .contains(" 301 ")
            .then(|| response.clone())
            .ok_or(response)
    });
    assert!(
        redirect.contains("\nlocation: http://moved.example/new\r\n"),
        "{redirect}"
    );
    let given = "-H x-set:by-the-client -H x-added:by-the-client -H x-removed:by-the-client -H x-kept:by-the-client";
    let response = get("/headers", given);
    let (head, body) = response.split_once("\r\n\r\n").expect("a body");
    assert!(head.contains("\nx-answer: by-the-route"), "{head}");
    assert!(!head.contains("x-server"), "{head}");
    let received: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(received["x-set"], "by-the-route", "{received}");
    let added = received["x-added"].as_str().unwrap_or_default();
    assert!(added.ends_with("by-the-route"), "{received}");
    assert_eq!(received["x-kept"], "by-the-client", "{received}");
    assert!(received["x-removed"].is_null(), "{received}");
    // The redirect and the response of the application.
    for outcome in [
        "http_status=\"301\",error=\"\"",
        "http_status=\"200\",error=\"\"",
    ] {
        let labels = ["route_name=\"changed\"", outcome];
        let family = "outbound_http_route_request_statuses_total";
        assert!(app.metric("client", family, &labels) > 0, "{outcome}");
    }
}

/// TLSRoutes choose by server name; a TCPRoute splits.
pub(super) fn connections_are_routed(app: &Application<'_>) {
    app.cluster.apply(MANIFEST);
    for route in ["tlsroutes/exact", "tlsroutes/suffix", "tcproutes/tcp"] {
        let route = route.replace('/', ".gateway.networking.k8s.io/");
        app.wait_for_conditions(&route, &CONDITIONS);
    }
    let get = |name: &str| {
        let command = format!("curl -sSk --max-time 30 --connect-to ::tls:443 https://{name}/");
        app.try_run("client", command)
    };
    let opened = |route: &str| {
        let labels = [&*format!("route_name=\"{route}\"")];
        app.metric("client", "outbound_tls_route_open_total", &labels)
    };
    for (name, server, route) in [("a.example", "a", "exact"), ("x.b.example", "b", "suffix")] {
        eventually(&format!("the route of {name} is in effect"), || {
            let (_, answer) = get(name);
            answer
                .starts_with(&format!("{server}-"))
                .then_some(())
                .ok_or(answer)
        });
        let before = opened(route);
        app.control(server, "reset");
        for _ in 0..5 {
            let (ok, answer) = get(name);
            assert!(ok, "{answer}");
        }
        // The server name arrives unchanged.
        assert_eq!(app.records(server).server_names[name], 5);
        assert_eq!(opened(route) - before, 5);
    }
    let (ok, answer) = get("other.example");
    assert!(!ok, "a name without a route got a response: {answer}");

    eventually("both backends answer", || {
        let answers = app.connect("client", "tcp", 9000, 20);
        let answer = ["a", "b"].map(|server| of_workload(&answers, server));
        (answer[0] > 0 && answer[1] > 0)
            .then_some(())
            .ok_or(format!("{answers:?}"))
    });
    let opened = || {
        app.metric(
            "client",
            "outbound_tcp_route_open_total",
            &["route_name=\"tcp\""],
        )
    };
    let before = opened();
    app.control("a", "reset");
    app.control("b", "reset");
    let answers = app.connect("client", "tcp", 9000, 400);
    let received = ["a", "b"].map(|server| app.records(server).connections);
    println!("    {received:?} connections");
    assert_eq!(
        received,
        ["a", "b"].map(|server| of_workload(&answers, server))
    );
    assert_eq!(received[0] + received[1], 400, "{answers:?}");
    // Six standard deviations of 400 choices between two.
    assert!(received[0].abs_diff(200) <= 60, "{received:?}");
    assert_eq!(opened() - before, 400);
}
