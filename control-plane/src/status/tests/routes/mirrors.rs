//! Filters that mirror requests, and their backends.

use super::*;

#[test]
fn mirror_is_accepted_for_clients_and_unsupported_for_servers() {
    let headers = "{type: RequestHeaderModifier, requestHeaderModifier: {remove: [a]}}";
    let rewrite = "{type: URLRewrite, urlRewrite: {hostname: a}}";
    let mirror = "{type: RequestMirror, requestMirror: {backendRef: {name: api, port: 80}}}";
    for (filters, unsupported) in [
        ([headers, mirror, rewrite], "filters[1].type: RequestMirror"),
        ([headers, rewrite, mirror], "filters[1].type: URLRewrite"),
        ([mirror, mirror, rewrite], "filters[0].type: RequestMirror"),
    ] {
        let spec = |parent: &str| {
            let filters = filters.join(", ");
            format!("{{parentRefs: [{{{parent}}}], rules: [{{}}, {{filters: [{filters}]}}]}}")
        };
        let service = spec("group: core, kind: Service, name: web");
        check(unsupported, &[("http", service)], BOTH);
        let server = spec("group: policy.linkerd.io, kind: Server, name: http2");
        let expect = format!(
            "not Accepted: UnsupportedValue: spec.rules[1].{unsupported} is not supported for Servers…"
        );
        check(unsupported, &[("http", server)], &expect);
    }
}

#[test]
fn backend_of_mirror_that_does_not_exist_is_reported() {
    let field = "spec.rules[0].filters[1].requestMirror.backendRef";
    for (reference, problem) in [
        (
            "name: gone, port: 80",
            "BackendNotFound: {}: there is no Service shop/gone",
        ),
        (
            "name: api",
            "BackendNotFound: {}: has no port; Service shop/api has 80",
        ),
        (
            "name: api, port: 81",
            "BackendNotFound: {}: Service shop/api has no port 81; it has 80",
        ),
        (
            "group: a.example, kind: Bucket, name: api, port: 80",
            "InvalidKind: {}: Bucket shop/api cannot be a backend; expected a Service",
        ),
    ] {
        for kind in ["http", "grpc"] {
            let headers = "{type: RequestHeaderModifier, requestHeaderModifier: {remove: [a]}}";
            let mirror =
                format!("{{type: RequestMirror, requestMirror: {{backendRef: {{{reference}}}}}}}");
            let spec = format!(
                "{{parentRefs: [{{group: core, kind: Service, name: web}}], rules: [{{filters: [{headers}, {mirror}]}}]}}"
            );
            let problem = problem.replace("{}", field);
            let expect = format!("Accepted, not ResolvedRefs: {problem}");
            check(reference, &[(kind, spec)], &expect);
        }
    }
}
