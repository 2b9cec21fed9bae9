//! Links, and writes while objects are missing.

use super::super::follow::{Step, set_service};
use super::super::objects::{Listed, Mirrors};
use super::super::target::{Mode, Target};
use super::world::{EAST, LINK, SERVICE, WEB, World, name, read, settings};
use mesh_objects::model::Labels;
use serde_json::Value;

#[test]
fn nothing_is_written_until_everything_was_read() {
    let forget: [fn(&mut Mirrors); 6] = [
        |mirrors| mirrors.services.complete = false,
        |mirrors| mirrors.endpoints.complete = false,
        |mirrors| mirrors.namespaces.complete = false,
        |mirrors| mirrors.links.complete = false,
        |mirrors| mirrors.target = None,
        |mirrors| mirrors.remote = None,
    ];
    for (at, forget) in forget.into_iter().enumerate() {
        let mut world = World::east();
        world.export(WEB);
        let mut complete = None;
        world.change(|mirrors| {
            complete = Some(mirrors.clone());
            forget(mirrors);
        });
        assert_eq!(world.settle(), [""; 0], "{at}");
        world.change(|mirrors| *mirrors = complete.unwrap());
        assert_eq!(world.settle().len(), 3, "{at}");
    }
}

/// The objects of a list are known before it is complete.
#[test]
fn list_completes_the_objects_and_removes_what_it_lacks() {
    let mut mirrors = Mirrors::new(settings(None), None);
    for service in ["a", "b"] {
        let object = read("metadata: {name: a}");
        assert!(set_service(&mut mirrors, Step::Set(name(service), object)));
    }
    assert!(!mirrors.services.complete);
    let object = read("metadata: {name: a}");
    assert!(!set_service(&mut mirrors, Step::Set(name("a"), object)));
    set_service(&mut mirrors, Step::Listed([name("a")].into()));
    let Listed { objects, complete } = &mirrors.services;
    let names: Vec<_> = objects.keys().collect();
    assert!(*complete && names == [&name("a")], "{names:?}");
}

/// The writer compares all objects after a change, so effects of its own writes are none.
#[test]
fn effect_of_an_own_write_does_not_make_the_writer_compare_all_objects() {
    let mut world = World::east();
    world.export(WEB);
    world.settle();
    let mirror = name("web-east");
    let object = world.get(SERVICE, "web-east").unwrap().clone();
    let mut tell = |object: Option<&Value>| {
        let step = match object {
            Some(object) => {
                let object = serde_json::from_value(object.clone()).unwrap();
                Step::Set(mirror.clone(), object)
            }
            None => Step::Delete(mirror.clone()),
        };
        let mirrors = &mut world.processes[0];
        // The writer has compared the objects before it writes.
        let _planned = mirrors.plan();
        set_service(mirrors, step)
    };
    // It is deleted, created again, and altered by someone else.
    assert!(tell(None));
    assert!(!tell(Some(&object)));
    assert!(!tell(Some(&object)));
    let mut altered = object.clone();
    altered["metadata"]["labels"]["app"] = "other".into();
    assert!(tell(Some(&altered)));
    assert!(!tell(Some(&object)));
    altered["metadata"]["labels"]["mirror.linkerd.io/mirrored-service"] = "no".into();
    assert!(tell(Some(&altered)));
}

#[test]
fn mirrors_of_a_deleted_link_stay() {
    let mut world = World::east();
    world.export(WEB);
    world.settle();
    world.delete(LINK, &name("links/east"));
    world.unexport(0, "web");
    assert_eq!(world.settle(), [""; 0]);
    assert!(world.get(SERVICE, "web-east").is_some());
    // It continues with a new one.
    world.put_link("east", EAST);
    assert_eq!(
        world.settle(),
        [
            "delete Service shop/web-east",
            "delete Endpoints shop/web-east"
        ]
    );
}

#[test]
fn invalid_link_keeps_its_last_valid_version() {
    let mut world = World::east();
    world.export(WEB);
    world.settle();
    world.put_link("east", &EAST.replace("'4143'", "'none'"));
    world.export(&WEB.replace("name: web\n", "name: db\n"));
    assert_eq!(
        world.settle(),
        [
            "create Service shop/db-east",
            "create Endpoints shop/db-east"
        ]
    );
    // One that was never valid has no effect.
    let mut world = World::empty();
    world.put_link("east", &EAST.replace("targetClusterName: east", "other: a"));
    world.start(settings(Some("east")), None);
    world.export(WEB);
    assert_eq!(world.settle(), [""; 0]);
}

#[test]
fn younger_link_of_the_same_cluster_has_no_effect() {
    let mut world = World::empty();
    world.put_link("east", EAST);
    world.put_link("again", EAST);
    let process = world.start(settings(Some("again")), None);
    world.processes[process].remote.as_mut().unwrap().cluster = Some("east".into());
    world.export(WEB);
    assert_eq!(world.settle(), [""; 0]);
    world.delete(LINK, &name("links/east"));
    assert_eq!(
        world.settle(),
        [
            "create Service shop/web-east",
            "create Endpoints links/probe-again",
            "create Endpoints shop/web-east",
        ]
    );
}

/// The Link named the cluster of these objects before.
#[test]
fn objects_of_another_cluster_are_not_mirrored_under_a_new_name() {
    let mut world = World::east();
    world.export(WEB);
    world.settle();
    let renamed = EAST.replace("targetClusterName: east", "targetClusterName: north");
    world.put_link("east", &renamed);
    assert_eq!(world.settle(), [""; 0]);
}

#[test]
fn services_behind_a_gateway_need_one() {
    let mut world = World::empty();
    let link = EAST.replace("gatewayAddress: 192.0.2.1", "");
    world.put_link("east", &link);
    world.start(settings(Some("east")), None);
    world.export(WEB);
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(
        world.reported(),
        [
            "shop/web Error: the Link has no gateway; set spec.gatewayAddress, or export the Service for remote discovery"
        ]
    );
}

fn target(spec: &str) -> Target {
    let spec = format!(
        "targetClusterName: east\ntargetClusterDomain: a\nclusterCredentialsSecret: b\n{spec}"
    );
    Target::of_link(&read(&spec)).unwrap()
}

#[test]
fn selectors_of_a_link_decide_how_a_service_is_mirrored() {
    let target = target(
        "selector: {matchLabels: {a: b}}\nremoteDiscoverySelector: {matchExpressions: [{key: a, operator: Exists}, {key: c, operator: Exists}]}\nfederatedServiceSelector: {}",
    );
    let mode = |labels: &[(&str, &str)]| {
        let labels = labels.iter();
        let labels: Labels = labels
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        assert!(!target.is_member(&labels));
        assert_eq!(target.selects(&labels), target.mode(&labels).is_some());
        target.mode(&labels)
    };
    assert_eq!(mode(&[]), None);
    assert_eq!(mode(&[("a", "b")]), Some(Mode::Gateway));
    assert_eq!(mode(&[("a", "b"), ("c", "d")]), Some(Mode::Discovery));
}

#[test]
fn only_selected_services_are_watched_where_one_selector_says_which() {
    let watched = |spec: &str| target(spec).watched_labels();
    assert_eq!(
        watched("selector: {matchLabels: {a: b}}").as_deref(),
        Some("a=b")
    );
    let expressions = "{matchLabels: {a: b}, matchExpressions: [{key: c, operator: Exists}, {key: d, operator: DoesNotExist}, {key: e, operator: In, values: [f, g]}, {key: h, operator: NotIn, values: [i]}]}";
    assert_eq!(
        watched(&format!(
            "federatedServiceSelector: {expressions}\nselector: {{}}"
        ))
        .as_deref(),
        Some("a=b,c,!d,e in (f,g),h notin (i)")
    );
    assert_eq!(
        watched("selector: {matchLabels: {a: b}}\nremoteDiscoverySelector: {matchLabels: {c: d}}"),
        None
    );
    // An unknown operator selects nothing, which the API server would refuse.
    let unknown = "selector: {matchExpressions: [{key: c, operator: Near}]}";
    assert_eq!(watched(unknown), None);
    assert!(target("selector: {matchLabels: {a: b}}").reads_endpoints());
    assert!(!target("remoteDiscoverySelector: {matchLabels: {a: b}}").reads_endpoints());
}
