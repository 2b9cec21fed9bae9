//! HTTPLocalRateLimitPolicies.

use super::{DB, TO_SERVER, check, object, server, web};

fn limit(metadata: &str, spec: &str) -> String {
    let spec = format!("{{targetRef: {{{TO_SERVER}}}, {spec}}}");
    object("v1alpha1", "HTTPLocalRateLimitPolicy", metadata, &spec)
}

const LIMIT: &str = "limit HTTPLocalRateLimitPolicy.policy.linkerd.io shop/";

#[test]
fn limit_has_total_identity_and_overrides_of_service_accounts() {
    let objects = |spec: &str| web("") + &server("") + &limit("name: slow", spec);
    check(
        &objects("total: {requestsPerSecond: 100}"),
        &format!("{DB}{LIMIT}slow total=100 identity=0"),
    );
    check(
        &objects("identity: {requestsPerSecond: 10}"),
        &format!("{DB}{LIMIT}slow total=0 identity=10"),
    );
    check(
        &objects(
            "total: {requestsPerSecond: 100}, identity: {requestsPerSecond: 10}, overrides: [\
             {requestsPerSecond: 20, clientRefs: [{kind: ServiceAccount, name: a}, {kind: ServiceAccount, name: b, namespace: other}]}, \
             {requestsPerSecond: 30, clientRefs: [{kind: ServiceAccount, name: c}]}]",
        ),
        &format!(
            "{DB}{LIMIT}slow total=100 identity=10
             override 20 for a.shop.serviceaccount.identity.linkerd.cluster.local, b.other.serviceaccount.identity.linkerd.cluster.local
             override 30 for c.shop.serviceaccount.identity.linkerd.cluster.local"
        ),
    );
}

#[test]
fn limit_applies_to_detected_http1_and_http2() {
    let slow = limit("name: slow", "total: {requestsPerSecond: 5}");
    let route = "route default/default\nrule prefix:/\n";
    for (protocol, line) in [
        (
            "unknown",
            format!("detect 10 s\n{route}{LIMIT}slow total=5 identity=0"),
        ),
        (
            "HTTP/1",
            format!("http1\n{route}{LIMIT}slow total=5 identity=0"),
        ),
        (
            "HTTP/2",
            format!("http2\n{route}{LIMIT}slow total=5 identity=0"),
        ),
        ("gRPC", "grpc\nroute default/default\nrule /".to_owned()),
        ("opaque", "opaque".to_owned()),
        ("TLS", "tls".to_owned()),
    ] {
        let objects = web("") + &server(&format!("proxyProtocol: {protocol}")) + &slow;
        check(
            &objects,
            &format!("server server.policy.linkerd.io db\n{line}"),
        );
    }
}

#[test]
fn limit_needs_server_of_its_namespace() {
    let slow = limit("name: slow", "total: {requestsPerSecond: 5}");
    let other = slow.replace("name: db", "name: other");
    check(&(web("") + &server("") + &other), DB);
    let elsewhere = slow.replace("namespace: shop", "namespace: other");
    check(&(web("") + &server("") + &elsewhere), DB);
    let default = "server default/all-unauthenticated\n".to_owned()
        + &lines_after_first(DB)
        + "authz default/all-unauthenticated from 0.0.0.0/0, ::/0: unauthenticated";
    check(&(web("") + &slow), &default);
}

fn lines_after_first(text: &str) -> String {
    let rest: Vec<&str> = text.trim().lines().skip(1).collect();
    rest.join("\n") + "\n"
}

#[test]
fn oldest_limit_applies_then_first_by_name() {
    let at = |name: &str, created: &str| {
        let created = match created {
            "" => String::new(),
            at => format!(", creationTimestamp: '2026-01-{at}T00:00:00Z'"),
        };
        limit(
            &format!("name: {name}{created}"),
            "total: {requestsPerSecond: 5}",
        )
    };
    for (policies, expect) in [
        ([("a", "02"), ("b", "01")], "b"),
        ([("b", "01"), ("a", "01")], "a"),
        ([("a", ""), ("b", "01")], "b"),
        ([("b", ""), ("a", "")], "a"),
    ] {
        let policies: String = policies
            .iter()
            .map(|(name, created)| at(name, created))
            .collect();
        let expect = format!("{DB}{LIMIT}{expect} total=5 identity=0");
        check(&(web("") + &server("") + &policies), &expect);
    }
}

/// On a node without Kubernetes no controller writes it.
#[test]
fn status_of_limit_is_not_needed() {
    let slow = limit("name: slow", "total: {requestsPerSecond: 5}");
    let expect = format!("{DB}{LIMIT}slow total=5 identity=0");
    check(&(web("") + &server("") + &slow), &expect);
    let rejected =
        slow + "status: {conditions: [{type: Accepted, status: 'False', reason: a, message: b}]}\n";
    check(&(web("") + &server("") + &rejected), &expect);
}
