//! The filters that Linkerd's proxy API lacks: rewrites, mirrors, and cross-origin resource
//! sharing. The servers' records show the requests that arrived.

use std::collections::BTreeMap;

use mesh_test_support::eventually::eventually;

use super::application::Application;

const MANIFEST: &str = include_str!("filters.yaml");

const CONDITIONS: [&str; 2] = ["Accepted", "ResolvedRefs"];

/// A prefix of the path and the host are replaced; other requests keep both.
pub(super) fn rewrite_changes_path_and_host(app: &Application<'_>) {
    const FORWARDED: [(&str, &str, &str); 4] = [
        ("/public/things", "/v2/things", "internal.example"),
        ("/public", "/v2", "internal.example"),
        ("/publicity", "/publicity", "rewritten"),
        ("/other", "/other", "rewritten"),
    ];
    const COUNT: u32 = 100;
    open(app, "rewritten");
    eventually("the rewrite is in effect", || {
        app.control("a", "reset");
        app.load("client", "http://rewritten/public", 1, "");
        let records = app.records("a");
        let is_rewritten = records.requests.contains_key("/v2");
        is_rewritten.then_some(()).ok_or(format!("{records:?}"))
    });
    let before = succeeded(app, "rewritten");
    for (requested, path, host) in FORWARDED {
        app.control("a", "reset");
        let url = format!("http://rewritten{requested}");
        let report = app.load("client", &url, COUNT, "");
        assert_eq!(report.served_by("a"), u64::from(COUNT), "{report:?}");
        let records = app.records("a");
        let expected = |value: &str| BTreeMap::from([(value.to_owned(), u64::from(COUNT))]);
        assert_eq!(records.requests, expected(path), "for {requested}");
        assert_eq!(records.hosts, expected(host), "for {requested}");
    }
    let counted = succeeded(app, "rewritten") - before;
    assert_eq!(counted, u64::from(COUNT) * FORWARDED.len() as u64);
}

/// The server of the copies fails all of them, which no client sees.
pub(super) fn mirror_receives_its_share_without_effect_on_clients(app: &Application<'_>) {
    open(app, "mirrored");
    app.wait_for_reason(
        "httproutes.gateway.networking.k8s.io/unmirrored",
        ("ResolvedRefs", "BackendNotFound"),
    );
    app.control("b", "fail");
    eventually("requests are mirrored", || {
        app.control("b", "reset");
        app.load("client", "http://mirrored/all", 1, "");
        let records = app.records("b");
        let is_mirrored = records.requests.contains_key("/all");
        is_mirrored.then_some(()).ok_or(format!("{records:?}"))
    });
    // Six standard deviations of 2000 choices, when a quarter of the requests is copied.
    for (path, count, copied) in [("/all", 500, 500..=500), ("/quarter", 2_000, 384..=616)] {
        app.control("a", "reset");
        app.control("b", "reset");
        let (all, completed) = (copies(app, ""), copies(app, "result=\"completed\""));
        let report = app.load("client", &format!("http://mirrored{path}"), count, "");
        // No client waits for the copies of its requests.
        let received = eventually("every copy has ended", || {
            let records = app.records("b");
            let received = records.requests.get(path).copied().unwrap_or_default();
            let sent = copies(app, "result=\"completed\"") - completed;
            (sent == received && copied.contains(&received))
                .then_some(received)
                .ok_or(format!("{sent} copies completed: {records:?}"))
        });
        assert_eq!(copies(app, "") - all, received, "copies were given up");
        assert_eq!(app.records("b").statuses.get("503"), Some(&received));
        assert_eq!(app.records("a").requests[path], u64::from(count));
        println!("    {received} of {count} requests mirrored, {report:?}");
        assert_eq!(report.outcome("200"), u64::from(count), "{report:?}");
        assert_eq!(report.served_by("a"), u64::from(count), "{report:?}");
    }
    app.control("b", "heal");

    let report = app.load("client", "http://unmirrored/", 50, "");
    assert_eq!(report.outcome("200"), 50, "{report:?}");
}

/// The client's proxy answers preflight requests; other responses get headers beside their own.
pub(super) fn cors_answers_preflight_requests_and_marks_responses(app: &Application<'_>) {
    const ALLOWED: [&str; 2] = ["https://shop.example", "https://eu.partner.example"];
    const REFUSED: &str = "https://elsewhere.example";
    open(app, "shared");
    let send = |path: &str, origin: &str, options: &str| {
        let url = format!("http://shared{path}");
        let command = format!("curl -sSi --max-time 30 -H origin:{origin} {options} {url}");
        Head::parse(&app.run("client", command))
    };
    let preflight = |origin: &str| {
        let asks = "-X OPTIONS -H access-control-request-method:PUT -H access-control-request-headers:x-token";
        send("/preflight", origin, asks)
    };
    eventually("the filter is in effect", || {
        let head = preflight(ALLOWED[0]);
        let is_answered = head.field("access-control-allow-origin").is_some();
        is_answered.then_some(()).ok_or(head.0)
    });
    app.control("a", "reset");
    let before = succeeded(app, "shared");
    for origin in ALLOWED {
        let head = preflight(origin);
        assert_eq!(head.status(), "200", "{head:?}");
        for (name, value) in [
            ("access-control-allow-origin", origin),
            ("access-control-allow-credentials", "true"),
            ("access-control-allow-headers", "x-token"),
            ("access-control-max-age", "600"),
        ] {
            assert_eq!(head.field(name), Some(value), "{head:?}");
        }
        let methods = head.field("access-control-allow-methods");
        assert!(methods.is_some_and(|it| it.contains("PUT")), "{head:?}");

        let head = send("/simple", origin, "");
        assert_eq!(head.status(), "200", "{head:?}");
        assert_eq!(head.field("access-control-allow-origin"), Some(origin));
        let exposed = head.field("access-control-expose-headers");
        assert_eq!(exposed, Some("x-server"), "{head:?}");
        assert!(head.field("x-server").is_some(), "{head:?}");
    }
    for head in [preflight(REFUSED), send("/simple", REFUSED, "")] {
        assert_eq!(head.status(), "200", "{head:?}");
        let allowed = head.field("access-control-allow-origin");
        assert_eq!(allowed, None, "{head:?}");
        // Without it a cache would give one origin the response of another.
        let vary = head.field("vary").map(str::to_lowercase);
        assert_eq!(vary.as_deref(), Some("origin"), "{head:?}");
    }
    // No preflight request arrived.
    assert_eq!(
        app.records("a").requests,
        [("/simple".to_owned(), 3)].into()
    );
    assert_eq!(succeeded(app, "shared") - before, 6);
}

/// The status line and fields of a response.
#[derive(Debug)]
struct Head(String);

impl Head {
    /// `response` is the output of `curl -i`.
    fn parse(response: &str) -> Self {
        let (head, _body) = response.split_once("\r\n\r\n").expect("the end of a head");
        Self(head.to_owned())
    }

    fn status(&self) -> &str {
        self.0.split(' ').nth(1).expect("a status line")
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Applies the objects, and waits until the route of a Service is accepted.
fn open(app: &Application<'_>, route: &str) {
    app.cluster.apply(MANIFEST);
    let object = format!("httproutes.gateway.networking.k8s.io/{route}");
    app.wait_for_conditions(&object, &CONDITIONS);
}

/// Returns the number of requests of the route that the client's proxy answered with status 200.
fn succeeded(app: &Application<'_>, route: &str) -> u64 {
    let family = "outbound_http_route_request_statuses_total";
    let labels = [
        &*format!("route_name=\"{route}\""),
        "http_status=\"200\",error=\"\"",
    ];
    app.metric("client", family, &labels)
}

/// Returns the number of copies for the route `mirrored` that have ended, with this label.
fn copies(app: &Application<'_>, label: &str) -> u64 {
    let labels = ["route_name=\"mirrored\"", "backend_name=\"b\"", label];
    app.metric("client", "mesh_proxy_mirrored_requests_total", &labels)
}
