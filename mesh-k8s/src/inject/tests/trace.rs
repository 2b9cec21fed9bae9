//! Pods whose proxies export spans.

use super::*;

/// The values of a mesh with a collector.
fn with_collector() -> Values {
    let mut values = agent();
    let tracing = &mut values.proxy.tracing;
    tracing.enabled = true;
    tracing.collector.endpoint = "collector.tracing:4317".into();
    tracing.collector.mesh_identity.service_account_name = "collector".into();
    tracing.collector.mesh_identity.namespace = "tracing".into();
    values
}

fn labelled(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Pod {
    let mut pod = annotated(annotations);
    pod.metadata.labels = meta(labels).annotations;
    pod
}

/// Returns the attributes of the proxy's spans.
fn attributes(pod: &Pod) -> Vec<String> {
    let (pod, warnings) = run(&with_collector(), &enabled(), pod);
    assert!(warnings.is_empty(), "{warnings:?}");
    let attributes = var(&pod, "TRACE_EXTRA_ATTRIBUTES").unwrap();
    attributes.lines().map(str::to_owned).collect()
}

#[test]
fn golden_tracing() {
    golden(
        "tracing.yaml",
        &run(&with_collector(), &enabled(), &web()).0,
    );
}

#[test]
fn labels_and_annotations_are_attributes() {
    let defaults = [
        "k8s.container.name=$(_pod_containerName)",
        "k8s.pod.ip=$(_pod_ip)",
        "k8s.pod.uid=$(_pod_uid)",
    ];
    assert_eq!(attributes(&web()), defaults);
    let named = |labels: &[(&str, &str)], annotations: &[(&str, &str)]| {
        let all = attributes(&labelled(labels, annotations));
        let mut names = all
            .iter()
            .filter_map(|line| line.strip_prefix("service.name="));
        names.next().unwrap_or_default().to_owned()
    };
    let name = ("app.kubernetes.io/name", "web");
    let instance = ("app.kubernetes.io/instance", "web-eu");
    let own = ("resource.opentelemetry.io/service.name", "shop");
    assert_eq!(named(&[("app", "web")], &[]), "");
    assert_eq!(named(&[name], &[]), "web");
    assert_eq!(named(&[name, instance], &[]), "web-eu");
    assert_eq!(named(&[name, instance], &[own]), "shop");
    let other = ("resource.opentelemetry.io/k8s.pod.ip", "x=y");
    let all = attributes(&annotated(&[other, ("opentelemetry.io/a", "b")]));
    assert_eq!(all, [defaults[0], "k8s.pod.ip=x=y", defaults[2]]);
}

#[test]
fn attribute_of_several_lines_is_rejected() {
    let key = "resource.opentelemetry.io/team";
    let pod = annotated(&[(key, "a\nservice.name=b")]);
    let rejected = patch(&with_collector(), &enabled(), &pod, &deployment());
    let message = rejected.unwrap_err().to_string();
    let expect = format!("deployment shop/web: {key}: invalid value ");
    assert!(message.starts_with(&expect), "{message}");
    // Without a collector other programs may still read it.
    assert!(patch(&agent(), &enabled(), &pod, &deployment()).is_ok());
}

#[test]
fn incomplete_collector_is_an_error() {
    let message = |change: fn(&mut Values)| {
        let mut values = with_collector();
        change(&mut values);
        let patched = patch(&values, &enabled(), &web(), &deployment());
        patched.unwrap_err().to_string()
    };
    for endpoint in [
        "",
        "collector",
        "collector:",
        ":4317",
        "collector:0",
        "http://a:1",
    ] {
        let mut values = with_collector();
        values.proxy.tracing.collector.endpoint = endpoint.into();
        let error = patch(&values, &enabled(), &web(), &deployment()).unwrap_err();
        let expect = "proxy.tracing.collector.endpoint: is not a host and port";
        assert!(error.to_string().starts_with(expect), "{endpoint}: {error}");
    }
    let account = message(|values| {
        let identity = &mut values.proxy.tracing.collector.mesh_identity;
        identity.service_account_name.clear();
    });
    assert!(
        account.contains("meshIdentity.serviceAccountName: is empty"),
        "{account}"
    );
    let namespace = message(|values| {
        let identity = &mut values.proxy.tracing.collector.mesh_identity;
        identity.namespace.clear();
    });
    assert!(
        namespace.contains("meshIdentity.namespace: is empty"),
        "{namespace}"
    );
}

#[test]
fn uninjected_pod_has_no_labels_volume() {
    let injected = run(&with_collector(), &enabled(), &web()).0;
    let mut pod = serde_json::to_value(&injected).unwrap();
    assert!(uninject(&mut pod));
    let pod: Pod = serde_json::from_value(pod).unwrap();
    assert_eq!(pod.spec.unwrap().volumes, web().spec.unwrap().volumes);
}
