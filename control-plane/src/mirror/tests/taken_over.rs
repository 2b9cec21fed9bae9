//! A link whose mirrors Linkerd's service mirror has written so far. They stay, and become what
//! this one would have written.

use serde_json::{Value, json};

use super::super::objects::Settings;
use super::world::{EAST, ENDPOINTS, LINK, SERVICE, WEB, World, name, read, settings};

const READY: &str = "[{addresses: [10.2.0.1]}]";
const HOSTS: &str = "[{addresses: [10.2.0.1], hostname: web-0}]";

const SHARED: &str = "
metadata:
  name: shared
  namespace: shop
  resourceVersion: '5'
  labels: {app: shared, mirror.linkerd.io/federated: member}
spec: {clusterIP: 10.1.0.2, ports: [{name: http, port: 80, targetPort: 80}]}
";

/// The objects of Linkerd's service mirror for [`WEB`].
fn leave_mirror(world: &mut World) {
    let labels = json!({
        "app": "web",
        "mirror.linkerd.io/mirrored-service": "true",
        "mirror.linkerd.io/cluster-name": "east",
    });
    let fqn = "web.shop.svc.east.local";
    let annotations = json!({
        "mirror.linkerd.io/remote-svc-fq-name": fqn,
        "mirror.linkerd.io/remote-resource-version": "7",
    });
    put_service(world, "web-east", &labels, &annotations, json!({}));
    put_endpoints(world, "web-east", &labels, fqn, gateway("http", 4143));
}

fn put_service(world: &mut World, of: &str, labels: &Value, annotations: &Value, spec: Value) {
    let mut object = json!({
        "metadata": { "labels": labels, "annotations": annotations },
        "spec": spec,
    });
    let ports = json!([{ "name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080 }]);
    object["spec"]["ports"] = ports;
    world.put(SERVICE, &name(of), object);
}

/// `fqn` is empty for the Endpoints of probes.
fn put_endpoints(world: &mut World, of: &str, labels: &Value, fqn: &str, subset: Value) {
    let mut annotations = json!({ "mirror.linkerd.io/remote-gateway-identity": "gateway.example" });
    if !fqn.is_empty() {
        annotations["mirror.linkerd.io/remote-svc-fq-name"] = fqn.into();
    }
    let object = json!({
        "metadata": { "labels": labels, "annotations": annotations },
        "subsets": [subset],
    });
    world.put(ENDPOINTS, &name(of), object);
}

/// The addresses of the gateway for a port.
fn gateway(port: &str, number: u16) -> Value {
    json!({
        "addresses": [{ "ip": "192.0.2.1" }],
        "ports": [{ "name": port, "port": number, "protocol": "TCP" }],
    })
}

fn put_probe(world: &mut World) {
    let labels = json!({ "mirror.linkerd.io/cluster-name": "east" });
    let of = "links/probe-east";
    put_endpoints(world, of, &labels, "", gateway("mc-probe", 4191));
}

/// Sets the Link with a status that another controller has written.
fn put_link(world: &mut World, status: Value) {
    let object = json!({
        "metadata": { "creationTimestamp": "1970-01-01T00:01:40Z" },
        "spec": read::<Value>(EAST),
        "status": status,
    });
    world.put(LINK, &name("links/east"), object);
}

/// An entry of a status as the API server stores it.
fn entry(of: &str, local: Option<&str>, reason: &str) -> Value {
    let reference = |name: &str| json!({ "group": "core", "kind": "Service", "name": name, "namespace": "shop" });
    let mut condition = json!({
        "type": "Mirrored",
        "status": if local.is_some() { "True" } else { "False" },
        "reason": reason,
        "message": "",
        "lastTransitionTime": "1970-01-02T00:00:00Z",
    });
    if let Some(local) = local {
        condition["localRef"] = reference(local);
    }
    json!({
        "controllerName": "linkerd.io/service-mirror",
        "remoteRef": reference(of),
        "conditions": [condition],
    })
}

#[test]
fn mirror_behind_the_gateway_and_its_status_need_no_write() {
    let mut world = World::empty();
    let left = json!({ "mirrorServices": [entry("web", Some("web-east"), "Mirrored")] });
    put_link(&mut world, left.clone());
    leave_mirror(&mut world);
    put_probe(&mut world);
    world.start(settings(Some("east")), None);
    world.export(WEB);
    world.endpoints("web", READY);
    assert_eq!(world.settle(), [""; 0]);
    let status = serde_json::to_value(world.status()).unwrap();
    assert_eq!(status["mirrorServices"], left["mirrorServices"]);
    let written = world.get(LINK, "links/east").unwrap();
    assert_eq!(written["status"], left, "it was written");
}

/// Services have changed while no service mirror ran.
#[test]
fn changes_before_the_start_are_made_in_the_objects_that_exist() {
    let mut world = World::empty();
    put_link(&mut world, Value::Null);
    leave_mirror(&mut world);
    put_probe(&mut world);
    let labels = json!({
        "mirror.linkerd.io/mirrored-service": "true",
        "mirror.linkerd.io/cluster-name": "east",
    });
    put_service(&mut world, "gone-east", &labels, &json!({}), json!({}));
    world.start(settings(Some("east")), None);
    let discovered = WEB.replace("'true'", "remote-discovery");
    world.export(&discovered.replace("'7'", "'9'"));
    assert_eq!(
        world.settle(),
        [
            "delete Service shop/gone-east",
            "set Service shop/web-east",
            "delete Endpoints shop/web-east",
        ]
    );
}

/// Linkerd notes the version of the endpoints at the mirrors of hosts.
#[test]
fn headless_mirror_and_its_hosts_stay_and_hosts_get_the_version_of_the_service() {
    let mut world = World::empty();
    put_link(&mut world, Value::Null);
    put_probe(&mut world);
    let labels = json!({
        "app": "web",
        "mirror.linkerd.io/mirrored-service": "true",
        "mirror.linkerd.io/cluster-name": "east",
    });
    let annotations = |fqn: &str, version: &str| {
        json!({
            "mirror.linkerd.io/remote-svc-fq-name": fqn,
            "mirror.linkerd.io/remote-resource-version": version,
        })
    };
    let fqn = "web.shop.svc.east.local";
    let none = json!({ "clusterIP": "None" });
    put_service(
        &mut world,
        "web-east",
        &labels,
        &annotations(fqn, "7"),
        none,
    );
    let mut of_host = labels.clone();
    of_host["mirror.linkerd.io/headless-mirror-svc-name"] = "web-east".into();
    let host = "web-0.web.shop.svc.east.local";
    let address = json!({ "clusterIP": "10.0.0.9" });
    let noted = annotations(host, "112");
    put_service(&mut world, "web-0-east", &of_host, &noted, address);
    let of_gateway = gateway("http", 4143);
    put_endpoints(&mut world, "web-0-east", &of_host, host, of_gateway);
    let of_hosts = json!({
        "addresses": [{ "ip": "10.0.0.9", "hostname": "web-0" }],
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
    });
    put_endpoints(&mut world, "web-east", &labels, fqn, of_hosts);
    world.start(
        Settings {
            mirrors_headless: true,
            ..settings(Some("east"))
        },
        None,
    );
    world.export(&WEB.replace("10.1.0.1", "None"));
    world.endpoints("web", HOSTS);
    assert_eq!(world.settle(), ["set Service shop/web-0-east"]);
    let host = world.get(SERVICE, "web-0-east").unwrap();
    assert_eq!(host["metadata"]["labels"], of_host);
    assert_eq!(host["spec"]["clusterIP"], "10.0.0.9");
}

/// The process of another Link and the one for this cluster's own members may be Linkerd's.
#[test]
fn federated_service_keeps_the_members_of_others() {
    for (before, expected) in [
        ("shared@west,shared@east", "shared@west,shared@east"),
        ("shared@west", "shared@west,shared@east"),
    ] {
        let mut world = World::empty();
        put_link(&mut world, Value::Null);
        put_probe(&mut world);
        let labels = json!({ "app": "shared", "mirror.linkerd.io/mirrored-service": "true" });
        let annotations = json!({
            "multicluster.linkerd.io/remote-discovery": before,
            "multicluster.linkerd.io/local-discovery": "shared",
        });
        put_service(
            &mut world,
            "shared-federated",
            &labels,
            &annotations,
            json!({}),
        );
        world.start(settings(Some("east")), None);
        world.export(SHARED);
        world.settle();
        let federated = &world.get(SERVICE, "shared-federated").unwrap();
        let annotations = &federated["metadata"]["annotations"];
        assert_eq!(
            annotations["multicluster.linkerd.io/remote-discovery"],
            expected
        );
        assert_eq!(
            annotations["multicluster.linkerd.io/local-discovery"],
            "shared"
        );
        // This cluster's own member decides about the ports.
        assert_eq!(federated["spec"]["ports"][0]["targetPort"], 8080);
        world.unexport(0, "shared");
        world.settle();
        let federated = &world.get(SERVICE, "shared-federated").unwrap();
        let annotations = &federated["metadata"]["annotations"];
        assert_eq!(
            annotations["multicluster.linkerd.io/remote-discovery"],
            "shared@west"
        );
    }
}

/// Linkerd appends entries. The order is the only difference.
#[test]
fn entries_of_a_status_are_sorted_and_keep_their_times() {
    let mut world = World::empty();
    let web = entry("web", Some("web-east"), "Mirrored");
    let db = entry("db", Some("db-east"), "Mirrored");
    let gone = entry("gone", None, "MissingNamespace");
    put_link(&mut world, json!({ "mirrorServices": [web, gone, db] }));
    leave_mirror(&mut world);
    world.start(settings(Some("east")), None);
    world.export(WEB);
    world.export(&WEB.replace("name: web\n", "name: db\n"));
    world.settle();
    let status = serde_json::to_value(world.status()).unwrap();
    assert_eq!(status["mirrorServices"], json!([db, web]));
}
