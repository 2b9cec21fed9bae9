//! Mirrors of single Services.

use std::sync::Arc;

use serde_json::json;

use super::super::objects::Settings;
use super::world::{EAST, ENDPOINTS, SERVICE, WEB, World, name, settings};

const READY: &str = "[{addresses: [10.2.0.1]}]";
const NOT_READY: &str = "[{addresses: [10.2.0.1], conditions: {ready: false}}]";

/// Linkerd's service mirror writes these fields.
#[test]
fn exported_service_has_a_mirror_with_the_gateway_as_endpoints() {
    let mut world = World::east();
    world.export(WEB);
    world.endpoints("web", READY);
    assert_eq!(
        world.settle(),
        [
            "create Service shop/web-east",
            "create Endpoints links/probe-east",
            "create Endpoints shop/web-east",
        ]
    );
    let service = world.get(SERVICE, "web-east").unwrap();
    assert_eq!(
        service["metadata"]["labels"],
        json!({
            "app": "web",
            "mirror.linkerd.io/mirrored-service": "true",
            "mirror.linkerd.io/cluster-name": "east",
        })
    );
    assert_eq!(
        service["metadata"]["annotations"],
        json!({
            "mirror.linkerd.io/remote-svc-fq-name": "web.shop.svc.east.local",
            "mirror.linkerd.io/remote-resource-version": "7",
        })
    );
    let ports = json!([{ "name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080 }]);
    assert_eq!(service["spec"]["ports"], ports);
    assert!(service["spec"]["selector"].is_null());
    let endpoints = world.get(ENDPOINTS, "web-east").unwrap();
    assert_eq!(
        endpoints["metadata"]["annotations"],
        json!({
            "mirror.linkerd.io/remote-svc-fq-name": "web.shop.svc.east.local",
            "mirror.linkerd.io/remote-gateway-identity": "gateway.example",
        })
    );
    assert_eq!(
        endpoints["metadata"]["labels"],
        service["metadata"]["labels"]
    );
    let subsets = json!([{
        "addresses": [{ "ip": "192.0.2.1" }],
        "ports": [{ "name": "http", "port": 4143, "protocol": "TCP" }],
    }]);
    assert_eq!(endpoints["subsets"], subsets);
    let probe = world.get(ENDPOINTS, "links/probe-east").unwrap();
    let labels = json!({ "mirror.linkerd.io/cluster-name": "east" });
    assert_eq!(probe["metadata"]["labels"], labels);
    let identity = json!({ "mirror.linkerd.io/remote-gateway-identity": "gateway.example" });
    assert_eq!(probe["metadata"]["annotations"], identity);
    let subsets = json!([{
        "addresses": [{ "ip": "192.0.2.1" }],
        "ports": [{ "name": "mc-probe", "port": 4191, "protocol": "TCP" }],
    }]);
    assert_eq!(probe["subsets"], subsets);
    assert_eq!(world.reported(), ["shop/web Mirrored: web-east"]);
    assert_eq!(world.settle(), [""; 0]);
}

#[test]
fn endpoints_are_ready_while_service_and_gateway_are() {
    let mut world = World::east();
    world.export(WEB);
    let subsets = |world: &mut World| {
        world.settle();
        world.get(ENDPOINTS, "web-east").unwrap()["subsets"].clone()
    };
    assert_eq!(subsets(&mut world), json!([]));
    world.endpoints("web", NOT_READY);
    assert_eq!(subsets(&mut world), json!([]));
    world.endpoints("web", READY);
    let ready = subsets(&mut world);
    assert_eq!(ready[0]["addresses"], json!([{ "ip": "192.0.2.1" }]));
    world.change(|mirrors| mirrors.gateway.alive = false);
    let dead = subsets(&mut world);
    assert!(dead[0]["addresses"].is_null());
    assert_eq!(dead[0]["notReadyAddresses"], ready[0]["addresses"]);
    // Probes find out when it is alive again.
    let probe = world.get(ENDPOINTS, "links/probe-east").unwrap();
    assert_eq!(probe["subsets"][0]["addresses"], ready[0]["addresses"]);
    world.change(|mirrors| mirrors.gateway.alive = true);
    assert_eq!(subsets(&mut world), ready);
}

#[test]
fn endpoints_follow_the_addresses_of_the_gateway_and_stay_without_any() {
    let mut world = World::east();
    world.export(WEB);
    world.endpoints("web", READY);
    world.settle();
    let addresses = ["192.0.2.10", "192.0.2.9"].map(|ip| ip.parse().unwrap());
    world.change(|mirrors| mirrors.gateway.addresses = Some(Arc::new(addresses)));
    assert_eq!(
        world.settle(),
        [
            "replace Endpoints links/probe-east",
            "replace Endpoints shop/web-east",
        ]
    );
    let endpoints = world.get(ENDPOINTS, "web-east").unwrap();
    let expected = json!([{ "ip": "192.0.2.10" }, { "ip": "192.0.2.9" }]);
    assert_eq!(endpoints["subsets"][0]["addresses"], expected);
    world.change(|mirrors| mirrors.gateway.addresses = None);
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(
        world.reported(),
        ["shop/web Error: no address of the gateway could be resolved"]
    );
}

/// The API server groups and sorts the addresses of Endpoints.
#[test]
fn order_of_addresses_and_ports_makes_no_difference() {
    let mut world = World::east();
    let addresses = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
    world.change(|mirrors| mirrors.gateway.addresses = Some(Arc::new(addresses)));
    world.export(&WEB.replace("ports: [", "ports: [{name: grpc, port: 90}, "));
    world.endpoints("web", READY);
    world.settle();
    let mut endpoints = world.get(ENDPOINTS, "web-east").unwrap().clone();
    let subset = &mut endpoints["subsets"][0];
    for list in ["addresses", "ports"] {
        subset[list].as_array_mut().unwrap().reverse();
    }
    world.put(ENDPOINTS, &name("web-east"), endpoints.clone());
    assert_eq!(world.settle(), [""; 0]);
    endpoints["subsets"][0]["ports"][0]["port"] = 1.into();
    world.put(ENDPOINTS, &name("web-east"), endpoints);
    assert_eq!(world.settle(), ["replace Endpoints shop/web-east"]);
}

#[test]
fn endpoints_of_another_link_are_left_alone() {
    let mut world = World::empty();
    world.put_link("east", EAST);
    let labels = json!({ "mirror.linkerd.io/cluster-name": "west" });
    let object = json!({ "metadata": { "labels": labels } });
    world.put(ENDPOINTS, &name("links/probe-east"), object);
    world.start(settings(Some("east")), None);
    assert_eq!(world.settle(), [""; 0]);
}

#[test]
fn service_for_remote_discovery_has_no_endpoints() {
    let mut world = World::east();
    world.export(WEB);
    world.settle();
    world.export(
        &WEB.replace("'true'", "remote-discovery")
            .replace("'7'", "'8'"),
    );
    assert_eq!(
        world.settle(),
        [
            "set Service shop/web-east",
            "delete Endpoints shop/web-east"
        ]
    );
    let labels = &world.get(SERVICE, "web-east").unwrap()["metadata"]["labels"];
    assert_eq!(labels["multicluster.linkerd.io/remote-discovery"], "east");
    assert_eq!(labels["multicluster.linkerd.io/remote-service"], "web");
    assert_eq!(world.reported(), ["shop/web Mirrored: web-east"]);
    // And back, with the labels of the other mode removed.
    world.export(&WEB.replace("'7'", "'9'"));
    assert_eq!(
        world.settle(),
        [
            "set Service shop/web-east",
            "create Endpoints shop/web-east"
        ]
    );
    let labels = &world.get(SERVICE, "web-east").unwrap()["metadata"]["labels"];
    assert!(labels["multicluster.linkerd.io/remote-service"].is_null());
}

#[test]
fn mirror_ends_with_its_service_and_others_stay() {
    let mut world = World::east();
    world.export(WEB);
    world.export(&WEB.replace("name: web\n", "name: db\n"));
    world.settle();
    world.unexport(0, "web");
    assert_eq!(
        world.settle(),
        [
            "delete Service shop/web-east",
            "delete Endpoints shop/web-east"
        ]
    );
    assert_eq!(world.reported(), ["shop/db Mirrored: db-east"]);
    // Neither a selector nor a label selects it any longer.
    world.export(
        &WEB.replace("name: web\n", "name: db\n")
            .replace("'true'", "'no'"),
    );
    assert_eq!(
        world.settle(),
        [
            "delete Service shop/db-east",
            "delete Endpoints shop/db-east"
        ]
    );
    assert_eq!(world.reported(), [""; 0]);
}

/// What a process left that ended before it could remove it.
#[test]
fn orphans_of_the_cluster_are_removed_and_no_other_service_is() {
    let mut world = World::empty();
    world.put_link("east", EAST);
    let labels = |cluster: &str| {
        json!({ "metadata": { "labels": {
            "mirror.linkerd.io/mirrored-service": "true",
            "mirror.linkerd.io/cluster-name": cluster,
        }}})
    };
    for (service, object) in [
        ("gone-east", labels("east")),
        ("gone-west", labels("west")),
        ("own-east", json!({})),
        (
            "labelled-east",
            json!({ "metadata": { "labels": { "mirror.linkerd.io/cluster-name": "east" } } }),
        ),
    ] {
        world.put(SERVICE, &name(service), object.clone());
        world.put(ENDPOINTS, &name(service), object);
    }
    world.start(settings(Some("east")), None);
    assert_eq!(
        world.settle(),
        [
            "delete Service shop/gone-east",
            "create Endpoints links/probe-east",
            "delete Endpoints shop/gone-east",
        ]
    );
}

#[test]
fn foreign_service_with_the_name_of_a_mirror_is_left_alone_and_reported() {
    let mut world = World::east();
    let west = json!({ "mirror.linkerd.io/mirrored-service": "true", "mirror.linkerd.io/cluster-name": "west" });
    for labels in [json!({}), west] {
        let object = json!({ "metadata": { "labels": labels } });
        world.put(SERVICE, &name("web-east"), object);
        world.export(WEB);
        assert!(
            world
                .settle()
                .iter()
                .all(|write| !write.contains("web-east"))
        );
        assert_eq!(
            world.reported(),
            [
                "shop/web Error: there is a Service web-east that is not its mirror, and is left alone"
            ]
        );
    }
    world.delete(SERVICE, &name("web-east"));
    assert_eq!(
        world.settle(),
        [
            "create Service shop/web-east",
            "create Endpoints shop/web-east"
        ]
    );
    assert_eq!(world.reported(), ["shop/web Mirrored: web-east"]);
}

#[test]
fn service_in_a_missing_namespace_is_mirrored_when_that_exists() {
    let mut world = World::east();
    world.export(&WEB.replace("namespace: shop", "namespace: bank"));
    world.settle();
    assert_eq!(
        world.reported(),
        ["bank/web MissingNamespace: there is no namespace bank"]
    );
    // Nothing can be created in one that is being deleted.
    world.put_namespace(
        "bank",
        json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }),
    );
    assert_eq!(world.settle(), [""; 0]);
    world.put_namespace("bank", json!({}));
    assert_eq!(
        world.settle(),
        [
            "create Service bank/web-east",
            "create Endpoints bank/web-east"
        ]
    );
    assert_eq!(world.reported(), ["bank/web Mirrored: web-east"]);
    // Its objects are deleted with it, by Kubernetes.
    world.delete(SERVICE, &name("bank/web-east"));
    world.delete(ENDPOINTS, &name("bank/web-east"));
    world.delete_namespace("bank");
    assert_eq!(world.settle(), [""; 0]);
}

#[test]
fn missing_namespace_is_created_where_that_is_enabled() {
    let mut world = World::with(Settings {
        creates_namespaces: true,
        ..settings(Some("east"))
    });
    world.export(&WEB.replace("namespace: shop", "namespace: bank"));
    assert_eq!(
        world.settle(),
        [
            "create Namespace bank",
            "create Endpoints links/probe-east",
            "create Service bank/web-east",
            "create Endpoints bank/web-east",
        ]
    );
}

#[test]
fn metadata_of_a_mirror_is_its_services_without_excluded_and_local_keys() {
    let link =
        format!("{EAST}excludedLabels: [team]\nexcludedAnnotations: ['internal.example/*']\n");
    let mut world = World::empty();
    world.put_link("east", &link);
    world.start(settings(Some("east")), None);
    world.export(
        "
metadata:
  name: web
  namespace: shop
  resourceVersion: '7'
  labels:
    app: web
    team: shop
    mirror.linkerd.io/exported: 'true'
    mirror.linkerd.io/cluster-name: west
    multicluster.linkerd.io/remote-discovery: west
  annotations:
    config.linkerd.io/opaque-ports: '80'
    internal.example/owner: a
    internal.example: b
    kubectl.kubernetes.io/last-applied-configuration: '{}'
    service.kubernetes.io/topology-mode: auto
    service.kubernetes.io/topology-aware-hints: auto
    multicluster.linkerd.io/remote-discovery: web@west
spec: {ports: [{port: 80, appProtocol: http}]}
",
    );
    world.settle();
    let service = world.get(SERVICE, "web-east").unwrap();
    assert_eq!(
        service["metadata"]["labels"],
        json!({
            "app": "web",
            "mirror.linkerd.io/mirrored-service": "true",
            "mirror.linkerd.io/cluster-name": "east",
        })
    );
    assert_eq!(
        service["metadata"]["annotations"],
        json!({
            "config.linkerd.io/opaque-ports": "80",
            "internal.example": "b",
            "mirror.linkerd.io/remote-svc-fq-name": "web.shop.svc.east.local",
            "mirror.linkerd.io/remote-resource-version": "7",
        })
    );
    assert_eq!(service["spec"]["ports"][0]["appProtocol"], "http");
}

/// Other controllers add metadata, too.
#[test]
fn metadata_that_others_add_to_a_mirror_makes_no_difference() {
    let mut world = World::east();
    world.export(WEB);
    world.settle();
    let mut mirror = world.get(SERVICE, "web-east").unwrap().clone();
    mirror["metadata"]["labels"]["added"] = "yes".into();
    mirror["spec"]["sessionAffinity"] = "ClientIP".into();
    world.put(SERVICE, &name("web-east"), mirror.clone());
    assert_eq!(world.settle(), [""; 0]);
    // A changed label is restored.
    mirror["metadata"]["labels"]["app"] = "other".into();
    world.put(SERVICE, &name("web-east"), mirror);
    assert_eq!(world.settle(), ["set Service shop/web-east"]);
    let changed = WEB.replace("'7'", "'8'").replace("port: 80,", "port: 81,");
    world.export(&changed);
    // The ports of Endpoints are the gateway's.
    assert_eq!(world.settle(), ["set Service shop/web-east"]);
    let mirror = world.get(SERVICE, "web-east").unwrap();
    assert_eq!(mirror["spec"]["ports"][0]["port"], 81);
    assert_eq!(mirror["spec"]["sessionAffinity"], "ClientIP");
}

#[test]
fn invalid_service_is_reported_and_its_mirror_stays() {
    let mut world = World::east();
    world.export(WEB);
    world.settle();
    let long = "w".repeat(59);
    let huge = format!("annotations: {{a: {}}}", "b".repeat(64 << 10));
    for (manifest, problem) in [
        (WEB.replace("ports: [{", "other: [{"), "it has no ports"),
        (
            WEB.replace("uid: u-7", &huge),
            "its labels, annotations and ports have more than 64 KiB",
        ),
    ] {
        world.export(&manifest);
        assert_eq!(world.settle(), [""; 0]);
        let expected = format!("shop/web InvalidService: {problem}");
        assert_eq!(world.reported(), [expected]);
        assert!(world.get(SERVICE, "web-east").is_some());
    }
    world.unexport(0, "web");
    world.export(&WEB.replace("name: web\n", &format!("name: {long}\n")));
    world.settle();
    let problem =
        format!("the name of its mirror, {long}-east, would be longer than 63 characters");
    let expected = format!("shop/{long} InvalidService: {problem}");
    assert_eq!(world.reported(), [expected]);
}
