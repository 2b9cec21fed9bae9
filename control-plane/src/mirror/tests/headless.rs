//! Headless Services, whose hosts have mirrors of their own.

use serde_json::{Value, json};

use super::super::limits::MAX_HOSTS;
use super::super::objects::Settings;
use super::world::{ENDPOINTS, SERVICE, WEB, World, settings};

const HOSTS: &str = "[{addresses: [10.2.0.1], hostname: web-0}, {addresses: [10.2.0.2], hostname: web-1, conditions: {ready: false}}]";
const NAMELESS: &str = "[{addresses: [10.2.0.1]}]";

fn headless() -> String {
    WEB.replace("10.1.0.1", "None")
}

fn world() -> World {
    World::with(Settings {
        mirrors_headless: true,
        ..settings(Some("east"))
    })
}

/// Linkerd's service mirror writes these fields.
#[test]
fn headless_service_has_a_headless_mirror_and_a_mirror_for_each_host() {
    let mut world = world();
    world.export(&headless());
    // It is not known yet whether it has hosts.
    assert_eq!(world.settle(), ["create Endpoints links/probe-east"]);
    assert_eq!(world.reported(), [""; 0]);
    world.endpoints("web", HOSTS);
    assert_eq!(
        world.settle(),
        [
            "create Service shop/web-0-east",
            "create Service shop/web-1-east",
            "create Service shop/web-east",
            "create Endpoints shop/web-0-east",
            "create Endpoints shop/web-1-east",
            "create Endpoints shop/web-east",
        ]
    );
    let get = |kind, of: &str| world.get(kind, of).unwrap();
    let mirror = get(SERVICE, "web-east");
    assert_eq!(mirror["spec"]["clusterIP"], "None");
    let host = get(SERVICE, "web-0-east");
    assert_eq!(
        host["metadata"]["labels"],
        json!({
            "app": "web",
            "mirror.linkerd.io/mirrored-service": "true",
            "mirror.linkerd.io/cluster-name": "east",
            "mirror.linkerd.io/headless-mirror-svc-name": "web-east",
        })
    );
    let fqn = "web-0.web.shop.svc.east.local";
    let annotations = &host["metadata"]["annotations"];
    assert_eq!(annotations["mirror.linkerd.io/remote-svc-fq-name"], fqn);
    assert_eq!(host["spec"]["ports"], mirror["spec"]["ports"]);
    let of_host = get(ENDPOINTS, "web-0-east");
    assert_eq!(of_host["metadata"]["labels"], host["metadata"]["labels"]);
    assert_eq!(
        of_host["metadata"]["annotations"],
        json!({
            "mirror.linkerd.io/remote-svc-fq-name": fqn,
            "mirror.linkerd.io/remote-gateway-identity": "gateway.example",
        })
    );
    let gateway = json!([{ "ip": "192.0.2.1" }]);
    assert_eq!(of_host["subsets"][0]["addresses"], gateway);
    assert_eq!(get(ENDPOINTS, "web-1-east")["subsets"], json!([]));
    let address = |of: &str| get(SERVICE, of)["spec"]["clusterIP"].clone();
    let subsets = json!([{
        "addresses": [{ "hostname": "web-0", "ip": address("web-0-east") }],
        "notReadyAddresses": [{ "hostname": "web-1", "ip": address("web-1-east") }],
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
    }]);
    assert_eq!(get(ENDPOINTS, "web-east")["subsets"], subsets);
    assert_eq!(world.reported(), ["shop/web Mirrored: web-east"]);
}

#[test]
fn hosts_come_and_go_and_the_mirror_stays_headless_without_any() {
    let mut world = world();
    world.export(&headless());
    world.endpoints("web", HOSTS);
    world.settle();
    world.change(|mirrors| mirrors.gateway.alive = false);
    world.settle();
    let subsets = &world.get(ENDPOINTS, "web-east").unwrap()["subsets"];
    assert!(subsets[0]["addresses"].is_null(), "{subsets}");
    world.change(|mirrors| mirrors.gateway.alive = true);
    world.settle();
    world.endpoints("web", "[]");
    assert_eq!(
        world.settle(),
        [
            "delete Service shop/web-0-east",
            "delete Service shop/web-1-east",
            "delete Endpoints shop/web-0-east",
            "delete Endpoints shop/web-1-east",
            "replace Endpoints shop/web-east",
        ]
    );
    let mirror = world.get(SERVICE, "web-east").unwrap();
    assert_eq!(mirror["spec"]["clusterIP"], "None");
    world.unexport(0, "web");
    world.settle();
    assert!(world.get(SERVICE, "web-east").is_none());
}

#[test]
fn service_without_host_names_has_an_ordinary_mirror_until_it_has_some() {
    let mut world = world();
    world.export(&headless());
    world.endpoints("web", NAMELESS);
    world.settle();
    let mirror = world.get(SERVICE, "web-east").unwrap();
    assert_ne!(mirror["spec"]["clusterIP"], "None");
    world.endpoints("web", HOSTS);
    let writes = world.settle();
    let expected = [
        "delete Service shop/web-east",
        "create Service shop/web-east",
    ];
    let found = expected.map(|write| writes.iter().position(|it| it == write));
    assert!(found[0].is_some() && found[0] < found[1], "{writes:?}");
    let mirror = world.get(SERVICE, "web-east").unwrap();
    assert_eq!(mirror["spec"]["clusterIP"], "None");
}

#[test]
fn headless_service_has_an_ordinary_mirror_where_hosts_are_not_mirrored() {
    let mut world = World::east();
    world.export(&headless());
    world.endpoints("web", HOSTS);
    world.settle();
    let mirror = world.get(SERVICE, "web-east").unwrap();
    assert_ne!(mirror["spec"]["clusterIP"], "None");
    assert!(world.get(SERVICE, "web-0-east").is_none());
    let subsets = &world.get(ENDPOINTS, "web-east").unwrap()["subsets"];
    assert_eq!(subsets[0]["addresses"], json!([{ "ip": "192.0.2.1" }]));
}

#[test]
fn mirror_of_a_service_comes_before_a_host_of_the_same_name() {
    let mut world = world();
    world.export(&headless());
    world.export(&WEB.replace("name: web\n", "name: web-0\n"));
    world.endpoints("web", HOSTS);
    world.settle();
    let labels = &world.get(SERVICE, "web-0-east").unwrap()["metadata"]["labels"];
    assert!(labels["mirror.linkerd.io/headless-mirror-svc-name"].is_null());
    // The headless mirror has the other host only.
    let subsets = &world.get(ENDPOINTS, "web-east").unwrap()["subsets"];
    assert!(subsets[0]["addresses"].is_null(), "{subsets}");
    let entries = world.status().mirror_services;
    let messages = entries.iter().map(|entry| &*entry.conditions[0].message);
    let messages: Vec<&str> = messages.collect();
    let expected = "the host web-0 has no mirror: another mirror has the name web-0-east";
    assert_eq!(messages, [expected, ""]);
}

#[test]
fn hosts_beyond_the_limit_have_no_mirrors() {
    let mut world = world();
    world.export(&headless());
    let hosts = (0..MAX_HOSTS + 2).map(|at| format!("{{hostname: web-{at:04}, addresses: [a]}}"));
    let hosts = hosts.collect::<Vec<_>>().join(", ");
    world.endpoints("web", &format!("[{hosts}]"));
    world.settle();
    let subsets = &world.get(ENDPOINTS, "web-east").unwrap()["subsets"];
    let addresses = subsets[0]["addresses"].as_array().map(Vec::len);
    assert_eq!(addresses, Some(MAX_HOSTS));
    assert_eq!(world.get(SERVICE, "web-1000-east"), None::<&Value>);
    let message = &world.status().mirror_services[0].conditions[0].message;
    assert_eq!(message, "2 hosts beyond 1000 have no mirrors");
}
