//! Checks that every value has an effect and that templates only read existing values.

use std::collections::BTreeMap;
use std::{fs, thread};

use mesh_k8s::values::Values;
use mesh_k8s::values::reading::{defaults, schema};
use serde_json::{Map, Value, json};

use crate::generated::root;
use crate::helm;

/// The values behind the variables of templates.
const ALIASES: [(&str, &str); 11] = [
    (".Values", ""),
    ("$values", ""),
    ("$proxy", "proxy"),
    ("$workers", "proxy.runtime.workers"),
    ("$init", "proxyInit"),
    ("$validator", "networkValidator"),
    ("$agent", "meshAgent"),
    ("$webhook", "proxyInjector"),
    ("$identity", "identity"),
    ("$tls", "identity.issuer.tls"),
    ("$monitor", "podMonitor"),
];

#[test]
fn templates_only_read_existing_values() {
    let defaults = serde_json::to_value(Values::default()).unwrap();
    let templates = root().join("helm/linkerd-control-plane/templates");
    let mut read = 0;
    for entry in fs::read_dir(templates).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for (alias, prefix) in ALIASES {
            for (at, _) in text.match_indices(&format!("{alias}.")) {
                let rest = &text[at + alias.len() + 1..];
                let names: String = rest
                    .chars()
                    .take_while(|c| c.is_ascii_alphanumeric() || *c == '.')
                    .collect();
                let names = names.trim_end_matches('.');
                let full = format!("{prefix}.{names}");
                assert!(
                    exists(&defaults, full.trim_start_matches('.')),
                    "{}: no value {alias}.{names}",
                    path.display()
                );
                read += 1;
            }
        }
    }
    assert!(read > 200, "{read} values read");
}

/// Otherwise the template does not replace `null` by the default.
#[test]
fn every_template_begins_with_merged_values() {
    let templates = root().join("helm/linkerd-control-plane/templates");
    let mut seen = 0;
    for directory in [templates.clone(), templates.join("tests")] {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if path.is_dir() || name.starts_with('_') {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let first = text.lines().next();
            assert_eq!(first, Some("{{- include \"mesh.values\" . -}}"), "{name}");
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen} templates");
}

/// All values of one depth together, because rendering with each value alone takes minutes.
#[test]
fn null_renders_as_default() {
    require_helm!("null_renders_as_default");
    let default = helm::control_plane("{}").unwrap();
    for depth in 1..=4 {
        let mut given = json!({});
        for path in defaults().into_keys() {
            let names: Vec<&str> = path.split('.').collect();
            let end = depth.min(names.len());
            put(&mut given, &names[..end].join("."), Value::Null);
        }
        let rendered = helm::control_plane(&given.to_string());
        let rendered = rendered.unwrap_or_else(|error| panic!("depth {depth}: {error}"));
        for (expected, found) in default.iter().zip(&rendered) {
            assert_eq!(found, expected, "depth {depth}");
        }
        assert_eq!(rendered.len(), default.len(), "depth {depth}");
    }
}

/// Returns whether the path is a value or an entry of an open map.
fn exists(values: &Value, path: &str) -> bool {
    let mut place = values;
    for name in path.split('.') {
        match place.as_object() {
            Some(map) if map.is_empty() => return true,
            Some(map) => match map.get(name) {
                Some(value) => place = value,
                None => return false,
            },
            None => return false,
        }
    }
    true
}

/// Values without an effect on the rendering, and why.
const NO_EFFECT: [(&str, &str); 5] = [
    ("debugContainer.image.name", "the injector reads it"),
    ("debugContainer.image.version", "the injector reads it"),
    ("debugContainer.image.pullPolicy", "the injector reads it"),
    (
        "proxyInit.ignoreOutboundPorts",
        "the injector reads it; in the control plane's own pods kubeAPIServerPorts applies instead",
    ),
    (
        "highAvailability",
        "only the notes and `meshctl check` read it",
    ),
];

/// Values that only have an effect together with others or with a certain value.
const TOGETHER: [(&[&str], &str); 11] = [
    (
        &[
            "identityTrustAnchorsPEM",
            "identity.issuer.tls.crtPEM",
            "identity.issuer.tls.keyPEM",
        ],
        "{identityTrustAnchorsPEM: a, identity: {issuer: {tls: {crtPEM: b, keyPEM: c}}}}",
    ),
    (&["identity.externalCA"], "identity: {externalCA: true}"),
    (
        &["proxyInjector.externalSecret", "proxyInjector.caBundle"],
        "proxyInjector: {externalSecret: true, caBundle: x}",
    ),
    (
        &["proxyInjector.crtPEM", "proxyInjector.keyPEM"],
        "proxyInjector: {crtPEM: a, keyPEM: b, caBundle: c}",
    ),
    (
        &["proxyInjector.injectCaFrom"],
        "proxyInjector: {externalSecret: true, injectCaFrom: a/b}",
    ),
    (
        &["proxyInjector.injectCaFromSecret"],
        "proxyInjector: {externalSecret: true, injectCaFromSecret: a/b}",
    ),
    (
        &["proxyInit.closeWaitTimeoutSecs"],
        "{meshAgent: {enabled: false}, proxyInit: {closeWaitTimeoutSecs: 5, runAsRoot: true}}",
    ),
    (
        &["meshAgent.adminAddr"],
        "meshAgent: {adminAddr: '0.0.0.0:9994'}",
    ),
    (
        &["podMonitor.agent.enabled"],
        "{podMonitor: {enabled: true, agent: {enabled: true}}, meshAgent: {adminAddr: '0.0.0.0:9993'}}",
    ),
    (
        &["cniEnabled"],
        "{meshAgent: {enabled: false}, cniEnabled: true}",
    ),
    (
        &["proxy.securityContext"],
        "proxy: {securityContext: {runAsUser: 5}}",
    ),
];

/// Values to which a single changed value is added. Each value has an effect on one of them.
const BASES: [&str; 3] = [
    "{enablePodDisruptionBudget: true, podMonitor: {enabled: true}}",
    "{meshAgent: {enabled: false}}",
    "{meshAgent: {enabled: false}, cniEnabled: true, proxy: {nativeSidecar: false}}",
];

#[test]
fn every_value_has_an_effect() {
    require_helm!("every_value_has_an_effect");
    let mut leaves = Vec::new();
    collect(
        "",
        &serde_json::to_value(Values::default()).unwrap(),
        &schema(),
        &mut leaves,
    );
    let bases: Vec<(Value, String)> = BASES
        .iter()
        .map(|base| {
            (
                serde_norway::from_str(base).unwrap(),
                rendered(base).unwrap(),
            )
        })
        .collect();
    let reasons = BTreeMap::from(NO_EFFECT);
    let together = |path: &str| {
        let found = TOGETHER.iter().find(|(paths, _)| paths.contains(&path));
        found.map(|(_, values)| *values)
    };
    let without: Vec<String> = thread::scope(|scope| {
        let chunk = leaves.len().div_ceil(4);
        let threads: Vec<_> = leaves
            .chunks(chunk)
            .map(|leaves| {
                scope.spawn(|| {
                    leaves
                        .iter()
                        .filter(|(path, value)| !has_effect(path, value, &bases, together(path)))
                        .map(|(path, _)| path.clone())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    let unexplained: Vec<&String> = without
        .iter()
        .filter(|path| !reasons.contains_key(path.as_str()))
        .collect();
    assert!(unexplained.is_empty(), "no effect: {unexplained:?}");
    for path in reasons.keys() {
        assert!(
            without.iter().any(|found| found == path),
            "{path} has an effect after all"
        );
    }
}

fn has_effect(
    path: &str,
    value: &Value,
    bases: &[(Value, String)],
    together: Option<&str>,
) -> bool {
    if let Some(values) = together {
        return rendered(values).unwrap() != bases[0].1;
    }
    bases.iter().any(|(base, before)| {
        let mut values = base.clone();
        put(&mut values, path, value.clone());
        // The schema may reject the value.
        rendered(&values.to_string()).is_ok_and(|after| after != *before)
    })
}

/// Renders everything except the ConfigMap with the values, and its checksum.
fn rendered(values: &str) -> Result<String, String> {
    let mut objects = helm::control_plane(values)?;
    objects.retain(|object| {
        !(object["kind"] == "ConfigMap" && object["metadata"]["name"] == "linkerd-config")
    });
    for object in &mut objects {
        if let Some(annotations) =
            object["spec"]["template"]["metadata"]["annotations"].as_object_mut()
        {
            annotations.remove("checksum/config");
        }
    }
    Ok(serde_json::to_string(&objects).unwrap())
}

/// Collects every leaf value with a different value.
fn collect(path: &str, value: &Value, schema: &Value, leaves: &mut Vec<(String, Value)>) {
    if let (Some(map), true) = (value.as_object(), schema.get("properties").is_some()) {
        for (name, value) in map {
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            collect(&path, value, &schema["properties"][name], leaves);
        }
        return;
    }
    leaves.push((path.to_owned(), another(path, value, schema)));
}

fn another(path: &str, value: &Value, schema: &Value) -> Value {
    if let Some(choices) = schema["enum"].as_array() {
        let mut others = choices
            .iter()
            .filter(|choice| *choice != value && choice.is_string());
        return others.next_back().unwrap().clone();
    }
    match value {
        Value::Bool(flag) => json!(!flag),
        Value::Number(number) => json!(number.as_i64().unwrap() + 1),
        Value::String(_) if path.ends_with("clusterNetworks") => json!("10.0.0.0/8"),
        Value::String(_) => json!("7"),
        Value::Array(_) if path.ends_with("probeNetworks") => json!(["10.0.0.0/8"]),
        Value::Array(_) => json!([{ "name": "added" }]),
        Value::Object(_) if path.ends_with("elector") && path.starts_with("proxyInjector") => {
            json!({ "matchLabels": { "a": "b" } })
        }
        Value::Object(_) if path == "proxy.inbound" || path == "proxy.outbound" => {
            json!({ "server": { "http2": { "added": 1 } } })
        }
        Value::Object(_) => json!({ "added": "x" }),
        Value::Null if path.contains("workers") || path.ends_with("cores") => json!(2),
        Value::Null => json!({ "runAsUser": 5 }),
    }
}

fn put(values: &mut Value, path: &str, value: Value) {
    let mut place = values;
    for name in path.split('.') {
        let map = place.as_object_mut().unwrap();
        place = map.entry(name).or_insert_with(|| Value::Object(Map::new()));
    }
    *place = value;
}
