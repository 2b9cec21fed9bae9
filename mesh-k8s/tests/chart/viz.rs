//! The chart of the viz extension.

use mesh_k8s::values::VizValues;
use serde_json::{Value, json};

use crate::coverage::Coverage;
use crate::generated::compare;
use crate::{helm, namespaces, rules};

fn viz() -> Coverage {
    Coverage {
        aliases: &[
            (".Values", ""),
            ("$metricsAPI", "metricsAPI"),
            ("$tap", "tap"),
            ("$injector", "tapInjector"),
            ("$prometheus", "prometheus"),
            ("$dashboard", "dashboard"),
            ("$dashboards", "grafana.dashboards"),
            ("$rule", "prometheusRule"),
        ],
        first_line: "{{- include \"viz.values\" . -}}",
        no_effect: &[],
        together: &[
            (
                &["prometheusUrl"],
                "{prometheus: {enabled: false}, prometheusUrl: 'http://a'}",
            ),
            (
                &["prometheusCredsSecret"],
                "{prometheus: {enabled: false}, prometheusUrl: 'http://a', prometheusCredsSecret: b}",
            ),
            (
                &[
                    "tap.externalSecret",
                    "tap.caBundle",
                    "tapInjector.externalSecret",
                    "tapInjector.caBundle",
                ],
                "{tap: {externalSecret: true, caBundle: x}, tapInjector: {externalSecret: true, caBundle: x}}",
            ),
            (
                &[
                    "tap.crtPEM",
                    "tap.keyPEM",
                    "tapInjector.crtPEM",
                    "tapInjector.keyPEM",
                ],
                "{tap: {crtPEM: a, keyPEM: b, caBundle: c}, tapInjector: {crtPEM: a, keyPEM: b, caBundle: c}}",
            ),
            (
                &["tap.injectCaFrom", "tapInjector.injectCaFromSecret"],
                "{tap: {externalSecret: true, injectCaFrom: a/b}, tapInjector: {externalSecret: true, injectCaFromSecret: a/b}}",
            ),
            (
                &["tap.injectCaFromSecret", "tapInjector.injectCaFrom"],
                "{tap: {externalSecret: true, injectCaFromSecret: a/b}, tapInjector: {externalSecret: true, injectCaFrom: a/b}}",
            ),
            (
                &["grafana.uidPrefix"],
                "{grafana: {externalUrl: 'https://a', uidPrefix: b}}",
            ),
            (
                &["enablePodDisruptionBudget"],
                "{enablePodDisruptionBudget: true, tap: {replicas: 2}}",
            ),
        ],
        bases: &[
            "{}",
            "{grafana: {externalUrl: 'https://a', dashboards: {enabled: true}}, prometheusRule: {enabled: true}}",
            "prometheus: {containerMetrics: {enabled: true}}",
        ],
        another,
        ..Coverage::new::<VizValues>(helm::viz)
    }
}

fn another(path: &str, value: &Value) -> Option<Value> {
    let another = match (path, value) {
        ("prometheus.ruleConfigMapMounts", _) => {
            json!([{ "name": "a", "subPath": "a_rules.yml", "configMap": "b" }])
        }
        ("prometheus.persistence", _) => json!({ "size": "1Gi" }),
        ("dashboard.access.identities", _) => json!(["*"]),
        ("dashboard.access.networks", _) => json!(["10.0.0.0/8"]),
        ("tap.ignoreHeaders", _) => json!(["authorization"]),
        ("grafana.externalUrl", _) => json!("https://grafana.example.com"),
        (_, Value::Null) => json!(7),
        ("tapInjector.namespaceSelector" | "tapInjector.objectSelector", _) => {
            json!({ "matchLabels": { "a": "b" } })
        }
        _ => return None,
    };
    Some(another)
}

#[test]
fn viz_templates_only_read_existing_values() {
    let read = viz().check_that_read_values_exist();
    assert!(read > 80, "{read} values read");
}

#[test]
fn every_viz_template_begins_with_merged_values() {
    let seen = viz().check_first_lines();
    assert!(seen >= 13, "{seen} templates");
}

#[test]
fn null_in_viz_values_renders_as_default() {
    require_helm!("null_in_viz_values_renders_as_default");
    viz().check_nulls();
}

#[test]
fn every_viz_value_has_an_effect() {
    require_helm!("every_viz_value_has_an_effect");
    viz().check_effects();
}

#[test]
fn viz_objects_have_standard_labels() {
    require_helm!("viz_objects_have_standard_labels");
    let values = "{enablePodDisruptionBudget: true, tap: {replicas: 2}, prometheus: {persistence: {size: 1Gi}}, commonLabels: {team: mesh}}";
    let objects = helm::viz(values).unwrap();
    rules::check_labels(&objects, &["component", "linkerd.io/extension", "team"]);
}

#[test]
fn viz_pods_are_restricted() {
    require_helm!("viz_pods_are_restricted");
    let seen = namespaces::check_restricted(&helm::viz("{}").unwrap());
    assert!(seen >= 5, "{seen} containers");
}

#[test]
fn viz_permissions_match_golden_file() {
    require_helm!("viz_permissions_match_golden_file");
    let text = rules::rights(&helm::viz("{}").unwrap());
    let wildcards: Vec<&str> = text.lines().filter(|line| line.contains('*')).collect();
    // The role of people who may tap, as in Linkerd.
    assert_eq!(
        wildcards,
        ["ClusterRole linkerd-linkerd-viz-tap-admin: *.tap.linkerd.io: watch"]
    );
    compare("mesh-k8s/testdata/chart/viz-rights.txt", &text);
}

#[test]
fn prometheus_reads_metrics_of_kubelets_only_with_the_value() {
    require_helm!("prometheus_reads_metrics_of_kubelets_only_with_the_value");
    for (values, may) in [
        ("{}", false),
        ("prometheus: {containerMetrics: {enabled: true}}", true),
    ] {
        let objects = helm::viz(values).unwrap();
        let text = rules::rights(&objects);
        assert_eq!(text.contains("nodes/metrics: get"), may, "{values}");
        assert!(!text.contains("nodes/proxy"), "{values}");
        let config = helm::find(&objects, "ConfigMap", "prometheus-config");
        let config = config["data"]["prometheus.yml"].as_str().unwrap();
        assert_eq!(config.contains("/metrics/cadvisor"), may, "{values}");
        assert!(!config.contains("/proxy/"), "{values}");
    }
}

#[test]
fn contradictory_viz_values_are_rejected_with_remedy() {
    require_helm!("contradictory_viz_values_are_rejected_with_remedy");
    let cases = [
        ("clusterDomain: ''", "clusterDomain is empty"),
        ("linkerdNamespace: linkerd-viz", "--create-namespace"),
        (
            "prometheusUrl: 'http://a'",
            "set prometheus.enabled=false, or remove prometheusUrl",
        ),
        (
            "{prometheus: {enabled: false}, prometheusUrl: 'https://a'}",
            "must begin with http://",
        ),
        ("prometheusCredsSecret: a", "without prometheusUrl"),
        (
            "tap: {crtPEM: x}",
            "tap.crtPEM and tap.keyPEM belong together",
        ),
        (
            "tap: {externalSecret: true, crtPEM: x, keyPEM: x, caBundle: x}",
            "remove one of the two",
        ),
        (
            "tapInjector: {externalSecret: true}",
            "set tapInjector.caBundle",
        ),
        (
            "tapInjector: {externalSecret: true, caBundle: x, injectCaFrom: a/b}",
            "exclude each other",
        ),
        ("tap: {caBundle: x}", "without a certificate"),
        ("grafana: {uidPrefix: x}", "set grafana.externalUrl"),
        (
            "prometheus: {ruleConfigMapMounts: [{name: a, subPath: a.yml, configMap: b}]}",
            "rename the key",
        ),
        // The schema rejects these.
        ("tap: {replica: 3}", "replica"),
        ("tapInjector: {failurePolicy: Deny}", "failurePolicy"),
    ];
    for (values, expected) in cases {
        let error = helm::viz(values).expect_err(values);
        assert!(error.contains(expected), "{values}: {error}");
    }
}

#[test]
fn viz_notes_name_missing_prometheus_and_ignored_keys() {
    require_helm!("viz_notes_name_missing_prometheus_and_ignored_keys");
    let notes = |values: &str| helm::notes("linkerd-viz", "linkerd-viz", values);
    assert!(notes("{}").contains("for 6h"));
    assert!(!notes("{}").contains("without effect"));
    let text = notes("{prometheus: {enabled: false}, enablePSP: true}");
    assert!(text.contains("no statistics"), "{text}");
    assert!(text.contains("enablePSP: "), "{text}");
}

/// The tap injector must write the identity of the tap API's pods into other pods.
#[test]
fn tapped_proxies_trust_identity_of_tap_api() {
    require_helm!("tapped_proxies_trust_identity_of_tap_api");
    let objects = helm::viz("{identityTrustDomain: example.org, linkerdNamespace: mesh}").unwrap();
    let injector = helm::find(&objects, "Deployment", "tap-injector");
    let args = &injector["spec"]["template"]["spec"]["containers"][0]["args"];
    let expected = "--tap-service-name=tap.linkerd-viz.serviceaccount.identity.mesh.example.org";
    assert!(
        args.as_array().unwrap().contains(&expected.into()),
        "{args}"
    );
    let tap = helm::find(&objects, "Deployment", "tap");
    assert_eq!(tap["spec"]["template"]["spec"]["serviceAccountName"], "tap");
}

#[test]
fn high_availability_viz_values_are_applied() {
    require_helm!("high_availability_viz_values_are_applied");
    let path = crate::generated::root().join("helm/linkerd-viz/values-ha.yaml");
    let objects = helm::viz(&std::fs::read_to_string(path).unwrap()).unwrap();
    for component in ["tap", "tap-injector"] {
        let spec = &helm::find(&objects, "Deployment", component)["spec"];
        assert_eq!(spec["replicas"], 3);
        assert_eq!(spec["strategy"]["rollingUpdate"]["maxUnavailable"], 1);
        assert!(spec["template"]["spec"]["affinity"]["podAntiAffinity"].is_object());
        helm::find(&objects, "PodDisruptionBudget", component);
    }
    let prometheus = &helm::find(&objects, "Deployment", "prometheus")["spec"]["template"];
    let container = &prometheus["spec"]["containers"][0];
    assert_eq!(container["resources"]["limits"]["memory"], "8Gi");
    let annotations = &prometheus["metadata"]["annotations"];
    assert_eq!(annotations["config.linkerd.io/proxy-memory-limit"], "250Mi");
}
