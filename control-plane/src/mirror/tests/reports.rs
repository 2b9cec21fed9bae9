//! The status of a Link.

use jiff::SignedDuration;
use mesh_objects::model::Name;
use serde_json::{Value, json};

use super::super::limits::MAX_REPORTED;
use super::super::planned::Key;
use super::world::{EAST, SERVICE, WEB, World, name};
use crate::writer::{Action, Answer, Written as _};

fn patch(world: &World) -> Option<Value> {
    let key = Key::Status(Name::new("links", "east"));
    let write = world.processes[0].write(&key, world.now)?;
    match write.action {
        Action::PatchStatus(patch) => Some(patch),
        other => panic!("{other:?}"),
    }
}

/// Linkerd's service mirror writes these fields.
#[test]
fn status_has_an_entry_for_each_selected_service() {
    let mut world = World::east();
    world.export(WEB);
    world.settle();
    let entry = json!({
        "controllerName": "linkerd.io/service-mirror",
        "remoteRef": { "group": "core", "kind": "Service", "name": "web", "namespace": "shop" },
        "conditions": [{
            "type": "Mirrored",
            "status": "True",
            "reason": "Mirrored",
            "message": "",
            "lastTransitionTime": "1970-01-12T13:46:50Z",
            "localRef": { "group": "core", "kind": "Service", "name": "web-east", "namespace": "shop" },
        }],
    });
    let status = serde_json::to_value(world.status()).unwrap();
    let expected = json!({ "mirrorServices": [entry], "federatedServices": [] });
    assert_eq!(status, expected);
    assert_eq!(patch(&world), None);
}

#[test]
fn time_of_a_condition_changes_with_its_status_only() {
    let mut world = World::east();
    let time = |world: &World| {
        let entries = world.status().mirror_services;
        entries[0].conditions[0].last_transition_time.0
    };
    world.export(&WEB.replace("ports: [{", "other: [{"));
    world.settle();
    let invalid = time(&world);
    world.export(&WEB.replace("namespace: shop", "namespace: bank"));
    world.unexport(0, "web");
    world.export(
        &WEB.replace("ports: [{", "other: [{")
            .replace("name: web\n", "name: db\n"),
    );
    world.settle();
    world.unexport(0, "bank/web");
    world.unexport(0, "db");
    world.export(&WEB.replace("ports: [{", "other: [{"));
    world.settle();
    let again = time(&world);
    assert!(again > invalid);
    // Another reason is no other status.
    let long = format!("annotations: {{a: {}}}", "b".repeat(64 << 10));
    world.export(&WEB.replace("uid: u-7", &long));
    world.settle();
    assert_eq!(time(&world), again);
    world.export(WEB);
    world.settle();
    assert!(time(&world) > again);
}

#[test]
fn status_is_written_every_five_seconds_at_most() {
    let mut world = World::east();
    world.export(WEB);
    world.settle();
    let written = world.now;
    world.export(
        &WEB.replace("name: web\n", "name: db\n")
            .replace("ports: [{", "other: [{"),
    );
    world.now = written - SignedDuration::from_secs(10);
    let condition = world.status().mirror_services[0].conditions[0].clone();
    world.now = condition.last_transition_time.0 + SignedDuration::from_secs(4);
    assert_eq!(patch(&world), None);
    world.now += SignedDuration::from_secs(1);
    assert!(patch(&world).is_some());
    // A time of another clock, in the future, does not delay it.
    world.now -= SignedDuration::from_secs(100);
    assert!(patch(&world).is_some());
}

#[test]
fn entries_of_other_controllers_stay() {
    let mut world = World::east();
    let other = json!({
        "controllerName": "example.com/mirror",
        "remoteRef": { "kind": "Service", "name": "web", "namespace": "shop" },
        "conditions": [],
    });
    let mut link = world.get("Link", "links/east").unwrap().clone();
    link["status"] = json!({ "mirrorServices": [other], "federatedServices": [] });
    world.put("Link", &Name::new("links", "east"), link);
    world.export(WEB);
    world.settle();
    let controllers = |world: &World| {
        let entries = world.status().mirror_services.into_iter();
        entries.map(|it| it.controller_name).collect::<Vec<_>>()
    };
    let both = ["example.com/mirror", "linkerd.io/service-mirror"];
    assert_eq!(controllers(&world), both);
    world.unexport(0, "web");
    world.settle();
    assert_eq!(controllers(&world), both[..1]);
}

#[test]
fn refused_mirror_is_reported_until_it_is_accepted() {
    let mut world = World::east();
    let object = "Service shop/web-east".to_owned();
    world.refused.insert(object.clone());
    world.export(WEB);
    world.settle();
    let reported = world.reported();
    let expected = "shop/web Error: cannot write Service shop/web-east: quota exceeded";
    assert_eq!(reported, [expected]);
    world.refused.clear();
    world.settle();
    assert_eq!(world.reported(), ["shop/web Mirrored: web-east"]);
    // A refused change counts only as long as there is one.
    world.refused.insert(object);
    world.export(&WEB.replace("'7'", "'8'"));
    world.settle();
    assert_eq!(world.reported(), [expected]);
    world.export(WEB);
    world.settle();
    assert_eq!(world.reported(), ["shop/web Mirrored: web-east"]);
}

/// The name of a mirror is in use by an object that was not reported yet, or never will be.
#[test]
fn conflict_counts_only_while_the_object_is_unknown() {
    let mut world = World::east();
    world.export(WEB);
    let key = Key::Service(name("web-east"));
    world.processes[0].answered(&key, Answer::Obsolete("it exists"));
    world.now += SignedDuration::from_secs(10);
    let status = patch(&world).unwrap()["status"].clone();
    let condition = &status["mirrorServices"][0]["conditions"][0];
    assert_eq!(
        condition["message"],
        "cannot write Service shop/web-east: it exists"
    );
    world.settle();
    world.export(&WEB.replace("'7'", "'8'"));
    world.processes[0].answered(&key, Answer::Obsolete("it was modified"));
    world.now += SignedDuration::from_secs(10);
    assert_eq!(patch(&world), None);
}

#[test]
fn status_has_a_limited_number_of_entries_with_failures_first() {
    let mut world = World::east();
    for at in 0..MAX_REPORTED {
        world.export(&WEB.replace("name: web\n", &format!("name: web-{at:04}\n")));
    }
    world.export(
        &WEB.replace("name: web\n", "name: x\n")
            .replace("ports: [{", "other: [{"),
    );
    world.settle();
    let entries = world.status().mirror_services;
    assert_eq!(entries.len(), MAX_REPORTED);
    assert_eq!(entries[MAX_REPORTED - 1].remote_ref.name, "x");
    assert_eq!(entries[MAX_REPORTED - 2].remote_ref.name, "web-0998");
    assert!(world.get(SERVICE, "web-0999-east").is_some());
}

#[test]
fn members_of_this_cluster_have_no_status() {
    let mut world = World::empty();
    world.put_link("east", EAST);
    world.start(super::world::settings(None), None);
    assert_eq!(patch(&world), None);
}
