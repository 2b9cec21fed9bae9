//! A rate limit by identity.

use mesh_test_support::eventually::eventually;

use super::application::Application;

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
