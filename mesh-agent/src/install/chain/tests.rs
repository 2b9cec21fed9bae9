//! Configurations as real plugins write them, and arbitrary ones.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// As Flannel writes it, plus a number that no float represents and an unknown field.
const FLANNEL: &str = r#"{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "flannel",
      "delegate": { "hairpinMode": true, "big": 18446744073709551617, "isDefaultGateway": true }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    }
  ],
  "owner": 1.0
}
"#;

fn entry() -> Value {
    json!({"type": "mesh-cni", "socket": "/run/mesh/agent.sock"})
}

fn with(text: &str) -> String {
    with_entry(text, &entry()).unwrap().unwrap()
}

#[test]
fn entry_is_appended_and_nothing_else_changes() {
    let meshed = with(FLANNEL);
    let last = "        \"portMappings\": true\n      }\n    }";
    let expected = FLANNEL.replace(last, &format!("{last},\n    {}", entry()));
    assert_eq!(meshed, expected);
    let chain = Chain::read(&meshed).unwrap();
    assert_eq!(chain.kinds(), ["flannel", "portmap", "mesh-cni"]);
    assert_eq!((chain.network.as_str(), chain.is_meshed()), ("cbr0", true));
    assert_eq!(with_entry(&meshed, &entry()).unwrap(), None, "idempotent");
    assert_eq!(without_entry(&meshed).unwrap().unwrap(), FLANNEL);
    assert_eq!(without_entry(FLANNEL).unwrap(), None);
}

#[test]
fn outdated_entry_is_replaced_in_place() {
    let old = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge"},{"type":"mesh-cni","socket":"/old"},{"type":"later"}]}"#;
    let new = with(old);
    let old_entry = r#"{"type":"mesh-cni","socket":"/old"}"#;
    assert_eq!(new, old.replace(old_entry, &entry().to_string()));
    assert_eq!(with_entry(&new, &entry()).unwrap(), None);
}

#[test]
fn misplaced_entries_are_moved_to_the_end() {
    let check = |plugins: &str| {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","plugins":[{plugins}]}}"#);
        let chain = Chain::read(&with(&text)).unwrap();
        assert_eq!(chain.kinds(), ["bridge", "mesh-cni"]);
        let without = without_entry(&text).unwrap().unwrap();
        assert_eq!(Chain::read(&without).unwrap().kinds(), ["bridge"]);
    };
    check(r#"{"type":"mesh-cni"} , {"type":"bridge"}"#);
    check(r#"{"type":"mesh-cni"},{"type":"mesh-cni"},{"type":"bridge"}"#);
    check(r#"{"type":"bridge"},{"type":"mesh-cni"},{"type":"mesh-cni"}"#);
}

#[test]
fn unusable_configurations_are_refused() {
    let no_json = "not a JSON CNI configuration";
    let no_name = "the configuration has no name";
    let no_plugin = "the configuration lists no plugin";
    let version = "cniVersion \"0.2.0\" is not supported by mesh-cni (0.3.0, 0.3.1,";
    for (expected, text) in [
        (no_json, ""),
        (no_json, r#"{"name":"n","plugins":[{"type":"bri"#),
        (
            no_name,
            r#"{"cniVersion":"1.0.0","plugins":[{"type":"bridge"}]}"#,
        ),
        (no_plugin, r#"{"cniVersion":"1.0.0","name":"n"}"#),
        (
            no_plugin,
            r#"{"cniVersion":"1.0.0","name":"n","plugins":[]}"#,
        ),
        (
            no_plugin,
            r#"{"cniVersion":"1.0.0","name":"n","plugins":[{}]}"#,
        ),
        (
            no_plugin,
            r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"loopback"},{"type":"mesh-cni"}]}"#,
        ),
        (
            "cniVersion \"\" is not supported",
            r#"{"name":"n","plugins":[{"type":"bridge"}]}"#,
        ),
        (
            version,
            r#"{"cniVersion":"0.2.0","name":"n","plugins":[{"type":"bridge"}]}"#,
        ),
        (
            "cniVersion \"9.0.0\"",
            r#"{"cniVersions":["1.0.0","9.0.0"],"name":"n","plugins":[{"type":"bridge"}]}"#,
        ),
    ] {
        let error = with_entry(text, &entry()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

#[test]
fn entry_is_removed_from_unusable_list() {
    let text = r#"{"cniVersion":"9.0.0","name":"","plugins":[{"type":"mesh-cni"}]}"#;
    let without = without_entry(text).unwrap().unwrap();
    assert_eq!(without, r#"{"cniVersion":"9.0.0","name":"","plugins":[]}"#);
}

#[test]
fn single_plugin_becomes_list_of_one() {
    let single = "\n{\"cniVersion\": \"0.4.0\", \"name\": \"k\\u0038s\", \"type\": \"bridge\", \"mtu\": 1e3}\n";
    let list = as_list(single).unwrap();
    let chain = Chain::read(&list).unwrap();
    assert_eq!(chain.network, "k8s");
    assert_eq!(chain.kinds(), ["bridge"]);
    assert!(list.contains(single.trim()), "{list}");
    let nameless = as_list(r#"{"cniVersion":"0.4.0","type":"bridge"}"#);
    assert!(matches!(nameless, Err(ChainError::NoName)));
    let versionless = as_list(r#"{"name":"n","type":"bridge"}"#);
    assert!(matches!(versionless, Err(ChainError::Version(_))));
}

fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<f64>()
            .prop_filter("JSON has no infinity", |number| number.is_finite())
            .prop_map(|number| format!("{number:e}")),
        any::<u128>().prop_map(|number| number.to_string()),
        any::<String>().prop_map(|text| Value::from(text).to_string()),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4)
                .prop_map(|items| format!("[ {} ]", items.join(" ,\t"))),
            prop::collection::vec(inner, 0..4).prop_map(|items| {
                let items = items.iter().enumerate();
                let fields: Vec<String> =
                    items.map(|(i, item)| format!("\"k{i}\" :{item}")).collect();
                format!("{{{}\r\n}}", fields.join(","))
            }),
        ]
    })
}

fn space() -> impl Strategy<Value = String> {
    "[ \t\r\n]{0,3}"
}

fn list() -> impl Strategy<Value = String> {
    let plugin = (json(), space(), "[a-z]{1,8}")
        .prop_map(|(more, s, kind)| format!("{{{s}\"more\":{more},{s}\"type\"{s}:\"x-{kind}\"}}"));
    let plugins = prop::collection::vec((space(), plugin, space()), 1..4).prop_map(|plugins| {
        let plugins: Vec<String> = plugins
            .into_iter()
            .map(|(before, plugin, after)| format!("{before}{plugin}{after}"))
            .collect();
        plugins.join(",")
    });
    (space(), plugins, json(), any::<bool>()).prop_map(|(s, plugins, other, first)| {
        let fields = format!("\"name\":{s}\"n\",{s}\"cniVersion\":\"1.0.0\",\"other\":{other}");
        if first {
            format!("{s}{{{fields},\"plugins\"{s}:[{plugins}]{s}}}{s}")
        } else {
            format!("{s}{{\"plugins\":{s}[{plugins}]{s},{fields}}}")
        }
    })
}

proptest! {
    #[test]
    fn adding_and_removing_the_entry_restores_the_bytes(text in list()) {
        let before = Chain::read(&text).unwrap();
        let meshed = with(&text);
        let after = Chain::read(&meshed).unwrap();
        let mut kinds = before.kinds();
        kinds.push(PLUGIN.to_owned());
        prop_assert_eq!(after.kinds(), kinds);
        prop_assert_eq!(&after.plugins.last().unwrap().entry, &entry());
        prop_assert_eq!(with_entry(&meshed, &entry()).unwrap(), None);
        prop_assert_eq!(without_entry(&meshed).unwrap().unwrap(), text);
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in any::<String>(), json in json()) {
        for text in [text, json] {
            let _ = with_entry(&text, &entry());
            let _ = without_entry(&text);
            let _ = as_list(&text);
        }
    }
}
