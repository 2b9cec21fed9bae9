//! Routes with a Server as parent.

use super::{DB, check, check_port, object, policy, server, web};

const PARENT: &str = "{group: policy.linkerd.io, kind: Server, name: db}";

fn route(group: &str, kind: &str, metadata: &str, parents: &str, rules: &str) -> String {
    format!(
        "---\napiVersion: {group}\nkind: {kind}\nmetadata: {{namespace: shop, {metadata}}}\n\
         spec: {{parentRefs: [{parents}], rules: [{rules}]}}\n"
    )
}

fn policy_route(rules: &str) -> String {
    route(
        "policy.linkerd.io/v1beta3",
        "HTTPRoute",
        "name: get",
        PARENT,
        rules,
    )
}

fn gateway_route(rules: &str) -> String {
    route(
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        "name: get",
        PARENT,
        rules,
    )
}

fn grpc_route(rules: &str) -> String {
    route(
        "gateway.networking.k8s.io/v1",
        "GRPCRoute",
        "name: get",
        PARENT,
        rules,
    )
}

const GET: &str = "{matches: [{method: GET, path: {value: /a}}]}";

/// The first lines of the message about `db` with another protocol.
fn db(protocol: &str) -> String {
    let timeout = if protocol == "detect" {
        "detectTimeout=10s "
    } else {
        ""
    };
    format!("policy/server /db {timeout}protocol={protocol}\n")
}

#[test]
fn routes_of_three_kinds_attach_to_servers_of_their_protocol() {
    let policy_get = "routes policy/HTTPRoute shop/get\nrule matches=[GET /a/*]";
    let gateway_get = "routes gateway/HTTPRoute shop/get\nrule matches=[GET /a/*]";
    let default = "routes default/default\nrule matches=[/*]";
    for (protocol, line) in [
        ("unknown", "detect"),
        ("HTTP/1", "HTTP/1"),
        ("HTTP/2", "HTTP/2"),
    ] {
        let server = web("") + &server(&format!("proxyProtocol: {protocol}"));
        check(
            &(server.clone() + &policy_route(GET)),
            &(db(line) + policy_get),
        );
        check(
            &(server.clone() + &gateway_route(GET)),
            &(db(line) + gateway_get),
        );
        check(&(server + &grpc_route("")), &(db(line) + default));
    }
    let server = |protocol: &str| web("") + &server(&format!("proxyProtocol: {protocol}"));
    let method = "{matches: [{method: {service: shop.Cart, method: Add}}]}";
    check(
        &(server("gRPC") + &grpc_route(method)),
        &(db("gRPC") + "routes gateway/GRPCRoute shop/get\nrule matches=[shop.Cart/Add]"),
    );
    // Without a GRPCRoute, HTTPRoutes apply to the requests of gRPC.
    check(
        &(server("gRPC") + &gateway_route(GET)),
        &(db("HTTP/2") + gateway_get),
    );
    check(
        &(server("gRPC") + &policy_route(GET)),
        &(db("HTTP/2") + policy_get),
    );
    check(
        &(server("gRPC")
            + &policy_route(GET).replace("name: get", "name: other")
            + &grpc_route(method)),
        &(db("gRPC") + "routes gateway/GRPCRoute shop/get\nrule matches=[shop.Cart/Add]"),
    );
    check(
        &server("gRPC"),
        &(db("gRPC") + "routes default/default\nrule matches=[*/*]"),
    );
    for protocol in ["opaque", "TLS"] {
        let objects = server(protocol) + &policy_route(GET) + &grpc_route(method);
        check(&objects, &db(protocol));
    }
}

#[test]
fn route_needs_parent_of_its_namespace_without_port_and_section() {
    let parents = |parents: &str| {
        let route = route(
            "policy.linkerd.io/v1beta3",
            "HTTPRoute",
            "name: get",
            parents,
            GET,
        );
        web("") + &server("") + &route
    };
    let attached = db("detect") + "routes policy/HTTPRoute shop/get\nrule matches=[GET /a/*]";
    check(&parents(PARENT), &attached);
    let service = "{group: core, kind: Service, name: web, port: 80}";
    check(&parents(&format!("{service}, {PARENT}")), &attached);
    for wrong in [
        PARENT.replace('}', ", port: 3306}"),
        PARENT.replace('}', ", sectionName: a}"),
        PARENT.replace('}', ", namespace: other}"),
        PARENT.replace("name: db", "name: other"),
        // One wrong Server invalidates the others.
        format!("{PARENT}, {}", PARENT.replace('}', ", port: 3306}")),
        format!("{PARENT}, {}", PARENT.replace('}', ", namespace: other}")),
    ] {
        check(&parents(&wrong), DB);
    }
}

#[test]
fn attached_route_replaces_default_and_probe_routes() {
    let server = server("").replace("port: 3306", "port: 8080");
    let probes = DB.to_owned()
        + "routes default/probe
           rule authorizations=[default/probe authentication=none networks=[cidr=0.0.0.0/0]] matches=[GET /live, GET /ready]";
    check_port(&(web("") + &server), 8080, &probes);
    let attached = db("detect") + "routes policy/HTTPRoute shop/get\nrule matches=[GET /a/*]";
    check_port(&(web("") + &server + &policy_route(GET)), 8080, &attached);
}

#[test]
fn routes_are_ordered_by_age_then_name_group_and_kind() {
    let at = |group: &str, name: &str, created: &str| {
        let created = match created {
            "" => String::new(),
            at => format!(", creationTimestamp: '2026-01-{at}T00:00:00Z'"),
        };
        let metadata = format!("name: {name}{created}");
        route(group, "HTTPRoute", &metadata, PARENT, GET)
    };
    let (linkerd, gateway) = ("policy.linkerd.io/v1beta3", "gateway.networking.k8s.io/v1");
    let objects = web("")
        + &server("")
        + &at(linkerd, "a", "")
        + &at(linkerd, "b", "02")
        + &at(gateway, "b", "02")
        + &at(gateway, "c", "01")
        + &at(linkerd, "d", "01");
    let expect = db("detect")
        + "routes gateway/HTTPRoute shop/c
           rule matches=[GET /a/*]
           routes policy/HTTPRoute shop/d
           rule matches=[GET /a/*]
           routes gateway/HTTPRoute shop/b
           rule matches=[GET /a/*]
           routes policy/HTTPRoute shop/b
           rule matches=[GET /a/*]
           routes policy/HTTPRoute shop/a
           rule matches=[GET /a/*]";
    check(&objects, &expect);
}

#[test]
fn route_has_authorizations_of_policies_for_it() {
    let authz = "policy/authorizationpolicy shop/allow authentication=none networks=[cidr=0.0.0.0/0, cidr=::/0]";
    let of_route = |group: &str, kind: &str| {
        let target = format!("group: {group}, kind: {kind}, name: get");
        web("") + &server("accessPolicy: deny") + &policy(&target, "")
    };
    let (linkerd, gateway) = ("policy.linkerd.io", "gateway.networking.k8s.io");
    let get = |group: &str| {
        db("detect") + &format!("routes {group}/HTTPRoute shop/get\nrule matches=[GET /a/*]\n")
    };
    let with =
        |group: &str| get(group).replace("rule ", &format!("rule authorizations=[{authz}] "));
    check(
        &(of_route(linkerd, "HTTPRoute") + &policy_route(GET)),
        &with("policy"),
    );
    check(
        &(of_route(gateway, "HTTPRoute") + &gateway_route(GET)),
        &with("gateway"),
    );
    // The routes of another group are others.
    check(
        &(of_route(gateway, "HTTPRoute") + &policy_route(GET)),
        &get("policy"),
    );
    check(
        &(of_route(gateway, "GRPCRoute") + &gateway_route(GET)),
        &get("gateway"),
    );
    let objects = of_route(gateway, "GRPCRoute") + &grpc_route("{}");
    let expect =
        db("gRPC") + &format!("routes gateway/GRPCRoute shop/get\nrule authorizations=[{authz}]");
    check(
        &objects.replace("accessPolicy: deny", "proxyProtocol: gRPC"),
        &expect,
    );
}

#[test]
fn server_has_no_authorization_of_its_routes_and_keeps_its_own() {
    let target = "group: policy.linkerd.io, kind: HTTPRoute, name: get";
    let objects = web("")
        + &server("accessPolicy: all-authenticated")
        + &policy_route(GET)
        + &policy(target, "{kind: ServiceAccount, name: web}");
    let expect = db("detect")
        + "routes policy/HTTPRoute shop/get
           rule authorizations=[policy/authorizationpolicy shop/allow authentication=mutual TLS identities=[web.shop.serviceaccount.identity.linkerd.cluster.local] networks=[cidr=0.0.0.0/0, cidr=::/0]] matches=[GET /a/*]
           authorizations default/all-authenticated authentication=mutual TLS identities=[*] networks=[cidr=0.0.0.0/0, cidr=::/0]";
    check(&objects, &expect);
}

#[test]
fn request_headers_and_redirects_are_kept_and_response_headers_are_not() {
    let headers = "{type: RequestHeaderModifier, requestHeaderModifier: {add: [{name: a, value: b}], set: [{name: c, value: d}], remove: [e]}}";
    let response = "{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [e]}}";
    let redirect = "{type: RequestRedirect, requestRedirect: {hostname: other.example, port: 8443, statusCode: 301}}";
    let rule = format!("{{matches: [{{}}], filters: [{headers}, {response}, {redirect}]}}");
    let modified = "requestHeaders=(add=[a: b] remove=[e] set=[c: d])";
    for (route, group) in [
        (policy_route(&rule), "policy"),
        (gateway_route(&rule), "gateway"),
    ] {
        let expect = db("detect")
            + &format!(
                "routes {group}/HTTPRoute shop/get
                 rule filters=[{modified}, redirect=(host=other.example port=8443 status=301)] matches=[/*]"
            );
        check(&(web("") + &server("") + &route), &expect);
    }
    let rule = format!("{{filters: [{headers}]}}");
    let expect =
        db("gRPC") + &format!("routes gateway/GRPCRoute shop/get\nrule filters=[{modified}]");
    check(
        &(web("") + &server("proxyProtocol: gRPC") + &grpc_route(&rule)),
        &expect,
    );
}

/// Without the filter the requests would be forwarded unchanged.
#[test]
fn rule_with_unsupported_filter_fails_its_requests() {
    let of_servers = |supported: &str| format!("for Servers, only {supported}");
    let http = of_servers("RequestHeaderModifier, RequestRedirect");
    let unknown = "here, only RequestHeaderModifier, ResponseHeaderModifier, RequestRedirect, URLRewrite, \
                   RequestMirror, CORS";
    for (kind, settings, supported) in [
        ("URLRewrite", "urlRewrite: {hostname: a}", &*http),
        (
            "URLRewrite",
            "urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /a}}",
            &http,
        ),
        (
            "RequestMirror",
            "requestMirror: {backendRef: {name: a, port: 80}}",
            &http,
        ),
        (
            "ExtensionRef",
            "extensionRef: {group: a, kind: B, name: c}",
            unknown,
        ),
    ] {
        let filter = format!("{{type: {kind}, {settings}}}");
        let rules = format!("{GET}, {{matches: [{{}}], filters: [{filter}]}}");
        let message =
            format!("filters[0].type: {kind} is not supported {supported}; remove the filter");
        let expect = db("detect")
            + &format!(
                "routes gateway/HTTPRoute shop/get
                 rule matches=[GET /a/*]
                 rule filters=[failure=(message={message} ratio=1/1 status=500)] matches=[/*]"
            );
        check(&(web("") + &server("") + &gateway_route(&rules)), &expect);
    }
    let filter = "{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [a]}}";
    let expect = db("gRPC")
        + &format!(
            "routes gateway/GRPCRoute shop/get
             rule filters=[failure=(code=13 message=filters[0].type: ResponseHeaderModifier is not supported {}; \
             remove the filter ratio=1/1)]",
            of_servers("RequestHeaderModifier")
        );
    let route = grpc_route(&format!("{{filters: [{filter}]}}"));
    check(
        &(web("") + &server("proxyProtocol: gRPC") + &route),
        &expect,
    );
}

/// Older versions have no status and no timeouts.
#[test]
fn status_of_route_is_not_needed() {
    for version in ["v1alpha1", "v1beta1", "v1beta2"] {
        let spec = format!("{{parentRefs: [{PARENT}], rules: [{GET}]}}");
        let objects = web("") + &server("") + &object(version, "HTTPRoute", "name: get", &spec);
        let expect = db("detect") + "routes policy/HTTPRoute shop/get\nrule matches=[GET /a/*]";
        check(&objects, &expect);
    }
}
