//! Golden files: `testdata/manifest/<case>.yaml` is the input, `<case>.annotated.yaml` and
//! `<case>.injected.yaml` the results.
//!
//! After an intended change, `MESH_UPDATE_GOLDEN=1 cargo test -p mesh-k8s manifest` rewrites them;
//! review the diff.

use std::fs;
use std::path::PathBuf;

use serde::Deserialize as _;

use super::*;

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/manifest")
}

fn documents(text: &str) -> Vec<Value> {
    serde_norway::Deserializer::from_str(text)
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

fn case(name: &str) -> Vec<Value> {
    documents(&fs::read_to_string(directory().join(format!("{name}.yaml"))).unwrap())
}

fn golden(name: &str, documents: &[Value]) {
    let path = directory().join(format!("{name}.yaml"));
    let texts: Vec<String> = documents
        .iter()
        .map(|document| serde_norway::to_string(document).unwrap())
        .collect();
    let text = texts.join("---\n");
    if std::env::var_os("MESH_UPDATE_GOLDEN").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let expect = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expect, "differs from {}", path.display());
}

fn values() -> Values {
    Values {
        linkerd_version: "test".into(),
        identity_trust_anchors_pem: "PEM".into(),
        ..Values::default()
    }
}

/// Kind, name and outcome of each report.
fn summary(reports: &[Report]) -> Vec<(&str, &str, &Outcome)> {
    reports
        .iter()
        .map(|report| (&*report.kind, &*report.name, &report.outcome))
        .collect()
}

/// The golden files of `testdata/inject` cover the environment.
fn without_env(documents: &mut [Value]) {
    for document in documents {
        strip(document, "env");
    }
}

fn strip(value: &mut Value, key: &str) {
    match value {
        Value::Object(map) => {
            map.remove(key);
            map.values_mut().for_each(|value| strip(value, key));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| strip(value, key)),
        _ => {}
    }
}

#[test]
fn every_kind_of_workload_is_annotated() {
    let (after, reports) = inject(case("kinds"), &InjectOptions::default()).unwrap();
    let annotated = &Outcome::Annotated;
    assert_eq!(
        summary(&reports),
        [
            ("namespace", "shop", annotated),
            ("deployment", "web", annotated),
            ("statefulset", "db", annotated),
            ("daemonset", "logs", annotated),
            ("job", "once", annotated),
            ("cronjob", "nightly", annotated),
            ("cronjob", "bare-template", annotated),
            ("replicaset", "old", annotated),
            ("replicationcontroller", "older", annotated),
            ("pod", "alone", annotated),
            ("service", "web", &Outcome::Unchanged),
            ("configmap", "settings", &Outcome::Unchanged),
            ("rollout", "canary", &Outcome::Unchanged),
        ]
    );
    golden("kinds.annotated", &after);
}

#[test]
fn every_kind_of_workload_is_injected_manually() {
    let values = values();
    let options = InjectOptions {
        manual: Some(&values),
        ..InjectOptions::default()
    };
    let (mut after, reports) = inject(case("kinds"), &options).unwrap();
    let injected = reports
        .iter()
        .filter(|report| report.outcome == Outcome::Injected);
    assert_eq!(injected.count(), 9);
    without_env(&mut after);
    golden("kinds.injected", &after);
}

#[test]
fn injection_is_idempotent_and_uninjection_restores() {
    let values = values();
    let manual = InjectOptions {
        manual: Some(&values),
        ..InjectOptions::default()
    };
    for options in [InjectOptions::default(), manual] {
        let (mut once, _) = inject(case("kinds"), &options).unwrap();
        let (mut twice, reports) = inject(once.clone(), &options).unwrap();
        // The first injection adds the annotation of opaque ports, the second one finds it.
        without_env(&mut once);
        without_env(&mut twice);
        assert_same(&once, &twice);
        assert!(reports.iter().all(|report| report.warnings.is_empty()));
        let (back, reports) = uninject(once).unwrap();
        let mut back = back;
        // The annotation of opaque ports stays, because it cannot be distinguished from a user's.
        strip(&mut back[2], annotation::OPAQUE_PORTS);
        let mut before = case("kinds");
        // Maps and lists are removed with their last entry, so only maps and lists that were empty
        // before differ.
        for document in back.iter_mut().chain(&mut before) {
            strip_empty(document);
        }
        assert_same(&back, &before);
        let uninjected = reports
            .iter()
            .filter(|report| report.outcome == Outcome::Uninjected);
        assert_eq!(uninjected.count(), 10);
    }
}

/// Compares document by document, so that a failure shows only the first difference.
fn assert_same(left: &[Value], right: &[Value]) {
    assert_eq!(left.len(), right.len());
    for (left, right) in left.iter().zip(right) {
        assert_eq!(left, right);
    }
}

fn strip_empty(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(strip_empty);
            map.retain(|_, value| {
                !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty())
            });
        }
        Value::Array(items) => items.iter_mut().for_each(strip_empty),
        _ => {}
    }
}

#[test]
fn skipped_workloads_are_reported_with_reason() {
    let (after, reports) = inject(case("skipped"), &InjectOptions::default()).unwrap();
    assert_eq!(after, case("skipped"));
    use SkipReason::{DisabledByAnnotation, HostNetwork, InvalidWorkloadAnnotation, SidecarExists};
    let skipped = |reason| Outcome::Skipped(vec![reason]);
    assert_eq!(
        summary(&reports),
        [
            ("deployment", "host-network", &skipped(HostNetwork)),
            ("deployment", "disabled", &skipped(DisabledByAnnotation)),
            ("deployment", "foreign-sidecar", &skipped(SidecarExists)),
        ]
    );
    // An invalid object is an error and not silently passed through.
    let odd = documents(
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: odd}, spec: {template: {spec: 5}}}",
    );
    let error = inject(odd, &InjectOptions::default()).unwrap_err();
    assert!(error.to_string().contains("deployment odd"), "{error}");
    let invalid = documents(
        "{apiVersion: v1, kind: Pod, metadata: {name: p, annotations: {config.linkerd.io/x: y}}, spec: {containers: []}}",
    );
    assert_ne!(
        inject(invalid, &InjectOptions::default()).unwrap().1[0].outcome,
        skipped(InvalidWorkloadAnnotation)
    );
}

#[test]
fn partial_older_injection_is_replaced() {
    let clean = documents(
        "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c}]}}",
    );
    let partly_injected = documents(
        "{apiVersion: v1, kind: Pod, metadata: {name: p, annotations: {linkerd.io/proxy-version: old}, labels: {linkerd.io/workload-ns: old}}, \
         spec: {initContainers: [{name: linkerd-init}, {name: linkerd-network-validator}], containers: [{name: c}, {name: linkerd-proxy}], \
         volumes: [{name: linkerd-identity-end-entity}, {name: linkerd-podinfo}, {name: linkerd-proxy-init-xtables-lock}]}}",
    );
    let values = values();
    for manual in [None, Some(&values)] {
        let options = InjectOptions {
            manual,
            ..InjectOptions::default()
        };
        let (expect, _) = inject(clean.clone(), &options).unwrap();
        let (after, _) = inject(partly_injected.clone(), &options).unwrap();
        assert_same(&after, &expect);
    }
}

#[test]
fn flags_become_annotations() {
    let options = InjectOptions {
        annotations: [
            (annotation::OPAQUE_PORTS.to_owned(), "9000,db".to_owned()),
            (
                "config.linkerd.io/proxy-log-level".to_owned(),
                "debug".to_owned(),
            ),
        ]
        .into(),
        ingress: true,
        manual: None,
    };
    let given = documents(
        "{apiVersion: v1, kind: Service, metadata: {name: db}}\n---\n\
         {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, ports: [{containerPort: 53, protocol: UDP}]}]}}",
    );
    let (after, reports) = inject(given, &options).unwrap();
    assert_eq!(
        after[0]["metadata"]["annotations"],
        json!({annotation::OPAQUE_PORTS: "9000,db"})
    );
    assert_eq!(
        after[1]["metadata"]["annotations"],
        json!({
            annotation::OPAQUE_PORTS: "9000,db",
            "config.linkerd.io/proxy-log-level": "debug",
            annotation::INJECT: "ingress",
        })
    );
    assert_eq!(reports[1].warnings.len(), 1, "{:?}", reports[1].warnings);
    let (back, _) = uninject(after).unwrap();
    // Configuration annotations stay.
    assert_eq!(
        back[1]["metadata"]["annotations"]["config.linkerd.io/proxy-log-level"],
        "debug"
    );
    assert_eq!(
        back[1]["metadata"]["annotations"].get(annotation::INJECT),
        None
    );
}

#[test]
fn items_of_nested_lists_are_injected() {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "List", "items": case("kinds")},
        Value::Null,
    ]});
    let (after, reports) = inject(vec![list, Value::Null], &InjectOptions::default()).unwrap();
    assert_eq!(reports.len(), case("kinds").len());
    let (flat, _) = inject(case("kinds"), &InjectOptions::default()).unwrap();
    assert_eq!(after[0]["items"][0]["items"], Value::Array(flat));
    assert_eq!(after[1], Value::Null);
}

#[test]
fn workloads_with_invalid_annotations_are_refused() {
    let values = values();
    for manual in [None, Some(&values)] {
        let options = InjectOptions {
            annotations: [(annotation::INBOUND_PORT.to_owned(), "99999".to_owned())].into(),
            manual,
            ..InjectOptions::default()
        };
        let (after, reports) = inject(case("kinds"), &options).unwrap();
        let web = &reports[1];
        let Outcome::Refused(problems) = &web.outcome else {
            panic!("{web:?}");
        };
        assert!(web.is_refused());
        assert!(
            problems[0].starts_with(
                "deployment shop/web: config.linkerd.io/inbound-port: invalid value \"99999\""
            ),
            "{problems:?}"
        );
        assert_eq!(after[1], case("kinds")[1]);
    }
}

#[test]
fn disabled_injection_is_not_refusal() {
    let report = |reason: SkipReason| Report {
        kind: "deployment".into(),
        namespace: None,
        name: "web".into(),
        outcome: Outcome::Skipped(vec![reason]),
        warnings: Vec::new(),
    };
    let refused = [
        SkipReason::HostNetwork,
        SkipReason::SidecarExists,
        SkipReason::NoServiceAccountToken,
        SkipReason::InvalidWorkloadAnnotation,
    ];
    assert!(
        refused
            .into_iter()
            .all(|reason| report(reason).is_refused())
    );
    assert!(!report(SkipReason::DisabledByAnnotation).is_refused());
}
