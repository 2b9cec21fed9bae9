//! Valid reviews, invalid ones, and the limits of both.

use mesh_core::annotation;
use mesh_k8s::inject::{Values, patch_service};
use mesh_k8s::kinds::{ObjectMeta, Pod, Service};
use serde_json::json;

use super::super::memory::MemoryPool;
use super::*;

fn parse_alone(body: &[u8]) -> Result<(AdmissionRequest, ReviewHeader), ReviewError> {
    parse(Bytes::copy_from_slice(body), ReviewMemory::alone())
}

fn body(api_version: &str) -> Vec<u8> {
    let review = json!({
        "apiVersion": api_version,
        "kind": "AdmissionReview",
        "request": {
            "uid": "u1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "namespace": "shop",
            "operation": "CREATE",
            "userInfo": {"username": "me"},
            "object": {"metadata": {"name": "web"}},
            "oldObject": null,
            "dryRun": true,
        },
    });
    serde_json::to_vec(&review).unwrap()
}

#[test]
fn response_has_version_of_request() {
    for version in ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"] {
        let (review, header) = parse_alone(&body(version)).unwrap();
        assert_eq!(
            (review.kind.kind.as_str(), review.dry_run),
            ("Pod", Some(true))
        );
        let object: Value = review.object().unwrap();
        assert_eq!(object["metadata"]["name"], "web");
        let error = review.object::<Vec<Value>>().unwrap_err();
        assert!(error.starts_with("cannot read the Pod: "), "{error}");
        let mut namespace = ObjectMeta::default();
        let ports = (annotation::OPAQUE_PORTS.to_owned(), "5432".to_owned());
        namespace.annotations = Some([ports].into());
        let patch = patch_service(&Values::default(), &namespace, &Service::default());
        let encoded = STANDARD.encode(patch.as_str());
        let decision = AdmissionDecision {
            patch,
            warnings: vec!["w".into(), "x".repeat(MAX_WARNINGS)],
            denied: None,
        };
        let answer: Value =
            serde_json::from_slice(&encode_response(&header, &decision).unwrap()).unwrap();
        let expect = json!({
            "apiVersion": version,
            "kind": "AdmissionReview",
            "response": {
                "uid": "u1",
                "allowed": true,
                "patchType": "JSONPatch",
                "patch": encoded,
                "warnings": ["w"],
            },
        });
        assert_eq!(answer, expect);
    }
}

fn review_of(kind: &str, object: &str) -> AdmissionRequest {
    let body = format!(
        r#"{{"apiVersion": "{}", "kind": "{KIND}", "request":
            {{"uid": "u", "kind": {{"kind": "{kind}"}}, "object": {object}}}}}"#,
        VERSIONS[0]
    );
    parse_alone(body.as_bytes()).unwrap().0
}

/// Three bytes would become a kilobyte, and seven a node of a map.
#[test]
fn object_that_is_large_only_when_it_is_parsed_is_refused() {
    let refused = |result: Result<(), String>, kind: &str| {
        let problem = result.unwrap_err();
        let expect = "it takes more than 32 MiB of memory, the most for one review";
        assert_eq!(
            problem,
            format!("cannot read the {kind}: {expect}; split the object")
        );
    };
    let list = |element: &str| vec![element; 170_000].join(",");
    for field in ["containers", "initContainers", "volumes"] {
        let object = format!(r#"{{"spec": {{"{field}": [{}]}}}}"#, list("{}"));
        refused(review_of("Pod", &object).object::<Pod>().map(drop), "Pod");
    }
    let object = format!(r#"{{"spec": [{}]}}"#, list(r#"{"":0}"#));
    refused(
        review_of("Server", &object).object::<Value>().map(drop),
        "Server",
    );
    let object = format!(r#"{{"spec": [{}]}}"#, list("[[[[0]]]]"));
    refused(
        review_of("Server", &object).object::<Value>().map(drop),
        "Server",
    );
}

#[test]
fn largest_objects_of_kubernetes_are_parsed() {
    let list = |count: usize, element: &str| vec![element; count].join(",");
    let variable = r#"{"name": "VARIABLE_OF_A_PROGRAM", "value": "a value of a usual length"}"#;
    // As large as etcd stores: 200 containers with 100 variables each.
    let container = format!(
        r#"{{"name": "c", "image": "i", "env": [{}]}}"#,
        list(100, variable)
    );
    let pod = format!(
        r#"{{"spec": {{"containers": [{}]}}}}"#,
        list(200, &container)
    );
    assert!((1_300_000..1_600_000).contains(&pod.len()), "{}", pod.len());
    let parsed: Pod = review_of("Pod", &pod).object().unwrap();
    assert_eq!(parsed.spec.unwrap().containers.len(), 200);
    // The limits of the definition: 16 rules with 64 matches of 8 fields, 8,192 items in all.
    let header = r#"{"type": "Exact", "name": "x-field-of-a-route", "value": "a value"}"#;
    let matched = format!(
        r#"{{"path": {{"type": "PathPrefix", "value": "/a/path"}}, "headers": [{}]}}"#,
        list(8, header)
    );
    let rule = format!(r#"{{"matches": [{}]}}"#, list(64, &matched));
    let route = format!(r#"{{"spec": {{"rules": [{}]}}}}"#, list(16, &rule));
    let parsed: Value = review_of("HTTPRoute", &route).object().unwrap();
    assert_eq!(parsed["spec"]["rules"].as_array().unwrap().len(), 16);
}

/// As a controller creates it, with the record of its fields.
fn ordinary_pod() -> String {
    let variable = |name: &str| json!({"name": name, "value": "a value of a usual length"});
    let variables = ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J"].map(variable);
    let probe = json!({"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 5});
    let container = |name: &str| {
        json!({
            "name": name, "image": "registry.example.com/shop/web:1.2.3",
            "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
            "env": variables,
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
            "volumeMounts": [
                {"name": "data", "mountPath": "/data"},
                {"name": "token", "mountPath": "/var/run/secrets", "readOnly": true},
            ],
            "readinessProbe": probe, "livenessProbe": probe,
            "securityContext": {"capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true},
        })
    };
    let leaf = |names: &[&str]| -> Value {
        names
            .iter()
            .map(|name| (format!("f:{name}"), json!({})))
            .collect()
    };
    let of_container = leaf(&[
        "name",
        "image",
        "ports",
        "env",
        "resources",
        "volumeMounts",
        "readinessProbe",
        "livenessProbe",
        "securityContext",
        "terminationMessagePath",
        "imagePullPolicy",
    ]);
    let fields = json!({
        "f:metadata": {
            "f:generateName": {}, "f:annotations": leaf(&["a", "b", "c"]),
            "f:labels": leaf(&["app", "version", "pod-template-hash"]),
            "f:ownerReferences": {".": {}, "k:{\"uid\":\"u\"}": {}},
        },
        "f:spec": {
            "f:containers": {
                "k:{\"name\":\"web\"}": of_container, "k:{\"name\":\"log\"}": of_container,
            },
            "f:volumes": {"k:{\"name\":\"data\"}": leaf(&["name", "emptyDir"])},
            "f:dnsPolicy": {}, "f:enableServiceLinks": {}, "f:restartPolicy": {},
            "f:schedulerName": {}, "f:securityContext": {}, "f:serviceAccount": {},
        },
    });
    json!({
        "metadata": {
            "generateName": "web-6d5f-", "labels": {"app": "web", "version": "1"},
            "annotations": {"linkerd.io/inject": "enabled", "a": "b"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-6d5f", "uid": "u"},
            ],
            "managedFields": [{
                "manager": "kube-controller-manager", "operation": "Update",
                "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields,
            }],
        },
        "spec": {
            "containers": [container("web"), container("log")],
            "initContainers": [container("prepare")],
            "volumes": [
                {"name": "data", "emptyDir": {}}, {"name": "conf", "configMap": {"name": "c"}},
                {"name": "token", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt"}},
                ]}},
            ],
            "serviceAccountName": "web", "schedulerName": "default-scheduler",
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists"},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists"},
            ],
        },
    })
    .to_string()
}

#[test]
fn ordinary_pods_are_parsed_while_large_objects_take_the_pool() {
    let pool = MemoryPool::default();
    let large = [pool.review(), pool.review(), pool.review()];
    for (memory, bytes) in large.iter().zip([32 << 20, 32 << 20, 384 << 10]) {
        memory.charge(bytes).unwrap();
    }
    let pod = |object: &str| {
        let memory = pool.review();
        memory.charge(object.len().next_power_of_two()).unwrap();
        let review = AdmissionRequest {
            object: Bytes::copy_from_slice(object.as_bytes()),
            memory,
            ..review_of("Pod", "{}")
        };
        review.object::<Pod>()
    };
    let ordinary = ordinary_pod();
    assert!(
        (4_000..8_000).contains(&ordinary.len()),
        "{}",
        ordinary.len()
    );
    assert_eq!(pod(&ordinary).unwrap().spec.unwrap().containers.len(), 2);
    let containers = vec!["{}"; 100].join(",");
    let refused = pod(&format!(r#"{{"spec": {{"containers": [{containers}]}}}}"#));
    assert_eq!(
        refused.unwrap_err(),
        "cannot read the Pod: the reviews in flight take more than 64 MiB of memory; \
         try again later"
    );
    drop(large);
    let containers = format!(r#"{{"spec": {{"containers": [{containers}]}}}}"#);
    assert!(pod(&containers).is_ok());
}

#[test]
fn texts_that_a_response_repeats_are_short() {
    let parsed = |field: &str, text: &str| {
        let mut review: Value = serde_json::from_slice(&body(VERSIONS[0])).unwrap();
        *review.pointer_mut(field).unwrap() = text.into();
        parse_alone(review.to_string().as_bytes()).map(drop)
    };
    for (field, max) in [
        ("/request/uid", 64),
        ("/request/namespace", 63),
        ("/request/operation", 16),
        ("/request/kind/group", 253),
        ("/request/kind/kind", 63),
    ] {
        assert!(parsed(field, &"x".repeat(max)).is_ok(), "{field}");
        let error = parsed(field, &"x".repeat(max + 1)).unwrap_err();
        let error = mesh_runtime::log::chain(&error);
        let name = field.rsplit('/').next().unwrap();
        assert!(
            error.contains(&format!("at most {max} bytes as")) && error.contains(name),
            "{error}"
        );
    }
    let unknown = parsed("/apiVersion", "admission.k8s.io/v2").unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "expected an AdmissionReview of admission.k8s.io/v1 or admission.k8s.io/v1beta1, \
         got \"AdmissionReview\" of \"admission.k8s.io/v2\""
    );
    let long = format!("\"{}\"", "x".repeat(100_000));
    let problem = review_of("Pod", &long).object::<Pod>().unwrap_err();
    assert!(
        problem.starts_with("cannot read the Pod: invalid type: string") && problem.len() < 2000,
        "{problem}"
    );
}

#[test]
fn yaml_is_bounded() {
    let long = "x".repeat(MAX_YAML + 1);
    let problem = parse_alone(long.as_bytes()).unwrap_err().to_string();
    assert!(
        problem.ends_with("the 32 KiB that YAML may have; send JSON"),
        "{problem}"
    );
    let short = format!("a: [{}]", "{}, ".repeat(MAX_YAML / 4 - 2));
    let memory = ReviewMemory::alone();
    memory.charge(20 << 20).unwrap();
    let refused = parse(short.into(), memory).unwrap_err();
    assert!(
        matches!(refused, ReviewError::Memory(Refusal::Review)),
        "{refused}"
    );
}

#[test]
fn yaml_is_accepted_without_anchors() {
    let json: Value = serde_json::from_slice(&body("admission.k8s.io/v1")).unwrap();
    let yaml = serde_norway::to_string(&json).unwrap();
    let (review, _) = parse_alone(yaml.as_bytes()).unwrap();
    let (expected, _) = parse_alone(&body("admission.k8s.io/v1")).unwrap();
    let [object, expected_object] = [&review, &expected].map(|it| it.object::<Value>());
    assert_eq!((object, &review.kind), (expected_object, &expected.kind));
    // Nested references expand exponentially.
    let bomb = "a: &a [x, x]\nb: &b [*a, *a]\napiVersion: admission.k8s.io/v1\n";
    assert!(matches!(
        parse_alone(bomb.as_bytes()),
        Err(ReviewError::Anchors)
    ));
    let text = "metadata: {name: a & b}";
    assert!(!has_anchor(text.as_bytes()) && has_anchor(b"&a b"));
}

#[test]
fn denial_has_reason_and_no_patch() {
    let (_, header) = parse_alone(&body("admission.k8s.io/v1")).unwrap();
    let decision = AdmissionDecision {
        denied: Some("no".into()),
        ..AdmissionDecision::default()
    };
    let answer: Value =
        serde_json::from_slice(&encode_response(&header, &decision).unwrap()).unwrap();
    let expect = json!({"uid": "u1", "allowed": false, "status": {"code": 400, "message": "no"}});
    assert_eq!(answer["response"], expect);
}

#[test]
fn errors_name_reason_of_invalid_review() {
    let error = |body: &str| parse_alone(body.as_bytes()).unwrap_err().to_string();
    assert!(error("{").contains("not the JSON"));
    assert!(error("a: [").contains("neither JSON nor YAML"));
    assert!(error(r#"{"apiVersion": "v1", "kind": "Pod"}"#).contains("\"Pod\""));
    let header = r#""apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview""#;
    assert!(error(&format!("{{{header}}}")).contains("no request"));
    assert!(error(&format!("{{{header}, \"request\": {{}}}}")).contains("without uid"));
}
