//! Filters and matches of rules.

use super::*;

/// Returns the lines of the routes of a kind with these rules.
fn routed(kind: &str, rules: &str) -> String {
    let text = message(
        &Cluster::new(&(web() + &route(kind, "one", WEB, rules))).watch("10.96.0.1:80", "shop"),
    );
    let lines = text.lines().filter(|line| line.starts_with("  "));
    lines.collect::<Vec<_>>().join("\n")
}

fn filtered(kind: &str, filter: &str) -> String {
    routed(kind, &format!("[{{filters: [{filter}]}}]"))
}

const TO_WEB: &str = "l5d -> core/Service shop/web:80";

#[test]
fn headers_of_requests_are_modified() {
    let filter = "{type: RequestHeaderModifier, requestHeaderModifier: \
                  {add: [{name: a, value: b}], set: [{name: c, value: d}], remove: [e]}}";
    for kind in ["HTTPRoute", "GRPCRoute"] {
        let expected = format!("[] request(+a:b =c:d -e) {TO_WEB}");
        assert_text(&filtered(kind, filter), &expected);
    }
}

#[test]
fn headers_of_responses_are_modified() {
    let filter = "{type: ResponseHeaderModifier, responseHeaderModifier: \
                  {add: [{name: a, value: b}], set: [{name: c, value: d}], remove: [e]}}";
    let expected = format!("[] response(+a:b =c:d -e) {TO_WEB}");
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
            "core/Service shop/web:80 detect 10000ms
             opaque default/opaq -> core/Service shop/web:80
             http policy/HTTPRoute shop/one
               [] response(=a:b) {TO_WEB}"
        ),
    );
}

#[test]
fn redirect_has_every_part() {
    let filter = "{type: RequestRedirect, requestRedirect: {scheme: https, hostname: b.example, port: 8443, \
                  path: {type: ReplaceFullPath, replaceFullPath: /b}, statusCode: 301}}";
    let expected = format!("[] redirect(301 HTTPS//b.example:8443 =/b) {TO_WEB}");
    assert_text(&filtered("HTTPRoute", filter), &expected);
}

#[test]
fn redirect_without_parts_has_default_status() {
    let filter = "{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /b}}}";
    let expected = format!("[] redirect(302 //:0 */b) {TO_WEB}");
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
        ("hostname: b.example".to_owned(), "rewrite(b.example)"),
        (full.to_owned(), "rewrite( =/b)"),
        (
            format!("hostname: b.example, {prefix}"),
            "rewrite(b.example */c)",
        ),
        (empty.to_owned(), "rewrite( *)"),
        (String::new(), "rewrite()"),
    ] {
        let rewrite = format!("{{type: URLRewrite, urlRewrite: {{{rewrite}}}}}");
        let rules = format!(
            "[{{matches: [{{path: {{value: /b}}}}]}}, {{filters: [{headers}, {rewrite}]}}]"
        );
        let expected = format!(
            "[/b*] {TO_WEB}
             [] fail(500 filters[1].type: URLRewrite is not supported by this proxy) {TO_WEB}
             extended 0.1 request {expected}"
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
    assert!(
        text.ends_with("  extended 0.0 rewrite(b.example)\n"),
        "{text}"
    );
}

/// The API has no such filters for backends, or for gRPC routes.
#[test]
fn filters_of_backends_and_of_grpc_routes_are_in_the_extension() {
    let rewrite = "{type: URLRewrite, urlRewrite: {hostname: b.example}}";
    let response = "{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [a]}}";
    for (kind, filter, failure, expected) in [
        (
            "HTTPRoute",
            rewrite,
            "500 filters[0].type: URLRewrite",
            "rewrite(b.example)",
        ),
        (
            "GRPCRoute",
            response,
            "13 filters[0].type: ResponseHeaderModifier",
            "response",
        ),
    ] {
        let rules = format!(
            "[{{backendRefs: [{{name: web, port: 80}}, {{name: web, port: 80, filters: [{filter}]}}]}}]"
        );
        let text = routed(kind, &rules);
        let sent = format!(" fail({failure} is not supported by this proxy)");
        assert!(text.contains(&sent), "{text}");
        let extended = format!("  extended 0.0.1 {expected}");
        assert!(text.ends_with(&extended), "{text}");
    }
    let text = routed("GRPCRoute", &format!("[{{filters: [{response}]}}]"));
    assert!(text.ends_with("  extended 0.0 response"), "{text}");
}

#[test]
fn origins_are_shared_by_the_extension() {
    for (settings, expected) in [
        ("{allowOrigins: ['*']}", "cors(*    5s)"),
        (
            "{allowOrigins: ['https://a.example', 'https://*.b.example'], allowMethods: [GET, PUT], \
             allowHeaders: [x-a], exposeHeaders: [x-b, x-c], allowCredentials: true, maxAge: 60}",
            "cors(https://a.example,https://*.b.example GET,PUT x-a x-b,x-c 60s credentials)",
        ),
    ] {
        let rules = format!("[{{filters: [{{type: CORS, cors: {settings}}}]}}]");
        let text = routed("HTTPRoute", &rules);
        let standard = "[] fail(500 filters[0].type: CORS is not supported by this proxy)";
        assert!(text.contains(standard), "{text}");
        assert!(
            text.ends_with(&format!("  extended 0.0 {expected}")),
            "{text}"
        );
    }
}

const FAULT: &str =
    "{type: ExtensionRef, extensionRef: {group: fault.linkerd.io, kind: Fault, name: it}}";

/// Returns the lines of the routes with these rules and with a fault.
fn faulty(kind: &str, fault: &str, rules: &str) -> String {
    let described = format!("metadata: {{annotations: {{fault.linkerd.io/it: '{fault}'}}, ");
    let route = route(kind, "one", WEB, rules).replace("metadata: {", &described);
    let text = message(&Cluster::new(&(web() + &route)).watch("10.96.0.1:80", "shop"));
    let lines = text.lines().filter(|line| line.starts_with("  "));
    lines.collect::<Vec<_>>().join("\n")
}

/// The API has messages for both.
#[test]
fn faults_of_rules_and_backends_abort_requests() {
    let headers = "{type: RequestHeaderModifier, requestHeaderModifier: {remove: [a]}}";
    let rules =
        format!("[{{filters: [{headers}, {FAULT}]}}, {{matches: [{{path: {{value: /b}}}}]}}]");
    let expected = format!(
        "[] request(-a) fail(503 fault it 5000/1000000) {TO_WEB}
         [/b*] {TO_WEB}"
    );
    assert_text(
        &faulty("HTTPRoute", "abort=503, percent=0.5", &rules),
        &expected,
    );
    let rules = format!("[{{filters: [{FAULT}]}}]");
    let expected = format!("[] fail(14 fault it) {TO_WEB}");
    assert_text(&faulty("GRPCRoute", "abort=unavailable", &rules), &expected);
    let rules = format!("[{{backendRefs: [{{name: web, port: 80, filters: [{FAULT}]}}]}}]");
    let text = faulty("HTTPRoute", "abort=429", &rules);
    assert!(text.contains("fail(429 fault it)"), "{text}");
}

/// A proxy that does not know the extension forwards requests without the delay.
#[test]
fn faults_of_rules_and_backends_delay_requests_by_the_extension() {
    let headers = "{type: RequestHeaderModifier, requestHeaderModifier: {remove: [a]}}";
    for kind in ["HTTPRoute", "GRPCRoute"] {
        let rules = format!("[{{filters: [{FAULT}, {headers}]}}]");
        let expected = format!(
            "[] request(-a) {TO_WEB}
             extended 0.0 delay(1.5s 100000/1000000) request"
        );
        assert_text(&faulty(kind, "delay=1500ms, percent=10", &rules), &expected);
        let rules = format!("[{{backendRefs: [{{name: web, port: 80, filters: [{FAULT}]}}]}}]");
        let text = faulty(kind, "delay=1s", &rules);
        assert!(!text.contains("fail("), "{text}");
        assert!(text.ends_with("  extended 0.0.0 delay(1s 1/1)"), "{text}");
    }
}

#[test]
fn unsupported_filter_fails_its_rule_and_no_other() {
    let headers = "{type: RequestHeaderModifier, requestHeaderModifier: {remove: [a]}}";
    let extension = "{type: ExtensionRef, extensionRef: {group: a, kind: b, name: c}}";
    let rules =
        format!("[{{filters: [{headers}, {extension}]}}, {{matches: [{{path: {{value: /b}}}}]}}]");
    let expected = format!(
        "[] fail(500 filters[1].type: ExtensionRef is not supported here, only RequestHeaderModifier, \
         ResponseHeaderModifier, RequestRedirect, URLRewrite, RequestMirror, CORS; remove the filter) {TO_WEB}
         [/b*] {TO_WEB}"
    );
    assert_text(&routed("HTTPRoute", &rules), &expected);
}

#[test]
fn unsupported_filter_of_grpc_route_fails_its_rule() {
    let filter = "{type: ExtensionRef, extensionRef: {group: a, kind: b, name: c}}";
    let expected = format!(
        "[] fail(13 filters[0].type: ExtensionRef is not supported here, only RequestHeaderModifier, \
         ResponseHeaderModifier, RequestMirror; remove the filter) {TO_WEB}"
    );
    assert_text(&filtered("GRPCRoute", filter), &expected);
}

#[test]
fn hosts_are_exact_or_suffixes() {
    let named = route("HTTPRoute", "one", WEB, "[{}]")
        .replace("spec:", "spec:\n  hostnames: [a.example, '*.b.example']");
    let text = message(&Cluster::new(&(web() + &named)).watch("10.96.0.1:80", "shop"));
    assert!(
        text.contains("HTTPRoute shop/one a.example ^example.b\n"),
        "{text}"
    );
}

#[test]
fn paths_are_prefixes_by_default() {
    let rules = "[{matches: [{}, {path: {value: /a}}, {path: {type: Exact, value: /b}}, \
                 {path: {type: RegularExpression, value: '/c+'}}]}]";
    let expected = format!("[/* | /a* | /b | ~/c+] {TO_WEB}");
    assert_text(&routed("HTTPRoute", rules), &expected);
}

#[test]
fn headers_queries_and_methods_are_matched() {
    let rules = "[{matches: [{method: POST, headers: [{name: a, value: '1'}, {name: b, type: RegularExpression, \
                 value: '2.*'}], queryParams: [{name: q, value: '3'}, {name: r, type: RegularExpression, value: '4+'}]}]}]";
    let expected = format!("[/* a=1 b~2.* ?q=3 ?r~4+ POST] {TO_WEB}");
    assert_text(&routed("HTTPRoute", rules), &expected);
}

#[test]
fn grpc_methods_are_matched_exactly() {
    let rules = "[{matches: [{method: {service: pkg.Svc, method: Get}}, {method: {service: pkg.Svc}}, \
                 {method: {method: Get}}, {headers: [{name: a, value: '1'}]}]}]";
    let expected = format!("[pkg.Svc/Get | pkg.Svc/ | /Get | / a=1] {TO_WEB}");
    assert_text(&routed("GRPCRoute", rules), &expected);
}

#[test]
fn rule_without_matches_has_empty_list() {
    for kind in ["HTTPRoute", "GRPCRoute"] {
        assert_text(&routed(kind, "[{}]"), &format!("[] {TO_WEB}"));
    }
}
