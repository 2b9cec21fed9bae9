//! Annotations without effect.

use super::*;

#[test]
fn annotations_without_effect_are_found() {
    let with = |kind: &str, annotation: &str| {
        format!(
            "\napiVersion: v1\nkind: {kind}\nmetadata: {{name: a, namespace: shop, annotations: {{{annotation}: '1'}}}}\nspec: {{clusterIP: 10.96.0.9}}\n"
        )
    };
    for (kind, annotation, code, fix) in [
        (
            "Pod",
            "config.linkerd.io/skip-outbound-prots",
            "unknown-annotation",
            "write config.linkerd.io/skip-outbound-ports",
        ),
        (
            "Service",
            "timeouts.linkerd.io/request",
            "unknown-annotation",
            "write timeout.linkerd.io/request",
        ),
        (
            "Pod",
            "linkerd.io/injection",
            "unknown-annotation",
            "write linkerd.io/inject",
        ),
        (
            "Service",
            "config.linkred.io/opaque-ports",
            "unknown-annotation",
            "write config.linkerd.io/opaque-ports",
        ),
        (
            "Service",
            "retry.linkerd.oi/http",
            "unknown-annotation",
            "write retry.linkerd.io/http",
        ),
        (
            "Pod",
            "config.linkerd.io/entirely-different-thing",
            "unknown-annotation",
            "remove it",
        ),
        (
            "Pod",
            "config.linkerd.io/pod-inbound-ports",
            "unknown-annotation",
            "remove it",
        ),
        (
            "Service",
            "config.linkerd.io/proxy-log-level",
            "no-effect",
            "write it on a pod template or a Namespace",
        ),
        (
            "Pod",
            "retry.linkerd.io/http",
            "no-effect",
            "write it on a Service",
        ),
        (
            "ConfigMap",
            "balancer.linkerd.io/failure-accrual",
            "no-effect",
            "a Service or an EgressNetwork",
        ),
        (
            "Deployment",
            "config.linkerd.io/skip-inbound-ports",
            "no-effect",
            "below metadata of the pod template",
        ),
    ] {
        let object = format!("{kind} shop/a");
        let field = format!("metadata.annotations[{annotation}]");
        check(&with(kind, annotation), [code, &object, &field, fix]);
    }
    for (kind, annotation) in [
        ("Pod", "linkerd.io/inject"),
        ("Pod", "linkerd.io/created-by"),
        ("Pod", "example.com/inject"),
        ("Pod", "config.example.io/opaque-ports"),
        ("Service", "balancer.linkerd.io/failure-accrual"),
        ("Service", "mirror.linkerd.io/anything"),
    ] {
        assert_eq!(findings(&with(kind, annotation)), [], "{annotation}");
    }
}

#[test]
fn fault_that_no_filter_injects_is_found() {
    let route = |name: &str| {
        format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: a, namespace: shop, annotations: {{fault.linkerd.io/it: abort=503}}}}
spec:
  parentRefs: [{{group: '', kind: Service, name: web}}]
  rules:
  - backendRefs:
    - {{name: web, port: 80, filters: [{{type: ExtensionRef, extensionRef: {{group: fault.linkerd.io, kind: Fault, name: {name}}}}}]}}
"
        )
    };
    assert_eq!(findings(&route("it")), []);
    let found = findings(&route("other"));
    let found: Vec<_> = found.iter().map(|it| (it.code, &*it.field)).collect();
    let annotation = ("no-effect", "metadata.annotations[fault.linkerd.io/it]");
    let filter = ("missing-reference", "spec.rules[0].backendRefs[0]");
    assert_eq!(found, [annotation, filter]);
}

#[test]
fn annotations_of_pod_templates_are_checked() {
    let workload = |kind: &str, template: &str| {
        format!(
            "\napiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: a, namespace: shop}}\nspec: {template}\n"
        )
    };
    let meta = "{metadata: {annotations: {linkerd.io/injct: enabled}}}";
    check(
        &workload("StatefulSet", &format!("{{template: {meta}}}")),
        [
            "unknown-annotation",
            "StatefulSet shop/a",
            "spec.template.metadata.annotations[linkerd.io/injct]",
            "write linkerd.io/inject",
        ],
    );
    check(
        &workload(
            "CronJob",
            &format!("{{jobTemplate: {{spec: {{template: {meta}}}}}}}"),
        ),
        [
            "unknown-annotation",
            "CronJob shop/a",
            "spec.jobTemplate.spec.template.metadata.annotations[linkerd.io/injct]",
            "",
        ],
    );
}

#[test]
fn order_of_localities_that_is_invalid_or_has_no_effect_is_found() {
    let of = |kind: &str, levels: &str, more: &str, spec: &str| {
        format!(
            "\napiVersion: v1\nkind: {kind}\nmetadata: {{name: a, namespace: shop, annotations: {{locality.linkerd.io/failover: '{levels}'{more}}}}}\nspec: {{clusterIP: 10.96.0.9{spec}}}\n"
        )
    };
    let local = ", internalTrafficPolicy: Local";
    let members = ", multicluster.linkerd.io/local-discovery: web";
    let field = "metadata.annotations[locality.linkerd.io/failover]";
    for (manifest, problem) in [
        (of("Service", "zone", "", local), "their own node only"),
        (
            of("Service", "zone", "", ", type: ExternalName"),
            "an ExternalName Service",
        ),
        (of("Pod", "zone", "", ""), "write it on a Service"),
    ] {
        let object = manifest.lines().nth(2).unwrap();
        let object = format!("{} shop/a", object.trim_start_matches("kind: "));
        check(&manifest, ["no-effect", &object, field, problem]);
    }
    for manifest in [
        of("Service", "node, zone=50%, region", "", ""),
        of("Service", "zone", members, local),
    ] {
        assert_eq!(findings(&manifest), [], "{manifest}");
    }
    let found = analyze(&objects(&of("Service", "zone=0", "", local)));
    let [invalid] = &found[..] else {
        panic!("{found:#?}");
    };
    assert_eq!(
        (invalid.code, &*invalid.field),
        (
            "invalid",
            "metadata.annotations[\"locality.linkerd.io/failover\"]"
        )
    );
    let ignored = "\"0\" is not a threshold";
    assert!(invalid.problem.contains(ignored), "{}", invalid.problem);
}
