//! Patches applied to pods, compared with the golden files in `testdata/inject` and with tables.
//!
//! After an intended change, `MESH_UPDATE_GOLDEN=1 cargo test -p mesh-k8s inject` rewrites the
//! golden files; review the diff.

use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;

mod overrides;
mod ports;
mod trace;

const WEB: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: web-5d8f7c-x2x4z
  namespace: shop
  labels: {app: web}
spec:
  serviceAccountName: web
  containers:
  - name: web
    image: example/web:1
    ports:
    - {name: http, containerPort: 8080}
    - {name: db, containerPort: 3306}
    - {name: dns, containerPort: 53, protocol: UDP}
    readinessProbe: {httpGet: {path: /ready, port: 9000}}
    startupProbe: {httpGet: {path: /ready, port: 9999}}
    volumeMounts:
    - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}
";

/// The values of a mesh that redirects pods with an init container.
fn values() -> Values {
    let mut values = agent();
    values.mesh_agent.enabled = false;
    values.disable_ipv6 = true;
    values
}

/// The values of a mesh whose agent redirects pods, the default.
fn agent() -> Values {
    Values {
        linkerd_version: "test".into(),
        disable_ipv6: false,
        identity_trust_anchors_pem:
            "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n".into(),
        ..Values::default()
    }
}

/// The values of a mesh where another project's CNI plugin redirects pods.
fn foreign_cni() -> Values {
    Values {
        cni_enabled: true,
        ..values()
    }
}

fn meta(annotations: &[(&str, &str)]) -> ObjectMeta {
    ObjectMeta {
        annotations: Some(
            annotations
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        ),
        ..Default::default()
    }
}

fn web() -> Pod {
    serde_norway::from_str(WEB).unwrap()
}

fn annotated(annotations: &[(&str, &str)]) -> Pod {
    let mut pod = web();
    pod.metadata.annotations = meta(annotations).annotations;
    pod
}

fn deployment() -> Owner {
    Owner {
        kind: "deployment".into(),
        name: "web".into(),
    }
}

fn enabled() -> ObjectMeta {
    meta(&[("linkerd.io/inject", "enabled")])
}

fn run(values: &Values, namespace: &ObjectMeta, pod: &Pod) -> (Pod, Vec<String>) {
    let outcome = patch(values, namespace, pod, &deployment()).unwrap();
    let mut document = serde_json::to_value(pod).unwrap();
    outcome.patch.apply(&mut document).unwrap();
    (serde_json::from_value(document).unwrap(), outcome.warnings)
}

fn proxy(pod: &Pod) -> &Container {
    pod::containers(pod.spec.as_ref().unwrap())
        .find(|container| container.name == pod::PROXY_CONTAINER)
        .unwrap()
}

fn var<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod::plain_env(proxy(pod))
        .get(format!("LINKERD2_PROXY_{name}").as_str())
        .copied()
}

fn names(list: Option<&Vec<Container>>) -> Vec<&str> {
    list.into_iter()
        .flatten()
        .map(|container| container.name.as_str())
        .collect()
}

fn golden(name: &str, pod: &Pod) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/inject")
        .join(name);
    let text = serde_norway::to_string(pod).unwrap();
    if std::env::var_os("MESH_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expect = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expect, "differs from {}", path.display());
}

#[test]
fn golden_default() {
    golden("default.yaml", &run(&values(), &enabled(), &web()).0);
}

#[test]
fn golden_agent() {
    golden("agent.yaml", &run(&agent(), &enabled(), &web()).0);
}

#[test]
fn golden_foreign_cni() {
    let pod = run(&foreign_cni(), &enabled(), &web()).0;
    golden("foreign-cni.yaml", &pod);
}

#[test]
fn golden_many_overrides() {
    let annotations = [
        ("proxy-image", "example/proxy"),
        ("proxy-version", "v9"),
        ("image-pull-policy", "Never"),
        ("control-port", "5190"),
        ("inbound-port", "5143"),
        ("admin-port", "5191"),
        ("outbound-port", "5140"),
        ("proxy-admin-shutdown", "enabled"),
        ("proxy-log-level", "debug"),
        ("proxy-log-http-headers", "insecure"),
        ("proxy-log-format", "json"),
        ("proxy-require-identity-inbound-ports", "8080"),
        ("proxy-outbound-connect-timeout", "1m"),
        ("proxy-inbound-discovery-cache-unused-timeout", "2m"),
        ("proxy-disable-outbound-protocol-detect-timeout", "true"),
        ("shutdown-grace-period", "60s"),
        ("proxy-cpu-request", "1500m"),
        ("proxy-cpu-limit", "2"),
        ("proxy-cpu-ratio-limit", "0.10"),
        ("proxy-memory-request", "20Mi"),
        ("proxy-uid", "3000"),
        ("proxy-gid", "3001"),
        ("enable-external-profiles", "true"),
        ("skip-inbound-ports", "4222,6222"),
        ("skip-outbound-ports", "8079,8080"),
        ("skip-subnets", "172.17.0.0/16"),
        ("opaque-ports", "db, 9000-9002, none,"),
        ("default-inbound-policy", "cluster-authenticated"),
        ("access-log", "apache"),
        ("enable-gateway", "true"),
        ("enable-debug-sidecar", "true"),
        ("debug-image", "example/debug"),
        ("proxy-enable-native-sidecar", "false"),
        ("proxy-additional-env", r#"[{"name":"TWEAK","value":"1"}]"#),
    ];
    let mut pod = annotated(&[(
        "config.alpha.linkerd.io/proxy-wait-before-exit-seconds",
        "11",
    )]);
    let all = pod.metadata.annotations.get_or_insert_default();
    all.extend(annotations.map(|(key, value)| (format!("config.linkerd.io/{key}"), value.into())));
    let (pod, warnings) = run(&values(), &enabled(), &pod);
    assert_eq!(
        warnings.len(),
        1,
        "expected one for the unknown port name: {warnings:?}"
    );
    golden("overrides.yaml", &pod);
}

#[test]
fn order_of_containers_depends_on_mode() {
    let plain = ("config.linkerd.io/proxy-enable-native-sidecar", "false");
    let no_await = ("config.linkerd.io/proxy-await", "disabled");
    let check = |values: Values, pod: Pod, init: &[&str], app: &[&str]| {
        let (pod, _) = run(&values, &enabled(), &pod);
        let spec = pod.spec.unwrap();
        assert_eq!(names(spec.init_containers.as_ref()), init);
        assert_eq!(names(Some(&spec.containers)), app);
    };
    check(
        values(),
        web(),
        &["linkerd-init", "linkerd-proxy"],
        &["web"],
    );
    check(
        foreign_cni(),
        web(),
        &["linkerd-network-validator", "linkerd-proxy"],
        &["web"],
    );
    check(agent(), web(), &["linkerd-proxy"], &["web"]);
    check(
        values(),
        annotated(&[plain]),
        &["linkerd-init"],
        &["linkerd-proxy", "web"],
    );
    check(agent(), annotated(&[plain]), &[], &["linkerd-proxy", "web"]);
    check(
        agent(),
        annotated(&[plain, no_await]),
        &[],
        &["web", "linkerd-proxy"],
    );
    let mut with_init = web();
    with_init.spec.as_mut().unwrap().init_containers = Some(vec![Container {
        name: "migrate".into(),
        ..Default::default()
    }]);
    check(
        values(),
        with_init.clone(),
        &["linkerd-init", "linkerd-proxy", "migrate"],
        &["web"],
    );
    check(agent(), with_init, &["linkerd-proxy", "migrate"], &["web"]);
}

#[test]
fn native_sidecar_has_startup_probe_only_with_await() {
    let probe_and_hooks = |annotations: &[(&str, &str)]| {
        let (pod, _) = run(&agent(), &enabled(), &annotated(annotations));
        let proxy = proxy(&pod).clone();
        (proxy.startup_probe.is_some(), proxy.lifecycle)
    };
    assert_eq!(probe_and_hooks(&[]), (true, None));
    assert_eq!(
        probe_and_hooks(&[("config.linkerd.io/proxy-await", "disabled")]),
        (false, None)
    );
    let hook = (
        "config.alpha.linkerd.io/proxy-wait-before-exit-seconds",
        "5",
    );
    assert_eq!(probe_and_hooks(&[hook]), (true, None));
    let (startup, lifecycle) =
        probe_and_hooks(&[("config.linkerd.io/proxy-enable-native-sidecar", "0"), hook]);
    let lifecycle = lifecycle.unwrap();
    assert!(!startup && lifecycle.post_start.is_some() && lifecycle.pre_stop.is_some());
}

#[test]
fn redirection_settings_are_written_as_pod_annotations() {
    let check = |values: &Values, pod: &Pod, expect: &[(&str, Option<&str>)]| {
        let (after, _) = run(values, &enabled(), pod);
        for (key, value) in expect {
            assert_eq!(pod::annotation(&after, key), *value, "{key}");
        }
    };
    let keys = [
        annotation::INBOUND_PORT,
        annotation::PROXY_UID,
        annotation::PROXY_GID,
        annotation::SKIP_OUTBOUND_PORTS,
        annotation::SKIP_SUBNETS,
    ];
    // Defaults are not written.
    check(&agent(), &web(), &keys.map(|key| (key, None)));
    let mut chart = agent();
    chart.proxy.ports.inbound = 5143;
    chart.proxy.uid = 3000;
    chart.proxy_init.ignore_outbound_ports = "25, 26".into();
    chart.proxy_init.skip_subnets = "10.1.0.0/16".into();
    let expect = [
        Some("5143"),
        Some("3000"),
        None,
        Some("25,26"),
        Some("10.1.0.0/16"),
    ];
    let expect: Vec<_> = keys.into_iter().zip(expect).collect();
    check(&chart, &web(), &expect);
    // The init container has the settings as arguments.
    chart.mesh_agent.enabled = false;
    check(&chart, &web(), &keys.map(|key| (key, None)));
    // Invalid annotations of the namespace are replaced; otherwise the agent would reject the pod.
    let bad = meta(&[
        (annotation::INJECT, "enabled"),
        (annotation::INBOUND_PORT, "99999"),
        (annotation::PROXY_GID, "0"),
        (annotation::SKIP_OUTBOUND_PORTS, "http"),
        (annotation::SKIP_SUBNETS, "here"),
    ]);
    let expect = [Some("4143"), None, None, Some("4567,4568"), None];
    let (after, _) = run(&agent(), &bad, &web());
    for (key, value) in keys.into_iter().zip(expect) {
        assert_eq!(pod::annotation(&after, key), value, "{key}");
    }
    // Like Linkerd's CNI plugin: the control plane connects to the API server before it has a
    // certificate.
    let mut component = web();
    let labels = component.metadata.labels.as_mut().unwrap();
    labels.insert(
        annotation::CONTROL_PLANE_COMPONENT.into(),
        "identity".into(),
    );
    check(
        &agent(),
        &component,
        &[(annotation::SKIP_OUTBOUND_PORTS, Some("443,6443"))],
    );
}

#[test]
fn families_on_which_the_proxy_listens_are_redirected() {
    let check = |disable_ipv6: bool, refuse_ipv6: bool, pod: &Pod, expect: Option<&str>| {
        let values = Values {
            disable_ipv6,
            refuse_ipv6,
            ..agent()
        };
        let (after, _) = run(&values, &enabled(), pod);
        let key = annotation::REDIRECTED_IP_FAMILIES;
        let context = format!("{disable_ipv6} {refuse_ipv6}");
        assert_eq!(pod::annotation(&after, key), expect, "{context}");
    };
    check(false, false, &web(), None);
    check(true, false, &web(), Some("ipv4"));
    check(true, true, &web(), None);
    // The annotation of the pod does not decide.
    let with = |families: &str| annotated(&[(annotation::REDIRECTED_IP_FAMILIES, families)]);
    check(false, false, &with("ipv4"), Some("ipv4,ipv6"));
    check(true, true, &with("ipv4"), Some("ipv4,ipv6"));
    check(true, false, &with("ipv4,ipv6"), Some("ipv4"));
    // The init container has the setting as an argument.
    let arguments = |refuse_ipv6: bool| {
        let values = Values {
            refuse_ipv6,
            ..values()
        };
        let (after, _) = run(&values, &enabled(), &web());
        let init = after.spec.unwrap().init_containers.unwrap();
        init.into_iter().find_map(|it| it.args).unwrap()
    };
    assert!(arguments(false).contains(&"--ipv6=false".to_owned()));
    assert!(!arguments(true).contains(&"--ipv6=false".to_owned()));
}

#[test]
fn uninjection_reverses_every_mode() {
    let plain = annotated(&[("config.linkerd.io/proxy-enable-native-sidecar", "false")]);
    let debug = annotated(&[("config.linkerd.io/enable-debug-sidecar", "true")]);
    for values in [values(), agent(), foreign_cni()] {
        for pod in [&plain, &debug] {
            let mut document = serde_json::to_value(run(&values, &enabled(), pod).0).unwrap();
            assert!(uninject(&mut document));
            assert!(!uninject(&mut document));
            let mut back: Pod = serde_json::from_value(document).unwrap();
            // The annotation of opaque ports stays, because it cannot be distinguished from a
            // user's.
            back.metadata
                .annotations
                .as_mut()
                .unwrap()
                .remove(annotation::OPAQUE_PORTS);
            assert_eq!(&back, pod);
        }
    }
}

#[test]
fn proxy_drops_all_capabilities_and_init_container_keeps_those_of_application() {
    let check = |capabilities: &str, add: &[&str], drop: Option<&[&str]>| {
        let mut pod = web();
        let container = &mut pod.spec.as_mut().unwrap().containers[0];
        container.security_context =
            Some(serde_norway::from_str(&format!("capabilities: {capabilities}")).unwrap());
        let (pod, _) = run(&values(), &enabled(), &pod);
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let context = proxy(&pod).security_context.clone().unwrap();
        let of_proxy = context.capabilities.unwrap();
        assert_eq!((of_proxy.add, of_proxy.drop), (None, Some(owned(&["ALL"]))));
        let init = &pod.spec.as_ref().unwrap().init_containers.as_ref().unwrap()[0];
        let of_init = init.security_context.clone().unwrap().capabilities.unwrap();
        assert_eq!(
            (of_init.add, of_init.drop),
            (Some(owned(add)), drop.map(owned))
        );
    };
    let needed = ["NET_ADMIN", "NET_RAW"];
    check("{}", &needed, None);
    check("{drop: [ALL]}", &needed, Some(&["ALL"]));
    check(
        "{add: [SYS_TIME], drop: [NET_RAW, CHOWN]}",
        &["NET_ADMIN", "NET_RAW", "SYS_TIME"],
        Some(&["CHOWN"]),
    );
    let (pod, _) = run(&agent(), &enabled(), &web());
    let context = proxy(&pod).security_context.clone().unwrap();
    assert_eq!(context.capabilities.unwrap().drop.unwrap(), ["ALL"]);
}

#[test]
fn debug_container_has_capture_capabilities_in_non_root_pod() {
    let mut pod = annotated(&[("config.linkerd.io/enable-debug-sidecar", "true")]);
    pod.spec.as_mut().unwrap().security_context =
        serde_norway::from_str("{runAsNonRoot: true, runAsUser: 1000}").unwrap();
    let (pod, _) = run(&agent(), &enabled(), &pod);
    let debug = &pod.spec.as_ref().unwrap().containers[1];
    assert_eq!(
        (&*debug.name, debug.image.as_deref()),
        ("linkerd-debug", Some("mesh/debug:test"))
    );
    let security = debug.security_context.as_ref().unwrap();
    let add = security
        .capabilities
        .as_ref()
        .unwrap()
        .add
        .as_ref()
        .unwrap();
    assert_eq!(add, &["NET_ADMIN", "NET_RAW"]);
    assert_eq!(
        (security.run_as_non_root, security.run_as_user),
        (Some(false), Some(0))
    );
}

#[test]
fn control_plane_pods_connect_to_own_component_over_loopback() {
    let component = |name: &str| {
        let mut pod = web();
        let labels = pod.metadata.labels.as_mut().unwrap();
        labels.insert("linkerd.io/control-plane-component".into(), name.into());
        let pod = run(&values(), &enabled(), &pod).0;
        let addresses = ["IDENTITY", "DESTINATION", "POLICY"]
            .map(|name| var(&pod, &format!("{name}_SVC_ADDR")).unwrap().to_owned());
        let init = pod.spec.unwrap().init_containers.unwrap().remove(0);
        (addresses, init.args.unwrap().join(" "))
    };
    let (identity, args) = component("identity");
    assert_eq!(
        identity,
        [
            "localhost.:8080",
            "linkerd-dst-headless.linkerd.svc.cluster.local.:8086",
            "linkerd-policy.linkerd.svc.cluster.local.:8090"
        ]
    );
    assert!(
        args.contains("--outbound-ports-to-ignore 443,6443"),
        "{args}"
    );
    let (destination, _) = component("destination");
    assert_eq!(
        destination,
        [
            "linkerd-identity-headless.linkerd.svc.cluster.local.:8080",
            "localhost.:8086",
            "localhost.:8090"
        ]
    );
}

#[test]
fn service_account_token_is_used_without_token_projection() {
    let mut values = agent();
    values.identity.service_account_token_projection = false;
    let (pod, _) = run(&values, &enabled(), &web());
    assert_eq!(
        var(&pod, "IDENTITY_TOKEN_FILE"),
        Some("/var/run/secrets/kubernetes.io/serviceaccount/token")
    );
    let volumes = pod.spec.unwrap().volumes.unwrap();
    assert!(volumes.iter().all(|volume| volume.projected.is_none()));
}

#[test]
fn owner_is_written_as_label() {
    let check = |kind: &str, expect: Option<(&str, &str)>| {
        let owner = Owner {
            kind: kind.into(),
            name: "web".into(),
        };
        let outcome = patch(&values(), &enabled(), &web(), &owner).unwrap();
        let mut document = serde_json::to_value(web()).unwrap();
        outcome.patch.apply(&mut document).unwrap();
        let pod: Pod = serde_json::from_value(document).unwrap();
        let labels = pod.metadata.labels.unwrap();
        let found = labels
            .iter()
            .find(|(key, _)| key.starts_with("linkerd.io/proxy-"))
            .map(|(key, value)| (key.as_str(), value.as_str()));
        assert_eq!(found, expect);
        assert_eq!(labels["linkerd.io/workload-ns"], "shop");
    };
    check("deployment", Some(("linkerd.io/proxy-deployment", "web")));
    check("statefulset", Some(("linkerd.io/proxy-statefulset", "web")));
    check("job", Some(("linkerd.io/proxy-job", "web")));
    check("cronjob", None);
    check("rollout", None);
    check("pod", None);
}

#[test]
fn invalid_cluster_networks_are_rejected() {
    let mut values = values();
    values.cluster_networks = "10.0.0.0/8,here".into();
    let error = patch(&values, &enabled(), &web(), &deployment()).unwrap_err();
    assert!(error.to_string().contains("\"here\""), "{error}");
}

#[test]
fn effective_settings_are_the_pods_before_the_namespaces_before_the_values() {
    let mut chart = values();
    chart.proxy_init.ignore_inbound_ports = "25".into();
    let skip = "config.linkerd.io/skip-inbound-ports";
    let policy = "config.linkerd.io/default-inbound-policy";
    let namespace = meta(&[(skip, "26"), (policy, "deny"), ("example.com/own", "x")]);
    let check = |pod: &[(&str, &str)], expect: (&str, &str)| {
        let (annotations, values) = effective(&chart, &namespace, &meta(pod));
        let found = (
            &*values.proxy_init.ignore_inbound_ports,
            &*values.proxy.default_inbound_policy,
        );
        assert_eq!(found, expect, "{pod:?}");
        assert_eq!(annotations.len(), 2, "{annotations:?}");
    };
    check(&[], ("26", "deny"));
    check(&[(skip, "27")], ("27", "deny"));
    // An invalid annotation hides the namespace's.
    check(&[(policy, "all")], ("26", "all-unauthenticated"));
}
