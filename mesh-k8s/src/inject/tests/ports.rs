//! Ports of the application in a pod's variables and annotations, and opaque ports of Services.

use k8s_openapi::api::core::v1::{Probe, Service};

use super::*;

#[test]
fn inbound_ports_variable_is_absent_without_ports() {
    let mut pod = web();
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    (container.ports, container.readiness_probe) = (None, None);
    let (after, _) = run(&agent(), &enabled(), &pod);
    assert_eq!(var(&after, "INBOUND_PORTS"), None);
    assert_eq!(
        var(&run(&agent(), &enabled(), &web()).0, "INBOUND_PORTS"),
        Some("3306,53,8080,9000")
    );
}

#[test]
fn declared_and_probed_port_is_listed_once() {
    let mut pod = web();
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.ports = serde_norway::from_str(
        "[{containerPort: 8080}, {containerPort: 53}, {containerPort: 53, protocol: UDP}]",
    )
    .unwrap();
    let probe: Option<Probe> = serde_norway::from_str("{httpGet: {port: 8080}}").unwrap();
    (container.readiness_probe, container.liveness_probe) = (probe.clone(), probe);
    let (after, _) = run(&agent(), &enabled(), &pod);
    assert_eq!(var(&after, "INBOUND_PORTS"), Some("53,8080"));
}

#[test]
fn pods_get_default_opaque_ports_of_values() {
    let opaque = |value: &str, pod: &Pod| {
        let mut values = agent();
        values.proxy.opaque_ports = value.into();
        let (after, warnings) = run(&values, &enabled(), pod);
        assert_eq!(warnings, [""; 0]);
        let text = |text: Option<&str>| text.map(str::to_owned);
        (
            text(pod::annotation(&after, annotation::OPAQUE_PORTS)),
            text(var(&after, "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION")),
        )
    };
    let both = |list: &str| (Some(list.to_owned()), Some(list.to_owned()));
    // The annotation replaces the default of the controllers, so it contains the whole default.
    assert_eq!(
        opaque("25,3306,7000-7002", &web()),
        both("25,3306,7000-7002")
    );
    // Names of the pod's ports are resolved.
    assert_eq!(opaque("25,db", &web()), both("25,3306"));
    // The pod has none of these ports, so the default of the controllers applies.
    assert_eq!(opaque("25", &web()), (None, Some("25".to_owned())));
    assert_eq!(opaque("", &web()), (None, None));
    let own = annotated(&[(annotation::OPAQUE_PORTS, "db")]);
    assert_eq!(
        opaque("25", &own),
        (Some("db".to_owned()), Some("3306".to_owned()))
    );
}

#[test]
fn skipped_pods_and_services_only_get_opaque_ports() {
    let check = |namespace: &ObjectMeta, pod: &Pod, expect: Option<&str>| {
        let (after, _) = run(&values(), namespace, pod);
        assert_eq!(pod::annotation(&after, annotation::OPAQUE_PORTS), expect);
        assert_eq!(after.spec, pod.spec);
    };
    check(&meta(&[]), &web(), Some(annotation::DEFAULT_OPAQUE_PORTS));
    check(
        &meta(&[(annotation::OPAQUE_PORTS, "1-5")]),
        &web(),
        Some("1-5"),
    );
    check(
        &meta(&[]),
        &annotated(&[(annotation::OPAQUE_PORTS, "")]),
        Some(""),
    );
    let service = |ports: &str| {
        let text = format!("metadata: {{name: db}}\nspec: {{ports: {ports}}}");
        let service: Service = serde_norway::from_str(&text).unwrap();
        let mut document = serde_json::to_value(&service).unwrap();
        let patch = patch_service(&values(), &meta(&[]), &service);
        patch.apply(&mut document).unwrap();
        document["metadata"]["annotations"][annotation::OPAQUE_PORTS].clone()
    };
    assert_eq!(
        service("[{port: 3306}, {port: 80}, {port: 1, targetPort: 25}]"),
        "3306,25"
    );
    assert_eq!(
        service("[{port: 3306, targetPort: 8080}]"),
        serde_json::Value::Null
    );
    // A named target port may differ from pod to pod, so the port of the Service counts.
    assert_eq!(
        service("[{port: 3306, targetPort: mysql}, {port: 80, targetPort: http}]"),
        "3306"
    );
    assert_eq!(
        service("[{port: 3306}, {port: 1, targetPort: 3306}, {port: 25}, {port: 3306}]"),
        "3306,25"
    );
}
