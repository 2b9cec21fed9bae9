//! Values files for Linkerd and with misspelt keys.

use super::*;

fn yaml(text: &str) -> Value {
    serde_norway::from_str(text).unwrap()
}

/// A values file for Linkerd with every key of its chart, some of them `null`.
const LINKERD: &str = include_str!("../../../testdata/values/linkerd.yaml");

#[test]
fn null_is_read_as_default() {
    // Every value and every group of values, each alone.
    let mut paths: Vec<String> = Vec::new();
    for path in defaults::<Values>().into_keys() {
        for (lookup, _) in path.match_indices('.') {
            paths.push(path[..lookup].to_owned());
        }
        paths.push(path);
    }
    assert!(paths.len() > 200, "{}", paths.len());
    for path in paths {
        let mut given = json!({});
        set_missing(&mut given, &path, Value::Null);
        assert_eq!(
            Values::read(given.clone()).unwrap(),
            Values::default(),
            "{path}"
        );
        assert_eq!(
            Values::read_file(&given).unwrap(),
            Values::default(),
            "{path}"
        );
    }
}

#[test]
fn siblings_of_given_values_keep_defaults() {
    let given =
        yaml("{proxy: {image: {version: v1}}, identity: {issuer: {scheme: kubernetes.io/tls}}}");
    let values = Values::read(given).unwrap();
    assert_eq!(values.image(&values.proxy.image), "mesh/proxy:v1");
    assert_eq!(values.identity.issuer.clock_skew_allowance, "20s");
}

#[test]
fn null_removes_entry_of_open_map() {
    let given = yaml("{nodeSelector: {kubernetes.io/os: null}, proxy: {inbound: {server: null}}}");
    let values = Values::read_file(&given).unwrap();
    assert!(values.node_selector.is_empty());
    assert!(values.proxy.inbound.is_empty());
    // A given entry is merged with the other default entries.
    let given = yaml("proxy: {inbound: {server: {http2: {keepAliveInterval: 1s}}}}");
    let http2 = &Values::read_file(&given).unwrap().proxy.inbound["server"]["http2"];
    assert_eq!(
        (&http2["keepAliveInterval"], &http2["keepAliveTimeout"]),
        (&json!("1s"), &json!("3s"))
    );
}

#[test]
fn values_files_for_linkerd_are_read() {
    let given = yaml(LINKERD);
    let values = Values::read_file(&given).unwrap();
    assert_eq!(values, Values::read(given.clone()).unwrap());
    assert_eq!(values.trust_domain(), "cluster.local");
    let ignored: Vec<&str> = ignored_keys::<Values>(&given)
        .iter()
        .map(|key| key.path)
        .collect();
    assert_eq!(
        ignored,
        [
            "controlPlaneTracing",
            "controlPlaneTracingNamespace",
            "enableEndpointSlices",
            "enablePSP",
            "enablePprof",
            "kubeAPI",
            "networkValidator.enableSecurityContext",
            "podMonitor.controller.namespaceSelector",
            "policyController.image",
            "proxyInit.image",
        ]
    );
    // Linkerd sends reports by default, this mesh only to a URL that a user sets.
    assert!(!values.disable_heart_beat);
    assert_eq!(values.heartbeat_receiver(), None);
    assert!(ignored_keys::<Values>(&yaml("{kubeAPI: null, proxy: {}}")).is_empty());
}

#[test]
fn ignored_keys_are_sorted_and_no_values() {
    assert!(IGNORED.is_sorted_by_key(|key| key.path));
    let defaults = serde_json::to_value(Values::default()).unwrap();
    for key in IGNORED {
        assert_eq!(lookup(&defaults, key.path), None, "{}", key.path);
    }
}

#[test]
fn error_names_path_of_invalid_value() {
    let error = |text: &str| Values::read(yaml(text)).unwrap_err().to_string();
    let expected = "proxy.ports.inbound: invalid type: string \"x\", expected u16";
    assert_eq!(
        error("{linkerdVersion: a, proxy: {uid: 1, ports: {admin: 2, inbound: x}}}"),
        expected
    );
    assert!(error("proxy: 5").starts_with("proxy: invalid type"));
    assert_eq!(error("[]"), "expected a map of values");
    assert_eq!(Values::read(Value::Null).unwrap(), Values::default());
}

#[test]
fn unknown_key_is_error_in_file_and_skipped_in_config_map() {
    let error = |text: &str| Values::read_file(&yaml(text)).unwrap_err().to_string();
    assert_eq!(
        error("proxy: {opaqePorts: '25'}"),
        "proxy.opaqePorts is not a value of this mesh: did you mean proxy.opaquePorts?"
    );
    assert_eq!(
        error("{podLabels: {any: name}, something: 1}"),
        "something is not a value of this mesh; docs/reference/values.md lists them"
    );
    assert_eq!(
        Values::read(yaml("something: 1")).unwrap(),
        Values::default()
    );
}

#[test]
fn reports_need_url_and_no_prohibition() {
    let receiver = |text: &str| {
        let values = Values::read(yaml(text)).unwrap();
        values.heartbeat_receiver().map(str::to_owned)
    };
    assert_eq!(receiver("{}"), None);
    assert_eq!(receiver("disableHeartBeat: false"), None);
    assert_eq!(
        receiver("heartbeatUrl: https://a.example").as_deref(),
        Some("https://a.example")
    );
    assert_eq!(
        receiver("{heartbeatUrl: 'https://a.example', disableHeartBeat: true}"),
        None
    );
}

#[test]
fn empty_trust_domain_is_cluster_domain() {
    let domain = |text: &str| Values::read(yaml(text)).unwrap().trust_domain().to_owned();
    assert_eq!(domain("{}"), "cluster.local");
    assert_eq!(domain("clusterDomain: example.org"), "example.org");
    assert_eq!(
        domain("{clusterDomain: example.org, identityTrustDomain: ''}"),
        "example.org"
    );
    assert_eq!(
        domain("{clusterDomain: example.org, identityTrustDomain: a.b}"),
        "a.b"
    );
}
