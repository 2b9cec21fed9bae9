//! The rows about policies agree with the effect of the policies, for random sets of objects.

use std::collections::BTreeSet;

use mesh_core::policy::inbound::authorize;
use mesh_objects::model::{Name, ParentKind, WorkloadRef};
use mesh_objects::policy::attachment::{RouteParents, is_port};
use mesh_test_support::campaign::Choices;
use mesh_test_support::policies::{self, SERVERS};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::super::{analysis, policy};
use crate::analyze::tests::effect::{self, Effect, client_routes, clients, json};
use crate::check::framework::{Finding, Outcome};
use crate::facts::{Environment, Facts, Mode};
use crate::resource::Scope;

#[test]
fn rows_report_the_policies_without_effect_and_no_others() {
    let mut choices = Choices::new();
    let (mut ineffective, mut effective, mut closed) = (0, 0, 0);
    for _ in 0..1_000 {
        let texts = policies::random(&mut choices);
        let objects = json(&texts);
        let (facts, effect) = (facts(&objects), Effect::new(&objects));
        let text = texts.join("\n---\n");
        compare_ports(&facts, &effect, &text);
        closed += compare_authorizations(&facts, &effect, &text);
        let mut reported = analysis::REFERENCES.findings(&facts).unwrap();
        reported.extend(analysis::EFFECTS.findings(&facts).unwrap());
        for route in objects.iter().filter_map(mesh_objects::convert::valid) {
            let Some(parents) = route.route_parents() else {
                continue;
            };
            let applied = compare_route(parents, &reported, &effect, &text);
            *if applied {
                &mut effective
            } else {
                &mut ineffective
            } += 1;
        }
    }
    for number in [ineffective, effective, closed] {
        assert!(number > 100, "{ineffective} {effective} {closed}");
    }
}

fn facts(objects: &[Value]) -> Facts {
    fn of_kind<T: DeserializeOwned>(objects: &[Value], kind: &str) -> Vec<T> {
        let all = objects.iter().filter(|object| object["kind"] == kind);
        all.map(|it| serde_json::from_value(it.clone()).unwrap())
            .collect()
    }
    let mode = Mode::Installed { proxies: true };
    let mut facts = Facts::new(Environment::Cluster, mode, "linkerd", Scope::All);
    facts.objects.pods = Ok(of_kind(objects, "Pod"));
    facts.objects.services = Ok(of_kind(objects, "Service"));
    facts.objects.namespaces = Ok(Vec::new());
    facts.objects.workloads = Ok(Vec::new());
    let others = objects
        .iter()
        .filter(|it| it["kind"] != "Pod" && it["kind"] != "Service");
    facts.objects.policies = Ok(others.cloned().collect());
    facts
}

/// A Server that applies to each port that it selects is not reported, and any other one is.
fn compare_ports(facts: &Facts, effect: &Effect, text: &str) {
    let reported = analysis::SERVER_PORTS.findings(facts).unwrap();
    for server in effect.store.servers_in(&"shop".into()) {
        let pods = ["web-0", "api-0"].map(|pod| Name::new("shop", pod));
        let selected = pods.iter().flat_map(|pod| {
            let ports = server.ports_of(effect.store.pod(pod).unwrap().into());
            let workload = WorkloadRef::Pod(pod.clone());
            ports
                .into_iter()
                .map(move |port| effect.inbound(&workload, port))
        });
        let policies: Vec<_> = selected.collect();
        // A Server that selects no port has a finding of its own.
        if policies.is_empty() {
            continue;
        }
        let name = &*server.name.name;
        let mut policies = policies.iter();
        let is_ignored = policies.any(|policy| effect::server_name(policy) != Some(name));
        let start = format!("Server shop/{name}: ");
        let is_reported = reported
            .iter()
            .any(|finding| finding.text.starts_with(&start));
        assert_eq!(is_reported, is_ignored, "{name} of\n{text}");
    }
}

/// A Server is reported if no client can send a request to a port that it selects. Returns the
/// number of these Servers.
fn compare_authorizations(facts: &Facts, effect: &Effect, text: &str) -> usize {
    let reported = findings(facts, "policy-authorizations");
    let mut closed = 0;
    for server in SERVERS {
        let start = format!("Server shop/{server} denies every request");
        let is_reported = reported
            .iter()
            .any(|finding| finding.text.starts_with(&start));
        let policies = effect.of_server(server);
        let Some(policy) = policies.first() else {
            continue;
        };
        let is_open = clients().any(|client| {
            authorize(&policy.authorizations, &client).is_some()
                || effect::routes(policy)
                    .values()
                    .any(|own| authorize(own, &client).is_some())
        });
        assert_eq!(is_reported, !is_open, "{server} of\n{text}");
        closed += usize::from(is_reported);
    }
    closed
}

/// Compares whether a route has an effect through its references without a finding. Returns whether
/// it has one.
fn compare_route(
    route: RouteParents<'_>,
    reported: &[Finding],
    effect: &Effect,
    text: &str,
) -> bool {
    let of_reference = |at: usize| {
        let start = format!(
            "{} {}: spec.parentRefs[{at}]",
            route.kind.as_str(),
            route.name
        );
        let mut reported = reported.iter();
        reported.find(|finding| finding.text.starts_with(&start))
    };
    let numbered = || route.parents.iter().enumerate();
    // A mistake makes all references to Servers useless.
    let mistaken = numbered().any(|(at, reference)| {
        let is_mistake = |finding: &Finding| {
            [".port: ", ".sectionName: ", ".namespace: "]
                .iter()
                .any(|field| finding.text.contains(field))
        };
        reference.kind == ParentKind::Server && of_reference(at).is_some_and(is_mistake)
    });
    let mut expected = BTreeSet::new();
    for (at, reference) in numbered().filter(|(at, _)| of_reference(*at).is_none()) {
        match reference.kind {
            ParentKind::Server if !mistaken => {
                let name = reference.name.name.to_string();
                if !effect.of_server(&name).is_empty() {
                    expected.insert((name, None));
                }
            }
            ParentKind::Service => {
                for (client, port) in service_ports(effect, route, at) {
                    expected.insert((client, Some(port)));
                }
            }
            _ => {}
        }
    }
    let name = route.name.name.to_string();
    let mut found = BTreeSet::new();
    for server in SERVERS {
        let mut policies = effect.of_server(server).into_iter();
        if policies.any(|policy| effect::routes(&policy).contains_key(&name)) {
            found.insert((server.to_owned(), None));
        }
    }
    for (client, port) in service_clients() {
        let (_, routes) = client_routes(&effect.outbound(client, port));
        if routes.contains(&name) {
            found.insert((client.to_owned(), Some(port)));
        }
    }
    assert_eq!(found, expected, "{} of\n{text}", route.name);
    !found.is_empty()
}

fn service_clients() -> impl Iterator<Item = (&'static str, u16)> {
    let clients = ["shop", "other"].into_iter();
    clients.flat_map(|client| [80, 81].map(|port| (client, port)))
}

/// Returns the clients and ports that a reference to the Service is about. A GRPCRoute for one port
/// and an HTTPRoute for all do not conflict; the GRPCRoute applies.
fn service_ports(effect: &Effect, route: RouteParents<'_>, at: usize) -> Vec<(String, u16)> {
    let reference = &route.parents[at];
    let service = effect.store.service(&Name::new("shop", "web")).unwrap();
    let about = service_clients().filter(|(client, port)| {
        let is_client = [*client, "shop"].contains(&&*route.name.namespace);
        let (is_grpc, _) = client_routes(&effect.outbound(client, *port));
        is_client
            && reference.name == service.name
            && is_port(reference, *port, Some(service))
            && is_grpc == (route.kind.as_str() == "GRPCRoute")
    });
    about
        .map(|(client, port)| (client.to_owned(), port))
        .collect()
}

/// Returns the findings of a check of policies.
fn findings(facts: &Facts, check: &str) -> Vec<Finding> {
    let mut checks = policy::CATEGORY.checks.iter();
    let check = checks.find(|it| it.id == check).unwrap();
    match (check.run)(facts).unwrap() {
        Outcome::Ok(_) => Vec::new(),
        Outcome::Warn(findings) | Outcome::Fail(findings) => findings,
    }
}
