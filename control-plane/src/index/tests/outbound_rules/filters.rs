//! Filters and matches of rules.

use super::*;

/// Returns the lines of the routes of a kind with these rules.
fn routed(kind: &str, rules: &str) -> String {
    let objects = web() + &route(kind, "one", WEB, rules);
    rule_lines(&Cluster::new(&objects).watch("10.96.0.1:80", "shop"))
}

fn filtered(kind: &str, filter: &str) -> String {
    routed(kind, &format!("[{{filters: [{filter}]}}]"))
}

/// Returns the line of a rule without filters and with these matches.
fn matching(matches: &str) -> String {
    format!("rule {TO_WEB} headersOverride matches=[{matches}]")
}

#[test]
fn headers_of_requests_are_modified() {
    let filter = "{type: RequestHeaderModifier, requestHeaderModifier: \
                  {add: [{name: a, value: b}], set: [{name: c, value: d}], remove: [e]}}";
    for kind in ["HTTPRoute", "GRPCRoute"] {
        let expected = filtering("requestHeaders=(add=[a: b] remove=[e] set=[c: d])");
        assert_text(&filtered(kind, filter), &expected);
    }
}

#[test]
fn headers_of_responses_are_modified() {
    let filter = "{type: ResponseHeaderModifier, responseHeaderModifier: \
                  {add: [{name: a, value: b}], set: [{name: c, value: d}], remove: [e]}}";
    let expected = filtering("responseHeaders=(add=[a: b] remove=[e] set=[c: d])");
    assert_text(&filtered("HTTPRoute", filter), &expected);
}

#[test]
fn headers_of_responses_are_modified_by_routes_of_linkerd() {
    let rules = "[{filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: a, value: b}]}}]}]";
    let linkerd = route("HTTPRoute", "one", WEB, rules)
        .replace("gateway.networking.k8s.io/v1", "policy.linkerd.io/v1beta3");
    check(
        &(web() + &linkerd),
        "10.96.0.1:80",
        &format!(
            "core/Service shop/web:80 detectTimeout=10s protocol=detect
             tcpRoute default/opaq {TO_WEB}
             httpRoutes policy/HTTPRoute shop/one
             {}",
            filtering("responseHeaders=(set=[a: b])")
        ),
    );
}

#[test]
fn redirect_has_every_part() {
    let filter = "{type: RequestRedirect, requestRedirect: {scheme: https, hostname: b.example, port: 8443, \
                  path: {type: ReplaceFullPath, replaceFullPath: /b}, statusCode: 301}}";
    let expected = filtering("redirect=(host=b.example path=/b port=8443 scheme=https status=301)");
    assert_text(&filtered("HTTPRoute", filter), &expected);
}

#[test]
fn redirect_without_parts_has_default_status() {
    let filter = "{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /b}}}";
    let expected = filtering("redirect=(prefix=/b status=302)");
    assert_text(&filtered("HTTPRoute", filter), &expected);
}

/// A proxy that does not know the extension fails the requests of the rule.
#[test]
fn url_is_rewritten_by_the_extension_and_no_other_rule_fails() {
    let headers =
        "{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}]}}";
    let full = "path: {type: ReplaceFullPath, replaceFullPath: /b}";
    let prefix = "path: {type: ReplacePrefixMatch, replacePrefixMatch: /c}";
    let empty = "path: {type: ReplacePrefixMatch, replacePrefixMatch: ''}";
    for (rewrite, expected) in [
        ("hostname: b.example".to_owned(), "host=b.example"),
        (full.to_owned(), "path=/b"),
        (
            format!("hostname: b.example, {prefix}"),
            "host=b.example prefix=/c",
        ),
        (empty.to_owned(), "prefix="),
        (String::new(), ""),
    ] {
        let rewrite = format!("{{type: URLRewrite, urlRewrite: {{{rewrite}}}}}");
        let rules = format!(
            "[{{matches: [{{path: {{value: /b}}}}]}}, {{filters: [{headers}, {rewrite}]}}]"
        );
        let other = matching("/b/*");
        let expected = format!("requestHeaders=(set=[a: b]), urlRewrite=({expected})");
        let failing = unsupported("HTTPRoute", "URLRewrite").replace("[0]", "[1]");
        let expected = format!(
            "{other}\n{}\nwithout extension\n{other}\n{}",
            filtering(&expected),
            filtering(&failing)
        );
        assert_text(&routed("HTTPRoute", &rules), &expected);
    }
}

#[test]
fn url_is_rewritten_by_routes_of_networks() {
    let rules = "[{filters: [{type: URLRewrite, urlRewrite: {hostname: b.example}}]}]";
    let objects = network("shop", "outside", "Allow", "203.0.113.0/24", "")
        + &route("HTTPRoute", "one", OUTSIDE, rules);
    let text = message(&Cluster::new(&objects).watch("203.0.113.1:443", "shop"));
    let (extended, _) = text.split_once("without extension").unwrap();
    assert!(
        extended.contains("filters=[urlRewrite=(host=b.example)]"),
        "{text}"
    );
}

/// The API has no such filters for backends, or for gRPC routes.
#[test]
fn filters_of_backends_and_of_grpc_routes_are_in_the_extension() {
    let rewrite = "{type: URLRewrite, urlRewrite: {hostname: b.example}}";
    let response = "{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [a]}}";
    let http_failure = unsupported("HTTPRoute", "URLRewrite");
    let grpc_failure = unsupported("GRPCRoute", "ResponseHeaderModifier");
    let (http, grpc) = (
        "urlRewrite=(host=b.example)",
        "responseHeaders=(remove=[a])",
    );
    for (kind, filter, failure, expected) in [
        ("HTTPRoute", rewrite, &http_failure, http),
        ("GRPCRoute", response, &grpc_failure, grpc),
    ] {
        let rules = format!(
            "[{{backendRefs: [{{name: web, port: 80}}, {{name: web, port: 80, filters: [{filter}]}}]}}]"
        );
        let web = "core/Service shop/web:80 balances";
        let rule = |filter: &str| {
            format!(
                "rule backends=[{web} weight=1, {web} filters=[{filter}] weight=1] headersOverride"
            )
        };
        let expected = format!("{}\nwithout extension\n{}", rule(expected), rule(failure));
        assert_text(&routed(kind, &rules), &expected);
    }
    let expected = extended(grpc, &grpc_failure);
    assert_text(&filtered("GRPCRoute", response), &expected);
}

#[test]
fn origins_are_shared_by_the_extension() {
    for (settings, expected) in [
        ("{allowOrigins: ['*']}", "allowOrigins=[*] maxAge=5"),
        (
            "{allowOrigins: ['https://a.example', 'https://*.b.example'], allowMethods: [GET, PUT], \
             allowHeaders: [x-a], exposeHeaders: [x-b, x-c], allowCredentials: true, maxAge: 60}",
            "allowCredentials allowHeaders=[x-a] allowMethods=[GET, PUT] \
             allowOrigins=[https://a.example, https://*.b.example] exposeHeaders=[x-b, x-c] maxAge=60",
        ),
    ] {
        let filter = format!("{{type: CORS, cors: {settings}}}");
        let failure = unsupported("HTTPRoute", "CORS");
        let expected = extended(&format!("cors=({expected})"), &failure);
        assert_text(&filtered("HTTPRoute", &filter), &expected);
    }
}

const FAULT: &str =
    "{type: ExtensionRef, extensionRef: {group: fault.linkerd.io, kind: Fault, name: it}}";

/// Returns the lines of the routes with these rules and with a fault.
fn faulty(kind: &str, fault: &str, rules: &str) -> String {
    let described = format!("metadata: {{annotations: {{fault.linkerd.io/it: '{fault}'}}, ");
    let route = route(kind, "one", WEB, rules).replace("metadata: {", &described);
    rule_lines(&Cluster::new(&(web() + &route)).watch("10.96.0.1:80", "shop"))
}

/// The API has messages for both.
#[test]
fn faults_of_rules_and_backends_abort_requests() {
    let headers = "{type: RequestHeaderModifier, requestHeaderModifier: {remove: [a]}}";
    let rules =
        format!("[{{filters: [{headers}, {FAULT}]}}, {{matches: [{{path: {{value: /b}}}}]}}]");
    let failure = "failure=(message=fault it ratio=5000/1000000 status=503)";
    let aborting = filtering(&format!("requestHeaders=(remove=[a]), {failure}"));
    let expected = format!("{aborting}\n{}", matching("/b/*"));
    assert_text(
        &faulty("HTTPRoute", "abort=503, percent=0.5", &rules),
        &expected,
    );
    let rules = format!("[{{filters: [{FAULT}]}}]");
    let expected = filtering("failure=(code=14 message=fault it ratio=1/1)");
    assert_text(&faulty("GRPCRoute", "abort=unavailable", &rules), &expected);
    let rules = format!("[{{backendRefs: [{{name: web, port: 80, filters: [{FAULT}]}}]}}]");
    let text = faulty("HTTPRoute", "abort=429", &rules);
    let failure = "filters=[failure=(message=fault it ratio=1/1 status=429)] weight=1";
    assert!(text.contains(failure), "{text}");
}

#[test]
fn filters_inject_the_faults_that_they_name() {
    let other = FAULT.replace("name: it", "name: another");
    let rules = format!("[{{filters: [{FAULT}, {other}]}}]");
    let faults = "abort=503', fault.linkerd.io/another: 'abort=429, percent=10";
    let failures = "failure=(message=fault it ratio=1/1 status=503), failure=(message=fault another ratio=100000/1000000 status=429)";
    assert_text(&faulty("HTTPRoute", faults, &rules), &filtering(failures));
}

/// A proxy that does not know the extension forwards requests without the delay.
#[test]
fn faults_of_rules_and_backends_delay_requests_by_the_extension() {
    let headers = "{type: RequestHeaderModifier, requestHeaderModifier: {remove: [a]}}";
    for kind in ["HTTPRoute", "GRPCRoute"] {
        let rules = format!("[{{filters: [{FAULT}, {headers}]}}]");
        let headers = "requestHeaders=(remove=[a])";
        let delaying = format!("delay=(duration=1.5s ratio=100000/1000000), {headers}");
        let expected = extended(&delaying, headers);
        assert_text(&faulty(kind, "delay=1500ms, percent=10", &rules), &expected);
        let rules = format!("[{{backendRefs: [{{name: web, port: 80, filters: [{FAULT}]}}]}}]");
        let text = faulty(kind, "delay=1s", &rules);
        let backend = "core/Service shop/web:80 balances";
        let rule =
            |filters: &str| format!("rule backends=[{backend}{filters} weight=1] headersOverride");
        let delaying = rule(" filters=[delay=(duration=1s ratio=1/1)]");
        let expected = format!("{delaying}\nwithout extension\n{}", rule(""));
        assert_text(&text, &expected);
    }
}

#[test]
fn unsupported_filter_fails_its_rule_and_no_other() {
    let headers = "{type: RequestHeaderModifier, requestHeaderModifier: {remove: [a]}}";
    let extension = "{type: ExtensionRef, extensionRef: {group: a, kind: b, name: c}}";
    let rules =
        format!("[{{filters: [{headers}, {extension}]}}, {{matches: [{{path: {{value: /b}}}}]}}]");
    let failing = filtering(
        "failure=(message=filters[1].type: ExtensionRef is not supported here, only RequestHeaderModifier, \
         ResponseHeaderModifier, RequestRedirect, URLRewrite, RequestMirror, CORS; remove the filter ratio=1/1 status=500)",
    );
    let expected = format!("{failing}\n{}", matching("/b/*"));
    assert_text(&routed("HTTPRoute", &rules), &expected);
}

#[test]
fn unsupported_filter_of_grpc_route_fails_its_rule() {
    let filter = "{type: ExtensionRef, extensionRef: {group: a, kind: b, name: c}}";
    let expected = filtering(
        "failure=(code=13 message=filters[0].type: ExtensionRef is not supported here, only RequestHeaderModifier, \
         ResponseHeaderModifier, RequestMirror; remove the filter ratio=1/1)",
    );
    assert_text(&filtered("GRPCRoute", filter), &expected);
}

#[test]
fn hosts_are_exact_or_suffixes() {
    let named = route("HTTPRoute", "one", WEB, "[{}]")
        .replace("spec:", "spec:\n  hostnames: [a.example, '*.b.example']");
    let text = message(&Cluster::new(&(web() + &named)).watch("10.96.0.1:80", "shop"));
    assert!(
        text.contains("HTTPRoute shop/one hosts=[a.example, *.b.example]\n"),
        "{text}"
    );
}

#[test]
fn paths_are_prefixes_by_default() {
    let rules = "[{matches: [{}, {path: {value: /a}}, {path: {type: Exact, value: /b}}, \
                 {path: {type: RegularExpression, value: '/c+'}}]}]";
    let expected = matching("/*, /a/*, /b, ~/c+");
    assert_text(&routed("HTTPRoute", rules), &expected);
}

#[test]
fn headers_queries_and_methods_are_matched() {
    let rules = "[{matches: [{method: POST, headers: [{name: a, value: '1'}, {name: b, type: RegularExpression, \
                 value: '2.*'}], queryParams: [{name: q, value: '3'}, {name: r, type: RegularExpression, value: '4+'}]}]}]";
    let expected = matching("POST /* a=1 b~2.* ?q=3 ?r~4+");
    assert_text(&routed("HTTPRoute", rules), &expected);
}

#[test]
fn grpc_methods_are_matched_exactly() {
    let rules = "[{matches: [{method: {service: pkg.Svc, method: Get}}, {method: {service: pkg.Svc}}, \
                 {method: {method: Get}}, {headers: [{name: a, value: '1'}]}]}]";
    let expected = matching("pkg.Svc/Get, pkg.Svc/*, */Get, */* a=1");
    assert_text(&routed("GRPCRoute", rules), &expected);
}

#[test]
fn rule_without_matches_has_empty_list() {
    for kind in ["HTTPRoute", "GRPCRoute"] {
        assert_text(
            &routed(kind, "[{}]"),
            &format!("rule {TO_WEB} headersOverride"),
        );
    }
}
