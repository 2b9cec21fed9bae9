//! Federated Services, which the processes of several Links write.

use mesh_k8s::select;
use serde_json::json;

use super::super::target::Target;
use super::world::{EAST, SERVICE, World, name, settings};

const MEMBER: &str = "
metadata:
  name: web
  namespace: shop
  resourceVersion: '7'
  labels: {app: web, mirror.linkerd.io/federated: member}
spec: {clusterIP: 10.1.0.1, ports: [{port: 80}]}
";

/// Processes for `east` and the younger Link `west`, and for this cluster's own members.
fn world() -> (World, usize, usize, usize) {
    let mut world = World::east();
    world.put_link("west", &EAST.replace("east", "west"));
    let west = world.start(settings(Some("west")), None);
    let members = select::parse("mirror.linkerd.io/federated=member").unwrap();
    let target = Target::local(members, Vec::new(), Vec::new());
    let local = world.start(settings(None), Some(target));
    // Its members are listed by another watch.
    world.settle();
    (world, 0, west, local)
}

fn members(world: &World) -> Option<(String, String)> {
    let annotations = &world.get(SERVICE, "web-federated")?["metadata"]["annotations"];
    let member = |key: &str| annotations[key].as_str().unwrap_or_default().to_owned();
    Some((
        member("multicluster.linkerd.io/remote-discovery"),
        member("multicluster.linkerd.io/local-discovery"),
    ))
}

fn expect(world: &World, remote: &str, local: &str) {
    assert_eq!(members(world), Some((remote.to_owned(), local.to_owned())));
}

#[test]
fn first_member_creates_the_service_and_the_last_one_takes_it_with_it() {
    let (mut world, east, west, local) = world();
    world.export_to(west, MEMBER);
    assert_eq!(world.settle(), ["create Service shop/web-federated"]);
    expect(&world, "web@west", "");
    let service = world.get(SERVICE, "web-federated").unwrap();
    let labels = json!({ "app": "web", "mirror.linkerd.io/mirrored-service": "true" });
    assert_eq!(service["metadata"]["labels"], labels);
    assert_eq!(service["spec"]["ports"][0]["port"], 80);
    assert!(service["spec"]["selector"].is_null());
    world.export_to(east, MEMBER);
    world.export_to(local, MEMBER);
    world.settle();
    expect(&world, "web@west,web@east", "web");
    assert_eq!(world.reported(), ["shop/web Mirrored: web-federated"]);
    world.unexport(west, "web");
    assert_eq!(world.settle(), ["set Service shop/web-federated"]);
    expect(&world, "web@east", "web");
    world.unexport(local, "web");
    assert_eq!(world.settle(), ["set Service shop/web-federated"]);
    expect(&world, "web@east", "");
    world.unexport(east, "web");
    assert_eq!(world.settle(), ["delete Service shop/web-federated"]);
    assert_eq!(world.reported(), [""; 0]);
}

#[test]
fn oldest_link_owns_ports_and_metadata_and_this_cluster_before_it() {
    let (mut world, east, west, local) = world();
    let of = |app: &str, port: &str| {
        MEMBER
            .replace("app: web", &format!("app: {app}"))
            .replace("port: 80", &format!("port: {port}"))
            .replace("'7'", &format!("'{port}'"))
    };
    let owner = |world: &World| {
        let service = world.get(SERVICE, "web-federated").unwrap();
        let app = service["metadata"]["labels"]["app"].as_str().unwrap();
        format!("{app} {}", service["spec"]["ports"][0]["port"])
    };
    world.export_to(west, &of("west", "81"));
    world.settle();
    assert_eq!(owner(&world), "west 81");
    world.export_to(east, &of("east", "82"));
    world.settle();
    assert_eq!(owner(&world), "east 82");
    // The younger member changes nothing but its entry.
    world.export_to(west, &of("west", "83"));
    assert_eq!(world.settle(), [""; 0]);
    world.export_to(local, &of("local", "84"));
    world.settle();
    assert_eq!(owner(&world), "local 84");
    world.unexport(local, "web");
    world.settle();
    assert_eq!(owner(&world), "east 82");
    world.unexport(east, "web");
    world.settle();
    assert_eq!(owner(&world), "west 83");
}

#[test]
fn headless_service_is_not_a_member() {
    let (mut world, east, west, _) = world();
    world.export_to(east, MEMBER);
    world.export_to(west, MEMBER);
    world.settle();
    world.export_to(east, &MEMBER.replace("10.1.0.1", "None"));
    world.settle();
    expect(&world, "web@west", "");
    assert_eq!(
        world.reported(),
        ["shop/web InvalidService: a headless Service cannot be a member of a federated Service"]
    );
}

#[test]
fn service_that_is_not_a_federated_one_is_left_alone() {
    let (mut world, east, _, local) = world();
    let object = json!({ "metadata": { "annotations": {
        "multicluster.linkerd.io/remote-discovery": "web@east",
    }}});
    world.put(SERVICE, &name("web-federated"), object);
    assert_eq!(world.settle(), [""; 0]);
    world.export_to(east, MEMBER);
    world.export_to(local, MEMBER);
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(
        world.reported(),
        [
            "shop/web Error: there is a Service web-federated that is not its mirror, and is left alone"
        ]
    );
}

/// The entries of clusters without a Link here, and the ones with another name.
#[test]
fn entries_of_others_stay() {
    let (mut world, east, ..) = world();
    let object = json!({
        "metadata": {
            "labels": { "mirror.linkerd.io/mirrored-service": "true" },
            "annotations": { "multicluster.linkerd.io/remote-discovery": "web@north,db@east,web@east" },
        },
        "spec": { "ports": [{ "port": 80 }] },
    });
    world.put(SERVICE, &name("web-federated"), object);
    // The orphan of a member that left while no process ran.
    assert_eq!(world.settle(), ["set Service shop/web-federated"]);
    expect(&world, "web@north,db@east", "");
    world.export_to(east, MEMBER);
    world.settle();
    expect(&world, "web@north,db@east,web@east", "");
}

/// A mirror of this cluster may be a member, which a user adds.
#[test]
fn further_members_of_this_cluster_stay() {
    let (mut world, east, _, local) = world();
    world.export_to(east, MEMBER);
    world.export_to(local, MEMBER);
    world.settle();
    let mut service = world.get(SERVICE, "web-federated").unwrap().clone();
    let annotations = &mut service["metadata"]["annotations"];
    annotations["multicluster.linkerd.io/local-discovery"] = "web,web-west".into();
    world.put(SERVICE, &name("web-federated"), service);
    assert_eq!(world.settle(), [""; 0]);
    world.unexport(local, "web");
    world.settle();
    expect(&world, "web@east", "web-west");
    // The oldest Link owns it again.
    world.export_to(
        east,
        &MEMBER.replace("'7'", "'8'").replace("port: 80", "port: 81"),
    );
    world.settle();
    expect(&world, "web@east", "web-west");
    let ports = &world.get(SERVICE, "web-federated").unwrap()["spec"]["ports"];
    assert_eq!(ports[0]["port"], 81);
}

#[test]
fn mirrored_service_can_be_a_member_too() {
    let mut world = World::east();
    let both = MEMBER.replace(
        "{app: web,",
        "{mirror.linkerd.io/exported: remote-discovery,",
    );
    world.export(&both);
    assert_eq!(
        world.settle(),
        [
            "create Service shop/web-east",
            "create Service shop/web-federated",
            "create Endpoints links/probe-east",
        ]
    );
    assert_eq!(
        world.reported(),
        [
            "shop/web Mirrored: web-east",
            "shop/web Mirrored: web-federated"
        ]
    );
}
