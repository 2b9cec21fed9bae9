//! Checks that every value of a chart has an effect and that templates only read existing values.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{fs, thread};

use mesh_k8s::values::Values;
use mesh_k8s::values::reading::{ChartValues, defaults, schema};
use serde_json::{Map, Value, json};

use crate::generated::root;
use crate::helm;

/// A chart and what its coverage tests need to know about it.
pub(crate) struct Coverage {
    pub(crate) chart: &'static str,
    pub(crate) defaults: Value,
    pub(crate) schema: Value,
    /// The paths of all leaf values.
    pub(crate) leaves: Vec<String>,
    /// The values behind the variables of templates.
    pub(crate) aliases: &'static [(&'static str, &'static str)],
    /// The call that replaces `null` by the default. Every template begins with it.
    pub(crate) first_line: &'static str,
    /// Values without an effect on the rendering, and why.
    pub(crate) no_effect: &'static [(&'static str, &'static str)],
    /// Values that only have an effect together with others or with a certain value.
    pub(crate) together: &'static [(&'static [&'static str], &'static str)],
    /// Values that a single changed value is added to. Each value has an effect on one of them.
    pub(crate) bases: &'static [&'static str],
    /// Renders the chart.
    pub(crate) render: fn(&str) -> Result<Vec<Value>, String>,
    /// Returns a valid value that differs from the default.
    pub(crate) another: fn(&str, &Value) -> Option<Value>,
}

impl Coverage {
    pub(crate) fn new<V: ChartValues>(render: fn(&str) -> Result<Vec<Value>, String>) -> Self {
        Self {
            chart: V::CHART,
            defaults: serde_json::to_value(V::default()).unwrap(),
            schema: schema::<V>(),
            leaves: defaults::<V>().into_keys().collect(),
            aliases: &[(".Values", ""), ("$values", "")],
            first_line: "",
            no_effect: &[],
            together: &[],
            bases: &["{}"],
            render,
            another: |_path, _value| None,
        }
    }

    fn templates(&self) -> PathBuf {
        root().join("helm").join(self.chart).join("templates")
    }

    /// Checks that templates only read existing values, and returns how many they read.
    pub(crate) fn check_that_read_values_exist(&self) -> usize {
        let mut read = 0;
        for entry in fs::read_dir(self.templates()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            for (alias, prefix) in self.aliases {
                for (at, _) in text.match_indices(&format!("{alias}.")) {
                    let rest = &text[at + alias.len() + 1..];
                    let names: String = rest
                        .chars()
                        .take_while(|c| c.is_ascii_alphanumeric() || *c == '.')
                        .collect();
                    let names = names.trim_end_matches('.');
                    let full = format!("{prefix}.{names}");
                    assert!(
                        exists(&self.defaults, full.trim_start_matches('.')),
                        "{}: no value {alias}.{names}",
                        path.display()
                    );
                    read += 1;
                }
            }
        }
        read
    }

    /// Checks the first lines of templates, and returns the number of templates.
    pub(crate) fn check_first_lines(&self) -> usize {
        let mut seen = 0;
        let directories = [self.templates(), self.templates().join("tests")];
        for directory in directories.iter().filter(|directory| directory.exists()) {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                if path.is_dir() || name.starts_with('_') {
                    continue;
                }
                let text = fs::read_to_string(&path).unwrap();
                assert_eq!(text.lines().next(), Some(self.first_line), "{name}");
                seen += 1;
            }
        }
        seen
    }

    /// Checks that `null` renders as the default: all values of one depth together, because
    /// rendering with each value alone takes minutes.
    pub(crate) fn check_nulls(&self) {
        let default = (self.render)("{}").unwrap();
        for depth in 1..=4 {
            let mut given = json!({});
            for path in &self.leaves {
                let names: Vec<&str> = path.split('.').collect();
                let end = depth.min(names.len());
                put(&mut given, &names[..end].join("."), Value::Null);
            }
            let rendered = (self.render)(&given.to_string());
            let rendered = rendered.unwrap_or_else(|error| panic!("depth {depth}: {error}"));
            for (expected, found) in default.iter().zip(&rendered) {
                assert_eq!(found, expected, "depth {depth}");
            }
            assert_eq!(rendered.len(), default.len(), "depth {depth}");
        }
    }

    /// Checks that every value has an effect on the rendering.
    pub(crate) fn check_effects(&self) {
        let mut leaves = Vec::new();
        self.collect("", &self.defaults, &self.schema, &mut leaves);
        let bases: Vec<(Value, String)> = self
            .bases
            .iter()
            .map(|base| {
                (
                    serde_norway::from_str(base).unwrap(),
                    self.rendered(base).unwrap(),
                )
            })
            .collect();
        let reasons: BTreeMap<&str, &str> = self.no_effect.iter().copied().collect();
        let without: Vec<String> = thread::scope(|scope| {
            let chunk = leaves.len().div_ceil(4);
            let threads: Vec<_> = leaves
                .chunks(chunk)
                .map(|leaves| {
                    scope.spawn(|| {
                        leaves
                            .iter()
                            .filter(|(path, value)| !self.has_effect(path, value, &bases))
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

    fn has_effect(&self, path: &str, value: &Value, bases: &[(Value, String)]) -> bool {
        let together = self
            .together
            .iter()
            .find(|(paths, _)| paths.contains(&path));
        if let Some((_, values)) = together {
            return self.rendered(values).unwrap() != bases[0].1;
        }
        bases.iter().any(|(base, before)| {
            let mut values = base.clone();
            put(&mut values, path, value.clone());
            // The schema may reject the value.
            self.rendered(&values.to_string())
                .is_ok_and(|after| after != *before)
        })
    }

    /// Renders everything except the ConfigMap with the values, and its checksum.
    fn rendered(&self, values: &str) -> Result<String, String> {
        let mut objects = (self.render)(values)?;
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
    fn collect(
        &self,
        path: &str,
        value: &Value,
        schema: &Value,
        leaves: &mut Vec<(String, Value)>,
    ) {
        if let (Some(map), true) = (value.as_object(), schema.get("properties").is_some()) {
            for (name, value) in map {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                self.collect(&path, value, &schema["properties"][name], leaves);
            }
            return;
        }
        let another = (self.another)(path, value).unwrap_or_else(|| another(value, schema));
        leaves.push((path.to_owned(), another));
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

fn another(value: &Value, schema: &Value) -> Value {
    if let Some(choices) = schema["enum"].as_array() {
        let mut others = choices
            .iter()
            .filter(|choice| *choice != value && choice.is_string());
        return others.next_back().unwrap().clone();
    }
    match value {
        Value::Bool(flag) => json!(!flag),
        Value::Number(number) => json!(number.as_i64().unwrap() + 1),
        Value::String(_) => json!("7"),
        Value::Array(_) => json!([{ "name": "added" }]),
        Value::Object(_) => json!({ "added": "x" }),
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

fn control_plane() -> Coverage {
    Coverage {
        aliases: &[
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
            ("$bundle", "identity.bundleEndpoint"),
            ("$monitor", "podMonitor"),
            ("$tracing", "proxy.tracing"),
            ("$collector", "proxy.tracing.collector"),
        ],
        first_line: "{{- include \"mesh.values\" . -}}",
        no_effect: &[
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
        ],
        together: &[
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
                &["identity.bundleEndpoint.port"],
                "identity: {bundleEndpoint: {enabled: true, port: 443}}",
            ),
            (
                &["identity.bundleEndpoint.serviceType"],
                "identity: {bundleEndpoint: {enabled: true, serviceType: NodePort}}",
            ),
            (
                &["identity.bundleEndpoint.serviceAnnotations"],
                "identity: {bundleEndpoint: {enabled: true, serviceAnnotations: {a: b}}}",
            ),
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
                &["policyValidator.externalSecret", "policyValidator.caBundle"],
                "policyValidator: {externalSecret: true, caBundle: x}",
            ),
            (
                &["policyValidator.crtPEM", "policyValidator.keyPEM"],
                "policyValidator: {crtPEM: a, keyPEM: b, caBundle: c}",
            ),
            (
                &["policyValidator.injectCaFrom"],
                "policyValidator: {externalSecret: true, injectCaFrom: a/b}",
            ),
            (
                &["policyValidator.injectCaFromSecret"],
                "policyValidator: {externalSecret: true, injectCaFromSecret: a/b}",
            ),
            (
                &[
                    "profileValidator.externalSecret",
                    "profileValidator.caBundle",
                ],
                "profileValidator: {externalSecret: true, caBundle: x}",
            ),
            (
                &["profileValidator.crtPEM", "profileValidator.keyPEM"],
                "profileValidator: {crtPEM: a, keyPEM: b, caBundle: c}",
            ),
            (
                &["profileValidator.injectCaFrom"],
                "profileValidator: {externalSecret: true, injectCaFrom: a/b}",
            ),
            (
                &["profileValidator.injectCaFromSecret"],
                "profileValidator: {externalSecret: true, injectCaFromSecret: a/b}",
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
                &["proxy.tracing.enabled"],
                "proxy: {tracing: {enabled: true, collector: {endpoint: 'a:1', meshIdentity: {serviceAccountName: b, namespace: c}}}}",
            ),
            (&["heartbeatUrl"], "heartbeatUrl: 'https://a.example'"),
            (&["controller.autoscaling.enabled"], AUTOSCALED),
            (
                &["proxy.securityContext"],
                "proxy: {securityContext: {runAsUser: 5}}",
            ),
        ],
        bases: &[
            "{enablePodDisruptionBudget: true, podMonitor: {enabled: true}}",
            AUTOSCALED,
            "{meshAgent: {enabled: false}}",
            "{meshAgent: {enabled: false}, cniEnabled: true, proxy: {nativeSidecar: false}}",
            "proxy: {tracing: {enabled: true, collector: {endpoint: 'a:1', meshIdentity: {serviceAccountName: b, namespace: c}}}}",
            "heartbeatUrl: 'https://a.example'",
        ],
        another: another_of_control_plane,
        ..Coverage::new::<Values>(helm::control_plane)
    }
}

/// Values that scale components.
pub(crate) const AUTOSCALED: &str = "{controller: {autoscaling: {enabled: true}}, destinationResources: {cpu: {request: 100m}}, policyController: {resources: {cpu: {request: 100m}}}, identityResources: {cpu: {request: 100m}}, proxyInjectorResources: {cpu: {request: 100m}}}";

fn another_of_control_plane(path: &str, value: &Value) -> Option<Value> {
    let another = match value {
        Value::String(_) if path.ends_with("clusterNetworks") => json!("10.0.0.0/8"),
        Value::String(_) if path.ends_with("collector.endpoint") => json!("added:7"),
        Value::String(_) if path == "heartbeatSchedule" => json!("5 4 * * *"),
        Value::String(_) if path == "prometheusUrl" => json!("http://added:9090"),
        Value::Array(_) if path.ends_with("probeNetworks") => json!(["10.0.0.0/8"]),
        Value::Array(_) if path.ends_with("nodeProbeSources") => json!(["hostIPs"]),
        Value::Object(_)
            if path.ends_with(".namespaceSelector") || path.ends_with(".objectSelector") =>
        {
            json!({ "matchLabels": { "a": "b" } })
        }
        Value::Object(_) if path == "proxy.inbound" || path == "proxy.outbound" => {
            json!({ "server": { "http2": { "added": 1 } } })
        }
        Value::Null if path.contains("workers") || path.ends_with("cores") => json!(2),
        _ => return None,
    };
    Some(another)
}

#[test]
fn templates_only_read_existing_values() {
    let read = control_plane().check_that_read_values_exist();
    assert!(read > 200, "{read} values read");
}

/// Otherwise the template does not replace `null` by the default.
#[test]
fn every_template_begins_with_merged_values() {
    let seen = control_plane().check_first_lines();
    assert!(seen > 15, "{seen} templates");
}

#[test]
fn null_renders_as_default() {
    require_helm!("null_renders_as_default");
    control_plane().check_nulls();
}

#[test]
fn every_value_has_an_effect() {
    require_helm!("every_value_has_an_effect");
    control_plane().check_effects();
}
