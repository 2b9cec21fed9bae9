//! Rules of every rendering of a chart, and of the control plane: labels, pod security, RBAC, and
//! contradictory values.

use std::collections::BTreeSet;

use mesh_k8s::heartbeat;
use mesh_k8s::values::Values;
use mesh_k8s::values::reading::ignored_keys;
use serde_json::Value;

use crate::coverage::AUTOSCALED;
use crate::generated::{compare, root};
use crate::helm;

/// Values with the optional CronJob of reports.
pub(crate) const HEARTBEAT: &str = "heartbeatUrl: https://a.example";

#[test]
fn every_object_has_standard_labels() {
    require_helm!("every_object_has_standard_labels");
    let everything = "{enablePodDisruptionBudget: true, podMonitor: {enabled: true, agent: {enabled: true}}, meshAgent: {adminAddr: '0.0.0.0:9993'}, commonLabels: {team: mesh}, heartbeatUrl: 'http://a'}";
    let of_control_plane = [
        "linkerd.io/control-plane-component",
        "linkerd.io/control-plane-ns",
        "team",
    ];
    check_labels(&helm::control_plane(everything).unwrap(), &of_control_plane);
    let scaled = AUTOSCALED.replacen('{', "{commonLabels: {team: mesh}, ", 1);
    check_labels(&helm::control_plane(&scaled).unwrap(), &of_control_plane);
}

#[test]
fn scaled_components_have_no_replicas_of_their_own() {
    require_helm!("scaled_components_have_no_replicas_of_their_own");
    let objects = helm::control_plane(AUTOSCALED).unwrap();
    let scaled = objects
        .iter()
        .filter(|object| object["kind"] == "HorizontalPodAutoscaler");
    let mut components = 0;
    for autoscaler in scaled {
        components += 1;
        let target = &autoscaler["spec"]["scaleTargetRef"];
        let named = |object: &&Value| {
            object["kind"] == target["kind"] && object["metadata"]["name"] == target["name"]
        };
        let deployment = objects.iter().find(named).unwrap();
        assert!(deployment["spec"]["replicas"].is_null(), "{target}");
        let containers = deployment["spec"]["template"]["spec"]["containers"].as_array();
        for metric in autoscaler["spec"]["metrics"].as_array().unwrap() {
            let name = &metric["containerResource"]["container"];
            let container = containers
                .unwrap()
                .iter()
                .find(|found| found["name"] == *name);
            let request = &container.unwrap()["resources"]["requests"]["cpu"];
            assert_eq!(request, "100m", "of {name}");
        }
    }
    assert_eq!(components, 3);
}

/// Checks that every object has the recommended labels of Kubernetes and the labels of its chart.
pub(crate) fn check_labels(objects: &[Value], of_chart: &[&str]) {
    for object in objects {
        let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
        if object["metadata"]["annotations"]["helm.sh/hook"] == "test" {
            continue;
        }
        let labels = object["metadata"]["labels"].as_object();
        let labels = labels.unwrap_or_else(|| panic!("{name} has no labels"));
        let recommended = [
            "app.kubernetes.io/name",
            "app.kubernetes.io/instance",
            "app.kubernetes.io/version",
            "app.kubernetes.io/component",
            "app.kubernetes.io/part-of",
            "app.kubernetes.io/managed-by",
            "helm.sh/chart",
        ];
        for label in recommended.iter().chain(of_chart) {
            assert!(labels.contains_key(*label), "{name} lacks {label}");
        }
    }
}

/// Lists every RBAC permission of the chart in a golden file, so that a diff shows new ones.
#[test]
fn permissions_match_golden_file() {
    require_helm!("permissions_match_golden_file");
    let text = rights(&helm::control_plane(HEARTBEAT).unwrap());
    assert!(!text.contains('*'), "a wildcard permission:\n{text}");
    compare("mesh-k8s/testdata/chart/rights.txt", &text);
}

/// Returns a line for every permission and every binding of a role to a ServiceAccount.
/// Tests of the programs compare them with what their code needs.
pub(crate) fn rights(objects: &[Value]) -> String {
    let mut lines = BTreeSet::new();
    let bindings = ["RoleBinding", "ClusterRoleBinding"];
    for binding in objects
        .iter()
        .filter(|object| bindings.iter().any(|kind| object["kind"] == *kind))
    {
        let role = &binding["roleRef"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        for subject in binding["subjects"].as_array().unwrap() {
            assert_eq!(subject["kind"], "ServiceAccount");
            lines.insert(format!(
                "ServiceAccount {}/{}: {} {}\n",
                text(&subject["namespace"]),
                text(&subject["name"]),
                text(&role["kind"]),
                text(&role["name"])
            ));
        }
    }
    for role in objects
        .iter()
        .filter(|object| object["kind"] == "Role" || object["kind"] == "ClusterRole")
    {
        let words = |value: &Value| -> Vec<String> {
            value
                .as_array()
                .into_iter()
                .flatten()
                .map(|word| word.as_str().unwrap().to_owned())
                .collect()
        };
        for rule in role["rules"].as_array().unwrap() {
            for group in words(&rule["apiGroups"]) {
                for resource in words(&rule["resources"]) {
                    let verbs = words(&rule["verbs"]).join(" ");
                    let names = words(&rule["resourceNames"]).join(" ");
                    let only = if names.is_empty() {
                        String::new()
                    } else {
                        format!(" only {names}")
                    };
                    let point = if group.is_empty() { "" } else { "." };
                    let name = role["metadata"]["name"].as_str().unwrap();
                    let kind = role["kind"].as_str().unwrap();
                    lines.insert(format!(
                        "{kind} {name}: {resource}{point}{group}: {verbs}{only}\n"
                    ));
                }
            }
        }
    }
    lines.into_iter().collect()
}

/// RBAC cannot restrict the agents to their own node, so an admission policy does.
#[test]
fn agents_may_only_change_their_own_node() {
    require_helm!("agents_may_only_change_their_own_node");
    let objects = helm::control_plane("{}").unwrap();
    let name = "linkerd-linkerd-mesh-agent-own-node";
    let policy = &helm::find(&objects, "ValidatingAdmissionPolicy", name)["spec"];
    assert_eq!(policy["failurePolicy"], "Fail");
    let rule = &policy["matchConstraints"]["resourceRules"][0];
    assert_eq!(rule["resources"], serde_json::json!(["nodes", "nodes/*"]));
    let agent = &helm::agents(&objects).unwrap()["spec"]["template"]["spec"];
    let account = agent["serviceAccountName"].as_str().unwrap();
    assert_eq!(
        policy["matchConditions"][0]["expression"],
        format!("request.userInfo.username == \"system:serviceaccount:linkerd-agent:{account}\"")
    );
    let binding = &helm::find(&objects, "ValidatingAdmissionPolicyBinding", name)["spec"];
    assert_eq!(binding["policyName"], name);
    assert_eq!(binding["validationActions"], serde_json::json!(["Deny"]));
}

#[test]
fn agents_without_a_start_up_taint_may_not_change_nodes() {
    require_helm!("agents_without_a_start_up_taint_may_not_change_nodes");
    let patch = "ClusterRole linkerd-linkerd-mesh-agent: nodes: patch";
    for (values, may) in [("{}", true), ("meshAgent: {startupTaint: ''}", false)] {
        let text = rights(&helm::control_plane(values).unwrap());
        assert_eq!(text.contains(patch), may, "{values}");
    }
}

#[test]
fn destination_controller_lists_secrets_only_for_linked_clusters() {
    require_helm!("destination_controller_lists_secrets_only_for_linked_clusters");
    for may in [true, false] {
        let values = format!("destinationController: {{linkedClusters: {may}}}");
        let objects = helm::control_plane(&values).unwrap();
        let text = rights(&objects);
        assert_eq!(text.contains(": secrets: list watch\n"), may);
        assert_eq!(text.contains("Role remote-discovery"), may);
        let destination = helm::pod_spec(helm::find(&objects, "Deployment", "linkerd-destination"));
        let container = destination["containers"].as_array().unwrap().iter();
        let mut container = container.filter(|container| container["name"] == "destination");
        let args = container.next().unwrap()["args"].as_array().unwrap();
        assert!(args.contains(&format!("--linked-clusters={may}").into()));
    }
}

#[test]
fn contradictory_values_are_rejected_with_remedy() {
    require_helm!("contradictory_values_are_rejected_with_remedy");
    let cases = [
        ("clusterDomain: ''", "clusterDomain is empty"),
        (
            "{identity: {externalCA: true}, identityTrustAnchorsPEM: x}",
            "remove one of the two",
        ),
        (
            "{identityTrustAnchorsPEM: x, identity: {issuer: {tls: {crtPEM: x}}}}",
            "belong together",
        ),
        (
            "identity: {issuer: {scheme: kubernetes.io/tls, tls: {crtPEM: x, keyPEM: x}}}",
            "remove identity.issuer.tls",
        ),
        (
            "identity: {issuer: {tls: {crtPEM: x, keyPEM: x}}}",
            "set identityTrustAnchorsPEM",
        ),
        ("identityTrustAnchorsPEM: x", "without an issuer"),
        (
            "identity: {bundleEndpoint: {enabled: true}, publishTrustRoots: false}",
            "identity.bundleEndpoint.enabled requires identity.publishTrustRoots=true",
        ),
        (
            "controller: {autoscaling: {enabled: true}}",
            "controller.autoscaling.enabled requires destinationResources.cpu.request",
        ),
        (
            "{controllerReplicas: 3, controller: {autoscaling: {enabled: true, maxReplicas: 2}}}",
            "maxReplicas is 2, below controllerReplicas, 3",
        ),
        (
            "proxyInjector: {crtPEM: x}",
            "proxyInjector.crtPEM and proxyInjector.keyPEM belong together",
        ),
        (
            "proxyInjector: {externalSecret: true, crtPEM: x, keyPEM: x, caBundle: x}",
            "proxyInjector.externalSecret and proxyInjector.crtPEM",
        ),
        ("proxyInjector: {externalSecret: true}", "without its CA"),
        (
            "proxyInjector: {externalSecret: true, caBundle: x, injectCaFrom: a/b}",
            "exclude each other",
        ),
        ("proxyInjector: {caBundle: x}", "without a certificate"),
        (
            "policyValidator: {keyPEM: x}",
            "policyValidator.keyPEM belong together",
        ),
        (
            "policyValidator: {crtPEM: x, keyPEM: x}",
            "set policyValidator.caBundle, injectCaFrom or",
        ),
        (
            "proxyInit: {closeWaitTimeoutSecs: 5}",
            "proxyInit.runAsRoot=true",
        ),
        (
            "podMonitor: {enabled: true, agent: {enabled: true}}",
            "meshAgent.adminAddr",
        ),
        (
            "proxy: {tracing: {enabled: true, collector: {endpoint: collector}}}",
            "set it to the host and port of the collector",
        ),
        (
            "proxy: {tracing: {enabled: true, collector: {endpoint: 'collector:4317'}}}",
            "meshIdentity.serviceAccountName and namespace",
        ),
        (
            "heartbeatUrl: reports.example.com",
            "heartbeatUrl \"reports.example.com\" is not the URL of a receiver",
        ),
        (
            "heartbeatUrl: 'ftp://a'",
            "set it to a URL that begins with http:// or https://",
        ),
        ("heartbeatUrl: 'https://u:p@a.example'", "heartbeatUrl"),
        ("heartbeatUrl: 'https://a.example?b'", "heartbeatUrl"),
        ("heartbeatSchedule: daily", "heartbeatSchedule"),
        (
            "{heartbeatUrl: 'https://a', prometheusUrl: 'https://prometheus'}",
            "prometheusUrl must begin with http://",
        ),
        // The schema rejects these.
        ("heartbeatUrl: [a]", "/heartbeatUrl"),
        ("controllerReplica: 3", "controllerReplica"),
        ("proxy: {ports: {inbond: 1}}", "inbond"),
        ("meshAgent: {tier: fastest}", "/meshAgent/tier"),
        ("webhookFailurePolicy: Deny", "/webhookFailurePolicy"),
    ];
    for (values, expected) in cases {
        let error = helm::control_plane(values).expect_err(values);
        assert!(error.contains(expected), "{values}: {error}");
    }
}

#[test]
fn linkerd_values_files_are_accepted_and_ignored_keys_noted() {
    require_helm!("linkerd_values_files_are_accepted_and_ignored_keys_noted");
    let path = root().join("mesh-k8s/testdata/values/linkerd.yaml");
    let given = std::fs::read_to_string(path).unwrap();
    let objects = helm::control_plane(&given).unwrap();
    let config = helm::find(&objects, "ConfigMap", "linkerd-config");
    let written: Value =
        serde_norway::from_str(config["data"]["values"].as_str().unwrap()).unwrap();
    let values = Values::read(written.clone()).unwrap();
    assert_eq!(values.identity_trust_domain, "cluster.local");
    assert!(values.config_readers.is_empty());
    let expected = ignored_keys::<Values>(&serde_norway::from_str(&given).unwrap());
    assert_eq!(ignored_keys::<Values>(&written), expected);
    let notes = helm::notes("linkerd-control-plane", "linkerd", &given);
    for key in expected {
        let line = format!("  {}: {}\n", key.path, key.reason);
        assert!(notes.contains(&line), "{line}{notes}");
    }
    assert!(!notes.contains("heartbeatSchedule"), "{notes}");
    // Private keys must not be written to a ConfigMap, not even keys without effect.
    let keys = "{policyValidator: {crtPEM: a, caBundle: b, keyPEM: hidden}, profileValidator: {crtPEM: a, caBundle: b, keyPEM: hidden}}";
    let objects = helm::control_plane(keys).unwrap();
    let config = helm::find(&objects, "ConfigMap", "linkerd-config");
    assert!(!config.to_string().contains("hidden"));
    assert!(!helm::notes("linkerd-control-plane", "linkerd", "{}").contains("without effect"));
}

#[test]
fn empty_trust_domain_is_cluster_domain() {
    require_helm!("empty_trust_domain_is_cluster_domain");
    for given in ["{}", "identityTrustDomain: ''", "identityTrustDomain: null"] {
        let mut given: Value = serde_norway::from_str(given).unwrap();
        given["clusterDomain"] = "example.org".into();
        let objects = helm::control_plane(&given.to_string()).unwrap();
        let text = serde_json::to_string(&objects).unwrap();
        assert!(text.contains("--identity-trust-domain=example.org"));
        assert!(text.contains("serviceaccount.identity.linkerd.example.org\""));
        assert!(
            !text.contains("serviceaccount.identity.linkerd.\""),
            "{given}"
        );
    }
}

/// `--set meshAgent.guard=off` is a string, `guard: off` in a file is a boolean.
#[test]
fn off_is_accepted_as_string_and_boolean() {
    require_helm!("off_is_accepted_as_string_and_boolean");
    for values in [
        "meshAgent: {guard: off}",
        "meshAgent: {guard: 'off'}",
        "proxy: {logHTTPHeaders: off}",
    ] {
        let objects = helm::control_plane(values).unwrap();
        let agent = &helm::agents(&objects).unwrap()["spec"]["template"]["spec"]["containers"][0];
        assert!(
            agent["args"]
                .as_array()
                .unwrap()
                .contains(&"--guard=off".into()),
            "{values}"
        );
    }
}

#[test]
fn charts_have_version_of_programs() {
    let charts = std::fs::read_dir(root().join("helm")).unwrap();
    let charts = charts.map(|chart| chart.unwrap().path().join("Chart.yaml"));
    let charts: Vec<_> = charts.filter(|chart| chart.exists()).collect();
    assert_eq!(charts.len(), 5);
    for chart in charts {
        let text = std::fs::read_to_string(chart).unwrap();
        let chart: Value = serde_norway::from_str(&text).unwrap();
        assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    }
}

#[test]
fn high_availability_values_are_applied() {
    require_helm!("high_availability_values_are_applied");
    let values =
        std::fs::read_to_string(root().join("helm/linkerd-control-plane/values-ha.yaml")).unwrap();
    let objects = helm::control_plane(&values).unwrap();
    for component in ["destination", "identity", "proxy-injector"] {
        let deployment = helm::find(&objects, "Deployment", &format!("linkerd-{component}"));
        assert_eq!(deployment["spec"]["replicas"], 3);
        let pod = &deployment["spec"]["template"]["spec"];
        assert!(pod["affinity"]["podAntiAffinity"].is_object());
        for container in pod["containers"].as_array().unwrap() {
            assert!(
                container["resources"]["limits"]["memory"].is_string(),
                "{}",
                container["name"]
            );
            assert!(
                container["resources"]["limits"].get("cpu").is_none(),
                "{}",
                container["name"]
            );
        }
    }
    let budgets: Vec<&Value> = objects
        .iter()
        .filter(|object| object["kind"] == "PodDisruptionBudget")
        .collect();
    assert_eq!(budgets.len(), 3);
    let webhook = helm::find(
        &objects,
        "MutatingWebhookConfiguration",
        "linkerd-proxy-injector-webhook-config",
    );
    assert_eq!(webhook["webhooks"][0]["failurePolicy"], "Fail");
    for name in ["policy", "sp"] {
        let name = format!("linkerd-{name}-validator-webhook-config");
        let webhook = helm::find(&objects, "ValidatingWebhookConfiguration", &name);
        assert_eq!(webhook["webhooks"][0]["failurePolicy"], "Fail");
    }
}

#[test]
fn reports_are_only_sent_to_url_of_values() {
    require_helm!("reports_are_only_sent_to_url_of_values");
    let of_heartbeat = |values: &str| -> Vec<Value> {
        let mut objects = helm::control_plane(values).unwrap();
        objects.retain(|object| object["metadata"]["name"] == heartbeat::NAME);
        objects
    };
    for off in [
        "{}",
        "disableHeartBeat: false",
        "{prometheusUrl: 'https://a', heartbeatSchedule: '0 0 * * *'}",
        "{heartbeatUrl: 'https://a.example', disableHeartBeat: true}",
    ] {
        assert_eq!(of_heartbeat(off), [] as [Value; 0], "{off}");
    }
    let objects = of_heartbeat(
        "{heartbeatUrl: 'https://a.example/b', prometheusUrl: 'http://p:9090', heartbeatSchedule: '5 4 * * mon-fri'}",
    );
    let kinds: Vec<&str> = objects
        .iter()
        .map(|object| object["kind"].as_str().unwrap())
        .collect();
    let expected = [
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "CronJob",
    ];
    assert_eq!(kinds.len(), expected.len(), "{kinds:?}");
    assert!(
        expected.iter().all(|kind| kinds.contains(kind)),
        "{kinds:?}"
    );
    let spec = &helm::find(&objects, "CronJob", heartbeat::NAME)["spec"];
    assert_eq!(spec["schedule"], "5 4 * * mon-fri");
    assert_eq!(spec["concurrencyPolicy"], "Replace");
    let template = &spec["jobTemplate"]["spec"]["template"];
    // As in Linkerd, the Job has no proxy.
    let injection = &template["metadata"]["annotations"]["linkerd.io/inject"];
    assert_eq!(injection, "disabled");
    let pod = &template["spec"];
    assert_eq!(pod["serviceAccountName"], heartbeat::NAME);
    let args: Vec<&str> = pod["containers"][0]["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|arg| arg.as_str().unwrap())
        .collect();
    for arg in [
        "heartbeat",
        "--url=https://a.example/b",
        "--prometheus-url=http://p:9090",
        "--controller-namespace=linkerd",
    ] {
        assert!(args.contains(&arg), "{arg}: {args:?}");
    }
}

/// Helm and the controller refuse the same URLs, and Helm accepts the cron expressions of
/// Kubernetes.
#[test]
fn urls_and_schedules_of_reports_are_checked() {
    require_helm!("urls_and_schedules_of_reports_are_checked");
    let error = |url: &str, schedule: &str| {
        let values = serde_json::json!({ "heartbeatUrl": url, "heartbeatSchedule": schedule });
        helm::control_plane(&values.to_string()).err()
    };
    let long = format!("https://a/{}", "b".repeat(2048));
    for url in [
        "https://a.example",
        "http://[2001:db8::1]:8080/b-c/d_e",
        "ftp://a",
        "https://",
        "https://u:p@a",
        "https://a?b=c",
        "https://a#b",
        "https://a b",
        &long,
    ] {
        let refused = error(url, "0 0 * * *");
        let parsed = url.parse::<heartbeat::Receiver>();
        assert_eq!(refused.is_none(), parsed.is_ok(), "{url}: {refused:?}");
        assert!(refused.is_none_or(|error| error.contains("heartbeatUrl ")));
    }
    for (schedule, valid) in [
        ("30 4 * * *", true),
        ("*/15 0-6,22 1,15 jan-MAR sun", true),
        ("0 0 ? * 1-5/2", true),
        ("@daily", true),
        ("@every 1h30m", true),
        ("", true),
        ("daily", false),
        ("@Daily", false),
        ("* * * *", false),
        ("0 0 * * * *", false),
        ("60 0 * * *", false),
        ("0 24 * * *", false),
        ("0 0 32 * *", false),
        ("0 0 0 * *", false),
        ("0 0 * 13 *", false),
        ("0 0 * * 7", false),
        ("*/0 0 * * *", false),
        ("TZ=UTC 0 0 * * *", false),
    ] {
        let refused = error("https://a.example", schedule);
        assert_eq!(refused.is_none(), valid, "{schedule}: {refused:?}");
        assert!(refused.is_none_or(|error| error.contains("heartbeatSchedule ")));
    }
}
