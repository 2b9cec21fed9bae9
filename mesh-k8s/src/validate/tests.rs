//! Verdicts about the objects of `testdata/validate`, and the bounds of messages.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::*;

/// A file of `testdata/validate`. The end-to-end tests submit the same objects to an API server.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Corpus {
    api_version: String,
    kind: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    spec: Option<Value>,
    /// A part of the message; absent if the object is admitted.
    because: Option<String>,
}

const NAMESPACE: &str = "default";

fn corpus() -> Vec<Corpus> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/validate");
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| {
            let text = std::fs::read_to_string(file).unwrap();
            serde_norway::from_str(&text)
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        })
        .collect()
}

fn review(api_version: &str, kind: &str, object: &Value) -> Result<(), Denied> {
    let (group, _) = api_version.split_once('/').unwrap();
    let submission = Submission {
        group,
        kind,
        namespace: NAMESPACE,
        object,
    };
    match kind {
        "ServiceProfile" => profile(submission),
        _ => policy(submission),
    }
}

#[test]
fn objects_of_corpus_get_their_verdicts() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for file in corpus() {
        for case in file.cases {
            count += 1;
            let mut object = json!({
                "apiVersion": file.api_version,
                "kind": file.kind,
                "metadata": {"name": case.name, "namespace": NAMESPACE, "annotations": case.annotations},
            });
            if let Some(spec) = case.spec {
                object["spec"] = spec;
            }
            let verdict = review(&file.api_version, &file.kind, &object);
            let verdict = verdict.map_err(|denied| denied.to_string());
            let expected = match (&verdict, &case.because) {
                (Ok(()), None) => true,
                (Err(message), Some(part)) => message.contains(part),
                _ => false,
            };
            if !expected {
                let (kind, name, because) = (&file.kind, &case.name, &case.because);
                wrong.push(format!(
                    "{kind} {name}: expected {because:?}, got {verdict:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 150, "{count}");
}

#[test]
fn kind_without_rules_is_denied() {
    let object = json!({"metadata": {"name": "a"}});
    let denied = review("policy.linkerd.io/v1", "Firewall", &object).unwrap_err();
    assert!(
        denied
            .to_string()
            .starts_with("Firewall of group \"policy.linkerd.io\" is not validated"),
        "{denied}"
    );
    assert!(review("gateway.networking.k8s.io/v1", "Server", &object).is_err());
    let denied = review("policy.linkerd.io/v1", "ServiceProfile", &object).unwrap_err();
    assert!(matches!(denied, Denied::UnknownKind { .. }), "{denied}");
}

#[test]
fn group_and_kind_are_compared_without_case() {
    let object = json!({"spec": {"podSelector": {}, "port": 1}});
    assert_eq!(review("Policy.Linkerd.io/v9", "SERVER", &object), Ok(()));
}

#[test]
fn all_errors_are_reported_with_object_path_value_and_fix() {
    let object = json!({
        "metadata": {"name": "web"},
        "spec": {"podSelector": {}, "port": 0, "accessPolicy": "open"},
    });
    let denied = review("policy.linkerd.io/v1beta3", "Server", &object).unwrap_err();
    let Denied::Invalid(invalid) = &denied else {
        panic!("{denied}");
    };
    assert_eq!(invalid.object, "Server default/web");
    let fields: Vec<&str> = invalid.errors.iter().map(|e| e.field.as_str()).collect();
    assert_eq!(fields, ["spec.port", "spec.accessPolicy"]);
    assert_eq!(invalid.errors[1].value.as_deref(), Some("\"open\""));
    let text = denied.to_string();
    assert!(
        text.starts_with("Server default/web is invalid: 2 errors\n* spec.port: 0 "),
        "{text}"
    );
    assert!(text.contains("write all-unauthenticated"), "{text}");
}

#[test]
fn name_and_namespace_may_be_absent() {
    let message = |metadata: Value, namespace: &str| {
        let object = json!({"metadata": metadata});
        let submission = Submission {
            group: "policy.linkerd.io",
            kind: "Server",
            namespace,
            object: &object,
        };
        policy(submission).unwrap_err().to_string()
    };
    assert!(message(json!({"generateName": "web-"}), "shop").starts_with("Server shop/web- is"));
    assert!(message(Value::Null, "").starts_with("Server without name is invalid: spec"));
}

#[test]
fn errors_and_values_are_bounded() {
    let long = "x".repeat(100_000);
    let identities: Vec<Value> = (0..1000).map(|n| json!(format!("{n} {long}"))).collect();
    let object = json!({"metadata": {"name": long}, "spec": {"identities": identities}});
    let denied = review(
        "policy.linkerd.io/v1alpha1",
        "MeshTLSAuthentication",
        &object,
    );
    let text = denied.unwrap_err().to_string();
    assert!(text.ends_with("* and 980 more"), "{text}");
    assert!(text.len() < 16_384, "{}", text.len());
}

#[test]
fn errors_of_profiles_are_bounded() {
    let routes = vec![json!({"name": "", "condition": {"method": "GET"}}); 50];
    let object = json!({"metadata": {"name": "web.shop"}, "spec": {"routes": routes}});
    let text = review("linkerd.io/v1alpha2", "ServiceProfile", &object)
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with("ServiceProfile default/web.shop is invalid: 20 errors"),
        "{text}"
    );
}

#[test]
fn object_with_too_many_items_is_denied() {
    let networks = |count| {
        let list = vec![json!({"cidr": "10.0.0.0/8"}); count];
        let object = json!({"spec": {"networks": list}});
        review(
            "policy.linkerd.io/v1alpha1",
            "NetworkAuthentication",
            &object,
        )
    };
    assert_eq!(networks(8192), Ok(()));
    let text = networks(8193).unwrap_err().to_string();
    assert!(text.contains("8192 items"), "{text}");
}

#[test]
fn values_that_are_not_objects_are_denied() {
    for object in [
        Value::Null,
        json!(1),
        json!([]),
        json!("spec"),
        json!({"spec": []}),
    ] {
        for (group, kind, mode, _) in POLICY_KINDS {
            let version = format!("{group}/v1");
            let verdict = review(&version, kind, &object);
            let lenient = matches!(mode, Mode::Lenient);
            assert_eq!(verdict.is_ok(), lenient, "{kind} {object}");
        }
    }
}
