//! Lists and events of an API server, with invalid objects.

use kube::core::DynamicObject;
use serde_json::json;

use super::*;

fn server(name: &str, port: serde_json::Value) -> Received {
    let object = json!({
        "apiVersion": "policy.linkerd.io/v1beta3",
        "kind": "Server",
        "metadata": { "name": name, "namespace": "shop", "resourceVersion": "7" },
        "spec": { "podSelector": {}, "port": port },
    });
    received(object)
}

fn received(object: serde_json::Value) -> Received {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    object.into()
}

fn summary(changes: Vec<Change>) -> Vec<String> {
    changes
        .into_iter()
        .map(|change| match change {
            Change::Apply(object) => format!("+{}", object.key().name),
            Change::Delete(key) => format!("-{}", key.name),
            Change::Replace(_) => panic!("a table does not replace objects"),
        })
        .collect()
}

fn listed(table: &mut Table, objects: Vec<Received>) -> (Vec<String>, Vec<InvalidObject>) {
    table.begin();
    let invalid = objects
        .into_iter()
        .filter_map(|object| table.list(object).err())
        .collect();
    (summary(table.finish(false)), invalid)
}

#[test]
fn repeated_list_reports_only_differences() {
    let mut table = Table::new(Kind::Server);
    let objects = || vec![server("a", json!(80)), server("b", json!("http"))];
    assert_eq!(
        listed(&mut table, objects()),
        (vec!["+shop/a".to_owned(), "+shop/b".to_owned()], vec![])
    );
    assert_eq!(listed(&mut table, objects()), (vec![], vec![]));
    let other = vec![server("b", json!(8080)), server("c", json!(1))];
    assert_eq!(
        listed(&mut table, other).0,
        ["-shop/a", "+shop/b", "+shop/c"]
    );
    assert_eq!(listed(&mut table, vec![]).0, ["-shop/b", "-shop/c"]);
}

#[test]
fn incomplete_list_has_no_effect() {
    let mut table = Table::new(Kind::Server);
    listed(&mut table, vec![server("a", json!(80))]);
    table.begin();
    table.list(server("b", json!(80))).unwrap();
    assert_eq!(listed(&mut table, vec![server("a", json!(80))]).0.len(), 0);
}

#[test]
fn invalid_object_is_reported_once_and_keeps_last_valid_version() {
    let mut table = Table::new(Kind::Server);
    listed(&mut table, vec![server("a", json!(80))]);
    let error = table.apply(server("a", json!(99_999))).unwrap_err();
    assert_eq!(error.key.to_string(), "Server shop/a");
    assert!(
        error.problem.starts_with("spec.port: invalid value"),
        "{}",
        error.problem
    );
    assert!(error.kept);
    // The same again, as an event and in a list, is not reported and deletes nothing.
    assert_eq!(table.apply(server("a", json!(99_999))), Ok(None));
    let (changes, invalid) = listed(&mut table, vec![server("a", json!(99_999))]);
    assert_eq!((changes.len(), invalid.len()), (0, 0));
    assert_eq!((table.len(), table.invalid()), (1, 1));
    // Corrected to the previous version: no change.
    assert_eq!(table.apply(server("a", json!(80))), Ok(None));
    assert_eq!(table.invalid(), 0);
}

#[test]
fn invalid_object_without_valid_version_does_not_exist() {
    let mut table = Table::new(Kind::Server);
    let (changes, invalid) = listed(
        &mut table,
        vec![server("a", json!([])), server("b", json!(80))],
    );
    assert_eq!(changes, ["+shop/b"]);
    assert!(!invalid[0].kept);
    assert_eq!(table.delete(&server("a", json!(1)).metadata), None);
    assert_eq!(table.invalid(), 0);
}

#[test]
fn only_changed_records_are_changes() {
    let mut table = Table::new(Kind::Server);
    listed(&mut table, vec![server("a", json!(80))]);
    let mut touched = server("a", json!(80));
    touched.metadata.resource_version = Some("8".to_owned());
    assert_eq!(table.apply(touched), Ok(None));
    let change = table.apply(server("a", json!(81))).unwrap();
    assert_eq!(summary(change.into_iter().collect()), ["+shop/a"]);
    let deleted = table.delete(&server("a", json!(81)).metadata);
    assert_eq!(summary(deleted.into_iter().collect()), ["-shop/a"]);
}

#[test]
fn metadata_suffices_for_owners_and_nodes() {
    let object = json!({
        "apiVersion": "meta.k8s.io/v1",
        "kind": "PartialObjectMetadata",
        "metadata": {
            "name": "web-7f9c",
            "namespace": "shop",
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u" }],
        },
    });
    let mut table = Table::new(Kind::ReplicaSet);
    let change = table.apply(received(object)).unwrap();
    let Some(Change::Apply(Object::ReplicaSet(set))) = change else {
        panic!("{change:?}");
    };
    assert_eq!(&*set.owner.as_ref().unwrap().name, "web");
    let node = json!({
        "metadata": {
            "name": "n",
            "labels": { "topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r" },
        },
    });
    let change = Table::new(Kind::Node).apply(received(node));
    let Ok(Some(Change::Apply(Object::Node(node)))) = change else {
        panic!("{change:?}");
    };
    assert_eq!(node.zone.as_deref(), Some("z"));
    assert_eq!(node.region.as_deref(), Some("r"));
}
