//! ConfigMaps, valid and not, and which of several are in effect.

use serde_json::{Value, json};

use super::*;

const OWN: &str = "cluster.local";

fn object(changes: Value) -> ConfigMap {
    let mut object = json!({
        "metadata": {
            "name": "linkerd-trust-bundle-west",
            "namespace": "linkerd",
            "labels": { TRUST_BUNDLE_OF: "west" },
        },
        "data": {
            "trust-domain": "west.example",
            "endpoint-url": "https://192.0.2.1:8443/",
            "endpoint-profile": "https_spiffe",
            "endpoint-spiffe-id": "spiffe://west.example/ns/linkerd/sa/linkerd-identity",
            "bundle.json": "{\"keys\":[]}",
            "link": "linkerd-multicluster/west",
        },
    });
    json_patch::merge(&mut object, &changes);
    serde_json::from_value(object).unwrap()
}

fn with(data: Value) -> ConfigMap {
    object(json!({ "data": data }))
}

fn problems(data: Value) -> Vec<String> {
    let problems = ForeignDomain::read(&with(data)).err().unwrap_or_default();
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn config_map_round_trips_with_either_profile() {
    for object in [
        with(json!({})),
        with(json!({ "link": null })),
        with(json!({
            "endpoint-profile": "https_web",
            "endpoint-spiffe-id": null,
            "endpoint-ca.crt": "-----BEGIN CERTIFICATE-----",
            "endpoint-url": "https://bundle.example:443/a?b=c",
        })),
        with(json!({
            "endpoint-profile": "https_web",
            "endpoint-spiffe-id": null,
            "bundle.json": null,
        })),
    ] {
        let domain = ForeignDomain::read(&object).unwrap();
        assert_eq!(domain.config_map("linkerd"), object);
    }
    let domain = ForeignDomain::read(&with(json!({}))).unwrap();
    assert_eq!(
        (domain.endpoint.host.as_str(), domain.endpoint.port),
        ("192.0.2.1", 8443)
    );
    let without_port = with(json!({ "endpoint-url": "https://[2001:db8::1]" }));
    let endpoint = ForeignDomain::read(&without_port).unwrap().endpoint;
    assert_eq!(
        (endpoint.host.as_str(), endpoint.port),
        ("[2001:db8::1]", 443)
    );
    assert_eq!(endpoint.path, "/");
}

#[test]
fn invalid_fields_are_named() {
    for (data, problem) in [
        (
            json!({ "trust-domain": null }),
            "data[trust-domain]: is missing",
        ),
        (
            json!({ "endpoint-url": "" }),
            "data[endpoint-url]: is missing",
        ),
        (
            json!({ "endpoint-url": "http://192.0.2.1/" }),
            "data[endpoint-url]: \"http://192.0.2.1/\" is not a URL",
        ),
        (
            json!({ "endpoint-url": "https://a@b/" }),
            "data[endpoint-url]: ",
        ),
        (
            json!({ "endpoint-url": "https://b/#a" }),
            "data[endpoint-url]: ",
        ),
        (
            json!({ "endpoint-url": "https://b:0/" }),
            "data[endpoint-url]: ",
        ),
        (
            json!({ "endpoint-url": "https://b:99999/" }),
            "data[endpoint-url]: ",
        ),
        (
            json!({ "endpoint-profile": "https" }),
            "data[endpoint-profile]: \"https\" is neither https_spiffe nor https_web",
        ),
        (
            json!({ "endpoint-spiffe-id": "spiffe://other.example/a" }),
            "data[endpoint-spiffe-id]: \"spiffe://other.example/a\" is not an identity of the trust domain",
        ),
        (
            json!({ "endpoint-spiffe-id": "a.west.example" }),
            "data[endpoint-spiffe-id]: ",
        ),
        (
            json!({ "bundle.json": null }),
            "data[bundle.json]: is missing: https_spiffe needs the first bundle",
        ),
        (
            json!({ "bundle.json": "x".repeat(MAX_DOCUMENT + 1) }),
            "data[bundle.json]: has 65537 bytes, at most 65536 are read",
        ),
        (
            json!({ "link": "west" }),
            "data[link]: \"west\" is not NAMESPACE/NAME",
        ),
        (json!({ "link": "a/../b" }), "data[link]: "),
        (
            json!({ "endpoint-ca.crt": "x" }),
            "data[endpoint-ca.crt]: is not known",
        ),
        (json!({ "refresh": "5s" }), "data[refresh]: is not known"),
    ] {
        let found = problems(data.clone());
        assert_eq!(found.len(), 1, "{data}: {found:?}");
        assert!(found[0].starts_with(problem), "{found:?}");
    }
    let unnamed = object(json!({ "metadata": { "labels": { TRUST_BUNDLE_OF: "a b" } } }));
    ForeignDomain::read(&unnamed).unwrap_err();
    let longest = json!({ "bundle.json": "x".repeat(MAX_DOCUMENT) });
    assert_eq!(problems(longest), [""; 0]);
}

/// A ConfigMap of a cluster that was created at this hour.
fn of(cluster: &str, domain: &str, hour: u8) -> ConfigMap {
    object(json!({
        "metadata": {
            "name": config_map_name(cluster),
            "labels": { TRUST_BUNDLE_OF: cluster },
            "creationTimestamp": format!("2026-01-01T{hour:02}:00:00Z"),
        },
        "data": {
            "trust-domain": domain,
            "endpoint-spiffe-id": format!("spiffe://{domain}/a"),
        },
    }))
}

#[test]
fn older_config_map_is_in_effect_and_others_say_why_not() {
    let invalid = object(json!({
        "metadata": { "name": "linkerd-trust-bundle-x", "creationTimestamp": "2026-01-01T00:00:00Z" },
        "data": { "trust-domain": null },
    }));
    let objects = vec![
        of("same", "west.example", 5),
        of("west", "west.example", 1),
        of("sub", "a.west.example", 2),
        of("own", OWN, 3),
        of("below", "a.cluster.local", 3),
        of("south", "south.example", 4),
        invalid,
    ];
    let (selected, refused) = select(OWN, objects);
    let selected: Vec<_> = selected.iter().map(|it| it.cluster.as_str()).collect();
    assert_eq!(selected, ["west", "south"]);
    let refused: Vec<_> = refused.iter().map(ToString::to_string).collect();
    for (refused, text) in refused.iter().zip([
        "ConfigMap linkerd-trust-bundle-x: data[trust-domain]: is missing",
        "ConfigMap linkerd-trust-bundle-sub: its trust domain a.west.example and west.example overlap",
        "ConfigMap linkerd-trust-bundle-below: its trust domain a.cluster.local and cluster.local overlap",
        "ConfigMap linkerd-trust-bundle-own: its trust domain cluster.local is the one of this cluster",
        "ConfigMap linkerd-trust-bundle-same: ConfigMap linkerd-trust-bundle-west is older",
    ]) {
        assert!(refused.starts_with(text), "{refused}");
    }
    assert_eq!(refused.len(), 5);
}

#[test]
fn number_of_domains_is_bounded() {
    let objects = (0..=MAX_FOREIGN_DOMAINS).map(|at| {
        let cluster = format!("c{at:02}");
        of(&cluster, &format!("{cluster}.example"), 1)
    });
    let (selected, refused) = select(OWN, objects.collect());
    assert_eq!(selected.len(), MAX_FOREIGN_DOMAINS);
    assert_eq!(refused[0].problem, Refusal::Many);
    assert_eq!(refused[0].name, config_map_name("c32"));
}
