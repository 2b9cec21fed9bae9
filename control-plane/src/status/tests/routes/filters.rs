//! The status of routes with filters, by the proxies that apply them.

use super::*;

#[test]
fn what_the_mesh_cannot_apply_is_an_unsupported_value() {
    let http = |rule: &str| {
        format!("{{parentRefs: [{{group: core, kind: Service, name: web}}], rules: [{rule}]}}")
    };
    for (kind, rule, field) in [
        (
            "http",
            "{filters: [{type: ExtensionRef, extensionRef: {group: a, kind: B, name: c}}]}",
            "spec.rules[0].filters[0]",
        ),
        (
            "http",
            "{filters: [{type: RequestMirror, requestMirror: {percent: 101, backendRef: {name: api, port: 80}}}]}",
            "spec.rules[0].filters[0].requestMirror.percent: 101 of 100 is not a share of the requests",
        ),
        (
            "http",
            "{filters: [{type: URLRewrite, urlRewrite: {hostname: 'a:80'}}]}",
            "spec.rules[0].filters[0].urlRewrite.hostname: \"a:80\" is not a host name in lower case without port",
        ),
        (
            "grpc",
            "{filters: [{type: ExtensionRef, extensionRef: {group: a, kind: B, name: c}}]}",
            "spec.rules[0].filters[0]",
        ),
        (
            "http",
            "{filters: [{type: ExtensionRef, extensionRef: {group: fault.linkerd.io, kind: Fault, name: c}}]}",
            "spec.rules[0].filters[0].extensionRef.name: is \"c\", but the route has no annotation fault.linkerd.io/c; add it",
        ),
        (
            "grpc",
            "{matches: [{method: {type: RegularExpression, service: a}}]}",
            "spec.rules[0].matches[0].method.type",
        ),
        (
            "http",
            "{matches: [{path: {type: RegularExpression, value: '('}}]}",
            "spec.rules[0].matches[0].path.value",
        ),
        (
            "policy",
            "{matches: [{path: {type: Exact, value: a}}]}",
            "spec.rules[0].matches[0].path.value",
        ),
    ] {
        let expect = format!("not Accepted: UnsupportedValue: {field}…");
        check(rule, &[(kind, http(rule))], &expect);
    }
    check(
        "a missing parent comes first",
        &[(
            "http",
            http("{filters: [{type: URLRewrite, urlRewrite: {}}]}").replace("web", "gone"),
        )],
        "not Accepted: NoMatchingParent: there is no Service shop/gone…",
    );
}

#[test]
fn filter_that_proxies_of_a_server_leave_out_is_noted() {
    let filter = "{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [a]}}";
    for (parent, expect) in [
        ("group: core, kind: Service, name: web", BOTH),
        (
            "group: policy.linkerd.io, kind: Server, name: http2",
            "Accepted (spec.rules[1].filters[0]: proxies of a Server do not change response headers)",
        ),
    ] {
        let spec =
            format!("{{parentRefs: [{{{parent}}}], rules: [{{}}, {{filters: [{filter}]}}]}}");
        check(parent, &[("http", spec)], expect);
    }
}

#[test]
fn delay_is_noted_for_clients_and_unsupported_for_servers() {
    let fault =
        "{type: ExtensionRef, extensionRef: {group: fault.linkerd.io, kind: Fault, name: it}}";
    for (parent, rule, expect) in [
        (
            "group: core, kind: Service, name: web",
            format!("{{filters: [{fault}]}}"),
            "Accepted (spec.rules[1].filters[0]: Linkerd's proxies do not delay requests), ResolvedRefs",
        ),
        (
            "group: core, kind: Service, name: web",
            format!("{{backendRefs: [{{name: api, port: 80, filters: [{fault}]}}]}}"),
            "Accepted (spec.rules[1].backendRefs[0].filters[0]: Linkerd's proxies do not delay requests), ResolvedRefs",
        ),
        (
            "group: policy.linkerd.io, kind: Server, name: http2",
            format!("{{filters: [{fault}]}}"),
            "not Accepted: UnsupportedValue: spec.rules[1].filters[0].type: ExtensionRef to a delay is not supported for Servers…",
        ),
    ] {
        let spec = format!("{{parentRefs: [{{{parent}}}], rules: [{{}}, {rule}]}}");
        let text = route("http", &spec).replace(
            "generation: 3",
            "generation: 3, annotations: {fault.linkerd.io/it: delay=1s}",
        );
        check_text(parent, &text, "http", expect);
    }
}

#[test]
fn rewritten_url_is_accepted_for_clients_and_unsupported_for_servers() {
    let rules = "[{}, {filters: [{type: URLRewrite, urlRewrite: {hostname: a}}]}]";
    for (parent, expect) in [
        (
            "group: core, kind: Service, name: web",
            "Accepted, ResolvedRefs",
        ),
        (
            "group: policy.linkerd.io, kind: Server, name: http2",
            "not Accepted: UnsupportedValue: spec.rules[1].filters[0].type: URLRewrite is not supported for Servers…",
        ),
    ] {
        let spec = format!("{{parentRefs: [{{{parent}}}], rules: {rules}}}");
        check(parent, &[("http", spec)], expect);
    }
}

#[test]
fn filter_of_backend_that_cannot_be_applied_fails_the_backend_only() {
    let spec = "{parentRefs: [{group: core, kind: Service, name: web}], rules: [{backendRefs: [{name: api, port: 80, filters: [FILTER]}]}]}";
    let with = |filter| [("http", spec.replace("FILTER", filter))];
    check(
        "a filter that the extension carries",
        &with("{type: URLRewrite, urlRewrite: {hostname: a}}"),
        "Accepted, ResolvedRefs",
    );
    check(
        "a filter of a backend",
        &with("{type: ExtensionRef, extensionRef: {group: a, kind: B, name: c}}"),
        "Accepted, not ResolvedRefs: UnsupportedValue: spec.rules[0].backendRefs[0]: unsupported backend filter…",
    );
}
