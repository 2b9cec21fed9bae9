//! Tables of facts with one difference each from a request that the mesh admits.

mod fixture;
mod unit;

use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use mesh_core::meta::{Meta, Resource};
use mesh_core::policy::inbound::{
    Authentication, Authorization, Network, RateLimit, ServerProtocol,
};
use mesh_core::ports::PortSet;
use mesh_core::profile::WeightedAuthority;
use mesh_core::redirection::Hook;
use mesh_core::route::http::PathMatch;

use self::fixture::*;
use super::super::facts::*;
use super::*;

fn step<'a>(report: &'a Report, name: &str) -> &'a Step {
    let mut steps = report.steps.iter();
    steps.find(|step| step.name == name).unwrap()
}

#[test]
fn admitted_request_has_every_step() {
    let report = evaluate(&admitted());
    assert_eq!(report.verdict.text, "admitted: 200 in 3.1 ms");
    assert_eq!(report.verdict.outcome, VerdictOutcome::Admitted);
    let lines: Vec<(&str, Outcome, &str)> = report
        .steps
        .iter()
        .map(|step| (step.name, step.outcome, step.summary.as_str()))
        .collect();
    assert_eq!(
        lines,
        [
            (
                "kernel",
                Outcome::Ok,
                "10.96.0.10:80 redirected to the client's proxy at 10.1.0.2:4140"
            ),
            (
                "discovery",
                Outcome::Ok,
                "10.96.0.10:80 is Service shop/web, 2 endpoints"
            ),
            ("route", Outcome::Ok, "the default route"),
            ("endpoint", Outcome::Ok, "10.1.0.3:8080 (pod shop/web-0)"),
            ("tls", Outcome::Ok, "mutual TLS between the proxies"),
            (
                "delivery",
                Outcome::Ok,
                "given to the proxy of pod shop/web-0 by the kernel"
            ),
            (
                "policy",
                Outcome::Ok,
                "Server web admitted it by AuthorizationPolicy clients"
            ),
            (
                "answer",
                Outcome::Ok,
                "the application answered 200, 12 bytes"
            ),
        ]
    );
    let details = |name| step(&report, name).details.join("; ");
    assert_eq!(step(&report, "kernel").milliseconds, Some(0.06));
    assert_eq!(details("kernel"), "pod shop/client is enrolled, tier full");
    assert_eq!(details("route"), "to Service shop/web");
    assert_eq!(
        details("endpoint"),
        "10.1.0.3:8080: 1 request before, 1 open connection, mean latency 2.0 ms"
    );
    assert_eq!(details("tls"), format!("client {CLIENT}; server {WEB}"));
    assert!(details("answer").starts_with("application 0.40 ms"));
}

/// The verdict, and the step that decides with its outcome.
fn check(name: &str, facts: &Facts, verdict: &str, decisive: (&str, Outcome)) -> Report {
    let report = evaluate(facts);
    assert!(
        report.verdict.text.contains(verdict),
        "{name}: {}",
        report.verdict.text
    );
    let found = step(&report, decisive.0);
    assert_eq!(found.outcome, decisive.1, "{name}: {found:?}");
    report
}

#[test]
fn refusals_name_the_object_and_the_reason() {
    let network = Authorization {
        networks: vec![Network {
            net: "10.2.0.0/16".parse().unwrap(),
            except: vec!["10.2.1.0/24".parse().unwrap()],
        }],
        ..authorization("office", Authentication::Unauthenticated)
    };
    for (name, authorizations, verdict, detail) in [
        (
            "no authorization",
            vec![],
            "refused by Server shop/web: no AuthorizationPolicy or ServerAuthorization authorizes any client",
            "",
        ),
        (
            "another identity",
            vec![authorization("clients", identities(&[WEB]))],
            "refused by Server shop/web: no AuthorizationPolicy names identity client.shop.serviceaccount",
            "AuthorizationPolicy shop/clients: names web.shop.serviceaccount.identity",
        ),
        (
            "network",
            vec![network.clone()],
            "the client's address 10.1.0.2 is in no network of AuthorizationPolicy shop/office",
            "AuthorizationPolicy shop/office: 10.1.0.2 is not in 10.2.0.0/16 except 10.2.1.0/24",
        ),
        (
            "identity of a ServerAuthorization",
            vec![server_authorization("legacy", identities(&[WEB]))],
            "refused by Server shop/web: no ServerAuthorization names identity client.shop.serviceaccount",
            "ServerAuthorization shop/legacy: names web.shop.serviceaccount.identity",
        ),
        (
            "identities of both kinds",
            vec![
                server_authorization("legacy", identities(&[WEB])),
                authorization("clients", identities(&[WEB])),
            ],
            "no AuthorizationPolicy or ServerAuthorization names identity client.shop.serviceaccount",
            "ServerAuthorization shop/legacy: names web.shop.serviceaccount.identity",
        ),
        (
            "network of a ServerAuthorization",
            vec![Authorization {
                meta: server_authorization("legacy", Authentication::Unauthenticated).meta,
                ..network.clone()
            }],
            "the client's address 10.1.0.2 is in no network of ServerAuthorization shop/legacy",
            "ServerAuthorization shop/legacy: 10.1.0.2 is not in 10.2.0.0/16 except 10.2.1.0/24",
        ),
    ] {
        let facts = refused(403, authorizations);
        let report = check(name, &facts, verdict, ("policy", Outcome::Refused));
        assert_eq!(report.verdict.outcome, VerdictOutcome::Refused, "{name}");
        let policy = step(&report, "policy");
        assert!(policy.details.join("\n").contains(detail), "{policy:?}");
        let hint = policy.hints.join("\n");
        assert!(
            hint.contains("targetRef: {group: policy.linkerd.io, kind: Server, name: web}")
                && hint.contains("kind: ServiceAccount, name: client, namespace: shop"),
            "{hint}"
        );
        let answer = "the application was not reached; the server's proxy answered 403";
        assert_eq!(step(&report, "answer").summary, answer);
    }
}

#[test]
fn other_refusals_of_the_server() {
    let clients = vec![authorization("clients", identities(&[CLIENT]))];
    let mut limited = refused(429, clients.clone());
    if let Ok(server) = &mut limited.server
        && let Ok(policy) = &mut server.policy
        && let ServerProtocol::Http1(http) = &mut policy.protocol
    {
        http.rate_limit = Some(RateLimit {
            meta: Meta::Resource(Resource::new(
                "",
                "HTTPLocalRateLimitPolicy",
                "shop",
                "rate",
            )),
            total: Some(1),
            identity: None,
            overrides: Vec::new(),
        });
    }
    let text = "refused by HTTPLocalRateLimitPolicy shop/rate";
    check("rate limit", &limited, text, ("policy", Outcome::Refused));

    let changed = refused(403, clients);
    let text = "refused by the proxy of pod shop/web-0 with 403";
    check(
        "policy has changed",
        &changed,
        text,
        ("policy", Outcome::Refused),
    );

    let mut no_route = refused(404, vec![]);
    if let Ok(server) = &mut no_route.server
        && let Ok(policy) = &mut server.policy
        && let ServerProtocol::Http1(http) = &mut policy.protocol
    {
        http.routes[0].rules[0].matches[0].path = Some(PathMatch::Prefix("/b".to_owned()));
    }
    let text = "none of its routes matches GET /a?b=c";
    check("no route", &no_route, text, ("policy", Outcome::Refused));

    // The response is evidence against the policy that was read.
    let late = refused(200, vec![]);
    let text = "not protected by the mesh: 200 in 3.1 ms (answered 200, though by the current policy refused by Server";
    check(
        "answered after all",
        &late,
        text,
        ("policy", Outcome::Notice),
    );
}

#[test]
fn default_policy_is_changed_by_annotation() {
    let mut facts = refused(403, vec![]);
    if let Ok(server) = &mut facts.server
        && let Ok(policy) = &mut server.policy
    {
        policy.meta = Meta::new_default("deny");
    }
    let text = "refused by default inbound policy deny";
    let report = check("default", &facts, text, ("policy", Outcome::Refused));
    // An identity would not help a client without one.
    remove_client_proxy(&mut facts);
    for report in [report, evaluate(&facts)] {
        let hint = step(&report, "policy").hints.join("\n");
        let server = "create a Server for port 8080 of pod shop/web-0 and an AuthorizationPolicy";
        let annotation = "set config.linkerd.io/default-inbound-policy";
        assert!(hint.contains(server) && hint.contains(annotation), "{hint}");
    }
}

fn remove_client_proxy(facts: &mut Facts) {
    facts.client.identity = None;
    facts.client.enrolment = Ok(Enrolment::Absent);
    facts.client_kernel = Err("not enrolled".to_owned());
    facts.client_tap = Err("pod shop/client has no proxy".to_owned());
    facts.connection = Connection::NotMade("not enrolled".to_owned());
    let server = facts.server.as_mut().unwrap();
    (server.chosen_by, server.tap) = (Choice::Example, Err("nothing was sent".to_owned()));
}

#[test]
fn kernel_decisions_are_explained() {
    let ports = |port: u16| {
        let mut set = PortSet::default();
        set.insert(port..=port);
        set
    };
    let mut skipped = admitted();
    skipped.client.skip_outbound = ports(80);
    skipped.client_kernel = Ok(vec![event(
        1,
        Hook::Connect,
        "outbound-skipped-port",
        None,
        "10.96.0.10:80",
    )]);
    skipped.client_tap = Ok(None);
    let server = skipped.server.as_mut().unwrap();
    (server.chosen_by, server.tap) = (Choice::Example, Ok(None));
    server.policy = Ok(server_policy(vec![authorization(
        "all",
        Authentication::Unauthenticated,
    )]));
    let text = "not protected by the mesh: 200 in 3.1 ms (not redirected: port 80 is in config.linkerd.io/skip-outbound-ports of pod shop/client)";
    let report = check("skipped port", &skipped, text, ("kernel", Outcome::Notice));
    assert_eq!(step(&report, "discovery").outcome, Outcome::NotReached);
    assert_eq!(step(&report, "route").outcome, Outcome::NotReached);
    assert_eq!(step(&report, "tls").outcome, Outcome::Notice);

    let mut unobserved = admitted();
    unobserved.client_kernel = Err("tier nft has no programs".to_owned());
    let report = check("no trace", &unobserved, "admitted", ("kernel", Outcome::Ok));
    let details = step(&report, "kernel").details.join("\n");
    assert!(details.contains("tier nft has no programs"), "{details}");

    let mut refused = admitted();
    refused.connection = Connection::Failed("connection refused".to_owned());
    let text = "cannot connect: connection refused";
    let report = check(
        "not connected",
        &refused,
        text,
        ("kernel", Outcome::Refused),
    );
    assert_eq!(report.verdict.outcome, VerdictOutcome::Failed);

    let mut unmeshed = admitted();
    remove_client_proxy(&mut unmeshed);
    let text = "refused by Server shop/web: it requires an identity, and the client has none";
    let report = check(
        "unmeshed client",
        &unmeshed,
        text,
        ("kernel", Outcome::Notice),
    );
    let hints = step(&report, "policy").hints.join("\n");
    assert!(hints.contains("linkerd.io/inject=enabled"), "{hints}");
}

#[test]
fn server_without_proxy_gets_plaintext() {
    let mut facts = admitted();
    facts.client_tap = Ok(Some(tapped(
        &[],
        &[("tls", "not_provided_by_service_discovery")],
        200,
    )));
    let server = facts.server.as_mut().unwrap();
    server.pod.identity = None;
    server.pod.enrolment = Ok(Enrolment::Absent);
    server.tap = Err("pod shop/web-0 has no proxy".to_owned());
    let text = "not protected by the mesh: 200 in 3.1 ms (plaintext: pod shop/web-0 has no proxy)";
    let report = check("unmeshed server", &facts, text, ("tls", Outcome::Notice));
    assert_eq!(report.verdict.outcome, VerdictOutcome::Bypassed);
    assert_eq!(step(&report, "policy").outcome, Outcome::NotReached);
}

#[test]
fn target_without_endpoints_fails_at_discovery() {
    let mut facts = admitted();
    facts.discovery.endpoints = Ok(Vec::new());
    facts.server = Err("the target has no endpoints".to_owned());
    facts.client_tap = Ok(None);
    facts.set_exchange(Exchange::Response(Response {
        proxy_error: Some("no ready endpoints".to_owned()),
        status: StatusCode::SERVICE_UNAVAILABLE,
        after: Duration::from_millis(3),
        body_bytes: 0,
    }));
    let text = "failed: Service shop/web has no endpoints for port 80";
    let report = check(
        "no endpoints",
        &facts,
        text,
        ("discovery", Outcome::Refused),
    );
    assert_eq!(step(&report, "policy").outcome, Outcome::NotReached);
    let answer = "the application was not reached; the client's proxy answered 503";
    assert_eq!(step(&report, "answer").summary, answer);
}

/// The client's proxy does not parse the connection, whatever routes the ServiceProfile has.
#[test]
fn request_to_an_opaque_port_has_no_route_of_the_profile() {
    let mut facts = admitted();
    let profile = facts.discovery.profile.as_mut().unwrap();
    let part = WeightedAuthority {
        authority: "b:80".into(),
        weight: 1,
    };
    profile.overrides = vec![part];
    let route = |facts: &Facts| step(&evaluate(facts), "route").summary.clone();
    let without = route(&facts);
    assert!(without.contains("of the ServiceProfile"), "{without}");
    facts.discovery.profile.as_mut().unwrap().opaque = true;
    assert!(route(&facts).starts_with("opaque"), "{}", route(&facts));
}

#[test]
fn opaque_connection_has_no_route() {
    let mut facts = admitted();
    facts.request = None;
    facts.set_exchange(Exchange::Open(Duration::from_secs(1)));
    let not_tapped = || Err("a tap reports requests, and none was sent".to_owned());
    facts.client_tap = not_tapped();
    if let Ok(profile) = &mut facts.discovery.profile {
        profile.opaque = true;
    }
    let server = facts.server.as_mut().unwrap();
    (server.chosen_by, server.tap) = (Choice::Seen, not_tapped());
    if let Ok(policy) = &mut server.policy {
        policy.protocol = ServerProtocol::Opaque;
    }
    let report = check(
        "opaque",
        &facts,
        "admitted: connected",
        ("route", Outcome::Ok),
    );
    assert!(step(&report, "route").summary.starts_with("opaque"));
    let policy = "Server shop/web admits it by AuthorizationPolicy shop/clients";
    assert_eq!(step(&report, "policy").summary, policy);
    let tls = step(&report, "tls").details.join("\n");
    assert!(tls.contains("expected by discovery"), "{tls}");
}

#[test]
fn without_tap_the_controllers_decide() {
    let mut facts = admitted();
    let reason = "the viz extension is not installed";
    facts.client_tap = Err(reason.to_owned());
    let server = facts.server.as_mut().unwrap();
    (server.chosen_by, server.tap) = (Choice::Example, Err(reason.to_owned()));
    let report = check(
        "no tap",
        &facts,
        "admitted: 200",
        ("endpoint", Outcome::Unknown),
    );
    let policy = step(&report, "policy");
    assert_eq!(policy.outcome, Outcome::Ok);
    assert!(policy.details.join("\n").contains(reason), "{policy:?}");
}

#[test]
fn responses_of_the_application_and_of_proxies_are_told_apart() {
    let mut failing = admitted();
    failing.set_exchange(response(500));
    let text = "admitted: the application answered 500 in 3.1 ms";
    let report = check("500", &failing, text, ("answer", Outcome::Notice));
    assert_eq!(report.verdict.outcome, VerdictOutcome::Admitted);

    let mut of_proxy = admitted();
    of_proxy.set_exchange(Exchange::Response(Response {
        proxy_error: Some("connection refused".to_owned()),
        status: StatusCode::BAD_GATEWAY,
        after: Duration::from_millis(1),
        body_bytes: 0,
    }));
    let text = "failed: the client's proxy answered 502: connection refused";
    check("502", &of_proxy, text, ("answer", Outcome::Refused));
}

#[test]
fn connection_of_the_proxy_tells_the_endpoint() {
    let facts = admitted();
    let events = facts.client_kernel.unwrap();
    let (web0, web1) = (addr("10.1.0.3:8080"), addr("10.1.0.4:8080"));
    assert_eq!(dialled_by_proxy(&events, &[web1, web0]), Some(web0));
    assert_eq!(dialled_by_proxy(&events, &[web1]), None);
}

/// A reader of the JSON finds the fields that the reference documents.
#[test]
fn json_has_documented_fields() {
    let report = evaluate(&refused(403, vec![]));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["verdict"]["outcome"], "refused");
    assert_eq!(json["verdict"]["status"], 403);
    assert_eq!(json["steps"][6]["name"], "policy");
    assert_eq!(json["steps"][7]["outcome"], "not-reached");
    let keys: BTreeMap<String, serde_json::Value> =
        serde_json::from_value(json["steps"][6].clone()).unwrap();
    let keys: Vec<&str> = keys.keys().map(String::as_str).collect();
    assert_eq!(keys, ["hints", "name", "outcome", "summary"]);
}
