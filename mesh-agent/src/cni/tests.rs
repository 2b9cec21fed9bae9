//! The commands that end before any agent or state is touched: pass-through, refusals, garbage.

use serde_json::{Value, json};

use super::*;

/// Runs a command that touches no agent and no state, and returns whether it succeeded and what it
/// said.
fn execute(variables: &[(&str, &str)], input: &[u8]) -> (bool, Value) {
    let variable = |name: &str| {
        let found = variables.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let mut output = Vec::new();
    let is_success = run(&variable, &mut &input[..], &mut output).unwrap();
    let said = match output.is_empty() {
        true => Value::Null,
        false => serde_json::from_slice(&output).unwrap(),
    };
    (is_success, said)
}

fn config(changes: &Value) -> Vec<u8> {
    let mut config = json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "type": "mesh-cni",
        "socket": "/nonexistent/agent.sock",
        "stateDir": "/nonexistent/state",
        "pinDir": "/nonexistent/pins",
        "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]},
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config.to_string().into_bytes()
}

fn variables<'a>(command: &'a str, arguments: &'a str) -> [(&'a str, &'a str); 5] {
    [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", "/nonexistent/netns"),
        ("CNI_ARGS", arguments),
    ]
}

fn meshed() -> Value {
    json!({"runtimeConfig": {
        "io.kubernetes.cri.pod-annotations": {"linkerd.io/proxy-version": "x"},
    }})
}

const POD: &str = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0";

#[test]
fn a_pod_without_a_proxy_passes_with_the_result_as_it_came() {
    let result = json!({"ips": [], "dns": {"nameservers": ["10.0.0.10"]}, "x": [1, null]});
    let (is_success, said) = execute(
        &variables("ADD", POD),
        &config(&json!({"prevResult": result})),
    );
    assert!(is_success);
    let mut expected = result;
    expected["cniVersion"] = "1.0.0".into();
    assert_eq!(said, expected);
    for command in ["DEL", "CHECK"] {
        assert_eq!(
            execute(&variables(command, POD), &config(&json!({}))),
            (true, Value::Null),
            "{command}"
        );
    }
}

#[test]
fn every_refusal_has_code_message_and_version() {
    let check = |variables: &[(&str, &str)], input: &[u8], code: u32, message: &str| {
        let (is_success, said) = execute(variables, input);
        assert!(!is_success);
        assert_eq!(
            (&said["code"], &said["msg"]),
            (&json!(code), &json!(message))
        );
        assert!(
            said["cniVersion"].is_string() && said["details"].is_string(),
            "{said}"
        );
    };
    check(
        &[],
        &config(&json!({})),
        4,
        "mesh-cni: CNI_COMMAND is missing",
    );
    check(
        &variables("UPDATE", POD),
        &config(&json!({})),
        4,
        "mesh-cni: CNI_COMMAND \"UPDATE\" is unknown",
    );
    check(
        &variables("ADD", POD),
        &config(&json!({"cniVersion": "0.2.0"})),
        1,
        "mesh-cni: CNI version \"0.2.0\" is not supported",
    );
    check(
        &variables("GC", POD),
        &config(&json!({})),
        1,
        "mesh-cni: CNI version 1.0.0 has no command GC",
    );
    check(
        &variables("GC", POD),
        &config(&json!({"cniVersion": "1.1.0"})),
        7,
        "mesh-cni: there is no cni.dev/valid-attachments",
    );
    check(
        &variables("ADD", POD),
        &config(&json!({"prevResult": null})),
        7,
        "mesh-cni: there is no prevResult",
    );
    check(
        &variables("ADD", POD),
        &config(&json!({"timeoutSeconds": 0})),
        7,
        "mesh-cni: timeoutSeconds is 0",
    );
    check(
        &variables("ADD", "IgnoreUnknown=1"),
        &config(&meshed()),
        4,
        "mesh-cni: CNI_ARGS has no K8S_POD_NAMESPACE and K8S_POD_NAME",
    );
    check(
        &variables("ADD", POD),
        &config(&meshed()),
        11,
        "mesh-cni: the pod asks for the mesh and cannot be redirected to its proxy",
    );
}

#[test]
fn what_is_no_configuration_is_refused_without_a_panic() {
    let garbage: [&[u8]; 8] = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"{\"cniVersion\":7}",
        b"{\"cniVersion\":\"1.0.0\"}",
        b"{\"cniVersion\":\"1.0.0\",\"name\":\"n\",\"runtimeConfig\":[]}",
    ];
    for input in garbage {
        let (is_success, said) = execute(&variables("ADD", POD), input);
        assert!(!is_success && said["code"].is_u64(), "{input:?}: {said}");
    }
    let mut odd = meshed();
    odd["prevResult"] = json!({"ips": [{"address": 7}]});
    let (_, said) = execute(&variables("ADD", POD), &config(&odd));
    assert_eq!(said["code"], 6, "{said}");
}

#[test]
fn annotations_of_any_shape_are_read() {
    let annotations = |value: Value| {
        let config = config(&json!({
            "runtimeConfig": {"io.kubernetes.cri.pod-annotations": value},
        }));
        Config::parse(&config).unwrap().annotations()
    };
    assert!(annotations(Value::Null).is_empty());
    assert!(annotations(json!([1])).is_empty());
    assert_eq!(annotations(json!({"a": "b", "c": 7})).len(), 1);
}
