//! `authz`, `analyze` and the shared rules decide alike about random sets of objects.

use std::sync::Arc;

use mesh_objects::convert;
use mesh_objects::model::{Object, PodRecord, Server};
use mesh_objects::policy::server::server_of_port;
use mesh_test_support::campaign::Choices;
use mesh_test_support::policies::{self, PORTS};
use serde_json::Value;

use super::table::{Workload, rows, valid};
use crate::analyze;
use crate::resource::MeshPod;

#[test]
fn server_that_applies_to_a_port_has_an_effect_in_authz_and_the_others_a_finding() {
    let mut choices = Choices::new();
    let mut ignored = 0;
    for _ in 0..1_000 {
        let texts = policies::random(&mut choices);
        let objects: Vec<Value> = texts
            .iter()
            .map(|text| serde_norway::from_str(text).unwrap())
            .collect();
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
    let rows = rows(&[workload], &valid(objects));
    let mut set = analyze::Objects::default();
    objects.iter().cloned().for_each(|object| set.add(object));
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
