//! Time limits of attempts above the one of their request.

use super::*;

#[test]
fn attempt_with_more_time_than_its_request_is_found() {
    let (retry, request) = ("retry.linkerd.io/timeout", "timeout.linkerd.io/request");
    let both = format!("{retry}: 3s, {request}: 2s");
    let longer = format!("{retry}: 3s");
    let of_annotations = format!("{retry}: 3s, {request}: 4s");
    let enough = format!("{retry}: 1s, {request}: 2s");
    let backend = "HTTPRoute shop/route spec.rules[0].timeouts.backendRequest";
    let of_request = "HTTPRoute shop/route spec.rules[0].timeouts.request";
    let annotation = format!("HTTPRoute shop/route metadata.annotations[{request}]");
    let of_route = format!("HTTPRoute shop/route metadata.annotations[{retry}]");
    let of_service = format!("Service shop/api metadata.annotations[{retry}]");
    for (service, route, timeouts, expect) in [
        ("", "", "request: 1s, backendRequest: 2s", Some(backend)),
        ("", "", "request: 2s, backendRequest: 2s", None),
        ("", "", "request: 0s, backendRequest: 2s", None),
        ("", &*both, "", Some(&*of_route)),
        ("", &longer, "request: 2s", Some(&of_route)),
        // The annotation replaces the timeout of the rule.
        ("", &of_annotations, "request: 2s", None),
        (
            "",
            &*format!("{request}: 4s"),
            "request: 1s, backendRequest: 2s",
            None,
        ),
        (&both, "", "", Some(&of_service)),
        (&longer, "", "request: 2s", Some(of_request)),
        (&longer, &format!("{request}: 2s"), "", Some(&annotation)),
        // Retries of the route replace the Service's.
        (&longer, "retry.linkerd.io/limit: '2'", "request: 2s", None),
        (&enough, "", "", None),
        (&longer, "", "", None),
    ] {
        let service = format!(
            "\napiVersion: v1\nkind: Service\nmetadata: {{name: api, namespace: shop, annotations: {{{service}}}}}\nspec: {{clusterIP: 10.96.0.2, ports: [{{port: 80}}]}}\n"
        );
        let route = format!(
            "\napiVersion: {GATEWAY}/v1\nkind: HTTPRoute\nmetadata: {{name: route, namespace: shop, annotations: {{{route}}}}}\nspec: {{parentRefs: [{{group: core, kind: Service, name: api, port: 80}}], rules: [{{timeouts: {{{timeouts}}}}}]}}\n"
        );
        let found = findings(&format!("{service}---{route}"));
        let lines = found.iter();
        let lines: Vec<_> = lines
            .map(|it| format!("{} {} {}", it.code, it.object(), it.field))
            .collect();
        let expect = expect.map(|expect| format!("timeout-order {expect}"));
        assert_eq!(lines, expect.as_slice(), "{service}{route}");
        let texts = found.iter().map(|it| format!("{}; {}", it.problem, it.fix));
        let text = "so an attempt that hangs is never repeated; shorten the limit of the attempt";
        assert!(texts.into_iter().all(|it| it.contains(text)), "{found:?}");
    }
}

/// The webhook denies it in one rule of Linkerd's kind.
#[test]
fn timeouts_that_are_denied_have_one_finding() {
    let spec = "{parentRefs: [{group: core, kind: Service, name: web, port: 80}], rules: [{timeouts: {request: 1s, backendRequest: 2s}}]}";
    let route = route("policy.linkerd.io", "HTTPRoute", spec);
    let found = analyze(&objects(&format!(
        "{SHOP}---{}",
        route.replace("/v1\n", "/v1beta3\n")
    )));
    let lines = found.iter().map(|it| (it.code, &*it.field));
    let field = "spec.rules[0].timeouts.backendRequest";
    assert_eq!(lines.collect::<Vec<_>>(), [("invalid", field)]);
}
