//! Reports of complete and of unreadable clusters.

use serde_json::{Value, json};

use super::*;

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn config(values: &str) -> ConfigMap {
    object(json!({
        "metadata": {
            "name": CONFIG, "uid": "0b7c", "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "data": { "values": values },
    }))
}

fn namespace(extension: &str) -> ObjectMeta {
    object(json!({ "name": extension, "labels": { EXTENSION: extension } }))
}

fn complete() -> Observations {
    Observations {
        architecture: Ok("amd64".to_owned()),
        config: Ok(config("linkerdVersion: 1.2.3\n")),
        kubernetes_version: Ok("v1.34.1+k3s1".to_owned()),
        extensions: Ok(["viz", "jaeger", "viz"].map(namespace).into()),
        service_profiles: Ok(Some(7)),
    }
}

fn unreadable() -> Observations {
    let reason = || "forbidden".to_owned();
    Observations {
        architecture: Err(reason()),
        config: Err(reason()),
        kubernetes_version: Err(reason()),
        extensions: Err(reason()),
        service_profiles: Err(reason()),
    }
}

fn value(report: &Report, name: &str) -> Result<String, Absence> {
    let mut parameters = report.parameters().iter();
    let found = parameters.find(|parameter| parameter.name == name);
    found.unwrap_or_else(|| panic!("no {name}")).value.clone()
}

#[test]
fn report_is_sorted_and_encoded_query() {
    let figure = parameter("total-rps", Ok("12".to_owned()), "");
    let absent = Absence::LeftOut("none".to_owned());
    let report = Report::new(
        &complete(),
        vec![figure, parameter("meshed-pods", Err(absent), "")],
    );
    assert_eq!(
        report.query(),
        "arch=amd64&ext-jaeger=1&ext-viz=1&install-time=1767225600&k8s-version=v1.34.1%2Bk3s1\
         &service-profile-count=7&source=heartbeat&total-rps=12&uuid=0b7c&version=1.2.3"
    );
    let receiver: Receiver = "https://a.example/mesh".parse().unwrap();
    let query = report.query();
    assert_eq!(receiver.target(&report), format!("/mesh?{query}"));
    let url = format!("https://a.example/mesh?{query}");
    assert_eq!(receiver.with_report(&report), url);
}

#[test]
fn what_cannot_be_read_is_not_sent() {
    let report = Report::new(&unreadable(), Vec::new());
    assert_eq!(report.query(), "source=heartbeat");
    let unread = Absence::Unread("forbidden".to_owned());
    for name in ["arch", "version", "uuid", "k8s-version", "ext-NAME"] {
        assert_eq!(value(&report, name), Err(unread.clone()), "{name}");
    }
}

#[test]
fn installation_without_values_or_count_lacks_parameters() {
    let report = |values: &str| {
        let observations = Observations {
            config: Ok(config(values)),
            service_profiles: Ok(None),
            ..complete()
        };
        Report::new(&observations, Vec::new())
    };
    for values in ["[", "linkerdVersion: ''", "proxy: 5"] {
        let report = report(values);
        for name in ["version", "service-profile-count"] {
            let value = value(&report, name);
            assert!(matches!(value, Err(Absence::LeftOut(_))), "{value:?}");
        }
        assert_eq!(value(&report, "uuid").as_deref(), Ok("0b7c"));
    }
    // The default of the value.
    let default = value(&report("{}"), "version");
    assert_eq!(default.as_deref(), Ok(env!("CARGO_PKG_VERSION")));
}

#[test]
fn values_and_extensions_are_bounded() {
    let version = |length: usize| {
        let observations = Observations {
            kubernetes_version: Ok("v".repeat(length)),
            ..complete()
        };
        value(&Report::new(&observations, Vec::new()), "k8s-version")
    };
    assert!(version(MAX_VALUE).is_ok());
    let error = version(MAX_VALUE + 1).unwrap_err().to_string();
    assert_eq!(error, "the value is longer than 128 bytes");

    let extensions = |count: u32| {
        let names = (0..count).map(|number| namespace(&format!("e{number}")));
        let observations = Observations {
            extensions: Ok(names.collect()),
            ..complete()
        };
        let report = Report::new(&observations, Vec::new());
        report.query().matches("ext-").count()
    };
    assert_eq!(extensions(3), 3);
    assert_eq!(extensions(MAX_EXTENSIONS + 1), MAX_EXTENSIONS as usize);
    assert_eq!(extension_namespaces().limit, Some(MAX_EXTENSIONS));
}

#[test]
fn objects_are_counted_from_first_page() {
    let list = |token: Option<&str>, remaining: Option<i64>| ListMeta {
        continue_: token.map(str::to_owned),
        remaining_item_count: remaining,
        ..ListMeta::default()
    };
    for (items, metadata, expect) in [
        (0, list(None, None), Some(0)),
        (1, list(Some(""), None), Some(1)),
        (1, list(Some("t"), Some(41)), Some(42)),
        (1, list(Some("t"), None), None),
        (1, list(Some("t"), Some(-1)), None),
        (1, list(Some("t"), Some(i64::MAX)), Some(1 << 63)),
    ] {
        assert_eq!(total(items, &metadata), expect, "{metadata:?}");
    }
}
