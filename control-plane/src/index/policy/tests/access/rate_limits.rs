//! HTTPLocalRateLimitPolicies.

use super::{DB, TO_SERVER, check, object, server, web};

fn limit(metadata: &str, spec: &str) -> String {
    let spec = format!("{{targetRef: {{{TO_SERVER}}}, {spec}}}");
    object("v1alpha1", "HTTPLocalRateLimitPolicy", metadata, &spec)
}

const ACCOUNTS: &str = "serviceaccount.identity.linkerd.cluster.local";
const LIMIT: &str = "rateLimit policy/HTTPLocalRateLimitPolicy shop/";

#[test]
fn limit_has_total_identity_and_overrides_of_service_accounts() {
    let objects = |spec: &str| web("") + &server("") + &limit("name: slow", spec);
    check(
        &objects("total: {requestsPerSecond: 100}"),
        &format!("{DB}{LIMIT}slow total=100"),
    );
    check(
        &objects("identity: {requestsPerSecond: 10}"),
        &format!("{DB}{LIMIT}slow identity=10"),
    );
    check(
        &objects(
            "total: {requestsPerSecond: 100}, identity: {requestsPerSecond: 10}, overrides: [\
             {requestsPerSecond: 20, clientRefs: [{kind: ServiceAccount, name: a}, {kind: ServiceAccount, name: b, namespace: other}]}, \
             {requestsPerSecond: 30, clientRefs: [{kind: ServiceAccount, name: c}]}]",
        ),
        &format!(
            "{DB}{LIMIT}slow identity=10 overrides=[identities=[a.shop.{ACCOUNTS}, b.other.{ACCOUNTS}] requestsPerSecond=20, \
             identities=[c.shop.{ACCOUNTS}] requestsPerSecond=30] total=100"
        ),
    );
}

#[test]
fn limit_applies_to_detected_http1_and_http2() {
    let slow = limit("name: slow", "total: {requestsPerSecond: 5}");
    let route = "routes default/default\nrule matches=[/*]\n";
    for (protocol, line) in [
        (
            "unknown",
            format!("detectTimeout=10s protocol=detect\n{route}{LIMIT}slow total=5"),
        ),
        (
            "HTTP/1",
            format!("protocol=HTTP/1\n{route}{LIMIT}slow total=5"),
        ),
        (
            "HTTP/2",
            format!("protocol=HTTP/2\n{route}{LIMIT}slow total=5"),
        ),
        (
            "gRPC",
            "protocol=gRPC\nroutes default/default\nrule matches=[*/*]".to_owned(),
        ),
        ("opaque", "protocol=opaque".to_owned()),
        ("TLS", "protocol=TLS".to_owned()),
    ] {
        let objects = web("") + &server(&format!("proxyProtocol: {protocol}")) + &slow;
        check(&objects, &format!("policy/server /db {line}"));
    }
}

#[test]
fn limit_needs_server_of_its_namespace() {
    let slow = limit("name: slow", "total: {requestsPerSecond: 5}");
    let other = slow.replace("name: db", "name: other");
    check(&(web("") + &server("") + &other), DB);
    let elsewhere = slow.replace("namespace: shop", "namespace: other");
    check(&(web("") + &server("") + &elsewhere), DB);
    let default = DB.replace("policy/server /db", "default/all-unauthenticated")
        + "authorizations default/all-unauthenticated authentication=none networks=[cidr=0.0.0.0/0, cidr=::/0]";
    check(&(web("") + &slow), &default);
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
        let expect = format!("{DB}{LIMIT}{expect} total=5");
        check(&(web("") + &server("") + &policies), &expect);
    }
}

/// On a node without Kubernetes no controller writes it.
#[test]
fn status_of_limit_is_not_needed() {
    let slow = limit("name: slow", "total: {requestsPerSecond: 5}");
    let expect = format!("{DB}{LIMIT}slow total=5");
    check(&(web("") + &server("") + &slow), &expect);
    let rejected =
        slow + "status: {conditions: [{type: Accepted, status: 'False', reason: a, message: b}]}\n";
    check(&(web("") + &server("") + &rejected), &expect);
}
