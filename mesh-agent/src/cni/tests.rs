//! Commands that use no agent and no state: pass-through, refusals, invalid input.

use serde_json::{Value, json};

use super::*;

/// Runs a command that uses no agent and no state, and returns whether it succeeded and its output.
fn execute(variables: &[(&str, &str)], input: &[u8]) -> (bool, Value) {
    let variable = |name: &str| {
        let found = variables.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let mut bytes = Vec::new();
    let is_success = run(&variable, &mut &input[..], &mut bytes).unwrap();
    let output = if bytes.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&bytes).unwrap()
    };
    (is_success, output)
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
fn pod_without_proxy_passes_with_unchanged_result() {
    let result = json!({"ips": [], "dns": {"nameservers": ["10.0.0.10"]}, "x": [1, null]});
    let input = config(&json!({"prevResult": result}));
    let (is_success, output) = execute(&variables("ADD", POD), &input);
    assert!(is_success);
    let mut expected = result;
    expected["cniVersion"] = "1.0.0".into();
    assert_eq!(output, expected);
    for command in ["DEL", "CHECK"] {
        let ended = execute(&variables(command, POD), &config(&json!({})));
        assert_eq!(ended, (true, Value::Null), "{command}");
    }
}

#[test]
fn refusals_have_code_message_and_version() {
    let check = |variables: &[(&str, &str)], changes: Value, code: u32, message: &str| {
        let (is_success, output) = execute(variables, &config(&changes));
        assert!(!is_success);
        assert_eq!(output["code"], code);
        assert_eq!(output["msg"], format!("mesh-cni: {message}"));
        let is_complete = output["cniVersion"].is_string() && output["details"].is_string();
        assert!(is_complete, "{output}");
    };
    let add = variables("ADD", POD);
    let gc = variables("GC", POD);
    check(&[], json!({}), 4, "CNI_COMMAND is missing");
    let unknown = variables("UPDATE", POD);
    check(&unknown, json!({}), 4, "CNI_COMMAND \"UPDATE\" is unknown");
    let old = json!({"cniVersion": "0.2.0"});
    check(&add, old, 1, "CNI version \"0.2.0\" is not supported");
    check(&gc, json!({}), 1, "CNI version 1.0.0 has no command GC");
    let new = json!({"cniVersion": "1.1.0"});
    check(&gc, new, 7, "cni.dev/valid-attachments is missing");
    check(
        &add,
        json!({"prevResult": null}),
        7,
        "prevResult is missing",
    );
    check(&add, json!({"timeoutSeconds": 0}), 7, "timeoutSeconds is 0");
    let nameless = variables("ADD", "IgnoreUnknown=1");
    let no_name = "CNI_ARGS has no K8S_POD_NAMESPACE and K8S_POD_NAME";
    check(&nameless, meshed(), 4, no_name);
    let not_redirected = "the pod is meshed and cannot be redirected to its proxy";
    check(&add, meshed(), 11, not_redirected);
}

#[test]
fn invalid_configuration_is_refused_without_panic() {
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
        let (is_success, output) = execute(&variables("ADD", POD), input);
        let is_refused = !is_success && output["code"].is_u64();
        assert!(is_refused, "{input:?}: {output}");
    }
    let mut odd = meshed();
    odd["prevResult"] = json!({"ips": [{"address": 7}]});
    let (_, output) = execute(&variables("ADD", POD), &config(&odd));
    assert_eq!(output["code"], 6, "{output}");
}

#[test]
fn annotations_of_any_json_type_are_read() {
    let annotations = |value: Value| {
        let runtime_config = json!({"io.kubernetes.cri.pod-annotations": value});
        let config = config(&json!({"runtimeConfig": runtime_config}));
        Config::parse(&config).unwrap().annotations()
    };
    assert!(annotations(Value::Null).is_empty());
    assert!(annotations(json!([1])).is_empty());
    assert_eq!(annotations(json!({"a": "b", "c": 7})).len(), 1);
}
