//! Tests of expansion, injection and validation.

use std::path::Path;

use super::*;

const DEPLOYMENT: &str = "
kind: Namespace
metadata: {name: shop, annotations: {linkerd.io/inject: enabled}}
---
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, command: [nginx], ports: [{containerPort: 80}]}]
";

fn manifests(text: &str) -> Manifests {
    let mut manifests = Manifests::default();
    manifests.add_text(Path::new("a.yaml"), text);
    assert_eq!(manifests.problems, []);
    manifests
}

fn values() -> Values {
    Values {
        cni_enabled: true,
        ..Values::default()
    }
}

fn compute_with(text: &str, values: Option<&Values>) -> Workloads {
    let has_image = |image: &str| image.starts_with("mesh/");
    let capabilities = NodeCapabilities {
        has_image: &has_image,
    };
    compute(&manifests(text), values, &capabilities)
}

#[test]
fn deployment_expands_to_pods_of_a_replica_set() {
    let workloads = compute_with(DEPLOYMENT, Some(&values()));
    assert_eq!(workloads.problems, []);
    assert_eq!(workloads.pods.len(), 3);
    let (key, set) = workloads.replica_sets.first_key_value().unwrap();
    let set_owner = &set.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!([&set_owner.kind, &set_owner.name], ["Deployment", "web"]);
    for (pod_key, workload) in &workloads.pods {
        let prefix = format!("{}-", key.name);
        assert!(pod_key.name.starts_with(&prefix), "{pod_key}");
        let labels = workload.pod.metadata.labels.as_ref().unwrap();
        assert_eq!(labels["linkerd.io/proxy-deployment"], "web");
        assert_eq!(labels["app"], "web");
        assert!(labels.contains_key("pod-template-hash"));
    }
}

#[test]
fn pod_names_and_digests_change_with_the_template() {
    let names = |text: &str| -> Vec<(ObjectKey, String)> {
        let workloads = compute_with(text, Some(&values()));
        let pods = workloads.pods.into_iter();
        pods.map(|(key, workload)| (key, workload.digest)).collect()
    };
    let first = names(DEPLOYMENT);
    assert_eq!(first, names(DEPLOYMENT));
    let scaled = names(&DEPLOYMENT.replace("replicas: 3", "replicas: 4"));
    assert_eq!(scaled.iter().filter(|pod| first.contains(pod)).count(), 3);
    let changed = names(&DEPLOYMENT.replace("[nginx]", "[caddy]"));
    let is_new = |key| first.iter().all(|(other, _)| other != key);
    assert!(changed.iter().all(|(key, _)| is_new(key)));
    let unmeshed = names(&DEPLOYMENT.replace("linkerd.io/inject: enabled", "a: b"));
    for ((key, digest), (other_key, other)) in first.iter().zip(&unmeshed) {
        assert_eq!(key, other_key);
        assert_ne!(digest, other);
    }
}

#[test]
fn pods_are_not_injected_without_values() {
    let workloads = compute_with(DEPLOYMENT, None);
    let pod = &workloads.pods.values().next().unwrap().pod;
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(spec.init_containers, None);
    assert_eq!(spec.service_account_name.as_deref(), Some("default"));
}

#[test]
fn invalid_pods_are_reported_with_object_and_field() {
    let check = |spec: &str, expect: &[&str]| {
        let text = format!(
            "kind: Pod\nmetadata: {{name: a}}\nspec: {spec}\n---\nkind: Pod\nmetadata: {{name: good}}\nspec: {{containers: [{{name: a, command: [x]}}]}}\n"
        );
        let workloads = compute_with(&text, Some(&values()));
        let problems: Vec<String> = workloads.problems.iter().map(Problem::to_string).collect();
        assert_eq!(problems.len(), 1, "{spec}: {problems:#?}");
        assert!(
            problems[0].starts_with("a.yaml:1: Pod default/a: "),
            "{problems:#?}"
        );
        for part in expect {
            assert!(problems[0].contains(part), "{spec}: {problems:#?}");
        }
        let has_pod = |name| {
            workloads
                .pods
                .contains_key(&ObjectKey::new("default", name))
        };
        assert!(has_pod("good") && !has_pod("a"));
    };
    let of_container = |fields: &str, expect: &[&str]| {
        check(
            &format!("{{containers: [{{name: c, command: [x], {fields}}}]}}"),
            expect,
        );
    };
    let of_volume = |volume: &str, expect: &[&str]| {
        let spec = format!(
            "{{containers: [{{name: c, command: [x]}}], volumes: [{{name: v, {volume}}}]}}"
        );
        check(&spec, expect);
    };
    check("{containers: []}", &["spec.containers", "at least one"]);
    check(
        "{containers: [{name: c, image: nginx}]}",
        &["container c", "command", "\"nginx\""],
    );
    check(
        "{containers: [{name: c, command: [x]}, {name: c, command: [x]}]}",
        &["name", "rename"],
    );
    of_container(
        "volumeMounts: [{name: v, mountPath: /v}]",
        &["volumeMounts", "\"v\""],
    );
    of_volume(
        "configMap: {name: gone}",
        &["volume v", "ConfigMap default/gone"],
    );
    of_volume(
        "persistentVolumeClaim: {claimName: x}",
        &["volume v", "emptyDir"],
    );
    of_container(
        "env: [{name: E, valueFrom: {secretKeyRef: {name: s, key: k}}}]",
        &["env", "E", "Secret default/s"],
    );
    of_container(
        "env: [{name: E, valueFrom: {resourceFieldRef: {resource: cpu}}}]",
        &["env", "E", "fieldRef"],
    );
    of_container(
        "readinessProbe: {httpGet: {port: web}}",
        &["readinessProbe", "web"],
    );
    of_container(
        "readinessProbe: {httpGet: {port: 80, path: 'mailto:a'}}",
        &["readinessProbe", "mailto:a", "slash"],
    );
    of_container(
        "livenessProbe: {grpc: {port: 1}}",
        &["livenessProbe", "tcpSocket"],
    );
    check(
        "{containers: [{name: c, command: [x], ports: [{containerPort: 80}]}, {name: d, command: [x], ports: [{containerPort: 80}]}]}",
        &["80", "container c", "container d"],
    );
    of_container("ports: [{containerPort: 70000}]", &["70000"]);
}

#[test]
fn container_cannot_use_ports_of_the_proxy() {
    let text = DEPLOYMENT.replace("containerPort: 80", "containerPort: 4143");
    let Workloads { problems, pods, .. } = compute_with(&text, Some(&values()));
    assert_eq!(problems.len(), 1, "{problems:#?}");
    let problem = problems[0].to_string();
    assert!(problem.contains("config.linkerd.io/inbound-port"));
    assert!(pods.is_empty());
}

#[test]
fn duplicate_host_ports_are_reported() {
    let pod = |name: &str| {
        format!(
            "kind: Pod\nmetadata: {{name: {name}}}\nspec: {{hostNetwork: true, containers: [{{name: c, command: [x], ports: [{{containerPort: 80}}]}}]}}\n"
        )
    };
    let problems = compute_with(&format!("{}---\n{}", pod("a"), pod("b")), None).problems;
    assert_eq!(problems.len(), 1);
    let problem = problems[0].to_string();
    assert!(problem.contains("Pod default/a"), "{problem}");
}

#[test]
fn changed_config_map_changes_digest_of_its_pods() {
    let digest = |data: &str| {
        let text = format!(
            "kind: ConfigMap\nmetadata: {{name: m}}\ndata: {{k: {data}}}\n---\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  containers: [{{name: c, command: [x]}}]\n  \
             volumes: [{{name: v, projected: {{sources: [{{configMap: {{name: m}}}}]}}}}]\n---\nkind: Pod\nmetadata: {{name: b}}\nspec: {{containers: [{{name: c, command: [x]}}]}}\n"
        );
        let workloads = compute_with(&text, None);
        let pod = |name| &workloads.pods[&ObjectKey::new("default", name)];
        ["a", "b"].map(|name| pod(name).digest.clone())
    };
    let (first, second) = (digest("one"), digest("two"));
    assert_ne!(first[0], second[0]);
    assert_eq!(first[1], second[1]);
}

#[test]
fn pods_of_an_invalid_manifest_are_retained() {
    let last = compute_with(DEPLOYMENT, Some(&values()));
    let text = DEPLOYMENT.replace("command: [nginx], ", "");
    let mut spoiled = compute_with(&text, Some(&values()));
    assert_eq!((spoiled.pods.len(), spoiled.problems.len()), (0, 1));
    spoiled.retain_last_valid(&last);
    assert_eq!(spoiled.pods, last.pods);
    for key in last.replica_sets.keys() {
        assert!(spoiled.replica_sets.contains_key(key), "{key}");
    }
    let mut removed = compute_with("kind: Service\nmetadata: {name: a}\n", Some(&values()));
    removed.retain_last_valid(&last);
    assert!(removed.pods.is_empty());
}

#[test]
fn proxies_are_tapped_by_the_observer_unless_disabled() {
    let observers = |text: &str| -> BTreeSet<Option<String>> {
        let workloads = compute_with(text, Some(&values()));
        let of_pod = |workload: Workload| {
            let spec = workload.pod.spec.unwrap_or_default();
            let env = mesh_k8s::pod::containers(&spec).flat_map(|it| it.env.iter().flatten());
            let mut env = env.filter(|var| var.name == "LINKERD2_PROXY_TAP_SVC_NAME");
            env.next().and_then(|var| var.value.clone())
        };
        workloads.pods.into_values().map(of_pod).collect()
    };
    let observer = Some(observer::identity(&values()));
    assert_eq!(observers(DEPLOYMENT), [observer].into());
    let disabled = DEPLOYMENT.replace(
        "linkerd.io/inject: enabled",
        "linkerd.io/inject: enabled, viz.linkerd.io/disable-tap: 'true'",
    );
    assert_eq!(observers(&disabled), [None].into());
    let unmeshed = DEPLOYMENT.replace("linkerd.io/inject: enabled", "a: b");
    assert_eq!(observers(&unmeshed), [None].into());
}

#[test]
fn pod_with_the_account_of_the_observer_is_rejected() {
    const POD: &str = "
kind: Pod
metadata: {name: spy, namespace: linkerd-viz}
spec: {serviceAccountName: tap, containers: [{name: a, command: [a]}]}
";
    let workloads = compute_with(POD, Some(&values()));
    assert!(workloads.pods.is_empty());
    let problem = &workloads.problems[0];
    assert!(problem.message.contains("reserved for root"), "{problem}");
    let other = compute_with(
        &POD.replace("namespace: linkerd-viz", "namespace: shop"),
        Some(&values()),
    );
    assert_eq!(other.problems, []);
}
