//! The charts of the multicluster extension.

use mesh_k8s::values::{MulticlusterLinkValues, MulticlusterValues};
use serde_json::{Value, json};

use crate::coverage::Coverage;
use crate::generated::{compare, root};
use crate::{helm, namespaces, rules};

/// Values with the service mirror of a Link.
const LINKED: &str = "controllers: [{link: {ref: {name: target}}}]";

fn multicluster() -> Coverage {
    Coverage {
        aliases: &[
            (".Values", ""),
            ("$gateway", "gateway"),
            ("$controller", "controllerDefaults"),
            ("$mirror", "localServiceMirror"),
            ("$job", "namespaceMetadata"),
        ],
        first_line: "{{- include \"multicluster.values\" . -}}",
        no_effect: &[],
        together: &[(
            &["gateway.healthCheckNodePort"],
            "gateway: {serviceExternalTrafficPolicy: Local, healthCheckNodePort: 30000}",
        )],
        bases: &["{}", LINKED],
        another,
        ..Coverage::new::<MulticlusterValues>(helm::multicluster)
    }
}

fn link() -> Coverage {
    Coverage {
        first_line: "{{- include \"link.values\" . -}}",
        another,
        ..Coverage::new::<MulticlusterLinkValues>(helm::multicluster_link)
    }
}

fn another(path: &str, value: &Value) -> Option<Value> {
    let another = match (path, value) {
        ("controllers", _) => json!([{ "link": { "ref": { "name": "added" } } }]),
        ("gateway.probe.path", _) => json!("/live"),
        ("gateway.name", _) => json!("added"),
        ("gateway.loadBalancerSourceRanges", _) => json!(["10.0.0.0/8"]),
        ("nodeAffinity", _) => json!({ "requiredDuringSchedulingIgnoredDuringExecution": {} }),
        (_, Value::Null) => json!(30000),
        _ => return None,
    };
    Some(another)
}

#[test]
fn multicluster_templates_only_read_existing_values() {
    let read = multicluster().check_that_read_values_exist();
    assert!(read > 90, "{read} values read");
    let read = link().check_that_read_values_exist();
    assert!(read > 25, "{read} values read");
}

#[test]
fn every_multicluster_template_begins_with_merged_values() {
    let seen = multicluster().check_first_lines();
    assert!(seen >= 12, "{seen} templates");
    let seen = link().check_first_lines();
    assert!(seen >= 4, "{seen} templates");
}

#[test]
fn null_in_multicluster_values_renders_as_default() {
    require_helm!("null_in_multicluster_values_renders_as_default");
    multicluster().check_nulls();
    link().check_nulls();
}

#[test]
fn every_multicluster_value_has_an_effect() {
    require_helm!("every_multicluster_value_has_an_effect");
    multicluster().check_effects();
    link().check_effects();
}

#[test]
fn multicluster_objects_have_standard_labels() {
    require_helm!("multicluster_objects_have_standard_labels");
    let values = "{enablePodAntiAffinity: true, controllers: [{link: {ref: {name: target}}, enablePodAntiAffinity: true}], commonLabels: {team: mesh}}";
    let of_chart = ["component", "linkerd.io/extension", "team"];
    rules::check_labels(&helm::multicluster(values).unwrap(), &of_chart);
    let values = "{enablePodAntiAffinity: true, commonLabels: {team: mesh}}";
    let of_link = [&of_chart[..], &["mirror.linkerd.io/cluster-name"]].concat();
    rules::check_labels(&helm::multicluster_link(values).unwrap(), &of_link);
}

#[test]
fn multicluster_pods_are_restricted() {
    require_helm!("multicluster_pods_are_restricted");
    let seen = namespaces::check_restricted(&helm::multicluster(LINKED).unwrap());
    assert_eq!(seen, 4);
    let seen = namespaces::check_restricted(&helm::multicluster_link("{}").unwrap());
    assert_eq!(seen, 1);
}

#[test]
fn multicluster_permissions_match_golden_files() {
    require_helm!("multicluster_permissions_match_golden_files");
    for (file, objects) in [
        ("multicluster-rights", helm::multicluster(LINKED).unwrap()),
        (
            "multicluster-link-rights",
            helm::multicluster_link("{}").unwrap(),
        ),
    ] {
        let text = rules::rights(&objects);
        assert!(!text.contains('*'), "a wildcard permission:\n{text}");
        compare(&format!("mesh-k8s/testdata/chart/{file}.txt"), &text);
    }
    // Each service mirror reads the credentials of its own Link.
    let two = LINKED.replace(": [", ": [{link: {ref: {name: other}}}, ");
    let text = rules::rights(&helm::multicluster(&two).unwrap());
    let credentials: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("cluster-credentials"))
        .collect();
    assert_eq!(credentials.len(), 2);
    for (line, cluster) in credentials.iter().zip(["other", "target"]) {
        let role = format!("Role controller-read-remote-creds-{cluster}: secrets: ");
        assert!(line.starts_with(&role), "{line}");
        let only = format!(" only cluster-credentials-{cluster}");
        assert!(line.ends_with(&only), "{line}");
    }
}

#[test]
fn service_mirrors_may_create_namespaces_only_with_the_value() {
    require_helm!("service_mirrors_may_create_namespaces_only_with_the_value");
    for (values, may) in [("{}", false), ("enableNamespaceCreation: true", true)] {
        for objects in [
            helm::multicluster(values).unwrap(),
            helm::multicluster_link(values).unwrap(),
        ] {
            let text = rules::rights(&objects);
            let creating = text
                .lines()
                .filter(|line| line.ends_with(": namespaces: create"));
            let creating: Vec<&str> = creating.collect();
            assert_eq!(creating.len(), usize::from(may), "{values}: {creating:?}");
        }
    }
}

/// The values of an item of `controllers` replace the defaults, also with `false`; `null` does not.
#[test]
fn service_mirrors_of_links_have_their_own_values() {
    require_helm!("service_mirrors_of_links_have_their_own_values");
    let values = "
controllerDefaults:
  replicas: 2
  logLevel: debug
  UID: 1000680000
  nodeSelector: {a: b}
  resources: {cpu: {request: 100m}, memory: {limit: 1Gi}}
  enableHeadlessServices: true
controllers:
- link: {ref: {name: one}}
- link: {ref: {name: two}}
  replicas: 3
  logLevel: null
  gateway: {enabled: false}
  nodeSelector: {c: d}
  resources: {memory: {limit: 2Gi}}
  enableHeadlessServices: false
";
    let objects = helm::multicluster(values).unwrap();
    let spec = |name: &str| &helm::find(&objects, "Deployment", name)["spec"];
    let (one, two) = (spec("controller-one"), spec("controller-two"));
    assert_eq!((&one["replicas"], &two["replicas"]), (&json!(2), &json!(3)));
    let pods = [&one["template"]["spec"], &two["template"]["spec"]];
    let containers = pods.map(|pod| &pod["containers"][0]);
    let args = containers.map(|container| {
        let args = container["args"].as_array().unwrap().iter();
        args.map(|arg| arg.as_str().unwrap()).collect::<Vec<_>>()
    });
    for args in &args {
        assert!(args.contains(&"--log-level=debug"), "{args:?}");
    }
    let [of_one, of_two] = args;
    assert!(of_one.ends_with(&[
        "--enable-headless-services",
        "--probe-service=probe-one",
        "one"
    ]));
    assert!(
        of_two.ends_with(&["--log-format=plain", "two"]),
        "{of_two:?}"
    );
    assert_eq!(pods[0]["nodeSelector"], json!({"a": "b"}));
    assert_eq!(pods[1]["nodeSelector"], json!({"c": "d"}));
    let user = &containers[0]["securityContext"]["runAsUser"];
    assert_eq!(*user, json!(1_000_680_000));
    let both = json!({"limits": {"memory": "1Gi"}, "requests": {"cpu": "100m"}});
    assert_eq!(containers[0]["resources"], both);
    // As in Linkerd, resources are one value.
    assert_eq!(
        containers[1]["resources"],
        json!({"limits": {"memory": "2Gi"}})
    );
    let has_probe = |name: &str| {
        let name = format!("probe-{name}");
        let is_probe = |object: &&Value| object["metadata"]["name"] == *name;
        objects
            .iter()
            .any(|object| is_probe(&object) && object["kind"] == "Service")
    };
    assert!(has_probe("one") && !has_probe("two"));
}

#[test]
fn resources_have_the_form_of_either_chart() {
    require_helm!("resources_have_the_form_of_either_chart");
    let expected = json!({"limits": {"memory": "1Gi"}, "requests": {"cpu": 1}});
    for resources in [
        "{limits: {memory: 1Gi}, requests: {cpu: 1}}",
        "{memory: {limit: 1Gi}, requests: {cpu: 1}, cpu: {request: null}}",
    ] {
        let objects = helm::multicluster_link(&format!("resources: {resources}")).unwrap();
        let name = "linkerd-service-mirror-target";
        let pod = helm::pod_spec(helm::find(&objects, "Deployment", name));
        assert_eq!(pod["containers"][0]["resources"], expected, "{resources}");
    }
}

/// A pod's port has no number here: the values of the control plane decide it.
#[test]
fn ports_of_the_gateway_are_those_of_its_proxy() {
    require_helm!("ports_of_the_gateway_are_those_of_its_proxy");
    let values = "gateway: {port: 443, nodePort: 30443, probe: {port: 80, nodePort: 30080}}";
    let objects = helm::multicluster(values).unwrap();
    let service = helm::find(&objects, "Service", "linkerd-gateway");
    let expected = json!([
        {"name": "mc-gateway", "port": 443, "targetPort": "linkerd-proxy", "protocol": "TCP", "nodePort": 30443},
        {"name": "mc-probe", "port": 80, "targetPort": "linkerd-admin", "protocol": "TCP", "nodePort": 30080},
    ]);
    assert_eq!(service["spec"]["ports"], expected);
    let server = helm::find(&objects, "Server", "linkerd-gateway");
    assert_eq!(server["spec"]["port"], "linkerd-proxy");
}

#[test]
fn identity_of_the_gateway_is_that_of_its_service_account() {
    require_helm!("identity_of_the_gateway_is_that_of_its_service_account");
    let values = "{identityTrustDomain: example.org, linkerdNamespace: mesh, gateway: {name: gw}}";
    let objects = helm::multicluster(values).unwrap();
    let service = helm::find(&objects, "Service", "gw");
    assert_eq!(
        service["metadata"]["annotations"]["mirror.linkerd.io/gateway-identity"],
        "gw.linkerd-multicluster.serviceaccount.identity.mesh.example.org"
    );
    let gateway = helm::find(&objects, "Deployment", "gw");
    assert_eq!(helm::pod_spec(gateway)["serviceAccountName"], "gw");
    let template = &gateway["spec"]["template"]["metadata"];
    assert_eq!(service["spec"]["selector"], json!({"app": "gw"}));
    assert_eq!(template["labels"]["app"], "gw");
    let annotations = &template["annotations"];
    assert_eq!(annotations["config.linkerd.io/enable-gateway"], "true");
}

#[test]
fn gateway_pauses_with_the_image_of_the_value_or_of_the_controllers() {
    require_helm!("gateway_pauses_with_the_image_of_the_value_or_of_the_controllers");
    let version = env!("CARGO_PKG_VERSION");
    let own = format!("mesh/controller:{version}");
    for (values, image, args) in [
        ("{}", own.as_str(), json!(["pause"])),
        (
            "gateway: {pauseImage: a/pause:3.10}",
            "a/pause:3.10",
            Value::Null,
        ),
    ] {
        let objects = helm::multicluster(values).unwrap();
        let gateway = helm::find(&objects, "Deployment", "linkerd-gateway");
        let container = &helm::pod_spec(gateway)["containers"][0];
        assert_eq!(
            (&container["image"], &container["args"]),
            (&json!(image), &args)
        );
    }
}

#[test]
fn contradictory_multicluster_values_are_rejected_with_remedy() {
    require_helm!("contradictory_multicluster_values_are_rejected_with_remedy");
    let cases = [
        (
            "linkerdNamespace: linkerd-multicluster",
            "--create-namespace",
        ),
        ("gateway: {name: 9a}", "not the name of a Service"),
        (
            "gateway: {probe: {port: 4143}}",
            "a Service has a port once",
        ),
        (
            "gateway: {serviceType: ClusterIP, probe: {nodePort: 30000}}",
            "gateway.probe.nodePort is set",
        ),
        (
            "gateway: {serviceType: ClusterIP, serviceExternalTrafficPolicy: Local}",
            "set gateway.serviceType to LoadBalancer or NodePort",
        ),
        (
            "gateway: {serviceType: NodePort, loadBalancerIP: 192.0.2.1}",
            "gateway.loadBalancerIP is set",
        ),
        (
            "gateway: {healthCheckNodePort: 30000}",
            "gateway.serviceExternalTrafficPolicy=Local",
        ),
        (
            "controllers: [{link: {ref: {name: a}}}, {link: {ref: {name: a}}}]",
            "two items for the Link a",
        ),
        // The schema rejects these.
        ("controllers: [{logLevel: debug}]", "link"),
        ("controllers: [{link: {ref: {name: A}}}]", "name"),
        (
            "controllers: [{link: {ref: {name: a}}, replica: 2}]",
            "replica",
        ),
        ("controllerDefaults: {tolerations: {a: b}}", "tolerations"),
        ("gateway: {serviceType: External}", "serviceType"),
        (
            "gateway: {terminationGracePeriodSeconds: 30s}",
            "terminationGracePeriodSeconds",
        ),
    ];
    for (values, expected) in cases {
        let error = helm::multicluster(values).expect_err(values);
        assert!(error.contains(expected), "{values}: {error}");
    }
    let long = "a".repeat(50);
    for (name, expected) in [
        ("", "targetClusterName is empty"),
        (&long, "more than 49 characters"),
        ("A", "targetClusterName"),
    ] {
        let error = helm::multicluster_link(&format!("targetClusterName: '{name}'"));
        let error = error.expect_err(name);
        assert!(error.contains(expected), "{name}: {error}");
    }
}

/// Linkerd's values files have an empty map of tolerations.
#[test]
fn linkerd_values_of_multicluster_are_accepted_and_ignored_keys_noted() {
    require_helm!("linkerd_values_of_multicluster_are_accepted_and_ignored_keys_noted");
    let values = "
enablePSP: false
proxyOutboundPort: 4140
gateway: {terminationGracePeriodSeconds: 45, tolerations: []}
localServiceMirror: {enablePprof: false, serviceMirrorRetryLimit: 3, resources: {}}
controllerDefaults: {enablePprof: false, retryLimit: 3, tolerations: {}, nodeAffinity: {}, resources: {}}
controllers: [{link: {ref: {name: target}}, enablePprof: true, retryLimit: 5, tolerations: {}}]
";
    let objects = helm::multicluster(values).unwrap();
    let gateway = helm::pod_spec(helm::find(&objects, "Deployment", "linkerd-gateway"));
    assert_eq!(gateway["terminationGracePeriodSeconds"], 45);
    let notes = |values: &str| helm::notes("linkerd-multicluster", "linkerd-multicluster", values);
    let text = notes(values);
    for key in [
        "enablePSP",
        "proxyOutboundPort",
        "localServiceMirror.enablePprof",
        "localServiceMirror.serviceMirrorRetryLimit",
        "controllerDefaults.enablePprof",
        "controllerDefaults.retryLimit",
        "enablePprof of the controller target",
        "retryLimit of the controller target",
    ] {
        assert!(text.contains(&format!("\n  {key}: ")), "{key}: {text}");
    }
    assert!(!notes("{}").contains("without effect"));
    let link = "{targetClusterName: target, serviceMirrorRetryLimit: 3, tolerations: {}}";
    let text = helm::notes("linkerd-multicluster-link", "linkerd-multicluster", link);
    assert!(text.contains("\n  serviceMirrorRetryLimit: "), "{text}");
}

#[test]
fn high_availability_multicluster_values_are_applied() {
    require_helm!("high_availability_multicluster_values_are_applied");
    let values = |chart: &str| {
        let path = root().join("helm").join(chart).join("values-ha.yaml");
        std::fs::read_to_string(path).unwrap()
    };
    let multicluster = helm::multicluster(&values("linkerd-multicluster")).unwrap();
    let link = helm::multicluster_link(&values("linkerd-multicluster-link")).unwrap();
    for (objects, name, replicas) in [
        (&multicluster, "linkerd-gateway", 3),
        (&multicluster, "linkerd-local-service-mirror", 1),
        (&link, "linkerd-service-mirror-target", 3),
    ] {
        let spec = &helm::find(objects, "Deployment", name)["spec"];
        assert_eq!(spec["replicas"], replicas);
        assert_eq!(spec["strategy"]["rollingUpdate"]["maxUnavailable"], 1);
        let apart = &spec["template"]["spec"]["affinity"]["podAntiAffinity"];
        let term = &apart["requiredDuringSchedulingIgnoredDuringExecution"][0];
        assert_eq!(term["labelSelector"], spec["selector"]);
        let budget = helm::find(objects, "PodDisruptionBudget", name);
        assert_eq!(budget["spec"]["selector"], spec["selector"]);
    }
}
