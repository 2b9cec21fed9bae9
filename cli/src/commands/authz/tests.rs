//! `authz`, `analyze`, the shared rules and the proxy decide alike about random sets of objects.

use std::collections::BTreeSet;
use std::sync::Arc;

use mesh_core::policy::inbound::{Authorization, Client, ClientTls, ServerPolicy, authorize};
use mesh_objects::convert;
use mesh_objects::model::{Name, Object, PodRecord, Server, WorkloadRef};
use mesh_objects::policy::server::server_of_port;
use mesh_test_support::campaign::Choices;
use mesh_test_support::policies::{self, PORTS};
use serde_json::Value;

use super::table::{Row, Workload, rows};
use crate::analyze;
use crate::analyze::tests::effect::{self, Effect, clients, json};
use crate::resource::MeshPod;

#[test]
fn server_that_applies_to_a_port_has_an_effect_in_authz_and_the_others_a_finding() {
    let mut choices = Choices::new();
    let mut ignored = 0;
    for _ in 0..1_000 {
        let texts = policies::random(&mut choices);
        let objects = json(&texts);
        let records: Vec<Object> = objects.iter().filter_map(convert::valid).collect();
        assert_eq!(records.len(), objects.len(), "{texts:?}");
        for pod in objects.iter().filter(|object| object["kind"] == "Pod") {
            ignored += compare(pod, &objects, &records, &texts.join("\n---\n"));
        }
    }
    assert!(ignored > 100, "{ignored} Servers had no effect");
}

/// Compares the decisions about one pod and returns how many Servers had no effect on its ports.
fn compare(pod: &Value, objects: &[Value], records: &[Object], text: &str) -> usize {
    let workload = Workload::from(&MeshPod::new(
        &serde_json::from_value(pod.clone()).unwrap(),
        &[],
    ));
    let set: analyze::Objects = objects.iter().cloned().collect();
    let rows = rows(&[workload], set.store());
    let findings = analyze::analyze(&set);
    let pod = pod_record(records, pod["metadata"]["name"].as_str().unwrap());
    let servers: Vec<&Arc<Server>> = records
        .iter()
        .filter_map(|object| match object {
            Object::Server(server) => Some(server),
            _ => None,
        })
        .collect();
    let first = |port| server_of_port(servers.iter().map(|it| &***it), pod.into(), port);
    let mut ignored = 0;
    for server in &servers {
        let selected = server.ports_of(pod.into());
        let applies = selected
            .iter()
            .any(|port| first(*port).is_some_and(|it| it.name == server.name));
        let name = &*server.name.name;
        for row in rows
            .iter()
            .filter(|row| row.server == name && row.route.is_none())
        {
            let is_older = |reason: &String| reason.ends_with("is older");
            let is_ignored = row.without_effect.as_ref().is_some_and(is_older);
            assert_eq!(
                is_ignored,
                !applies && !selected.is_empty(),
                "{name} of\n{text}"
            );
        }
        for port in PORTS.into_iter().filter(|port| selected.contains(port)) {
            if first(port).is_some_and(|it| it.name != server.name) {
                let is_reported = findings
                    .iter()
                    .any(|finding| finding.code == "duplicate-port" && finding.name == name);
                assert!(is_reported, "{name} on port {port} of\n{text}");
                ignored += 1;
            }
        }
    }
    ignored
}

fn pod_record<'a>(records: &'a [Object], name: &str) -> &'a PodRecord {
    let found = records.iter().find_map(|object| match object {
        Object::Pod(pod) if *pod.name.name == *name => Some(&**pod),
        _ => None,
    });
    found.unwrap()
}

#[test]
fn proxy_authorizes_the_clients_that_rows_name() {
    let mut choices = Choices::new();
    let (mut admitted, mut denied, mut attached) = (0, 0, 0);
    for _ in 0..1_000 {
        let texts = policies::random(&mut choices);
        let objects = json(&texts);
        let effect = Effect::new(&objects);
        for pod in objects.iter().filter(|object| object["kind"] == "Pod") {
            let pod = MeshPod::new(&serde_json::from_value(pod.clone()).unwrap(), &[]);
            let rows = rows(&[Workload::from(&pod)], &effect.store);
            for port in PORTS {
                let workload = WorkloadRef::Pod(Name::new("shop", &pod.name));
                let policy = effect.inbound(&workload, port);
                let text = || format!("{}:{port} of\n{}", pod.name, texts.join("\n---\n"));
                let of_server = effect::server_name(&policy);
                let rows: Vec<&Row> = rows
                    .iter()
                    .filter(|row| Some(&*row.server) == of_server)
                    .collect();
                // Without a Server, the default policy of the workload applies.
                let Some(first) = rows.first() else {
                    assert_eq!(of_server, None, "{}", text());
                    continue;
                };
                let own = rows.iter().filter(|row| row.route.is_none());
                let own: Vec<&Row> = own.copied().collect();
                for client in clients() {
                    let access = admits_by_access(&first.access_policy, &client);
                    let expected = access || admits(&own, &objects, &client);
                    let found = authorize(&policy.authorizations, &client).is_some();
                    assert_eq!(found, expected, "{client:?} {}", text());
                    *if found { &mut admitted } else { &mut denied } += 1;
                }
                attached += compare_routes(&rows, &policy, &objects, &text());
            }
        }
    }
    for number in [admitted, denied, attached] {
        assert!(number > 100, "{admitted} {denied} {attached}");
    }
}

/// Compares the routes that have an effect by their rows with the routes of the proxy, and their
/// authorizations. Returns the number of routes.
fn compare_routes(rows: &[&Row], policy: &ServerPolicy, objects: &[Value], text: &str) -> usize {
    let routes = effect::routes(policy);
    let with_effect = |row: &&&Row| is_attached(row);
    let named: BTreeSet<&String> = rows
        .iter()
        .filter(with_effect)
        .filter_map(|row| row.route.as_ref())
        .collect();
    assert_eq!(named, routes.keys().collect(), "{text}");
    for (route, authorizations) in &routes {
        let own = rows.iter().filter(|row| row.route.as_ref() == Some(route));
        let own: Vec<&Row> = own.copied().collect();
        let expected: BTreeSet<String> = own
            .iter()
            .filter(|row| row.without_effect.is_none())
            .filter_map(|row| row.authorization_policy.clone())
            .collect();
        assert_eq!(names(authorizations), expected, "{route} of {text}");
        for client in clients() {
            let found = authorize(authorizations, &client).is_some();
            assert_eq!(
                found,
                admits(&own, objects, &client),
                "{client:?} {route} of {text}"
            );
        }
    }
    routes.len()
}

/// Returns whether the route of a row applies. An authentication that does not exist only takes the
/// effect from the authorization.
fn is_attached(row: &Row) -> bool {
    let reason = row.without_effect.as_deref();
    reason.is_none_or(|reason| reason.ends_with("does not exist"))
}

fn names(authorizations: &[Authorization]) -> BTreeSet<String> {
    let metas = authorizations.iter().map(|it| &it.meta);
    metas.filter_map(effect::name).collect()
}

/// Returns whether one of the rows with an effect admits a client, by the text of its object.
fn admits(rows: &[&Row], objects: &[Value], client: &Client<'_>) -> bool {
    let is_of = |account: &str| match client.tls {
        ClientTls::Identified(identity) => {
            let prefix = format!("{account}.shop.serviceaccount.identity.");
            identity.as_str().starts_with(&prefix)
        }
        ClientTls::None | ClientTls::Anonymous => false,
    };
    let admits = |kind: &str, name: &str| {
        let mut objects = objects.iter();
        let named = |it: &&Value| it["kind"] == kind && it["metadata"]["name"] == name;
        let spec = &objects.find(named).unwrap()["spec"];
        let required = &spec["requiredAuthenticationRefs"][0];
        let tls = &spec["client"]["meshTLS"];
        match (kind, required["kind"].as_str(), required["name"].as_str()) {
            ("AuthorizationPolicy", None, _) => true,
            ("AuthorizationPolicy", Some("NetworkAuthentication"), _) => {
                client.ip.to_string().starts_with("10.1.")
            }
            ("AuthorizationPolicy", _, Some(account)) => is_of(account),
            // A ServerAuthorization without networks admits the networks of the cluster.
            _ if !client.ip.to_string().starts_with("10.") => false,
            _ if tls.is_null() => true,
            _ if tls["unauthenticatedTLS"] == true => !matches!(client.tls, ClientTls::None),
            _ => is_of("api"),
        }
    };
    let mut rows = rows.iter().filter(|row| row.without_effect.is_none());
    rows.any(|row| {
        let policy = row.authorization_policy.as_ref();
        let other = row.server_authorization.as_ref();
        policy.is_some_and(|name| admits("AuthorizationPolicy", name))
            || other.is_some_and(|name| admits("ServerAuthorization", name))
    })
}

fn admits_by_access(policy: &str, client: &Client<'_>) -> bool {
    match policy {
        "deny" => false,
        "all-unauthenticated" => true,
        "all-authenticated" => matches!(client.tls, ClientTls::Identified(_)),
        "cluster-unauthenticated" => client.ip.to_string().starts_with("10."),
        other => panic!("{other}"),
    }
}
